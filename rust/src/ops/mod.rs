//! The MPI operations, one function each, independent of where the bytes live.
//!
//! To add one: declare its MPI function in `mpi/functions.rs`, write it in `collective.rs`,
//! `exchange.rs`, `neighborhood.rs`, `point_to_point.rs`, `ragged.rs`, `reduction.rs` or
//! `vector.rs`, and name it in `handlers.rs`.

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
mod handlers;
mod log_text;
mod messages;
mod neighborhood;
mod on_error;
mod operator;
mod pieces;
mod point_to_point;
mod ragged;
mod reduction;
mod reduction_pieces;
mod vector;

pub use check::{check_is_enabled, set_check};
pub use checked_message::traffic;
pub use companions::free_communicator;
pub use counts::set_count_limit;
pub use handlers::{device_handlers, host_handlers};
pub use on_error::set_raise_on_error;
