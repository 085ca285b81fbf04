//! The core's view of MPI, compared with `mpi.h`.

use std::ffi::c_int;
use std::mem::offset_of;

#[cfg(standard_abi)]
use binding::mpi::STANDARD;
use binding::mpi::{
    Abi, Constants, Functions, IntHandles, MAX_ERROR_STRING, MPICH, OPEN_MPI, OwnStatus,
    PointerHandles, Types,
};
use mpi_sys as symbols;
use referee::mpi as header;

/// The ABI of the header's own types.
struct Header;

impl Types for Header {
    type Aint = mpi_sys::MPI_Aint;
    type Comm = mpi_sys::MPI_Comm;
    type Datatype = mpi_sys::MPI_Datatype;
    type Errhandler = mpi_sys::MPI_Errhandler;
    type Group = mpi_sys::MPI_Group;
    type Info = mpi_sys::MPI_Info;
    type Op = mpi_sys::MPI_Op;
    type Request = mpi_sys::MPI_Request;
    type Status = mpi_sys::MPI_Status;
}

/// A function of the module that is called `symbols` where this is used.
macro_rules! function_of_the_header {
    ($symbol:ident($($argument:ident),*)) => {
        symbols::$symbol
    };
}

/// Compiles only if every function of the table has the signature that the header declares.
#[test]
fn functions_have_the_signatures_of_the_header() {
    #[cfg(large_counts)]
    let functions: Functions<Header> = binding::mpi_functions!(function_of_the_header);
    #[cfg(not(large_counts))]
    let functions: Functions<Header> = binding::mpi_functions!(function_of_the_header, None);
    assert_eq!(
        functions.int.send as usize,
        mpi_sys::MPI_Send as *const () as usize
    );
    // Since MPI-4.0, the header has the functions for large counts.
    assert_eq!(functions.large.is_some(), mpi_sys::MPI_VERSION >= 4);
}

/// The type of a handle in C.
#[derive(Debug, PartialEq)]
enum Kind {
    Int,
    Pointer,
}

trait HasKind {
    const KIND: Kind;
}

impl HasKind for c_int {
    const KIND: Kind = Kind::Int;
}

impl<T> HasKind for *mut T {
    const KIND: Kind = Kind::Pointer;
}

/// The kind of what mpi-sys wraps in a struct, told from how it is taken out.
fn kind_within<Wrapper, T: HasKind>(_inner: impl Fn(Wrapper) -> T) -> Kind {
    T::KIND
}

fn check<A>(constants: &Constants)
where
    A: Abi<
            Comm: HasKind,
            Datatype: HasKind,
            Errhandler: HasKind,
            Group: HasKind,
            Info: HasKind,
            Op: HasKind,
            Request: HasKind,
        >,
{
    assert_eq!(
        A::Comm::KIND,
        kind_within(|handle: mpi_sys::MPI_Comm| handle.0)
    );
    assert_eq!(
        A::Datatype::KIND,
        kind_within(|handle: mpi_sys::MPI_Datatype| handle.0)
    );
    assert_eq!(
        A::Errhandler::KIND,
        kind_within(|handle: mpi_sys::MPI_Errhandler| handle.0)
    );
    assert_eq!(
        A::Group::KIND,
        kind_within(|handle: mpi_sys::MPI_Group| handle.0)
    );
    assert_eq!(
        A::Info::KIND,
        kind_within(|handle: mpi_sys::MPI_Info| handle.0)
    );
    assert_eq!(A::Op::KIND, kind_within(|handle: mpi_sys::MPI_Op| handle.0));
    assert_eq!(
        A::Request::KIND,
        kind_within(|handle: mpi_sys::MPI_Request| handle.0)
    );
    assert_eq!(constants.in_place as isize, header::IN_PLACE);
    assert_eq!(constants.status_ignore as isize, header::STATUS_IGNORE);
    assert_eq!(constants.proc_null, header::PROC_NULL);
}

#[test]
fn a_status_is_what_the_header_has() {
    let source = offset_of!(mpi_sys::MPI_Status, MPI_SOURCE) / size_of::<c_int>();
    let tag = offset_of!(mpi_sys::MPI_Status, MPI_TAG) / size_of::<c_int>();
    let expected = match kind_within(|handle: mpi_sys::MPI_Comm| handle.0) {
        Kind::Int => MPICH.status_source,
        Kind::Pointer => OPEN_MPI.status_source,
    };
    assert_eq!((source, tag), (expected, expected + 1));
    assert!(size_of::<mpi_sys::MPI_Status>() <= size_of::<OwnStatus>());
}

/// Handles are ints in the MPICH family and pointers in Open MPI's.
#[test]
fn handles_and_special_values_are_those_of_the_header() {
    match kind_within(|handle: mpi_sys::MPI_Comm| handle.0) {
        Kind::Int => check::<IntHandles>(&MPICH),
        Kind::Pointer => check::<PointerHandles>(&OPEN_MPI),
    }
}

/// Two ways to the same constant: had clang evaluated wrongly, the C compiler would not have.
#[test]
fn no_status_is_what_the_c_compiler_says() {
    // SAFETY: a constant of the C file in mpi-sys.
    let compiled = unsafe { mpi_sys::RSMPI_STATUS_IGNORE };
    assert_eq!(compiled as isize, header::STATUS_IGNORE);
}

#[test]
fn success_is_zero() {
    assert_eq!(mpi_sys::MPI_SUCCESS, 0);
}

#[test]
fn the_longest_error_text_has_room() {
    assert!((mpi_sys::MPI_MAX_ERROR_STRING as usize) < MAX_ERROR_STRING);
}

/// Fails when mpi-sys was built for another MPI than the rest of this crate.
#[test]
fn there_is_one_header() {
    assert_eq!(size_of::<mpi_sys::MPI_Comm>(), header::COMM_SIZE);
    assert_eq!(size_of::<mpi_sys::MPI_Status>(), header::STATUS_SIZE);
    assert_eq!(
        100 * mpi_sys::MPI_VERSION + mpi_sys::MPI_SUBVERSION,
        header::VERSION as u32
    );
}

#[cfg(standard_abi)]
mod standard {
    use referee::standard as header;
    use referee::standard as symbols;

    use super::*;

    struct Header;

    impl Types for Header {
        type Aint = header::MPI_Aint;
        type Comm = header::MPI_Comm;
        type Datatype = header::MPI_Datatype;
        type Errhandler = header::MPI_Errhandler;
        type Group = header::MPI_Group;
        type Info = header::MPI_Info;
        type Op = header::MPI_Op;
        type Request = header::MPI_Request;
        type Status = header::MPI_Status;
    }

    /// Compiles only if every function of the table has the signature that the header declares.
    #[test]
    fn functions_have_the_signatures_of_the_header() {
        let functions: Functions<Header> = binding::mpi_functions!(function_of_the_header);
        assert_eq!(
            functions.int.send as usize,
            header::MPI_Send as *const () as usize
        );
        assert!(functions.large.is_some());
    }

    #[test]
    fn handles_and_special_values_are_those_of_the_header() {
        assert_eq!(
            <PointerHandles as Types>::Comm::KIND,
            header::MPI_Comm::KIND
        );
        assert_eq!(
            <PointerHandles as Types>::Datatype::KIND,
            header::MPI_Datatype::KIND
        );
        assert_eq!(<PointerHandles as Types>::Op::KIND, header::MPI_Op::KIND);
        assert_eq!(STANDARD.in_place as isize, header::IN_PLACE);
        assert_eq!(STANDARD.status_ignore as isize, header::STATUS_IGNORE);
        assert_eq!(STANDARD.proc_null, header::PROC_NULL);
    }

    #[test]
    fn a_status_is_what_the_header_has() {
        let source = offset_of!(header::MPI_Status, MPI_SOURCE) / size_of::<c_int>();
        let tag = offset_of!(header::MPI_Status, MPI_TAG) / size_of::<c_int>();
        let expected = STANDARD.status_source;
        assert_eq!((source, tag), (expected, expected + 1));
        assert!(size_of::<header::MPI_Status>() <= size_of::<OwnStatus>());
    }
}
