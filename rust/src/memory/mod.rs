//! The memory of a call's arrays, and how MPI gets at it.
//!
//! An operation asks for its operands and its results through [`Memory`] and is the same for every
//! kind of memory. If it has several arrays, they are copied together.
//!
//! - `access`: the interface. `host`: memory that XLA and MPI share. `device`: device memory, which MPI
//!   gets directly, or through copies in the page-locked memory of `pool`.
//! - `driver`: the driver of the GPU. `kind`, `gpu_aware`: whether MPI takes device memory.
//! - `fault`: a line for users where MPI crashes on it.
//! - `block`: host memory for operations in flight, which `in_flight` keeps with their requests. `in_blocks`:
//!   memory of a call that starts an operation.
//! - `parts`: copies between parts of arrays.
//! - `huge_pages`: huge pages for large arrays on the host.
//! - `shared_gpu`: a warning if processes share a GPU though there is one for each.

mod access;
mod block;
mod device;
pub mod driver;
pub mod gpu_aware;
mod host;
pub mod huge_pages;
mod in_blocks;
mod in_flight;
pub mod kind;
mod parts;
mod pool;
pub mod shared_gpu;

pub(crate) use access::{Access, Memory};
pub(crate) use block::Block;
pub(crate) use device::{Direct, Staged};
pub use driver::{Driver, Vendor};
pub(crate) use host::Host;
pub(crate) use in_blocks::InBlocks;
pub(crate) use in_flight::{Arrival, InFlight, Pieces};
pub(crate) use parts::{PartCopy, PartReturn, RowList, RowLoop};
pub use pool::POOL;
