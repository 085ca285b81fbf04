//! The MPI operations, one function each, independent of where the bytes live.
//!
//! To add one: declare its MPI function in `mpi/functions.rs`, make it safe in `mpi/calls`, write the
//! operation in the folder of its kind, and name it in `handlers.rs`.
//!
//! - `call`: a call of an operation: its arrays, and what is done around a call of MPI.
//! - `check`: `MPI4JAX_CHECK`: the comparing of calls before MPI is called.
//! - `collectives`: collective operations.
//! - `messages`: operations that send and receive messages.
//! - `flights`: nonblocking operations.
//! - `local`: handlers that call no MPI.
//! - `handlers`: the table of all operations, and the C functions that XLA calls.

mod call;
mod check;
mod collectives;
mod flights;
mod handlers;
mod local;
mod messages;

pub use crate::mpi::calls::{free_communicator, set_count_limit};
pub use call::on_error::set_raise_on_error;
pub use check::claims::Comparison;
pub use check::labels::traffic;
pub use check::{check_is_enabled, refuse, set_check};
pub use flights::progress::{Left, finish, set_pushing, stop as stop_pushing};
pub use flights::table::{count as in_flight, posted, set_line};
pub use handlers::{device_handlers, host_handlers, nonblocking_names};
