//! The C types of MPI, which depend on the ABI.

use std::ffi::c_int;

/// An MPI handle, which mpi4py and the registry keep as a number.
pub trait Handle: Copy {
    /// The handle with this number.
    fn from_raw(raw: usize) -> Self;
    /// The number of the handle. An int fills the low half.
    fn into_raw(self) -> usize;
}

impl Handle for c_int {
    fn from_raw(raw: usize) -> Self {
        // mpi4py passes negative handles sign-extended: only the low half counts.
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

/// The C types of one family of MPI libraries. The signatures of MPI's functions depend on nothing else.
pub trait Types: 'static {
    /// `MPI_Aint`: an address, or the difference of two (MPI-4.1 §2.5.6).
    type Aint;
    /// `MPI_Comm`. Like all handles, an int or a pointer.
    type Comm;
    /// `MPI_Datatype`.
    type Datatype;
    /// `MPI_Errhandler`.
    type Errhandler;
    /// `MPI_Group`.
    type Group;
    /// `MPI_Info`.
    type Info;
    /// `MPI_Op`.
    type Op;
    /// `MPI_Request`.
    type Request;
    /// `MPI_Status`, used behind pointers only.
    type Status;
}
