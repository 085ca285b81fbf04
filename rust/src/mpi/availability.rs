//! Availability of MPI: no call is made once `MPI_Finalize` has begun, or in a process that was forked from
//! the one that initialised MPI.

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
/// This process is a fork, with a single thread, of the process that initialised MPI.
const FORKED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(AVAILABLE);

/// Functions that stop a thread from calling MPI, and return when it has stopped.
static STOPS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Whether background threads may not call MPI any more. Locked during their calls.
static IS_BACKGROUND_OVER: Mutex<bool> = Mutex::new(false);

/// Calls MPI on a background thread of the core, or returns `None` if MPI is being finalised. `MPI_Finalize`
/// waits for the call, and for all functions of [`before_finalize`] first.
pub fn call_in_background<T>(call: impl FnOnce() -> T) -> Option<T> {
    let is_over = lock(&IS_BACKGROUND_OVER);
    (!*is_over && !is_forked()).then(call)
}

/// Whether MPI may be called.
#[inline(always)]
pub fn is_available() -> bool {
    STATE.load(Ordering::Relaxed) == AVAILABLE
}

/// Whether this process was forked from the one that initialised MPI.
pub fn is_forked() -> bool {
    STATE.load(Ordering::Relaxed) == FORKED
}

/// An error if MPI may not be called.
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

/// Adds a function that stops a thread from calling MPI before MPI is finalised. The function that was
/// added last is called first.
pub fn before_finalize(stop: fn()) {
    lock(&STOPS).push(stop);
}

/// Starts to follow the end of MPI, and forks.
///
/// # Safety
/// `comm_self` is the handle of `MPI_COMM_SELF`.
pub unsafe fn follow_end<A: Abi>(functions: &Functions<A>, comm_self: A::Comm) {
    static FOLLOW: Once = Once::new();
    FOLLOW.call_once(|| {
        call_when_finalised(functions, comm_self);
        // SAFETY: the function only stores a number. If there is no memory for its entry, forks go
        // unnoticed.
        unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
    });
}

extern "C" fn note_fork() {
    STATE.store(FORKED, Ordering::Relaxed);
}

/// Makes MPI call [`finalize`] at the begin of `MPI_Finalize`, when MPI deletes the attributes of
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
        // SAFETY: MPI lends the flag. Copies of the communicator do not get the attribute.
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

/// Ends the availability of MPI, and stops the threads that call MPI.
fn finalize() {
    let begins = STATE.compare_exchange(AVAILABLE, ENDED, Ordering::Relaxed, Ordering::Relaxed);
    if begins.is_err() {
        return; // in a fork, the threads belong to the original process
    }
    let stops = std::mem::take(&mut *lock(&STOPS));
    for stop in stops.into_iter().rev() {
        stop();
    }
    *lock(&IS_BACKGROUND_OVER) = true;
}
