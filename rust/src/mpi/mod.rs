//! The MPI of this process: its functions, its ABI, and the objects that calls refer to.

mod abi;
mod functions;
mod library;
mod registry;

pub use abi::{Abi, Handle, Mpich, OpenMpi, Standard, Types};
pub use functions::{Functions, MAX_ERROR_STRING};
pub use library::Library;
pub use registry::{Communicator, Datatype, REGISTRY, Registry};
