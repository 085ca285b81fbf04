//! Detection of threads of this process that compute, other than the threads in calls of MPI.

use std::collections::{BTreeSet, HashMap};

use crate::recorder::os_thread;

/// Share of a core above which a thread computes. A thread that wakes up now and then takes less.
const BUSY: f64 = 0.01;

/// State of a thread at the last look.
struct Thread {
    /// CPU time of the thread in seconds.
    seconds: f64,
    /// Whether the thread ran, could run, or waited for a disk.
    is_runnable: bool,
}

/// Threads of this process, as seen at the last look.
#[derive(Default)]
pub struct BusyThreads {
    last: f64,
    known: HashMap<u32, Thread>,
}

impl BusyThreads {
    /// Whether a thread has computed since the last look, other than the `excluded` threads and the core's
    /// own. `None` if the system does not tell.
    pub fn look(&mut self, now: f64, excluded: &BTreeSet<u32>) -> Option<bool> {
        let elapsed = (now - self.last).max(0.01);
        self.last = now;
        let mut is_busy = false;
        let mut known = HashMap::new();
        for thread in threads()? {
            if excluded.contains(&thread) || os_thread::is_own(thread) {
                continue;
            }
            let Some((seconds, is_runnable)) = seconds_of(thread).zip(is_runnable(thread)) else {
                continue; // it is over
            };
            if let Some(last) = self.known.get(&thread) {
                let share = (seconds - last.seconds) / elapsed;
                is_busy |= share > BUSY || is_runnable && last.is_runnable;
            }
            known.insert(
                thread,
                Thread {
                    seconds,
                    is_runnable,
                },
            );
        }
        self.known = known;
        Some(is_busy)
    }
}

#[cfg(target_os = "linux")]
fn threads() -> Option<Vec<u32>> {
    let folder = std::fs::read_dir("/proc/self/task").ok()?;
    let id = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Some(folder.flatten().filter_map(id).collect())
}

/// CPU time in seconds of a thread of this process.
#[cfg(target_os = "linux")]
fn seconds_of(thread: u32) -> Option<f64> {
    // `pthread_getcpuclockid` makes a thread's clock number from the thread number in this way.
    const PER_THREAD: libc::clockid_t = 4;
    const SCHEDULER: libc::clockid_t = 2;
    let clock = !(thread as libc::clockid_t) << 3 | PER_THREAD | SCHEDULER;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the system writes to `time`.
    let code = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (code == 0).then_some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

/// Whether a thread runs, could run, or waits for a disk.
#[cfg(target_os = "linux")]
fn is_runnable(thread: u32) -> Option<bool> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // The name is in parentheses and may contain any character.
    let (_, rest) = text.rsplit_once(')')?;
    let state = rest.trim_start().chars().next()?;
    Some("RD".contains(state))
}

#[cfg(not(target_os = "linux"))]
fn threads() -> Option<Vec<u32>> {
    None
}

#[cfg(not(target_os = "linux"))]
fn seconds_of(_: u32) -> Option<f64> {
    None
}

#[cfg(not(target_os = "linux"))]
fn is_runnable(_: u32) -> Option<bool> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{scope, sleep};
    use std::time::Duration;

    use super::*;

    /// Fails if a computing thread is overlooked. The opposite can't be tested, as other tests may run.
    #[test]
    fn a_thread_that_computes_is_seen() {
        let is_over = AtomicBool::new(false);
        let mut threads = BusyThreads::default();
        scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            threads.look(0.0, &BTreeSet::new());
            sleep(Duration::from_millis(200));
            assert_eq!(threads.look(0.2, &BTreeSet::new()), Some(true));
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn threads_that_are_there_have_a_time() {
        assert!(seconds_of(os_thread::current()).is_some_and(|seconds| seconds >= 0.0));
        assert!(seconds_of(u32::MAX >> 4).is_none());
    }
}
