//! The status of a receive, where the user has passed none.

use std::ffi::c_int;
use std::ptr;

use super::abi::Abi;

/// Room for a status: more words than any MPI's has.
pub struct Status([u64; 16]);

impl Status {
    /// A status that MPI has not filled yet.
    pub const EMPTY: Self = Self([0; 16]);

    /// The address that MPI takes.
    pub fn address<A: Abi>(&mut self) -> *mut A::Status {
        ptr::from_mut(&mut self.0).cast()
    }
}

/// The rank that has sent a message, and the tag of the message.
///
/// # Safety
/// MPI has filled the status.
pub unsafe fn source_and_tag<A: Abi>(status: *const A::Status) -> (c_int, c_int) {
    // SAFETY: in this ABI, the fields are there.
    unsafe {
        let fields = status.cast::<c_int>().add(A::constants().status_source);
        (*fields, *fields.add(1))
    }
}
