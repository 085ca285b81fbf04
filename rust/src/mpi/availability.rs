//! Whether MPI may be called: not once it is about to be finalised, and not in a process that was forked
//! from the one that has initialised it.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, Once};

use super::abi::Abi;
use super::functions::Functions;
use crate::error::{Error, Result};
use crate::lock::lock;

const AVAILABLE: u8 = 0;
/// `MPI_Finalize` has begun.
const ENDED: u8 = 1;
/// Another process has initialised MPI, and this one is a copy of it with a single thread.
const FORKED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(AVAILABLE);

/// Functions of threads that call MPI, each of which returns when its thread does so no more.
static STOPS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Whether MPI may be called.
#[inline(always)]
pub fn is_available() -> bool {
    STATE.load(Ordering::Relaxed) == AVAILABLE
}

/// Whether this process was forked from the one that has initialised MPI.
pub fn is_forked() -> bool {
    STATE.load(Ordering::Relaxed) == FORKED
}

/// Refuses a call where MPI may not be called.
#[inline(always)]
pub fn check_available() -> Result<()> {
    if is_available() {
        Ok(())
    } else {
        Err(refusal())
    }
}

#[cold]
fn refusal() -> Error {
    Error::precondition(if is_forked() {
        "mpi4jax can't be used in a process that was forked from one that has initialised MPI: \
         MPI and JAX work in the original only. Start processes in another way, such as \
         multiprocessing.get_context(\"spawn\")"
    } else {
        "MPI was finalised before: call mpi4jax's operations before MPI.Finalize()"
    })
}

/// Has a function be called when MPI is about to be finalised, to stop what calls MPI on a thread. The one
/// that was added last is called first.
pub fn before_finalize(stop: fn()) {
    lock(&STOPS).push(stop);
}

/// Is told of the end of MPI, and of forks, from now on.
///
/// # Safety
/// `comm_self` is the handle of `MPI_COMM_SELF`.
pub unsafe fn follow_end<A: Abi>(functions: &Functions<A>, comm_self: A::Comm) {
    static FOLLOW: Once = Once::new();
    FOLLOW.call_once(|| {
        call_when_finalised(functions, comm_self);
        // SAFETY: the function does nothing but to store a number. Without memory for its entry, forks
        // are not noticed.
        unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
    });
}

extern "C" fn note_fork() {
    STATE.store(FORKED, Ordering::Relaxed);
}

/// Has MPI call [`finalize`] at the begin of `MPI_Finalize`: it then deletes the attributes of
/// `MPI_COMM_SELF` (MPI-4.1 §11.2.4).
fn call_when_finalised<A: Abi>(functions: &Functions<A>, comm_self: A::Comm) {
    unsafe extern "C" fn copy<A: Abi>(
        _: A::Comm,
        _: c_int,
        _: *mut c_void,
        _: *mut c_void,
        _: *mut c_void,
        flag: *mut c_int,
    ) -> c_int {
        // SAFETY: MPI lends the flag. Copies of the communicator don't get the attribute.
        unsafe { *flag = 0 };
        0
    }
    unsafe extern "C" fn delete<A: Abi>(
        _: A::Comm,
        _: c_int,
        _: *mut c_void,
        _: *mut c_void,
    ) -> c_int {
        finalize();
        0
    }
    let mut keyval = 0;
    // SAFETY: both functions live for good, and the key may be written.
    unsafe {
        let made = (functions.comm_create_keyval)(
            Some(copy::<A>),
            Some(delete::<A>),
            &raw mut keyval,
            ptr::null_mut(),
        );
        if made == 0 {
            (functions.comm_set_attr)(comm_self, keyval, ptr::null_mut());
        }
    }
}

/// Refuses calls from now on, and stops the threads that call MPI.
fn finalize() {
    let begins = STATE.compare_exchange(AVAILABLE, ENDED, Ordering::Relaxed, Ordering::Relaxed);
    if begins.is_err() {
        return; // the threads are those of another process
    }
    let stops = std::mem::take(&mut *lock(&STOPS));
    for stop in stops.into_iter().rev() {
        stop();
    }
}
