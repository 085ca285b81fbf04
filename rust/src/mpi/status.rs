//! The status of a receive.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;

use super::abi::Abi;
use super::functions::Functions;

/// A status of the core's own, with room for any MPI's status.
pub struct OwnStatus([u64; 16]);

impl OwnStatus {
    /// A status that MPI has not filled yet.
    pub const EMPTY: Self = Self([0; 16]);

    /// The address that MPI takes.
    pub fn address<A: Abi>(&mut self) -> *mut A::Status {
        ptr::from_mut(&mut self.0).cast()
    }

    /// The status as a place that MPI writes to.
    pub fn place<A: Abi>(&mut self) -> StatusPlace<'_, A> {
        StatusPlace {
            address: self.address::<A>(),
            status: PhantomData,
        }
    }

    /// The source rank and the tag of the message.
    pub fn source_and_tag<A: Abi>(&mut self) -> (c_int, c_int) {
        self.place::<A>().source_and_tag()
    }

    /// The number of elements received, or MPI's error code.
    pub fn count<A: Abi>(
        &mut self,
        functions: &Functions<A>,
        datatype: A::Datatype,
    ) -> Result<c_int, c_int> {
        self.place::<A>().count(functions, datatype)
    }
}

/// The place where MPI puts a status: the core's, a user's, or none (`MPI_STATUS_IGNORE`).
pub struct StatusPlace<'s, A: Abi> {
    address: *mut A::Status,
    status: PhantomData<&'s mut OwnStatus>,
}

impl<A: Abi> StatusPlace<'_, A> {
    /// `MPI_STATUS_IGNORE`.
    pub fn ignored() -> Self {
        Self {
            address: A::constants().status_ignore as *mut A::Status,
            status: PhantomData,
        }
    }

    /// The place of a status at an address.
    ///
    /// # Safety
    /// There is a status of MPI's, which has no other user while this value lives.
    pub unsafe fn at(address: *mut A::Status) -> Self {
        Self {
            address,
            status: PhantomData,
        }
    }

    /// Whether the place is `MPI_STATUS_IGNORE`.
    pub fn is_ignored(&self) -> bool {
        self.address.addr() == A::constants().status_ignore
    }

    /// Lends the place for a shorter lifetime.
    pub fn reborrow(&mut self) -> StatusPlace<'_, A> {
        StatusPlace { ..*self }
    }

    pub(super) fn address(&self) -> *mut A::Status {
        self.address
    }

    /// The source rank and the tag of the message.
    pub fn source_and_tag(&self) -> (c_int, c_int) {
        assert!(!self.is_ignored());
        // SAFETY: this ABI has the fields there. In a status that MPI has not filled, they are 0.
        unsafe {
            let fields = self
                .address
                .cast::<c_int>()
                .add(A::constants().status_source);
            (*fields, *fields.add(1))
        }
    }

    /// Number of elements of a type that have been received, or MPI's error code.
    pub fn count(&self, functions: &Functions<A>, datatype: A::Datatype) -> Result<c_int, c_int> {
        assert!(!self.is_ignored());
        let mut count = 0;
        // SAFETY: there is room for the count. MPI only reads the status, which MPI filled or is empty.
        let code = unsafe { (functions.get_count)(self.address, datatype, &raw mut count) };
        if code == 0 { Ok(count) } else { Err(code) }
    }

    /// Sets the number of elements received in the status (MPI-4.1 §13.3). Returns MPI's error code.
    pub fn set_elements(
        &mut self,
        functions: &Functions<A>,
        datatype: A::Datatype,
        count: i64,
    ) -> c_int {
        assert!(!self.is_ignored());
        // SAFETY: the status was filled by MPI or is empty, and has no other user.
        unsafe { (functions.status_set_elements)(self.address, datatype, count) }
    }
}
