//! Functions that make communicators of some processes, and free them (MPI-4.1 §7.4).

use std::ffi::c_int;

use super::caller::{CallWrapper, Caller, Mpi};
use super::outcome::{CallError, check};
use crate::mpi::abi::Abi;
use crate::mpi::functions::Functions;
use crate::mpi::registry::Communicator;
use crate::mpi::types::Handle;

/// A group of processes (MPI-4.1 §7.3). It goes with this value.
struct OwnedGroup<A: Abi> {
    functions: &'static Functions<A>,
    handle: A::Group,
}

impl<A: Abi> OwnedGroup<A> {
    fn make(
        functions: &'static Functions<A>,
        function: &'static str,
        body: impl FnOnce(*mut A::Group) -> c_int,
    ) -> Result<Self, CallError> {
        let mut handle = A::Group::from_raw(0);
        check(functions, function, body(&raw mut handle))?;
        Ok(Self { functions, handle })
    }

    /// The processes of the communicator.
    fn of(mpi: &Mpi<A>) -> Result<Self, CallError> {
        Self::make(mpi.functions, "MPI_Comm_group", |group| {
            // SAFETY: MPI gives the group of a communicator that there is.
            unsafe { (mpi.functions.comm_group)(mpi.comm, group) }
        })
    }

    /// Those with these ranks, in this order.
    fn include(&self, ranks: &[c_int]) -> Result<Self, CallError> {
        Self::make(self.functions, "MPI_Group_incl", |group| {
            let count = ranks.len() as c_int;
            // SAFETY: the list has that many members. MPI checks that they are ranks of the group.
            unsafe { (self.functions.group_incl)(self.handle, count, ranks.as_ptr(), group) }
        })
    }
}

impl<A: Abi> Drop for OwnedGroup<A> {
    fn drop(&mut self) {
        // SAFETY: the group was made, and is freed once. An error would be one of the core's own.
        unsafe { (self.functions.group_free)(&raw mut self.handle) };
    }
}

impl<A: Abi, W: CallWrapper> Caller<'_, A, W> {
    /// MPI-4.1 §7.4.2: a communicator of the processes with these ranks, which all of them make with
    /// the same tag, and nobody else. This process is one of them.
    pub fn comm_create_group(self, ranks: &[c_int], tag: c_int) -> Result<Communicator, W::Error> {
        let own = ranks
            .iter()
            .take_while(|rank| **rank != self.mpi.rank)
            .count();
        assert!(own < ranks.len(), "this process is not a member");
        let mut handle = self.mpi.comm;
        self.blocking("MPI_Comm_create_group", |mpi| {
            let group = OwnedGroup::of(mpi)?.include(ranks)?;
            // SAFETY: MPI gives the new communicator in place of this one.
            Ok(unsafe {
                (mpi.functions.comm_create_group)(mpi.comm, group.handle, tag, &raw mut handle)
            })
        })?;
        // SAFETY: MPI has made the communicator of the processes with these ranks, in their order.
        Ok(unsafe { Communicator::new(handle.into_raw(), own as c_int, ranks.len() as c_int, 0) })
    }

    /// MPI-4.1 §7.4.3.
    ///
    /// # Safety
    /// This process has made the communicator, and uses it no more.
    pub unsafe fn comm_free(self) -> Result<(), W::Error> {
        let mut handle = self.mpi.comm;
        self.blocking("MPI_Comm_free", |mpi| {
            // SAFETY: the caller's promise.
            Ok(unsafe { (mpi.functions.comm_free)(&raw mut handle) })
        })
    }
}
