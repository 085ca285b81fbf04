//! The three binary interfaces under which an MPI library can be loaded.
//!
//! They differ in what a handle is (an int or a pointer) and in a few special addresses. The
//! crate in `tests/referee` proves the values below against the `mpi.h` of each MPI.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use super::functions::Functions;
use super::types::{Handle, Types};

/// The C types and special values of one family of MPI libraries.
pub trait Abi:
    Types<Aint = isize, Comm: Handle, Datatype: Handle, Group: Handle, Op: Handle, Request: Handle>
    + Sized
{
    /// `MPI_IN_PLACE` (MPI-4.1 §6.2).
    const IN_PLACE: usize;
    /// `MPI_PROC_NULL` (MPI-4.1 §3.10).
    const PROC_NULL: c_int;
    /// `MPI_STATUS_IGNORE` (MPI-4.1 §3.2.6).
    const STATUS_IGNORE: usize;
    /// How many ints there are in a status before `MPI_SOURCE`. `MPI_TAG` comes next.
    const STATUS_SOURCE: usize;

    /// The functions of the loaded library, once it is loaded.
    fn functions() -> &'static OnceLock<Functions<Self>>;
}

macro_rules! abi {
    ($(#[$doc:meta])* $name:ident, $handle:ty, in place $in_place:expr, no process $proc_null:expr,
     no status $ignore:expr, source at $source:expr) => {
        $(#[$doc])*
        pub struct $name;

        impl Types for $name {
            type Aint = isize;
            type Comm = $handle;
            type Datatype = $handle;
            type Group = $handle;
            type Op = $handle;
            type Request = $handle;
            type Status = c_void;
        }

        impl Abi for $name {
            const IN_PLACE: usize = $in_place;
            const PROC_NULL: c_int = $proc_null;
            const STATUS_IGNORE: usize = $ignore;
            const STATUS_SOURCE: usize = $source;

            fn functions() -> &'static OnceLock<Functions<Self>> {
                static FUNCTIONS: OnceLock<Functions<$name>> = OnceLock::new();
                &FUNCTIONS
            }
        }
    };
}

abi!(
    /// MPICH and those that share its ABI: Intel MPI, MVAPICH, Cray MPICH.
    Mpich, c_int, in place usize::MAX, no process -1, no status 1, source at 2
);
abi!(
    /// Open MPI and those made from it.
    OpenMpi, *mut c_void, in place 1, no process -2, no status 0, source at 0
);
abi!(
    /// The ABI that MPI-5.0 §20 standardises, for example MPICH's `libmpi_abi`.
    Standard, *mut c_void, in place 1, no process -3, no status 0, source at 0
);
