//! The library that jaxlib's collectives call MPI through: this one.
//!
//! jaxlib has no MPI but MPItrampoline, which opens the library that `MPITRAMPOLINE_LIB` names and
//! looks up functions and constants of an ABI of its own there (`MPIABI_Allreduce`). Opened by its
//! path, this library is the one that Python has loaded already, with the MPI that it has bound.
//!
//! - `status`: the status of a message.
//! - `table`: all names of that ABI, and what they stand for.
//! - `records`, `communicators`: what is recorded of its calls.
//! - `clique`: the devices of a communicator that jaxlib asks for.
//! - `served`: handles, communicators, and what is around each call.
//! - `calls`: what jaxlib calls, in terms of the MPI that is bound.
//! - `elf`, `start`: have a jaxlib that is loaded look for this library.

mod calls;
mod clique;
mod communicators;
#[cfg(target_os = "linux")]
mod elf;
mod records;
mod served;
mod start;
mod status;
#[expect(clippy::too_many_arguments, reason = "MPI's functions have that many")]
mod table;

pub use calls::serve;
pub use served::Devices;
pub use start::start;
pub use status::TrampolineStatus;
pub use table::HANDLES;
