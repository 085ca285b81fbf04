//! The MPI library of this process: its functions, its ABI, and the objects that calls refer to.

mod abi;
mod abort;
mod availability;
mod buffers;
pub mod calls;
pub mod functions;
mod growing_list;
pub mod half_float;
mod imports;
mod library;
mod lineage;
mod operators;
mod registry;
mod requests;
mod status;
mod sync;
mod types;
mod waiting;

pub use abi::{Abi, Constants, IntHandles, MPICH, OPEN_MPI, PointerHandles, STANDARD};
pub use abort::{abort, exit_at_once, set_world};
pub use availability::{
    before_finalize, call_in_background, check_available, follow_end, is_available, is_forked,
};
pub use buffers::{RecvBuffer, SendBuffer};
pub use functions::{
    BothForms, CopyAttribute, Counted, DeleteAttribute, Functions, MAX_ERROR_STRING, UserFunction,
};
pub use growing_list::GrowingList;
pub use library::{Library, RTLD_NOLOAD};
pub use lineage::{CopyCounts, CopyPath, Lineage, follow_copies, indices, lineage_of};
pub use operators::PredefinedOp;
pub use registry::{
    Communicator, Companion, Ends, Neighbor, Neighbors, REGISTRY, Registry, SizedDatatype,
};
pub use requests::OwnedRequest;
pub use status::{OwnStatus, StatusPlace};
pub use types::{Handle, Types};
pub use waiting::{WaitPolicy, Waiting, set_wait_policy};
