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
use std::hint;
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

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

    /// Takes the slot for a thread, unless another thread has it.
    fn claim(&self, thread: usize) -> bool {
        self.thread
            .compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// Number of threads in calls on device memory that can have a line at a time. Any others have none.
const MAX_THREADS: usize = 64;

static SLOTS: [LineSlot; MAX_THREADS] = [const { LineSlot::free() }; MAX_THREADS];

/// An id of the calling thread.
fn this_thread() -> usize {
    // SAFETY: it only tells what the system keeps for the thread.
    unsafe { libc::pthread_self() as usize }
}

/// The handler that was installed before ours, until the first fault.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// For as long as it lives, a segmentation fault on this thread has a line.
pub struct Guard<'a> {
    slot: Option<&'static LineSlot>,
    _line: PhantomData<&'a str>,
}

impl<'a> Guard<'a> {
    /// Registers the line, which ends with a newline, to be written at a fault.
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
    leave(signal, thread);
    // The instruction at fault runs again on return, and now the other handler gets the signal. One
    // that somebody has sent does not come again by itself.
    // SAFETY: the system describes the signal, if anybody does.
    unsafe {
        if info.is_null() || (*info).si_code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Leaves the signal to the handler that was there before, at the first fault. If that one has given it
/// back to ours, the default is left, which ends the process. Other threads may be in our handler at the
/// same time: their faults are for what the first one has left.
fn leave(signal: c_int, thread: usize) {
    static IS_LEAVING: AtomicBool = AtomicBool::new(false);
    /// The thread that left last. A thread that comes twice in a row is back from the previous handler.
    static LAST: AtomicUsize = AtomicUsize::new(0);
    while IS_LEAVING.swap(true, Ordering::Acquire) {
        hint::spin_loop(); // for the time of two calls of the system's
    }
    let previous = PREVIOUS.swap(ptr::null_mut(), Ordering::Acquire);
    let is_back = LAST.swap(thread, Ordering::Relaxed) == thread || is_installed();
    // SAFETY: all zeros are a valid value, and what `install` has stored stays.
    unsafe {
        if !previous.is_null() {
            libc::sigaction(signal, previous, ptr::null_mut());
        } else if is_back {
            let mut default: libc::sigaction = mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const default, ptr::null_mut());
        }
    }
    IS_LEAVING.store(false, Ordering::Release);
}

#[cfg(all(test, not(miri)))] // it has no signals
mod tests {
    use std::thread;

    use super::*;

    /// The bytes of the lines of this thread.
    fn lines() -> Vec<usize> {
        let slots = SLOTS.iter().filter(|slot| slot.is_of(this_thread()));
        slots
            .map(|slot| slot.bytes.load(Ordering::Relaxed))
            .collect()
    }

    /// Whoever asks or changes whose the signal is has this.
    static ALONE: Mutex<()> = Mutex::new(());

    unsafe extern "C" fn other(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {}

    fn set(handler: Handler) {
        let mut action = current();
        action.sa_sigaction = handler as usize;
        // SAFETY: the handler does nothing that a handler may not do.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) };
    }

    /// Does what the system does at a fault of this thread. Gives whose the signal is then.
    fn fault() -> libc::sighandler_t {
        // SAFETY: all zeros are a valid value.
        let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
        info.si_code = 1; // SEGV_MAPERR
        // SAFETY: as the system calls it.
        unsafe { handle(libc::SIGSEGV, &raw mut info, ptr::null_mut()) };
        current().sa_sigaction
    }

    /// Fails if the second of two threads in our handler replaces the previous handler by the default.
    #[test]
    fn two_faults_at_once_are_left_to_the_previous_handler() {
        let _alone = lock(&ALONE);
        let before = current();
        set(other);
        install();
        assert_eq!(fault(), other as Handler as usize);
        assert_eq!(
            thread::spawn(fault).join().unwrap(),
            other as Handler as usize
        );
        // SAFETY: it was the signal's before.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const before, ptr::null_mut()) };
    }

    /// Fails if two handlers give the signal to each other for ever.
    #[test]
    fn a_fault_that_comes_back_ends_the_process() {
        let _alone = lock(&ALONE);
        let before = current();
        for gives_back in [|| set(handle), || ()] {
            set(other);
            install();
            assert_eq!(fault(), other as Handler as usize);
            gives_back();
            assert_eq!(fault(), libc::SIG_DFL);
        }
        // SAFETY: it was the signal's before.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const before, ptr::null_mut()) };
    }

    #[test]
    fn a_line_is_there_as_long_as_its_guard() {
        let _alone = lock(&ALONE);
        let guard = Guard::new("line\n");
        assert!(is_installed());
        assert_eq!(lines(), [5]);
        assert_eq!(thread::spawn(lines).join().unwrap(), [0_usize; 0]);
        drop(guard);
        assert_eq!(lines(), [0_usize; 0]);
    }

    #[test]
    fn too_many_have_no_line() {
        let _alone = lock(&ALONE);
        let all: Vec<_> = (0..=MAX_THREADS).map(|_| Guard::new("line\n")).collect();
        assert!(all.last().unwrap().slot.is_none());
        drop(all);
        assert!(Guard::new("line\n").slot.is_some());
    }
}
