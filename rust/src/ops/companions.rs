//! Communicators that a call makes of its own, of the same processes, when it first needs them:
//! one with the ranks in reverse order, for the transposes of scans, and one for the messages
//! between neighbors.

use super::call::Call;
use crate::error::Result;
use crate::memory::Memory;
use crate::mpi::{Abi, Handle, REGISTRY};

/// Makes calls on a communicator an error, and frees what was made of it.
pub fn free_communicator<A: Abi>(number: usize) {
    let companions = REGISTRY.free_communicator::<A>(number);
    let Some(functions) = A::functions().get() else {
        return;
    };
    for mut companion in companions {
        let mut is_finalized = 0;
        // SAFETY: may be called at any time (MPI-4.1 §11.4.1). Before the end of MPI, the
        // communicator is one that this process made, and freed once.
        unsafe {
            (functions.finalized)(&raw mut is_finalized);
            if is_finalized == 0 {
                (functions.comm_free)(&raw mut companion);
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
        let reversed = &REGISTRY.companions(self.comm_number)?.reversed;
        if let Some(handle) = reversed.get() {
            return Ok(A::Comm::from_raw(*handle));
        }
        // The ranks do this together, as all of them reach their first reversed scan at once.
        let key = self.communicator.size - 1 - self.communicator.rank;
        let mut handle = self.communicator.handle::<A>();
        self.mpi(
            "MPI_Comm_split",
            || format!("(color 0, key {key})"),
            // SAFETY: MPI gives the new communicator in place of this one.
            |mpi, comm| unsafe { (mpi.comm_split)(comm, 0, key, &raw mut handle) },
        )?;
        reversed.get_or_init(|| handle.into_raw());
        Ok(handle)
    }

    /// The communicator of messages between neighbors, which no receive of a user's can meet.
    pub fn comm_of_neighbors(&self) -> Result<A::Comm> {
        let messages = &REGISTRY.companions(self.comm_number)?.messages;
        if let Some(handle) = messages.get() {
            return Ok(A::Comm::from_raw(*handle));
        }
        // The ranks do this together, as the operation is collective (MPI-4.1 §8.6).
        let comm = self.communicator.handle::<A>();
        let mut handle = comm;
        // SAFETY: MPI gives the new communicator in place of this one.
        let code = unsafe {
            (self.functions.comm_split)(comm, 0, self.communicator.rank, &raw mut handle)
        };
        self.check("MPI_Comm_split", code)?;
        messages.get_or_init(|| handle.into_raw());
        Ok(handle)
    }
}
