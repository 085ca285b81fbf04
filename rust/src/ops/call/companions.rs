//! Communicators that go with one of a user's: with the ranks in reverse order, for the transposes
//! of scans, for messages between neighbors, and for what ranks tell each other before a call.

use super::Call;
use crate::error::Result;
use crate::memory::Memory;
use crate::mpi::calls::Mpi;
use crate::mpi::{Abi, Communicator, Companion, REGISTRY};

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// MPI on the communicator, or, with the attribute `reverse`, on the companion with the ranks in reverse
    /// order.
    pub fn mpi_in_order(&self) -> Result<Mpi<A>> {
        if self.int("reverse")? == 0 {
            return Ok(self.mpi.on(&self.communicator));
        }
        Ok(self.mpi.on(&self.companion(Companion::Reversed)?))
    }

    /// A companion of the communicator. The ranks make it together, as all of them reach their
    /// first call that needs it at once.
    pub fn companion(&self, companion: Companion) -> Result<Communicator> {
        let slot = REGISTRY.companion(self.comm_number, companion)?;
        if let Some(communicator) = slot.get() {
            return Ok(*communicator);
        }
        // MPI_Comm_dup would have Python copy attributes.
        let is_reversed = companion == Companion::Reversed;
        let communicator = self.unlogged().comm_split(is_reversed)?;
        Ok(*slot.get_or_init(|| communicator))
    }
}
