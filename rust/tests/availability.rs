//! When MPI may be called.

// Miri has no processes.
#![cfg(not(miri))]

use std::sync::Mutex;

use _core::mpi::{Abi, before_finalize, follow_end, is_available, is_forked};

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

/// Fails if a process that was forked calls MPI, or stops the threads of the original.
fn check_in_child() {
    let (outcome, calls) = barrier();
    let error = outcome.unwrap_err().1;
    assert!(is_forked() && error.contains("was forked"), "{error}");
    assert_eq!(calls, []);
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
    before_finalize(stop_first);
    before_finalize(stop_second);

    // SAFETY: the child ends before it returns, and waits for no lock but those of this thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = std::panic::catch_unwind(check_in_child).is_ok();
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
    let (outcome, calls) = barrier();
    assert_eq!(
        outcome,
        precondition("MPI was finalised before: call mpi4jax's operations before MPI.Finalize()")
    );
    assert_eq!(calls, []);
}
