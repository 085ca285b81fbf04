//! The status of a message, as MPItrampoline's ABI has it (`MPIABI_Status`).

use std::ffi::c_int;

use crate::mpi::{Abi, OwnStatus};

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

/// Copies a status of MPI's to one of the trampoline's, unless the caller wants none.
///
/// # Safety
/// `trampoline_status` stands for none, or may be written.
pub(super) unsafe fn give_status<A: Abi>(
    status: &mut OwnStatus,
    error: c_int,
    trampoline_status: *mut TrampolineStatus,
) {
    if trampoline_status.addr() != STATUS_IGNORE {
        let (source, tag) = status.source_and_tag::<A>();
        let filled = TrampolineStatus {
            source,
            tag,
            error,
            ..TrampolineStatus::default()
        };
        // SAFETY: the caller vouches for the address.
        unsafe { trampoline_status.write(filled) };
    }
}
