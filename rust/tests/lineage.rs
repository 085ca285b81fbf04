//! The lineages of communicators, on an MPI that fails.

use std::ffi::{c_int, c_void};

use _core::mpi::{CopyAttribute, DeleteAttribute, Functions, follow_copies, lineage_of};

mod common;
use common::recorder::{Recorder, failing, functions};

unsafe extern "C" fn of_another_key(
    _: c_int,
    _: c_int,
    value: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: the caller lends both.
    unsafe {
        *value.cast::<usize>() = 7;
        *flag = 1;
    }
    0
}

unsafe extern "C" fn no_key(
    _: CopyAttribute<Recorder>,
    _: DeleteAttribute<Recorder>,
    _: *mut c_int,
    _: *mut c_void,
) -> c_int {
    5
}

/// Fails if the attribute of another key is taken for a lineage.
#[test]
fn without_a_key_no_communicator_has_a_lineage() {
    const WORLD: c_int = 0x440;
    for comm_create_keyval in [no_key as _, functions().comm_create_keyval] {
        let functions = Functions::<Recorder> {
            comm_create_keyval,
            comm_get_attr: of_another_key,
            ..functions()
        };
        // SAFETY: this MPI takes any handle.
        let lineage = unsafe {
            failing("MPI_Comm_set_attr", 5, || {
                follow_copies(&functions, WORLD);
            });
            lineage_of(&functions, WORLD)
        };
        assert_eq!(lineage, None);
    }
}
