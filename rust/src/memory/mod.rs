//! Where the bytes of a call live, and how MPI gets at them.
//!
//! An operation asks for its operands and its results through [`Memory`] and is the same for every
//! kind of memory. One that has several of them has all of them copied together.

mod access;
mod block;
mod device;
pub mod driver;
pub mod fault;
pub mod gpu_aware;
mod host;
pub mod kind;
mod pool;

pub(crate) use access::{Access, Memory};
pub(crate) use block::{Block, Room};
pub(crate) use device::{Direct, Staged};
pub use driver::{Driver, Vendor};
pub(crate) use host::Host;
pub use pool::POOL;
