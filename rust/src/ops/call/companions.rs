//! Communicators that go with one of a user's: with the ranks in reverse order, for the transposes
//! of scans, for messages between neighbors, and for what ranks tell each other before a call.

use super::Call;
use crate::error::Result;
use crate::memory::Memory;
use crate::mpi::{Abi, Companion, Handle, REGISTRY};

/// Makes calls on a communicator an error, and frees its companions.
pub fn free_communicator<A: Abi>(comm_id: usize) {
    let companions = REGISTRY.free_communicator::<A>(comm_id);
    let Some(functions) = A::functions().get() else {
        return;
    };
    for mut comm in companions {
        let mut is_finalized = 0;
        // SAFETY: may be called at any time (MPI-4.1 §11.4.1). Before the end of MPI, the
        // communicator is one that this process made, and freed once.
        unsafe {
            (functions.finalized)(&raw mut is_finalized);
            if is_finalized == 0 {
                (functions.comm_free)(&raw mut comm);
            }
        }
    }
}

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// The communicator, or with the attribute `reverse` the one with the ranks in reverse order.
    pub fn comm_in_order(&self) -> Result<A::Comm> {
        if self.int("reverse")? == 0 {
            return Ok(self.communicator.handle::<A>());
        }
        self.companion(Companion::Reversed)
    }

    /// A companion of the communicator. The ranks make it together, as all of them reach their
    /// first call that needs it at once.
    pub fn companion(&self, companion: Companion) -> Result<A::Comm> {
        let made = REGISTRY.companion(self.comm_number, companion)?;
        if let Some(handle) = made.get() {
            return Ok(A::Comm::from_raw(*handle));
        }
        let rank = self.communicator.rank;
        let key = match companion {
            Companion::Reversed => self.communicator.size - 1 - rank,
            Companion::Neighbors | Companion::Check => rank,
        };
        let comm = self.communicator.handle::<A>();
        let mut handle = comm;
        // SAFETY: MPI gives the new communicator in place of this one. MPI_Comm_dup would have
        // Python copy attributes.
        let code = unsafe { (self.functions.comm_split)(comm, 0, key, &raw mut handle) };
        self.check("MPI_Comm_split", code)?;
        made.get_or_init(|| handle.into_raw());
        Ok(handle)
    }
}
