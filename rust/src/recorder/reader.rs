//! Reading all records, in their order, while calls go on.

use super::clock::exactly_now;
use super::ring::{Record, capacity, is_skipped, record, recorded, set_reader_position};

/// A position in the records. There may be one reader at a time, as calls wait for it.
pub struct Reader {
    next: u64,
    /// Calls that were in progress when it was their turn, in the order of their ids.
    unfinished: Vec<Record>,
    lost: u64,
}

impl Reader {
    /// Reads the calls that begin from now on.
    pub fn start() -> Self {
        let next = recorded().end;
        set_reader_position(Some(next));
        Self {
            next,
            unfinished: Vec::new(),
            lost: 0,
        }
    }

    /// Number of calls that were overwritten before they were read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Shows the calls in the order in which they began, when they are over.
    ///
    /// If a call takes so long that others fill half of the ring meanwhile, it is shown without its
    /// end, and again when it is over.
    pub fn read(&mut self, mut see: impl FnMut(&Record)) {
        self.unfinished.retain(|call| match record(call.id) {
            Some(call) if call.end.is_none() => true,
            Some(call) => {
                see(&call);
                false
            }
            None => {
                // It ended after the last look, and another call has its slot.
                let mut call = call.clone();
                call.end = Some(exactly_now());
                see(&call);
                false
            }
        });
        let calls = recorded();
        let half = capacity() as u64 / 2;
        while self.next < calls.end {
            match record(self.next) {
                Some(call) if call.end.is_some() => see(&call),
                Some(call) if calls.end - self.next > half => {
                    see(&call);
                    self.unfinished.push(call);
                }
                None if is_skipped(self.next) => (),
                None if self.next < recorded().start => self.lost += 1,
                // It is being written, or the calls after it can wait.
                _ => break,
            }
            self.next += 1;
        }
        set_reader_position(Some(self.next));
    }

    /// Shows all calls that were not shown yet, also those that are in progress.
    pub fn read_last(&mut self, mut see: impl FnMut(&Record)) {
        self.read(&mut see);
        for id in self.next..recorded().end {
            match record(id) {
                Some(call) => see(&call),
                None if is_skipped(id) => (),
                None => self.lost += 1,
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        set_reader_position(None);
    }
}
