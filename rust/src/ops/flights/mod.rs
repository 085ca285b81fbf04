//! Nonblocking operations: one call starts them, another one waits.
//!
//! - `bell`: what wakes the thread of `progress`.
//! - `table`: what is in flight.
//! - `progress`: the thread that lets MPI go on with it.
//! - `start_and_wait`: the start of messages and collective operations, and the waiting for them.

mod bell;
pub mod progress;
pub mod start_and_wait;
pub mod table;

/// The types of `bell`, which a test has from elsewhere.
mod sync {
    pub use std::sync::atomic::AtomicBool;
    pub use std::sync::{Condvar, MutexGuard};
}
