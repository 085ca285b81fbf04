//! The C types of MPI, which differ from one binary interface to another.

use std::ffi::c_int;

/// An MPI handle, which mpi4py knows as a number, as do the tables.
pub trait Handle: Copy {
    /// The handle with this number.
    fn from_raw(raw: usize) -> Self;
    /// The number of the handle: an int's is the low half.
    fn into_raw(self) -> usize;
}

impl Handle for c_int {
    fn from_raw(raw: usize) -> Self {
        // The low half: mpi4py hands negative handles over sign-extended.
        raw as u32 as Self
    }

    fn into_raw(self) -> usize {
        self as u32 as usize
    }
}

impl<T> Handle for *mut T {
    fn from_raw(raw: usize) -> Self {
        raw as *mut T
    }

    fn into_raw(self) -> usize {
        self as usize
    }
}

/// The C types of one family of MPI libraries, which is all that the signatures of its functions
/// depend on.
pub trait Types: 'static {
    /// An address or a difference of two (MPI-4.1 §2.5.6).
    type Aint;
    /// `MPI_Comm`, an int or a pointer, as are the other handles.
    type Comm;
    /// `MPI_Datatype`.
    type Datatype;
    /// `MPI_Group`.
    type Group;
    /// `MPI_Op`.
    type Op;
    /// `MPI_Request`.
    type Request;
    /// `MPI_Status`, which is only ever pointed to.
    type Status;
}
