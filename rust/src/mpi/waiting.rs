//! Waits that give way, where the ranks of a node share its cores.
//!
//! While MPI waits, it polls, and calls `sched_yield` in between. A thread that yields remains
//! runnable, so it still takes the time of threads that compute, those of the rank that it waits for
//! among them. So MPI's import of `sched_yield` is replaced: in the calls of this core, it sleeps once
//! the wait is longer than a message takes. MPI's locks are not held meanwhile, all ranks make the same
//! calls as before, and each rank may decide for itself.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::abi::Abi;
use super::functions::Functions;
use super::imports::replace_import;
use super::library::Library;

/// Whether waits give way.
static GIVES_WAY: AtomicBool = AtomicBool::new(false);

/// For so long, a wait only yields. A sleep takes less, so that one of a rank's does not make others
/// sleep, too, which would sleep in turns from then on.
const SPIN: Duration = Duration::from_micros(100);
/// A poll that takes longer has moved something, and the wait begins anew.
const WORK: Duration = Duration::from_micros(2);
/// A pause is this part of the wait so far: at first, and when it is long.
const PARTS: (u32, u32) = (4, 256);
/// The longest pause of a wait at first, and of a long one.
const LONGEST: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(1));

/// A wait of the calling thread in a call of the core.
#[derive(Clone, Copy)]
struct Wait {
    /// When MPI had something to do last.
    since: Instant,
    /// When the last poll began.
    polled: Instant,
    /// The thread's own timer slack, once it has another one.
    slack: Option<c_int>,
}

thread_local! {
    static WAIT: Cell<Option<Wait>> = const { Cell::new(None) };
}

/// The calling thread is in a blocking call of MPI for as long as this lives.
#[must_use = "the wait ends when it is dropped"]
pub struct Waiting(bool);

impl Waiting {
    /// Begins a call.
    #[inline(always)]
    pub fn begin() -> Self {
        let gives_way = GIVES_WAY.load(Ordering::Relaxed);
        if gives_way {
            begin();
        }
        Self(gives_way)
    }
}

impl Drop for Waiting {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0 {
            end();
        }
    }
}

#[cold]
fn begin() {
    let now = Instant::now();
    WAIT.set(Some(Wait {
        since: now,
        polled: now,
        slack: None,
    }));
}

#[cold]
fn end() {
    if let Some(slack) = WAIT.take().and_then(|wait| wait.slack) {
        set_timer_slack(slack);
    }
}

/// What MPI calls for `sched_yield`.
extern "C" fn yield_or_sleep() -> c_int {
    // A thread that ends has lost its variables.
    let Some(mut wait) = WAIT.try_with(Cell::get).ok().flatten() else {
        return yield_now();
    };
    let now = Instant::now();
    if now - wait.polled > WORK {
        wait.since = now;
    }
    match pause(now - wait.since) {
        None => {
            yield_now();
        }
        Some(pause) => {
            wait.slack = wait.slack.or_else(|| Some(set_timer_slack(1)));
            std::thread::sleep(pause);
        }
    }
    wait.polled = Instant::now();
    WAIT.set(Some(wait));
    0
}

/// How long to sleep after a wait of this length, if at all.
fn pause(waited: Duration) -> Option<Duration> {
    let short = (waited / PARTS.0).min(LONGEST.0);
    let long = (waited / PARTS.1).min(LONGEST.1);
    (waited >= SPIN).then(|| short.max(long))
}

fn yield_now() -> c_int {
    // SAFETY: it has no arguments.
    unsafe { libc::sched_yield() }
}

/// Sets by how many nanoseconds the system may wake this thread late (by default 50 us, longer than
/// most waits), and gives what it was.
#[cfg(target_os = "linux")]
fn set_timer_slack(nanoseconds: c_int) -> c_int {
    // SAFETY: both only read or set a number of the calling thread.
    unsafe {
        let old = libc::prctl(libc::PR_GET_TIMERSLACK);
        libc::prctl(libc::PR_SET_TIMERSLACK, nanoseconds.max(1) as libc::c_ulong);
        old
    }
}

#[cfg(not(target_os = "linux"))]
fn set_timer_slack(_: c_int) -> c_int {
    0
}

/// Has the waits in calls of the core give way. Says whether this MPI can do so.
pub fn give_way<A: Abi>(functions: &Functions<A>, library: &Library) -> bool {
    // Open MPI yields if it is told to, and polls in another library.
    type SetYield = unsafe extern "C" fn(bool) -> bool;
    // SAFETY: `opal_progress_set_yield_when_idle` has had this signature since Open MPI 1.2.
    let set_yield =
        unsafe { library.function::<SetYield>("opal_progress_set_yield_when_idle") }.ok();
    let polling = set_yield.map_or(functions.test as usize, |set_yield| set_yield as usize);
    let function = yield_or_sleep as *const c_void;
    // SAFETY: the function is one like `sched_yield`, and gives other threads time, too.
    let is_replaced = unsafe { replace_import(polling, c"sched_yield", function) };
    if is_replaced {
        if let Some(set_yield) = set_yield {
            // SAFETY: see above.
            unsafe { set_yield(true) };
        }
        GIVES_WAY.store(true, Ordering::Relaxed);
    }
    is_replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_the_wait() {
        let micros = Duration::from_micros;
        assert_eq!(pause(micros(99)), None);
        assert_eq!(pause(micros(100)), Some(micros(25)));
        assert_eq!(pause(micros(10_000)), Some(micros(100)));
        assert_eq!(pause(micros(51_200)), Some(micros(200)));
        assert_eq!(pause(Duration::from_secs(60)), Some(micros(1000)));
    }

    /// How often this thread has slept. To yield is no such thing.
    #[cfg(target_os = "linux")]
    fn sleeps() -> i64 {
        let mut usage = std::mem::MaybeUninit::uninit();
        // SAFETY: the system fills it, and fails for no such argument.
        unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init().ru_nvcsw
        }
    }

    /// How often a thread sleeps that polls 100 times, each after a wait of this length.
    #[cfg(target_os = "linux")]
    fn sleeps_after(waited: Duration) -> i64 {
        let before = sleeps();
        for _ in 0..100 {
            if let Some(mut wait) = WAIT.get() {
                wait.since = Instant::now() - waited;
                // However long a poll takes here, it has moved nothing.
                wait.polled = wait.since + Duration::from_secs(60);
                WAIT.set(Some(wait));
            }
            yield_or_sleep();
        }
        sleeps() - before
    }

    /// Fails if a wait outside of a call sleeps: MPI yields for other callers, too.
    #[cfg(target_os = "linux")]
    #[test]
    fn only_a_long_wait_in_a_call_sleeps() {
        assert!(sleeps_after(SPIN) < 10);
        begin();
        assert!(sleeps_after(Duration::ZERO) < 10);
        assert!(sleeps_after(SPIN) > 50);
        end();
        assert!(WAIT.get().is_none());
    }
}
