//! The status of a receive, where the user has passed none.

use std::ffi::c_int;
use std::ptr;

use super::abi::Abi;
use super::functions::Functions;

/// Room for a status: more words than any MPI's has.
pub struct Status([u64; 16]);

impl Status {
    /// A status that MPI has not filled yet.
    pub const EMPTY: Self = Self([0; 16]);

    /// The address that MPI takes.
    pub fn address<A: Abi>(&mut self) -> *mut A::Status {
        ptr::from_mut(&mut self.0).cast()
    }

    /// The rank that has sent the message, and the tag of the message.
    pub fn source_and_tag<A: Abi>(&mut self) -> (c_int, c_int) {
        // SAFETY: any words are numbers. Of a status that MPI has not filled, they are 0.
        unsafe { source_and_tag::<A>(self.address::<A>()) }
    }

    /// How many elements of a type have been received, or MPI's error code.
    pub fn count<A: Abi>(
        &mut self,
        functions: &Functions<A>,
        datatype: A::Datatype,
    ) -> Result<c_int, c_int> {
        let mut count = 0;
        // SAFETY: there is room for the count. MPI only reads the status, which is its own or empty.
        let code = unsafe { (functions.get_count)(self.address::<A>(), datatype, &raw mut count) };
        if code == 0 { Ok(count) } else { Err(code) }
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
