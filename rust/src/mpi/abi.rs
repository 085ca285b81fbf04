//! The binary interfaces (ABIs) of MPI libraries.
//!
//! ABIs differ in two things: a handle is an int or a pointer, which determines the types of all
//! functions, and a few special values differ, which are looked up at run time. The crate in
//! `tests/referee` compares both with the `mpi.h` of each MPI.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use super::functions::Functions;
use super::types::{Handle, Types};

/// The special values of a family of MPI libraries.
pub struct Constants {
    /// `MPI_IN_PLACE` (MPI-4.1 §6.2).
    pub in_place: usize,
    /// `MPI_PROC_NULL` (MPI-4.1 §3.10).
    pub proc_null: c_int,
    /// `MPI_STATUS_IGNORE` (MPI-4.1 §3.2.6).
    pub status_ignore: usize,
    /// The index of `MPI_SOURCE` in a status, in ints. `MPI_TAG` comes next.
    pub status_source: usize,
}

/// The ABI of MPICH, Intel MPI, MVAPICH and Cray MPICH. Handles are ints.
pub static MPICH: Constants = Constants {
    in_place: usize::MAX,
    proc_null: -1,
    status_ignore: 1,
    status_source: 2,
};

/// The ABI of Open MPI and libraries derived from it. Handles are pointers.
pub static OPEN_MPI: Constants = Constants {
    in_place: 1,
    proc_null: -2,
    status_ignore: 0,
    status_source: 0,
};

/// The ABI that MPI-5.0 §20 standardises, for example MPICH's `libmpi_abi`. Handles are pointers.
pub static STANDARD: Constants = Constants {
    in_place: 1,
    proc_null: -3,
    status_ignore: 0,
    status_source: 0,
};

/// The C types of MPI libraries with one kind of handle.
pub trait Abi:
    Types<
        Aint = isize,
        Comm: Handle,
        Datatype: Handle,
        Errhandler: Handle,
        Group: Handle,
        Info: Handle,
        Op: Handle,
        Request: Handle,
    > + Sized
{
    /// The functions of the loaded library, once loaded.
    fn functions() -> &'static OnceLock<Functions<Self>>;

    /// The special values of the loaded library.
    fn constants() -> &'static Constants;

    /// Sets the special values, where several families share this kind of handle.
    fn set_constants(_: &'static Constants) {}
}

macro_rules! handles {
    ($(#[$doc:meta])* $name:ident = $handle:ty { $($methods:tt)* }) => {
        $(#[$doc])*
        pub struct $name;

        impl Types for $name {
            type Aint = isize;
            type Comm = $handle;
            type Datatype = $handle;
            type Errhandler = $handle;
            type Group = $handle;
            type Info = $handle;
            type Op = $handle;
            type Request = $handle;
            type Status = c_void;
        }

        impl Abi for $name {
            fn functions() -> &'static OnceLock<Functions<Self>> {
                static FUNCTIONS: OnceLock<Functions<$name>> = OnceLock::new();
                &FUNCTIONS
            }

            $($methods)*
        }
    };
}

handles!(
    /// Handles that are ints.
    IntHandles = c_int {
        #[inline(always)]
        fn constants() -> &'static Constants {
            &MPICH
        }
    }
);

static POINTER_CONSTANTS: OnceLock<&'static Constants> = OnceLock::new();

handles!(
    /// Handles that are pointers.
    PointerHandles = *mut c_void {
        #[inline(always)]
        fn constants() -> &'static Constants {
            POINTER_CONSTANTS.get().copied().unwrap_or(&OPEN_MPI)
        }

        fn set_constants(constants: &'static Constants) {
            POINTER_CONSTANTS.get_or_init(|| constants);
        }
    }
);
