//! The status of a message, as MPItrampoline's ABI has it (`MPIABI_Status`).

use std::ffi::c_int;

use crate::mpi::{Abi, Status, source_and_tag};

/// `MPIABI_STATUS_IGNORE`.
pub(super) const STATUS_IGNORE: usize = 0;

/// Room for any MPI's status, and behind it what programs read.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct TrampolineStatus {
    room: [u64; 3],
    /// `MPI_SOURCE`
    pub source: c_int,
    /// `MPI_TAG`
    pub tag: c_int,
    /// `MPI_ERROR`
    pub error: c_int,
}

/// Calls `body` with a status of MPI's, and copies what it is given to one of the trampoline's,
/// unless the caller wants none. Gives the error code, and the status.
///
/// # Safety
/// `trampoline_status` stands for none, or may be written. MPI fills the status when it gives 0.
pub(super) unsafe fn with_status<A: Abi>(
    trampoline_status: *mut TrampolineStatus,
    body: impl FnOnce(*mut A::Status) -> c_int,
) -> (c_int, Status) {
    let mut status = Status::EMPTY;
    let code = body(status.address::<A>());
    if trampoline_status.addr() != STATUS_IGNORE {
        // SAFETY: the status has room for the fields, which are zero if MPI has written none.
        let (source, tag) = unsafe { source_and_tag::<A>(status.address::<A>()) };
        let filled = TrampolineStatus {
            source,
            tag,
            error: code,
            ..TrampolineStatus::default()
        };
        // SAFETY: the caller vouches for the address.
        unsafe { trampoline_status.write(filled) };
    }
    (code, status)
}
