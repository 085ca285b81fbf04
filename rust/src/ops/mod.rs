//! The MPI operations, one function each, independent of where the bytes live.
//!
//! To add one: declare its MPI function in `mpi/functions.rs`, write it in `collective.rs`,
//! `exchange.rs`, `in_flight.rs`, `neighborhood.rs`, `nonblocking_collective.rs`,
//! `point_to_point.rs`, `ragged.rs`, `reduction.rs` or `vector.rs`, and name it in `handlers.rs`.
//! What calls no MPI is in `local.rs`.

mod buffers;
mod call;
mod check;
mod checked_collective;
mod checked_message;
mod collective;
mod companions;
mod counts;
mod derived;
mod exchange;
mod flight;
mod handlers;
mod in_flight;
mod local;
mod log_text;
mod messages;
mod neighborhood;
mod nonblocking_collective;
mod on_error;
mod operator;
mod pieces;
mod point_to_point;
mod ragged;
mod reduction;
mod reduction_pieces;
mod vector;

pub use check::{check_is_enabled, refuse, set_check};
pub use checked_collective::Comparison;
pub use checked_message::traffic;
pub use companions::free_communicator;
pub use counts::set_count_limit;
pub use flight::{Left, count as in_flight, finish, posted, set_line, set_pushing};
pub use handlers::{device_handlers, host_handlers};
pub use on_error::set_raise_on_error;
