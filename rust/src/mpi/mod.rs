//! The MPI of this process: its functions, its ABI, and the objects that calls refer to.

mod abi;
mod functions;
mod library;
mod registry;

pub use abi::{Abi, Handle, Mpich, OpenMpi, Standard};
pub use functions::Functions;
pub use library::Library;
pub use registry::{Communicator, REGISTRY, Registry};
