//! The time of a record.
//!
//! The exact time costs more than the rest of a record. So records have the time of the kernel's last tick,
//! some milliseconds old, which is enough to tell which rank waits for which. Traces ask for the exact time.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::{clock_gettime, clockid_t, timespec};

/// A moment, in nanoseconds of the system's monotonic clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

impl Instant {
    /// The seconds from an earlier moment to this one, or 0.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 * 1e-9
    }
}

static IS_EXACT: AtomicBool = AtomicBool::new(false);

/// Sets whether records made from now on have the exact time, or the time of the last tick.
pub fn set_exact(exact: bool) {
    IS_EXACT.store(exact, Ordering::Relaxed);
}

/// Now, to some milliseconds.
#[inline(always)]
pub(super) fn now() -> Instant {
    if IS_EXACT.load(Ordering::Relaxed) {
        return exactly_now();
    }
    read(COARSE)
}

/// Now, exactly.
pub fn exactly_now() -> Instant {
    read(libc::CLOCK_MONOTONIC)
}

#[cfg(target_os = "linux")]
const COARSE: clockid_t = libc::CLOCK_MONOTONIC_COARSE;
#[cfg(target_os = "macos")]
const COARSE: clockid_t = libc::CLOCK_MONOTONIC_RAW_APPROX;
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
const COARSE: clockid_t = libc::CLOCK_MONOTONIC;

#[inline(always)]
fn read(clock: clockid_t) -> Instant {
    let mut time = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the system writes to `time`, or leaves it if it has no such clock.
    unsafe { clock_gettime(clock, &raw mut time) };
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    /// A tick of the slowest kernels, and more.
    const TICK: u64 = 100_000_000;

    #[test]
    fn the_last_tick_is_not_long_ago() {
        sleep(Duration::from_millis(1));
        let (coarse, exact) = (read(COARSE).0, exactly_now().0);
        assert!(coarse <= exact && exact - coarse < TICK, "{coarse} {exact}");
    }
}
