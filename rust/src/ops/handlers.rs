//! The handlers that XLA calls, of all operations.

use std::ops::Range;

use super::call::Call;
use super::call::buffers::measure;
use super::check::check_is_enabled;
use super::collectives::{blocks, reduction, row_counts, rows};
use super::flights::{collectives, start_and_wait};
use super::local;
use super::messages::{exchange, neighborhood, point_to_point};
use crate::error::{Error, Result};
use crate::memory::{Direct, Driver, Host, Memory, Staged, gpu_aware};
use crate::mpi::Abi;
use crate::recorder::Operation;
use crate::xla::{self, Buffer, Frame, Handler};

/// Makes XLA handlers of each operation, for host and for device memory: C functions that decode
/// the frame and call it.
macro_rules! handlers {
    ($($file:ident :: $name:ident),* $(,)?) => {
        /// The operations, as their records refer to them.
        #[expect(non_upper_case_globals, reason = "each is called as its operation")]
        mod recorded {
            use crate::recorder::{Operation, Scope};

            $(pub static $name: Operation =
                Operation::new(stringify!($name), scope(stringify!($file)));)*

            /// The scope of the operations of a file.
            const fn scope(file: &str) -> Scope {
                match file.as_bytes() {
                    b"exchange" | b"start_and_wait" | b"point_to_point" => Scope::Message,
                    b"neighborhood" => Scope::Neighbors,
                    _ => Scope::All,
                }
            }
        }

        /// The handlers for host memory, by the name of their operation.
        pub fn host_handlers<A: Abi>() -> Vec<(&'static str, Handler)> {
            $(
                unsafe extern "C" fn $name<A: Abi>(
                    frame: *mut xla::raw::XLA_FFI_CallFrame,
                ) -> *mut xla::raw::XLA_FFI_Error {
                    // SAFETY: XLA calls the handler with a frame that it lends.
                    unsafe {
                        xla::enter(frame, |frame| {
                            run(&recorded::$name, frame, Host, $file::$name::<A, Host>)
                        })
                    }
                }
            )*
            [$((stringify!($name), $name::<A> as Handler)),*]
                .into_iter()
                .chain(local::ON_HOST)
                .collect()
        }

        /// The handlers for device memory, by the name of their operation.
        pub fn device_handlers<A: Abi>() -> Vec<(&'static str, Handler)> {
            $(
                unsafe extern "C" fn $name<A: Abi>(
                    frame: *mut xla::raw::XLA_FFI_CallFrame,
                ) -> *mut xla::raw::XLA_FFI_Error {
                    // SAFETY: XLA calls the handler with a frame that it lends.
                    unsafe {
                        xla::enter(frame, |frame| {
                            run_on_device(
                                &recorded::$name,
                                frame,
                                $file::$name::<A, Direct>,
                                $file::$name::<A, Staged>,
                            )
                        })
                    }
                }
            )*
            [$((stringify!($name), $name::<A> as Handler)),*]
                .into_iter()
                .chain(local::ON_DEVICE)
                .collect()
        }
    };
}

#[inline(always)]
fn run<A: Abi, M: Memory>(
    operation: &'static Operation,
    frame: &Frame,
    memory: M,
    body: impl FnOnce(&Call<A, M>) -> Result<()>,
) -> Result<()> {
    let mut call = Call::begin(operation, frame, memory)?;
    if check_is_enabled() {
        call.check_before()?;
    }
    body(&call)
}

fn run_on_device<A: Abi>(
    operation: &'static Operation,
    frame: &Frame,
    direct: fn(&Call<A, Direct>) -> Result<()>,
    staged: fn(&Call<A, Staged>) -> Result<()>,
) -> Result<()> {
    let driver = Driver::get()
        .map_err(|why| Error::precondition(format!("no driver of a GPU can be used: {why}")))?;
    let stream = frame.stream()?;
    let frame = &frame.without_order_byte()?;
    let (operands, results) = (frame.all_operands()?, frame.all_results()?);
    let has_overlaps = has_overlaps(operation, &operands, &results)?;
    let arrays = operands.iter().chain(&results);
    let in_context = match has_overlaps {
        true => None,
        // An empty array may have any address.
        false => gpu_aware::enter_direct(driver, stream, arrays.filter(|array| array.count > 0)),
    };
    match in_context {
        Some(in_context) => {
            let memory = Direct::new(driver, stream, in_context);
            run(operation, frame, memory, direct)
        }
        None => {
            let memory = Staged::new(driver, stream, has_overlaps);
            run(operation, frame, memory, staged)
        }
    }
}

/// Whether a result overlaps an operand where MPI forbids it (MPI-4.1 §6.2). XLA hands over slices
/// of one array, as in `x.at[1:3].set(sendrecv(x[0:2], ...))`.
fn has_overlaps(operation: &Operation, operands: &[Buffer], results: &[Buffer]) -> Result<bool> {
    for result in results {
        let written = bytes_of(result)?;
        for operand in operands {
            let read = bytes_of(operand)?;
            let is_one_array = IN_PLACE.contains(&operation.name) && read == written;
            if read.start < written.end && written.start < read.end && !is_one_array {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The operations whose operand may be where the result goes: by `MPI_IN_PLACE`, or by
/// `MPI_Sendrecv_replace`.
const IN_PLACE: [&str; 6] = ["allreduce", "bcast", "exscan", "reduce", "scan", "sendrecv"];

/// The addresses of an array's bytes.
fn bytes_of(array: &Buffer) -> Result<Range<usize>> {
    let (_, bytes) = measure(array)?;
    let start = array.address as usize;
    Ok(start..start + bytes)
}

handlers! {
    blocks::allgather,
    blocks::alltoall,
    blocks::barrier,
    blocks::bcast,
    blocks::gather,
    blocks::scatter,
    exchange::exchange,
    start_and_wait::hold,
    start_and_wait::iexchange,
    start_and_wait::wait,
    neighborhood::neighbor_allgather,
    neighborhood::neighbor_allgatherv,
    neighborhood::neighbor_alltoall,
    neighborhood::neighbor_alltoallv,
    collectives::iallgather,
    collectives::iallreduce,
    collectives::ialltoall,
    collectives::ibcast,
    point_to_point::recv,
    point_to_point::send,
    point_to_point::sendrecv,
    row_counts::allgatherv_counts,
    row_counts::alltoallv_counts,
    reduction::allreduce,
    reduction::exscan,
    reduction::reduce,
    reduction::reduce_scatter,
    reduction::scan,
    rows::allgatherv,
    rows::allgatherv_rows,
    rows::alltoallv,
    rows::alltoallv_rows,
    rows::gatherv,
    rows::reduce_scatterv,
    rows::scatterv,
}
