//! The MPI operations, one function each, independent of where the bytes live.
//!
//! To add one: declare its MPI function in `mpi/functions.rs`, write it in one of the files
//! below, and name it in `handlers.rs`.

mod call;
mod collective;
mod counts;
mod derived;
mod handlers;
mod point_to_point;
mod reduction;
mod vector;

pub use call::{free_communicator, set_raise_on_error};
pub use counts::set_count_limit;
pub use handlers::{device_handlers, host_handlers};
pub use point_to_point::MAX_STATUS;
