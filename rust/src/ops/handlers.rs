//! The handlers that XLA calls, of all operations.

use std::ops::Deref;
use std::sync::LazyLock;

use super::call::Call;
use super::check::check_is_enabled;
use super::collectives::{agreement, blocks, reduction, row_counts, rows};
use super::flights::start_and_wait;
use super::local;
use super::messages::{exchange, neighborhood, point_to_point};
use crate::error::{Error, Result};
use crate::memory::{Direct, Driver, Host, InBlocks, Memory, Staged, gpu_aware, shared_gpu};
use crate::mpi::{Abi, check_available};
use crate::recorder::{self, Operation};
use crate::xla::{self, Buffer, ComputedNumbers, Frame, Handler, ResultBuffer};

/// Makes XLA handlers of each operation, for host and for device memory: C functions that decode
/// the frame and call it. The function of a collective operation serves its nonblocking form, too.
///
/// An operation is declared by its name, and that of its nonblocking form if it has one, the file of
/// its function, which processes take part in it, and the fields of [`Operation`] that are not as usual.
/// Those of the second list only copy their arrays, so that MPI need not take device memory.
///
/// Each has a second handler, called `send_computed` and the like, for calls with numbers that the
/// program has computed ([`ComputedNumbers`]). It calls the first one.
macro_rules! handlers {
    (
        operations {
            $($name:ident $(/ $nonblocking:ident)? = $file:ident: $scope:ident
                $(, $field:ident = $value:expr)*;)*
        }
        flights {
            $($flight:ident = $flight_file:ident: $flight_scope:ident
                $(, $flight_field:ident = $flight_value:expr)*;)*
        }
    ) => {
        /// The operations, as their records refer to them.
        #[expect(non_upper_case_globals, reason = "each is called as its operation")]
        mod recorded {
            use super::NONBLOCKING;
            use crate::recorder::{Operation, Scope, Shown, Side};

            $(
                pub static $name: Operation = operation!($name: $scope $(, $field = $value)*);
                $(pub static $nonblocking: Operation =
                    $name.nonblocking_form(stringify!($nonblocking));)?
            )*
            $(
                pub static $flight: Operation =
                    operation!($flight: $flight_scope $(, $flight_field = $flight_value)*);
            )*

            pub static ALL: &[&Operation] = &[
                $(&$name, $(&$nonblocking,)?)*
                $(&$flight,)*
            ];
        }

        /// The handlers for host memory, by the name of their operation.
        pub fn host_handlers<A: Abi>() -> Vec<(&'static str, Handler)> {
            let handlers = [
                $(
                    handler!($name, numbers_on_host, |frame| {
                        run(&recorded::$name, frame, Host, $file::$name::<A, Host>)
                    }),
                    $(handler!($nonblocking, numbers_on_host, |frame| {
                        start(&recorded::$nonblocking, frame, Host, $file::$name::<A, _>)
                    }),)?
                )*
                $(
                    handler!($flight, numbers_on_host, |frame| {
                        $flight_file::$flight::<A, Host>(begin(&recorded::$flight, frame, Host)?)
                    }),
                )*
            ];
            handlers.into_iter().flatten().chain(local::ON_HOST).collect()
        }

        /// The handlers for device memory, by the name of their operation.
        pub fn device_handlers<A: Abi>() -> Vec<(&'static str, Handler)> {
            let handlers = [
                $(
                    handler!($name, numbers_on_device, |frame| {
                        let (direct, staged) = ($file::$name::<A, Direct>, $file::$name::<A, Staged>);
                        run_on_device(&recorded::$name, frame, direct, staged)
                    }),
                    $(handler!($nonblocking, numbers_on_device, |frame| {
                        with_copies(frame, |frame, memory| {
                            start(&recorded::$nonblocking, frame, memory, $file::$name::<A, _>)
                        })
                    }),)?
                )*
                $(
                    handler!($flight, numbers_on_device, |frame| {
                        with_copies(frame, |frame, memory| {
                            $flight_file::$flight::<A, Staged>(begin(&recorded::$flight, frame, memory)?)
                        })
                    }),
                )*
            ];
            handlers.into_iter().flatten().chain(local::ON_DEVICE).collect()
        }
    };
}

/// An operation, with the fields that are not as usual.
macro_rules! operation {
    ($name:ident: $scope:ident) => {
        Operation::new(stringify!($name), Scope::$scope)
    };
    ($name:ident: $scope:ident $(, $field:ident = $value:expr)+) => {{
        let mut operation = Operation::new(stringify!($name), Scope::$scope);
        $(operation.$field = $value;)+
        operation
    }};
}

/// A handler, with its name: a C function that calls `body` with the frame that XLA lends. And one for
/// computed numbers, which calls the first one with those that the function `$numbers` gives.
macro_rules! handler {
    ($name:ident, $numbers:path, $body:expr) => {{
        unsafe extern "C" fn $name<A: Abi>(
            frame: *mut xla::raw::XLA_FFI_CallFrame,
        ) -> *mut xla::raw::XLA_FFI_Error {
            // SAFETY: XLA calls the handler with a frame that it lends.
            unsafe { xla::enter(frame, $body) }
        }
        unsafe extern "C" fn computed<A: Abi>(
            frame: *mut xla::raw::XLA_FFI_CallFrame,
        ) -> *mut xla::raw::XLA_FFI_Error {
            // SAFETY: XLA calls the handler with a frame that it lends.
            unsafe { xla::enter_computed(frame, $numbers, $name::<A>) }
        }
        [
            (stringify!($name), $name::<A> as Handler),
            (concat!(stringify!($name), "_computed"), computed::<A>),
        ]
    }};
}

/// The nonblocking operations, in the order of their names. A call that waits has the index of what it
/// waits for in its attribute `started`.
static NONBLOCKING: LazyLock<Vec<&Operation>> = LazyLock::new(|| {
    let all = recorded::ALL.iter().copied();
    let mut operations: Vec<_> = all.filter(|operation| operation.is_nonblocking).collect();
    operations.sort_unstable_by_key(|operation| operation.name);
    operations
});

/// The names of the nonblocking operations, in the order in which `started` counts them.
pub fn nonblocking_names() -> Vec<&'static str> {
    NONBLOCKING.iter().map(|operation| operation.name).collect()
}

/// Begins a call, which is compared with those of other ranks before if that is on.
#[inline(always)]
fn begin<'a, A: Abi, M: Memory>(
    operation: &'static Operation,
    frame: &'a Frame<'a>,
    memory: M,
) -> Result<Call<'a, A, M>> {
    check_available()?;
    let mut call = Call::begin(operation, frame, memory)?;
    if check_is_enabled() {
        call.check_before()?;
    }
    Ok(call)
}

#[inline(always)]
fn run<A: Abi, M: Memory>(
    operation: &'static Operation,
    frame: &Frame,
    memory: M,
    body: impl FnOnce(&Call<A, M>) -> Result<()>,
) -> Result<()> {
    body(&begin(operation, frame, memory)?)
}

/// Starts an operation: `body` is that of its blocking form.
fn start<A: Abi, M: Memory>(
    operation: &'static Operation,
    frame: &Frame,
    memory: M,
    body: fn(&Call<A, InBlocks<M>>) -> Result<()>,
) -> Result<()> {
    start_and_wait::start(begin(operation, frame, memory)?, body)
}

fn numbers_on_host(frame: &Frame) -> Result<ComputedNumbers> {
    computed_numbers(frame, &Host)
}

fn numbers_on_device(frame: &Frame) -> Result<ComputedNumbers> {
    let memory = Staged::new(driver()?, frame.stream()?, false);
    computed_numbers(&frame.without_order_byte()?, &memory)
}

/// The numbers of a call, in the memory of its arrays.
fn computed_numbers(frame: &Frame, memory: &impl Memory) -> Result<ComputedNumbers> {
    let computed = frame.computed_numbers(|array, bytes| {
        let outcome = memory.load(array, bytes);
        outcome.map_err(|failure| Error::internal(failure.to_string()))
    })?;
    if let Ok(site) = frame.attributes.integer("call_site") {
        recorder::set_computed_ranks(site, &computed.numbers);
    }
    Ok(computed)
}

/// Runs an operation that copies its arrays from and to a device.
fn with_copies(frame: &Frame, body: impl FnOnce(&Frame, Staged) -> Result<()>) -> Result<()> {
    let (driver, stream) = (driver()?, frame.stream()?);
    let memory = Staged::new(driver, stream, false);
    body(&frame.without_order_byte()?, memory)
}

fn driver() -> Result<&'static Driver> {
    Driver::get()
        .map_err(|why| Error::precondition(format!("no driver of a GPU can be used: {why}")))
}

fn run_on_device<A: Abi>(
    operation: &'static Operation,
    frame: &Frame,
    direct: fn(&Call<A, Direct>) -> Result<()>,
    staged: fn(&Call<A, Staged>) -> Result<()>,
) -> Result<()> {
    let (driver, stream) = (driver()?, frame.stream()?);
    shared_gpu::check(driver, stream);
    let frame = &frame.without_order_byte()?;
    let (operands, results) = (frame.operands.all()?, frame.results.all()?);
    let has_overlaps = has_overlaps(operation, &operands, &results);
    let arrays = operands.iter().chain(results.iter().map(Deref::deref));
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
fn has_overlaps(operation: &Operation, operands: &[Buffer], results: &[ResultBuffer]) -> bool {
    results.iter().any(|result| {
        operands.iter().any(|operand| {
            let is_one_array = operation.is_in_place && operand.addresses() == result.addresses();
            result.overlaps(operand) && !is_one_array
        })
    })
}

handlers! {
    operations {
        allgather / iallgather = blocks: All;
        alltoall / ialltoall = blocks: All;
        barrier / ibarrier = blocks: All;
        bcast / ibcast = blocks: All, is_in_place = true;
        gather / igather = blocks: All;
        scatter / iscatter = blocks: All, agreed = Side::Received, shown = Shown::Received;

        allreduce / iallreduce = reduction: All, is_in_place = true;
        exscan / iexscan = reduction: All, is_in_place = true;
        reduce / ireduce = reduction: All, is_in_place = true;
        reduce_scatter / ireduce_scatter = reduction: All;
        scan / iscan = reduction: All, is_in_place = true;

        allgatherv / iallgatherv = rows: All, agrees_on_size = false;
        allgatherv_rows = rows: All, agrees_on_size = false;
        alltoallv / ialltoallv = rows: All, agrees_on_size = false, has_counts_of_pairs = true;
        alltoallv_rows = rows: All, agrees_on_size = false;
        gatherv / igatherv = rows: All, agrees_on_size = false;
        reduce_scatterv / ireduce_scatterv = rows: All, agrees_on_size = false, has_all_rows = true;
        scatterv / iscatterv = rows: All, agrees_on_size = false, agreed = Side::Received;

        allgatherv_counts = row_counts: All;
        alltoallv_counts = row_counts: All;

        shared = agreement: All, shown = Shown::Messages;

        neighbor_allgather / ineighbor_allgather = neighborhood: Neighbors;
        neighbor_allgatherv / ineighbor_allgatherv = neighborhood: Neighbors;
        neighbor_alltoall / ineighbor_alltoall = neighborhood: Neighbors;
        neighbor_alltoallv / ineighbor_alltoallv = neighborhood: Neighbors;

        exchange = exchange: Message, shown = Shown::Messages, attribute_limit = 6;
        recv = point_to_point: Message, sends = false, is_in_place = true, shown = Shown::Received;
        send = point_to_point: Message;
        sendrecv = point_to_point: Message, is_in_place = true, shown = Shown::Both;
    }
    flights {
        hold = start_and_wait: Message, is_nonblocking = true;
        iexchange = start_and_wait: Message, shown = Shown::Messages, is_nonblocking = true;
        wait = start_and_wait: Message, shown = Shown::Messages, waits_for = Some(&NONBLOCKING);
    }
}
