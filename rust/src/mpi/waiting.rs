//! Waits in calls of the core: they poll, then yield, then sleep where ranks share cores.
//!
//! While MPI waits, it polls, and calls `sched_yield` after each poll. The core replaces MPI's import of
//! `sched_yield`, for three reasons:
//!
//! - A system call takes as long as a small message. So if the node has a core for each rank, a wait at
//!   first polls without system calls.
//! - A thread that yields stays runnable, and takes time from threads that compute, which may belong to the
//!   rank that it waits for. So where threads need its core, a wait that is longer than a message sleeps.
//! - A sleeping thread has lost its core when the message comes, and the threads that ran there meanwhile
//!   had cold caches. So a wait that is expected to be short keeps its core for longer: if no other wait of
//!   the process is long, and the last long wait was short, too.
//!
//! MPI holds no lock when it yields, all ranks still make the same calls, and each rank decides for itself.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::abi::Abi;
use super::functions::Functions;
use super::imports::replace_import;
use super::library::Library;

/// The policy for the pauses between polls, where the core decides on them.
#[derive(Clone, Copy)]
pub struct WaitPolicy {
    /// Whether a wait polls without pauses at first: the node has a core for each rank.
    pub has_core: bool,
    /// Whether a long wait sleeps: other threads compute on the core.
    pub gives_way: bool,
}

/// The pause between two polls of MPI's: none, a yield, or a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    None,
    Yield,
    Sleep(Duration),
}

impl WaitPolicy {
    /// The next pause of a wait that has taken `waited` so far. `is_short`: the wait is expected to be
    /// short.
    fn pause_after(self, waited: Duration, is_short: bool) -> Pause {
        let (poll, keep) = match (self.gives_way, is_short) {
            (true, true) => (SHORT_WAIT, SHORT_WAIT),
            (true, false) => (POLL_TIME, AWAKE_TIME),
            (false, _) => (POLL_TIME, Duration::MAX),
        };
        if self.has_core && waited < poll {
            return Pause::None;
        }
        if waited < keep {
            return Pause::Yield;
        }
        let short = (waited / SLEEP_DIVISORS.0).min(MAX_SLEEPS.0);
        let long = (waited / SLEEP_DIVISORS.1).min(MAX_SLEEPS.1);
        Pause::Sleep(short.max(long))
    }
}

static POLICY: OnceLock<WaitPolicy> = OnceLock::new();

/// The number of threads whose waits are longer than [`POLL_TIME`].
static LONG_WAITS: AtomicUsize = AtomicUsize::new(0);
/// Whether the last wait of at least [`AWAKE_TIME`] ended before [`SHORT_WAIT`].
static WAS_SHORT: AtomicBool = AtomicBool::new(true);

/// Time for which a rank with its own core only polls.
const POLL_TIME: Duration = Duration::from_micros(5);
/// Time for which a wait that is expected to be short does not sleep, and on its own core only polls.
const SHORT_WAIT: Duration = Duration::from_millis(3);
/// Time for which no wait sleeps. It is longer than the sleep of one rank and the turns of all ranks on a
/// core after that sleep: if other ranks slept meanwhile, all would sleep in turns from then on.
const AWAKE_TIME: Duration = Duration::from_micros(300);
/// The longest poll that finds nothing to do: after a poll or a yield, and after a sleep, which leaves cold
/// caches. After a longer poll, MPI has made progress, and the wait begins anew.
const IDLE_POLLS: (Duration, Duration) = (Duration::from_micros(2), Duration::from_micros(20));
/// Divisors of the time waited so far that give the sleep: in a short wait, and in a long one.
const SLEEP_DIVISORS: (u32, u32) = (4, 256);
/// The longest sleep in a short wait, and in a long one.
const MAX_SLEEPS: (Duration, Duration) = (Duration::from_micros(250), Duration::from_millis(1));

/// The wait of the calling thread in a call of the core.
#[derive(Clone, Copy)]
struct Wait {
    policy: WaitPolicy,
    /// The times of polls, once the first poll is over.
    polls: Option<Polls>,
    /// Whether the wait is counted in [`LONG_WAITS`].
    is_long: bool,
    /// The thread's timer slack before the first sleep, once changed.
    slack: Option<c_int>,
}

#[derive(Clone, Copy)]
struct Polls {
    /// The end of the first poll.
    begin: Instant,
    /// The time when MPI last made progress.
    since: Instant,
    /// The begin of the last poll.
    last: Instant,
    /// Whether the last poll came after a sleep.
    was_asleep: bool,
}

impl Polls {
    /// Whether MPI made progress in the last poll, which has just ended.
    fn made_progress(&self, now: Instant) -> bool {
        let (warm, cold) = IDLE_POLLS;
        now - self.last > if self.was_asleep { cold } else { warm }
    }
}

thread_local! {
    static WAIT: Cell<Option<Wait>> = const { Cell::new(None) };
}

/// A guard: the calling thread is in a blocking call of MPI until the guard is dropped.
#[must_use = "the wait ends when it is dropped"]
pub struct Waiting(bool);

impl Waiting {
    /// Begins a call.
    #[inline(always)]
    pub fn begin() -> Self {
        let policy = POLICY.get();
        if let Some(policy) = policy {
            begin(*policy);
        }
        Self(policy.is_some())
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

fn begin(policy: WaitPolicy) {
    WAIT.set(Some(Wait {
        policy,
        polls: None,
        is_long: false,
        slack: None,
    }));
}

fn end() {
    let Some(wait) = WAIT.take() else {
        return;
    };
    if wait.is_long {
        LONG_WAITS.fetch_sub(1, Ordering::Relaxed);
        if let Some(length) = wait.polls.map(|polls| polls.last - polls.begin)
            && length >= AWAKE_TIME
        {
            WAS_SHORT.store(length < SHORT_WAIT, Ordering::Relaxed);
        }
    }
    if let Some(slack) = wait.slack {
        set_timer_slack(slack);
    }
}

/// The function that MPI calls instead of `sched_yield`.
extern "C" fn yield_or_sleep() -> c_int {
    // A thread that is ending has no thread-local variables any more.
    let Some(mut wait) = WAIT.try_with(Cell::get).ok().flatten() else {
        return yield_now();
    };
    let now = Instant::now();
    let mut polls = wait.polls.unwrap_or(Polls {
        begin: now,
        since: now,
        last: now,
        was_asleep: false,
    });
    if polls.made_progress(now) {
        polls.since = now;
    }
    let waited = now - polls.since;
    if waited >= POLL_TIME && !wait.is_long {
        LONG_WAITS.fetch_add(1, Ordering::Relaxed);
        wait.is_long = true;
    }
    let is_short = LONG_WAITS.load(Ordering::Relaxed) <= 1 && WAS_SHORT.load(Ordering::Relaxed);
    let pause = wait.policy.pause_after(waited, is_short);
    polls.was_asleep = matches!(pause, Pause::Sleep(_));
    polls.last = match pause {
        Pause::None => {
            std::hint::spin_loop();
            now
        }
        Pause::Yield => {
            yield_now();
            Instant::now()
        }
        Pause::Sleep(pause) => {
            wait.slack = wait.slack.or_else(|| Some(set_timer_slack(1)));
            std::thread::sleep(pause);
            Instant::now()
        }
    };
    wait.polls = Some(polls);
    WAIT.set(Some(wait));
    0
}

fn yield_now() -> c_int {
    // SAFETY: `sched_yield` has no arguments.
    unsafe { libc::sched_yield() }
}

/// Sets the timer slack of this thread, by which the system may wake it late (50 us by default, longer
/// than most waits), and returns the old one.
#[cfg(target_os = "linux")]
fn set_timer_slack(nanoseconds: c_int) -> c_int {
    // SAFETY: both calls only read or set a number of the calling thread.
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

/// Sets the policy for all waits in calls of the core, once and for all. Returns whether this MPI allows
/// it.
pub fn set_wait_policy<A: Abi>(
    functions: &Functions<A>,
    library: &Library,
    policy: WaitPolicy,
) -> bool {
    // Open MPI yields only on request, and polls in another library.
    type SetYield = unsafe extern "C" fn(bool) -> bool;
    // SAFETY: `opal_progress_set_yield_when_idle` has had this signature since Open MPI 1.2.
    let set_yield =
        unsafe { library.function::<SetYield>("opal_progress_set_yield_when_idle") }.ok();
    if set_yield.is_some() && !policy.gives_way {
        return true; // without the request, Open MPI only polls
    }
    let polling = set_yield.map_or(functions.test as usize, |set_yield| set_yield as usize);
    let function = yield_or_sleep as *const c_void;
    // SAFETY: the function has the signature of `sched_yield`, and gives other threads time, too.
    let is_replaced = unsafe { replace_import(polling, c"sched_yield", function) };
    if is_replaced {
        if let Some(set_yield) = set_yield {
            // SAFETY: see above.
            unsafe { set_yield(true) };
        }
        POLICY.get_or_init(|| policy);
    }
    is_replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn policy(has_core: bool, gives_way: bool) -> WaitPolicy {
        WaitPolicy {
            has_core,
            gives_way,
        }
    }

    #[test]
    fn pauses_grow_with_the_wait() {
        let micros = Duration::from_micros;
        for (waited, pause) in [
            (4, Pause::None),
            (5, Pause::Yield),
            (299, Pause::Yield),
            (300, Pause::Sleep(micros(75))),
            (10_000, Pause::Sleep(micros(250))),
            (128_000, Pause::Sleep(micros(500))),
            (60_000_000, Pause::Sleep(micros(1000))),
        ] {
            assert_eq!(policy(true, true).pause_after(micros(waited), false), pause);
        }
    }

    #[test]
    fn a_wait_that_is_expected_to_be_short_keeps_its_core() {
        let pause_after = |waited, has_core, is_short| {
            policy(has_core, true).pause_after(Duration::from_micros(waited), is_short)
        };
        let short = Pause::Sleep(Duration::from_micros(250));
        assert_eq!(pause_after(2_999, true, true), Pause::None);
        assert_eq!(pause_after(2_999, false, true), Pause::Yield);
        assert_eq!(pause_after(2_999, true, false), short);
        assert_eq!(pause_after(2_999, false, false), short);
        assert_eq!(pause_after(3_000, true, true), short);
    }

    #[test]
    fn only_a_rank_with_a_core_does_not_yield_at_once() {
        let first_pause = |has_core| policy(has_core, true).pause_after(Duration::ZERO, false);
        assert_eq!(first_pause(false), Pause::Yield);
        assert_eq!(first_pause(true), Pause::None);
    }

    #[test]
    fn a_poll_after_a_sleep_may_take_longer() {
        let begin = Instant::now();
        let made_progress = |was_asleep, micros| {
            let polls = Polls {
                begin,
                since: begin,
                last: begin,
                was_asleep,
            };
            polls.made_progress(begin + Duration::from_micros(micros))
        };
        assert!(!made_progress(false, 2) && made_progress(false, 3));
        assert!(!made_progress(true, 20) && made_progress(true, 21));
    }

    /// The number of times that this thread has slept. Yields do not count.
    #[cfg(target_os = "linux")]
    fn sleeps() -> i64 {
        let mut usage = std::mem::MaybeUninit::uninit();
        // SAFETY: the system fills `usage`, and does not fail for these arguments.
        unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init().ru_nvcsw
        }
    }

    /// The number of sleeps in 100 polls, each after a wait of this length.
    #[cfg(target_os = "linux")]
    fn sleeps_after(waited: Duration) -> i64 {
        let before = sleeps();
        for _ in 0..100 {
            if let Some(mut wait) = WAIT.get() {
                let since = Instant::now() - waited;
                // Far ahead, so that no poll counts as progress, however long it takes here.
                let last = since + Duration::from_secs(60);
                wait.polls = Some(Polls {
                    begin: since,
                    since,
                    last,
                    was_asleep: false,
                });
                WAIT.set(Some(wait));
            }
            yield_or_sleep();
        }
        sleeps() - before
    }

    /// Fails if a wait outside of a call sleeps: MPI yields for other callers, too.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn only_a_long_wait_in_a_call_sleeps() {
        assert!(sleeps_after(SHORT_WAIT) < 10);
        for gives_way in [true, false] {
            WAS_SHORT.store(true, Ordering::Relaxed);
            begin(policy(true, gives_way));
            assert!(sleeps_after(Duration::ZERO) < 10);
            assert_eq!(sleeps_after(SHORT_WAIT) > 50, gives_way);
            assert_eq!(LONG_WAITS.load(Ordering::Relaxed), 1);
            end();
            assert_eq!(LONG_WAITS.load(Ordering::Relaxed), 0);
        }
        assert!(WAIT.get().is_none());
    }
}
