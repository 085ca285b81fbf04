//! How the calls of this core wait: they poll, yield, and give way where ranks share cores.
//!
//! While MPI waits, it polls, and calls `sched_yield` after each poll. Its import of that is replaced:
//!
//! - A call of the system takes as long as a small message. So a wait polls without it at first, if there
//!   is a core for each rank of the node.
//! - A thread that yields remains runnable. So it still takes the time of threads that compute, those of
//!   the rank that it waits for among them. Where they need its core, it sleeps once the wait is longer
//!   than a message takes.
//!
//! MPI's locks are not held meanwhile, all ranks make the same calls as before, and each rank may decide
//! for itself.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::abi::Abi;
use super::functions::Functions;
use super::imports::replace_import;
use super::library::Library;

/// What waits do between polls, if it is not MPI that decides.
#[derive(Clone, Copy)]
pub struct WaitPolicy {
    /// Whether they only poll at first: there is a core for each rank of the node.
    pub has_core: bool,
    /// Whether they sleep in the end: other threads compute on the core.
    pub gives_way: bool,
}

/// How a thread that waits spends the time between two polls of MPI's: it polls again at once, lets others
/// have its core, or sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    None,
    Yield,
    Sleep(Duration),
}

impl WaitPolicy {
    /// The next pause of a wait that has taken so long.
    fn pause_after(self, waited: Duration) -> Pause {
        if self.has_core && waited < POLL {
            return Pause::None;
        }
        if !self.gives_way || waited < YIELD {
            return Pause::Yield;
        }
        let short = (waited / PARTS.0).min(LONGEST.0);
        let long = (waited / PARTS.1).min(LONGEST.1);
        Pause::Sleep(short.max(long))
    }
}

static POLICY: OnceLock<WaitPolicy> = OnceLock::new();

/// For so long, a wait of a rank with a core only polls.
const POLL: Duration = Duration::from_micros(5);
/// For so long, a wait does not sleep. The sleep of one rank, and the turns of all ranks on a core after it,
/// take less: if others slept meanwhile, all would sleep in turns from then on.
const YIELD: Duration = Duration::from_micros(300);
/// A poll that takes longer has moved something, and the wait begins anew.
const WORK: Duration = Duration::from_micros(2);
/// A pause is this part of the wait so far: at first, and when it is long.
const PARTS: (u32, u32) = (4, 256);
/// The longest pause of a wait at first, and of a long one.
const LONGEST: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(1));

/// A wait of the calling thread in a call of the core.
#[derive(Clone, Copy)]
struct Wait {
    policy: WaitPolicy,
    /// From the end of the first poll on.
    polls: Option<Polls>,
    /// The thread's own timer slack, once it has another one.
    slack: Option<c_int>,
}

#[derive(Clone, Copy)]
struct Polls {
    /// When MPI had something to do last.
    since: Instant,
    /// When the last one began.
    last: Instant,
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
        slack: None,
    }));
}

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
    let mut polls = wait.polls.unwrap_or(Polls {
        since: now,
        last: now,
    });
    if now - polls.last > WORK {
        polls.since = now;
    }
    polls.last = match wait.policy.pause_after(now - polls.since) {
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

/// Has the waits in calls of the core follow this policy, for good. Says whether this MPI lets them.
pub fn set_wait_policy<A: Abi>(
    functions: &Functions<A>,
    library: &Library,
    policy: WaitPolicy,
) -> bool {
    // Open MPI yields if it is told to, and polls in another library.
    type SetYield = unsafe extern "C" fn(bool) -> bool;
    // SAFETY: `opal_progress_set_yield_when_idle` has had this signature since Open MPI 1.2.
    let set_yield =
        unsafe { library.function::<SetYield>("opal_progress_set_yield_when_idle") }.ok();
    if set_yield.is_some() && !policy.gives_way {
        return true; // It only polls.
    }
    let polling = set_yield.map_or(functions.test as usize, |set_yield| set_yield as usize);
    let function = yield_or_sleep as *const c_void;
    // SAFETY: the function is one like `sched_yield`, and gives other threads time, too.
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
            (10_000, Pause::Sleep(micros(100))),
            (51_200, Pause::Sleep(micros(200))),
            (60_000_000, Pause::Sleep(micros(1000))),
        ] {
            assert_eq!(policy(true, true).pause_after(micros(waited)), pause);
        }
    }

    #[test]
    fn only_a_rank_with_a_core_does_not_yield_at_once() {
        assert_eq!(
            policy(false, true).pause_after(Duration::ZERO),
            Pause::Yield
        );
        assert_eq!(policy(true, false).pause_after(Duration::ZERO), Pause::None);
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
                let since = Instant::now() - waited;
                // However long a poll takes here, it has moved nothing.
                let last = since + Duration::from_secs(60);
                wait.polls = Some(Polls { since, last });
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
        assert!(sleeps_after(YIELD) < 10);
        for gives_way in [true, false] {
            begin(policy(true, gives_way));
            assert!(sleeps_after(Duration::ZERO) < 10);
            assert_eq!(sleeps_after(YIELD) > 50, gives_way);
            end();
        }
        assert!(WAIT.get().is_none());
    }
}
