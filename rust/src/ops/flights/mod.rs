//! Nonblocking operations: one call starts them, another one waits.
//!
//! - `table`: what is in flight.
//! - `progress`: the thread that lets MPI go on with it.
//! - `start_and_wait`: messages, and the waiting for anything.
//! - `collectives`: nonblocking collective operations.

pub mod collectives;
pub mod progress;
pub mod start_and_wait;
pub mod table;
