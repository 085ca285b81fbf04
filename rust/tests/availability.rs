//! When MPI may be called.

// Miri has no processes.
#![cfg(not(miri))]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use _core::mpi::{Abi, before_finalize, follow_end, is_available, is_forked};
use _core::ops::free_communicator;
use _core::trampoline::{Devices, HANDLES, serve};

mod common;
use common::recorder::*;
use common::*;

static STOPPED: Mutex<Vec<&str>> = Mutex::new(Vec::new());

fn stop_first() {
    STOPPED.lock().unwrap().push("first");
}

fn stop_second() {
    assert!(
        !is_available(),
        "a call could begin while threads are stopped"
    );
    STOPPED.lock().unwrap().push("second");
}

fn barrier() -> (Outcome, Vec<Recorded>) {
    let call = CallFrame::default().operand(token()).result(token());
    run("barrier", call.ints(&[("comm_number", RANK_0)]))
}

unsafe extern "C" {
    #[link_name = "MPIABI_Allreduce"]
    fn jax_allreduce(
        send: *const c_void,
        recv: *mut c_void,
        count: c_int,
        datatype: usize,
        op: usize,
        comm: usize,
    ) -> c_int;
    #[link_name = "MPIABI_Isend"]
    fn jax_isend(
        send: *const c_void,
        count: c_int,
        datatype: usize,
        dest: c_int,
        tag: c_int,
        comm: usize,
        request: *mut usize,
    ) -> c_int;
    #[link_name = "MPIABI_Wait"]
    fn jax_wait(request: *mut usize, status: *mut c_void) -> c_int;
    #[link_name = "MPIABI_Comm_free"]
    fn jax_comm_free(comm: *mut usize) -> c_int;
    #[link_name = "MPIABI_Error_string"]
    fn error_string(code: c_int, text: *mut c_char, length: *mut c_int) -> c_int;
    #[link_name = "MPIABI_COMM_WORLD"]
    static WORLD: usize;
}

fn serve_jax() {
    let handles = (0..HANDLES.len()).map(|index| 1000 + index).collect();
    let devices = Devices {
        bytes: 4,
        versions: String::new(),
        owners: Box::new(HashMap::new),
    };
    // SAFETY: the stand-in takes any handle.
    unsafe { serve::<Recorder>(handles, vec![0, 1], 1, devices) };
}

/// A communicator for which one in reverse order was made.
fn with_a_companion() -> i64 {
    let (comm_number, _) = new_communicator();
    let call = on(comm_number).ints(&[("op_number", SUM), ("reverse", 1)]);
    let array = || floats(0x1000, &[3]);
    let (outcome, calls) = run("scan", call.operand(array()).result(array()));
    assert_eq!((outcome, calls[0].0), (Ok(()), "MPI_Comm_split"));
    comm_number
}

/// Fails if JAX's own collectives call MPI. Gives the text of their error.
fn refusal_of_jax() -> String {
    // SAFETY: a constant.
    let (mut request, mut comm) = (5, unsafe { WORLD });
    let mut text = [0; 1024];
    recorded();
    // SAFETY: no memory is read or written but the request, the handle and the text.
    let text = unsafe {
        let code = jax_allreduce(ptr::null(), ptr::null_mut(), 0, 0, 0, comm);
        assert_eq!(
            jax_isend(ptr::null(), 0, 0, 0, 0, comm, &raw mut request),
            code
        );
        assert_eq!(jax_wait(&raw mut request, ptr::null_mut()), code);
        assert_eq!(jax_comm_free(&raw mut comm), 0);
        let mut length = 0;
        error_string(code, text.as_mut_ptr(), &raw mut length);
        CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_owned()
    };
    assert_eq!(recorded(), []);
    text
}

/// Fails if the companions of a communicator are freed.
fn check_that_nothing_is_freed(comm_number: i64) {
    free_communicator::<Recorder>(comm_number as usize);
    assert_eq!(recorded(), []);
}

/// Fails if a process that was forked calls MPI, or stops the threads of the original.
fn check_in_child(comm_number: i64) {
    let (outcome, calls) = barrier();
    let error = outcome.unwrap_err().1;
    assert!(is_forked() && error.contains("was forked"), "{error}");
    assert_eq!(calls, []);
    assert_eq!(refusal_of_jax(), error);
    check_that_nothing_is_freed(comm_number);
    finalize();
    assert_eq!(*STOPPED.lock().unwrap(), [""; 0]);
}

/// Fails if a child can call MPI, if a thread goes on once MPI ends, or if calls do. One test, as this is
/// about the whole process.
#[test]
fn nothing_calls_mpi_in_a_child_or_after_its_end() {
    assert_eq!(barrier().0, Ok(()));
    let functions = Recorder::functions().get().unwrap();
    for _ in 0..2 {
        // SAFETY: the stand-in takes any handle.
        unsafe { follow_end(functions, 0x5e1f) };
    }
    assert_eq!(recorded(), [("MPI_Comm_set_attr", vec![0x5e1f, 0, 0])]);
    serve_jax();
    let comm_number = with_a_companion();
    before_finalize(stop_first);
    before_finalize(stop_second);

    // SAFETY: the child ends before it returns, and waits for no lock but those of this thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = std::panic::catch_unwind(|| check_in_child(comm_number)).is_ok();
        // SAFETY: this ends the child.
        unsafe { libc::_exit(if is_right { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: there is room for the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);

    assert_eq!(barrier().0, Ok(()));
    finalize();
    assert_eq!(*STOPPED.lock().unwrap(), ["second", "first"]);
    finalize();
    assert_eq!(STOPPED.lock().unwrap().len(), 2);
    let refusal = "MPI was finalised before: call mpi4jax's operations before MPI.Finalize()";
    assert_eq!(barrier(), (precondition(refusal), vec![]));
    assert_eq!(refusal_of_jax(), refusal);
    check_that_nothing_is_freed(comm_number);
}
