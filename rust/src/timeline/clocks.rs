//! Clocks of the processes, compared with the clock of rank 0.

use serde::Deserialize;

/// The largest time in a trace: some centuries, so that sums do not overflow.
pub(super) const MAX_NANOSECONDS: u64 = 1 << 62;

/// A comparison of a process's clock with rank 0's, in nanoseconds.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct ClockComparison {
    /// When it was made, by the process's clock.
    pub at: i64,
    /// By how much the process's clock was ahead.
    pub offset: i64,
    /// By how much that may be wrong.
    pub error: i64,
}

impl ClockComparison {
    /// Whether sums of its numbers stay in range.
    pub(super) fn is_plausible(&self) -> bool {
        let largest = MAX_NANOSECONDS;
        let is_small = |nanoseconds: i64| nanoseconds.unsigned_abs() < largest;
        is_small(self.at) && is_small(self.offset) && (0..largest as i64).contains(&self.error)
    }
}

/// The clock of a process.
#[derive(Debug, Clone, Default)]
pub struct Clocks {
    comparisons: Vec<ClockComparison>,
    is_shared: bool,
}

/// By how much of the time that passes two clocks may differ, where nothing is known of that.
const WORST_DRIFT: f64 = 1e-4;

impl Clocks {
    /// `have_same_boot` says whether the process runs on the same system as rank 0.
    pub fn new(comparisons: Vec<ClockComparison>, have_same_boot: bool) -> Self {
        // A container may have a clock of its own.
        let is_equal = |each: &ClockComparison| each.offset.abs() <= each.error;
        Self {
            is_shared: have_same_boot && comparisons.iter().all(is_equal),
            comparisons,
        }
    }

    /// Whether the process reads the same clock as rank 0, which is more exact than to compare.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// By how much the clock is faster than rank 0's, if that is known.
    pub(super) fn drift(&self) -> Option<f64> {
        match &self.comparisons[..] {
            _ if self.is_shared => Some(0.0),
            [first, .., last] => {
                Some((last.offset - first.offset) as f64 / (last.at - first.at).max(1) as f64)
            }
            _ => None,
        }
    }

    /// By how many nanoseconds the times may be wrong, if that is known.
    pub(super) fn error(&self) -> Option<i64> {
        if self.is_shared {
            return Some(0);
        }
        self.comparisons.iter().map(|each| each.error).max()
    }

    /// By how many nanoseconds this time may be wrong.
    pub(super) fn error_at(&self, time: i64) -> i64 {
        let error = self.error().unwrap_or(0);
        if self.drift().is_some() {
            return error;
        }
        let compared = self.comparisons.first().map_or(0, |first| first.at);
        error.saturating_add((time.saturating_sub(compared).abs() as f64 * WORST_DRIFT) as i64)
    }

    /// A time of this clock as a time of rank 0's.
    pub fn shifted(&self, time: u64) -> i64 {
        let time = time as i64;
        let Some(first) = self.comparisons.first().filter(|_| !self.is_shared) else {
            return time;
        };
        let ahead = (time - first.at) as f64 * self.drift().unwrap_or(0.0);
        (time - first.offset).saturating_sub(ahead.round() as i64)
    }
}
