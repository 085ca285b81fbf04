//! The registry, asked through the struct that other packages get. No MPI is called.

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;

use _core::c_interface::{REGISTRY_INTERFACE, RegistryInterface};
use _core::mpi::{IntHandles, REGISTRY};

mod common;
use common::{set_communicator, set_datatype, set_operator};

/// The outputs before they are written to.
const UNTOUCHED: (usize, c_int, c_int) = (0xdead, -77, -78);

/// The return value of the function, and its outputs.
fn communicator(comm_number: i64) -> (c_int, (usize, c_int, c_int)) {
    let (mut handle, mut rank, mut size) = UNTOUCHED;
    // SAFETY: there is room for the outputs.
    let outcome = unsafe {
        (REGISTRY_INTERFACE.communicator)(
            comm_number,
            &raw mut handle,
            &raw mut rank,
            &raw mut size,
        )
    };
    (outcome, (handle, rank, size))
}

fn operator(op_number: i64) -> (c_int, usize) {
    let mut handle = UNTOUCHED.0;
    // SAFETY: there is room for the output.
    let outcome = unsafe { (REGISTRY_INTERFACE.operator)(op_number, &raw mut handle) };
    (outcome, handle)
}

fn datatype(xla_dtype: c_int) -> (c_int, [usize; 2]) {
    let [mut handle, mut size] = [UNTOUCHED.0; 2];
    // SAFETY: there is room for the outputs.
    let outcome =
        unsafe { (REGISTRY_INTERFACE.datatype)(xla_dtype, &raw mut handle, &raw mut size) };
    (outcome, [handle, size])
}

#[test]
fn communicators_have_a_handle_a_rank_and_a_size() {
    set_communicator(3, 0x440, 1, 2);
    assert_eq!(communicator(3), (0, (0x440, 1, 2)));
}

/// mpi4py sign-extends them. The int is in the low half.
#[test]
fn handles_of_mpich_may_be_negative() {
    let handle: c_int = -0x3c00_0000;
    set_communicator(4, handle as usize, 0, 1);
    assert_eq!(communicator(4).1.0 as c_int, handle);
}

#[test]
fn operators_and_data_types_have_handles() {
    set_operator(15, 0x58);
    assert_eq!(operator(15), (0, 0x58));
    set_datatype(11, 0xf32, 4);
    assert_eq!(datatype(11), (0, [0xf32, 4]));
}

#[test]
fn a_freed_communicator_is_none() {
    set_communicator(5, 0x441, 0, 1);
    assert_eq!(communicator(5).0, 0);
    REGISTRY.free_communicator::<IntHandles>(5);
    assert_eq!(communicator(5), (1, UNTOUCHED));
}

#[test]
fn what_is_unknown_is_none_and_writes_nothing() {
    for object_number in [6, 1 << 20, -1, i64::MIN, i64::MAX] {
        assert_eq!(
            communicator(object_number),
            (1, UNTOUCHED),
            "{object_number}"
        );
        assert_eq!(operator(object_number), (1, UNTOUCHED.0), "{object_number}");
    }
    for dtype in [12, 1 << 20, -1, c_int::MIN, c_int::MAX] {
        assert_eq!(datatype(dtype), (1, [UNTOUCHED.0; 2]), "{dtype}");
    }
}

#[test]
fn outputs_may_be_null() {
    set_communicator(7, 0x442, 3, 4);
    set_operator(16, 0x59);
    set_datatype(13, 0xf64, 8);
    let interface = &REGISTRY_INTERFACE;
    let (mut handle, mut rank, mut size, mut bytes) = (0, 0, 0, 0);
    // SAFETY: there is room for the outputs that are not null.
    unsafe {
        let no_handle = ptr::null_mut();
        let outcome = (interface.communicator)(7, no_handle, &raw mut rank, ptr::null_mut());
        assert_eq!((outcome, rank), (0, 3));
        let outcome = (interface.communicator)(7, no_handle, ptr::null_mut(), &raw mut size);
        assert_eq!((outcome, size), (0, 4));
        assert_eq!((interface.operator)(16, no_handle), 0);
        assert_eq!((interface.operator)(17, no_handle), 1);
        let outcome = (interface.datatype)(13, &raw mut handle, ptr::null_mut());
        assert_eq!((outcome, handle), (0, 0xf64));
        let outcome = (interface.datatype)(13, no_handle, &raw mut bytes);
        assert_eq!((outcome, bytes), (0, 8));
    }
}

/// Fails when what is there moves, or a field is not counted.
#[test]
fn the_struct_is_as_c_declares_it() {
    let word = size_of::<usize>();
    let offsets = [
        offset_of!(RegistryInterface, struct_size),
        offset_of!(RegistryInterface, communicator),
        offset_of!(RegistryInterface, operator),
        offset_of!(RegistryInterface, datatype),
    ];
    assert_eq!(offsets, [0, 1, 2, 3].map(|index| index * word));
    assert_eq!(REGISTRY_INTERFACE.struct_size, 4 * word);
}
