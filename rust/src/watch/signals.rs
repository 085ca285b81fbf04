//! Counter of interrupts (SIGINT) that Python can't handle while its main thread is in a call.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Python's handler, which ours calls.
static HANDLER_BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Number of interrupts that Python has not handled.
pub fn interrupts() -> u32 {
    COUNT.load(Ordering::Relaxed)
}

/// Resets the count after Python has handled the interrupts.
pub fn forget_interrupts() {
    COUNT.store(0, Ordering::Relaxed);
}

/// Installs a handler that counts interrupts and then calls Python's handler.
pub fn note_interrupts() {
    extern "C" fn note(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        COUNT.fetch_add(1, Ordering::Relaxed);
        let Some(before) = HANDLER_BEFORE.get() else {
            return;
        };
        // SAFETY: Python's handler is called with the signature that its flags declare.
        unsafe {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(before.sa_sigaction);
                handler(signal, info, context);
            } else {
                let handler: extern "C" fn(c_int) = std::mem::transmute(before.sa_sigaction);
                handler(signal);
            }
        }
    }
    // SAFETY: `sigaction` is plain data. The handler only calls what a signal handler may call.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGINT, ptr::null(), &raw mut before) != 0
            || [libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction)
            || HANDLER_BEFORE.set(before).is_err()
        {
            return;
        }
        let mut action = before;
        action.sa_flags |= libc::SA_SIGINFO;
        action.sa_sigaction = note as *const () as usize;
        libc::sigaction(libc::SIGINT, &raw const action, ptr::null_mut());
    }
}
