//! The lock on a record, for which nobody waits.
//!
//! A writer claims a record that is not being written and whose call has ended. A reader compares the
//! record's id before and after it has made its copy: a copy of a record that was being written meanwhile
//! is thrown away.
//!
//! `tests/loom.rs` tries all orders of this file's steps, with `super::sync` from loom.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::sync::{AtomicU64, fence};

/// The id while the record is written.
const WRITING: u64 = u64::MAX;

/// The id of the call that a record is about, and the time of its end.
#[derive(Default)]
pub struct SequenceLock {
    /// Or [`WRITING`]. 0 before the first call.
    id: AtomicU64,
    /// 0 until the call returns.
    end: AtomicU64,
}

impl SequenceLock {
    /// Claims the record for a call, unless it is being written, or is about a call in progress.
    #[inline(always)]
    pub fn claim(&self) -> bool {
        let before = self.id.load(Acquire);
        let is_over = || before != WRITING && self.end.load(Acquire) != 0;
        // A thread may have come so far and no further while others filled the whole ring.
        let is_claimed = (before == 0 || is_over())
            && self
                .id
                .compare_exchange(before, WRITING, Relaxed, Relaxed)
                .is_ok();
        if is_claimed {
            fence(Release);
            self.end.store(0, Relaxed);
        }
        is_claimed
    }

    /// Gives the record, which is written, to readers.
    #[inline(always)]
    pub fn publish(&self, id: u64) {
        self.id.store(id, Release);
    }

    /// Whether the record is about this call.
    #[inline(always)]
    pub fn has(&self, id: u64) -> bool {
        self.id.load(Relaxed) == id
    }

    /// Notes the end of the call, which its record may be overwritten after.
    #[inline(always)]
    pub fn finish(&self, end: u64) {
        self.end.store(end, Release);
    }

    /// Result of `copy` for the record and the end of the call, if the record is about this call, and is
    /// not overwritten meanwhile.
    pub fn read<T>(&self, id: u64, copy: impl FnOnce(u64) -> Option<T>) -> Option<T> {
        if self.id.load(Acquire) != id {
            return None;
        }
        let copy = copy(self.end.load(Relaxed));
        fence(Acquire);
        copy.filter(|_| self.has(id))
    }

    /// The id of the call that the record is about, if that is in progress.
    pub fn in_progress(&self) -> Option<u64> {
        let id = self.id.load(Acquire);
        if id == 0 || id == WRITING {
            return None;
        }
        self.read(id, |end| (end == 0).then_some(id))
    }
}
