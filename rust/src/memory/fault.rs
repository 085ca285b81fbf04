//! What is said where MPI crashes on device memory.
//!
//! An MPI that takes an address of a device's for one of the host's ends the process with SIGSEGV,
//! and nothing says that a setting of ours would have helped. So there is a line for it: prepared
//! before such a call, and written by a handler of the signal, which then leaves the signal to
//! whoever handled it before.
//!
//! The handler makes no call but those that POSIX allows it (`write`, `sigaction`, `raise`).

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// The line of a thread, if it is in a call on device memory.
#[derive(Clone, Copy)]
struct Line {
    start: *const u8,
    bytes: usize,
}

const NONE: Line = Line {
    start: ptr::null(),
    bytes: 0,
};

thread_local! {
    // Constant and without a destructor, so that the handler only reads memory.
    static LINE: Cell<Line> = const { Cell::new(NONE) };
}

/// Who handles the signal otherwise.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// For as long as it lives, a segmentation fault on this thread has a line.
pub struct Guard<'a> {
    before: Line,
    _line: PhantomData<&'a str>,
}

impl<'a> Guard<'a> {
    /// Has this line be written, which ends with a newline.
    pub fn new(line: &'a str) -> Self {
        install();
        let new = Line {
            start: line.as_ptr(),
            bytes: line.len(),
        };
        Self {
            before: LINE.replace(new),
            _line: PhantomData,
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        LINE.set(self.before);
    }
}

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Makes the handler the signal's, unless it is. MPI, UCX or `faulthandler` may have set one since
/// the last call: theirs is the previous one then.
fn install() {
    static TURN: Mutex<()> = Mutex::new(());
    if is_installed() {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if is_installed() {
        return;
    }
    // SAFETY: all zeros are a valid value.
    let mut ours: libc::sigaction = unsafe { mem::zeroed() };
    ours.sa_sigaction = handle as Handler as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    let previous = Box::into_raw(Box::new(current()));
    // What was there before is never freed: a handler may be reading it.
    PREVIOUS.store(previous, Ordering::Release);
    // SAFETY: the handler does nothing that a handler may not do.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const ours, ptr::null_mut()) };
}

fn current() -> libc::sigaction {
    // SAFETY: all zeros are a valid value, and the call fills it.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut action);
        action
    }
}

fn is_installed() -> bool {
    current().sa_sigaction == handle as Handler as usize
}

unsafe extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let line = LINE.replace(NONE);
    if !line.start.is_null() {
        // SAFETY: the guard lends the line for as long as it is this thread's.
        unsafe { libc::write(libc::STDERR_FILENO, line.start.cast(), line.bytes) };
    }
    let previous = PREVIOUS.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: what `install` has stored stays. Without it, and if the previous handler has given the
    // signal back to this one, the default is left, which ends the process.
    unsafe {
        let mut default: libc::sigaction = mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        let next = if previous.is_null() {
            &raw const default
        } else {
            previous.cast_const()
        };
        libc::sigaction(signal, next, ptr::null_mut());
        // The instruction at fault runs again on return, and now the other handler gets the signal.
        // One that somebody has sent does not come again by itself.
        if info.is_null() || (*info).si_code <= 0 {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_nest() {
        let of_this_thread = || LINE.get().bytes;
        let outer = Guard::new("outer\n");
        assert!(is_installed());
        let inner = Guard::new("in\n");
        assert_eq!(of_this_thread(), 3);
        drop(inner);
        assert_eq!(of_this_thread(), 6);
        drop(outer);
        assert_eq!(of_this_thread(), 0);
    }
}
