//! A line on stderr where MPI crashes on device memory.
//!
//! An MPI that takes an address of a device's for one of the host's ends the process with SIGSEGV,
//! and nothing says that a setting of ours would have helped. So there is a line for it: prepared
//! before such a call, and written by a handler of the signal, which then leaves the signal to
//! whoever handled it before.
//!
//! The handler makes no call but those that POSIX allows it (`write`, `sigaction`, `raise`,
//! `pthread_self`).

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::lock::lock;

/// The line of a thread that is in a call on device memory.
///
/// Not a variable of the thread's own: where a thread has none yet, the first look at one allocates,
/// and the fault may be in the allocator.
struct LineSlot {
    /// The thread, 0 for none.
    thread: AtomicUsize,
    start: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

impl LineSlot {
    const fn free() -> Self {
        Self {
            thread: AtomicUsize::new(0),
            start: AtomicPtr::new(ptr::null_mut()),
            bytes: AtomicUsize::new(0),
        }
    }

    fn is_of(&self, thread: usize) -> bool {
        self.thread.load(Ordering::Relaxed) == thread
    }

    /// Takes the slot for a thread, if nobody else has it.
    fn claim(&self, thread: usize) -> bool {
        self.thread
            .compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// So many threads are in such calls at a time. Any others have no line.
const MOST_THREADS: usize = 64;

static SLOTS: [LineSlot; MOST_THREADS] = [const { LineSlot::free() }; MOST_THREADS];

/// An id of the calling thread.
fn this_thread() -> usize {
    // SAFETY: it only tells what the system keeps for the thread.
    unsafe { libc::pthread_self() as usize }
}

/// The handler that was installed before ours.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// For as long as it lives, a segmentation fault on this thread has a line.
pub struct Guard<'a> {
    slot: Option<&'static LineSlot>,
    _line: PhantomData<&'a str>,
}

impl<'a> Guard<'a> {
    /// Has this line be written, which ends with a newline.
    pub fn new(line: &'a str) -> Self {
        install();
        let thread = this_thread();
        let slot = SLOTS.iter().find(|slot| slot.claim(thread));
        if let Some(slot) = slot {
            slot.bytes.store(line.len(), Ordering::Relaxed);
            slot.start
                .store(line.as_ptr().cast_mut(), Ordering::Release);
        }
        Self {
            slot,
            _line: PhantomData,
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.start.store(ptr::null_mut(), Ordering::Relaxed);
            slot.thread.store(0, Ordering::Release);
        }
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
    let _turn = lock(&TURN);
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
    let thread = this_thread();
    for slot in SLOTS.iter().filter(|slot| slot.is_of(thread)) {
        let line = slot.start.swap(ptr::null_mut(), Ordering::Acquire);
        if !line.is_null() {
            let bytes = slot.bytes.load(Ordering::Relaxed);
            // SAFETY: the guard, which is on this thread's stack, lends the line.
            unsafe { libc::write(libc::STDERR_FILENO, line.cast(), bytes) };
        }
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

    /// The bytes of the lines of this thread.
    fn lines() -> Vec<usize> {
        let slots = SLOTS.iter().filter(|slot| slot.is_of(this_thread()));
        slots
            .map(|slot| slot.bytes.load(Ordering::Relaxed))
            .collect()
    }

    #[test]
    fn a_line_is_there_as_long_as_its_guard() {
        let guard = Guard::new("line\n");
        assert!(is_installed());
        assert_eq!(lines(), [5]);
        assert_eq!(std::thread::spawn(lines).join().unwrap(), [0_usize; 0]);
        drop(guard);
        assert_eq!(lines(), [0_usize; 0]);
    }

    #[test]
    fn too_many_have_no_line() {
        let all: Vec<_> = (0..=MOST_THREADS).map(|_| Guard::new("line\n")).collect();
        assert!(all.last().unwrap().slot.is_none());
        drop(all);
        assert!(Guard::new("line\n").slot.is_some());
    }
}
