//! The C types of MPI, which differ from one binary interface to another.

use std::ffi::c_int;

/// An MPI handle, which mpi4py knows as a number, as do the tables.
pub trait Handle: Copy {
    fn from_raw(raw: usize) -> Self;
    fn into_raw(self) -> usize;
}

impl Handle for c_int {
    fn from_raw(raw: usize) -> Self {
        // The low half: mpi4py hands negative handles over sign-extended.
        raw as u32 as c_int
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
    type Comm;
    type Datatype;
    type Op;
    type Status;
}
