//! The threads of the process: their numbers, and the start of the core's own.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::io;
use std::mem;
use std::ptr;
use std::sync::Mutex;
use std::thread::{Builder, JoinHandle};

use crate::lock::lock;

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// The number of the calling thread, or 0 where the system has none for it.
#[inline(always)]
pub fn current() -> u32 {
    CURRENT.with(|known| match known.get() {
        0 => ask(known),
        thread => thread,
    })
}

#[cold]
#[inline(never)]
fn ask(known: &Cell<u32>) -> u32 {
    #[cfg(target_os = "linux")]
    // SAFETY: it only returns a number.
    known.set(unsafe { libc::gettid() } as u32);
    known.get()
}

/// The threads of the core.
static CORE_THREADS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The calling thread is one of the core for as long as this lives.
struct Claim(u32);

impl Claim {
    fn new() -> Self {
        let thread = current();
        lock(&CORE_THREADS).insert(thread);
        Self(thread)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The system gives the number to another thread.
        lock(&CORE_THREADS).remove(&self.0);
    }
}

/// Whether a thread is one of the core.
pub fn is_own(thread: u32) -> bool {
    lock(&CORE_THREADS).contains(&thread)
}

/// Starts a thread of the core, which does nothing for the program: signals go to the program's own
/// threads.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let claimed = || {
        let _claim = Claim::new();
        body();
    };
    #[cfg_attr(
        not(test),
        expect(clippy::disallowed_methods, reason = "this is the one way")
    )]
    without_signals(|| Builder::new().name(name.into()).spawn(claimed))
}

/// The signals that a thread gets for an error of its own. Were they blocked, the process would end
/// without the lines of whoever handles them, such as Python's `faulthandler`.
const FAULTS: [c_int; 6] = [
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGTRAP,
];

/// A thread that is made in the body gets no signals but [`FAULTS`]: it has the mask of the one that
/// makes it.
fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: signal sets are plain data, which these functions fill.
    unsafe {
        let (mut blocked, mut before) = mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
        libc::sigfillset(&raw mut blocked);
        for signal in FAULTS {
            libc::sigdelset(&raw mut blocked, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, &raw mut before);
        let result = body();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn is_blocked(signal: c_int) -> bool {
        // SAFETY: a signal set is plain data, which is filled with the mask of this thread.
        unsafe {
            let mut mask = mem::zeroed::<libc::sigset_t>();
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut mask);
            libc::sigismember(&raw const mask, signal) == 1
        }
    }

    #[test]
    #[cfg(not(miri))] // it has no signals
    fn threads_of_the_core_get_no_signals_of_the_program() {
        const PROGRAMS: [c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGCHLD, libc::SIGUSR1];
        let (send, receive) = mpsc::channel();
        let ask = move || {
            let answer = (current(), is_own(current()), PROGRAMS.map(is_blocked));
            send.send((answer, FAULTS.map(is_blocked))).unwrap();
        };
        spawn("mpi4jax-test", ask).unwrap().join().unwrap();
        let ((thread, is_of_the_core, of_programs), of_faults) = receive.recv().unwrap();
        assert!(is_of_the_core);
        assert_eq!((of_programs, of_faults), ([true; 4], [false; 6]));
        assert!(!is_own(thread), "another thread may have the number now");
        assert_eq!(
            PROGRAMS.map(is_blocked),
            [false; 4],
            "of the one that has started it"
        );
    }
}
