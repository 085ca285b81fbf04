//! The MPI operations, one function each, independent of where the bytes live.
//!
//! To add one: declare its MPI function in `mpi/functions.rs`, write it in one of the files
//! below, and name it in [`handlers`].

mod call;
mod collective;
mod counts;
mod derived;
mod point_to_point;
mod reduction;
mod vector;

pub use call::{Call, free_communicator, set_raise_on_error};
pub use counts::set_count_limit;

use crate::memory::Host;
use crate::mpi::Abi;
use crate::xla::{self, Handler};

/// Makes an XLA handler of each operation: a C function that decodes the frame and calls it.
macro_rules! handlers {
    ($($file:ident :: $name:ident),* $(,)?) => {
        /// The handlers for host memory, by the name of their operation.
        pub fn host_handlers<A: Abi>() -> Vec<(&'static str, Handler)> {
            $(
                unsafe extern "C" fn $name<A: Abi>(
                    frame: *mut xla::raw::XLA_FFI_CallFrame,
                ) -> *mut xla::raw::XLA_FFI_Error {
                    // SAFETY: XLA calls the handler with a frame that it lends.
                    unsafe {
                        xla::enter(frame, |frame| {
                            $file::$name(&Call::<A, Host>::new(frame, Host)?)
                        })
                    }
                }
            )*
            vec![$((stringify!($name), $name::<A> as Handler)),*]
        }
    };
}

handlers! {
    collective::allgather,
    collective::alltoall,
    collective::barrier,
    collective::bcast,
    collective::gather,
    collective::scatter,
    point_to_point::recv,
    point_to_point::send,
    point_to_point::sendrecv,
    reduction::allreduce,
    reduction::exscan,
    reduction::reduce,
    reduction::reduce_scatter,
    reduction::scan,
    vector::allgatherv,
    vector::alltoallv,
    vector::gatherv,
    vector::scatterv,
}
