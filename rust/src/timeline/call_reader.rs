//! Reading the calls of a process.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::clocks::{Clocks, MAX_NANOSECONDS};
use super::error::{Result, TimelineError};
use super::run::{Process, RunFacts};
use crate::trace::{self, Entry, SIZE};

/// A call, with the times of rank 0's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimedCall {
    pub(super) begin: i64,
    /// None if it did not end.
    pub(super) end: Option<i64>,
    /// The entry in the file. Its times are of the process's own clock.
    pub(super) entry: Entry,
}

/// The calls in a file, in the order in which they began.
pub(super) struct CallReader<'a> {
    process: &'a Process,
    facts: &'a RunFacts,
    path: PathBuf,
    /// The part of the run that is wanted.
    part: Range<i64>,
    /// Number of entries that are read at a time.
    capacity: usize,
    entries: VecDeque<Entry>,
    /// Number of entries that have been shown.
    shown: u64,
    is_over: bool,
}

impl<'a> CallReader<'a> {
    /// At most `bytes` of the file are in memory.
    pub(super) fn new(
        process: &'a Process,
        facts: &'a RunFacts,
        part: Range<i64>,
        bytes: usize,
    ) -> Self {
        Self {
            process,
            facts,
            path: process.path.with_extension("calls"),
            part,
            capacity: (bytes / SIZE).clamp(16, 1 << 14),
            entries: VecDeque::new(),
            shown: 0,
            is_over: false,
        }
    }

    /// The next call in the wanted part, or that has a message and is before it: each takes one from
    /// those that follow.
    pub(super) fn next(&mut self) -> Result<Option<TimedCall>> {
        loop {
            if self.entries.is_empty() && !self.is_over {
                self.read()?;
            }
            let Some(entry) = self.entries.pop_front() else {
                return Ok(None);
            };
            self.shown += 1;
            let clocks = &self.process.clocks;
            let call = TimedCall {
                begin: clocks.shifted(entry.begin),
                end: (entry.end != 0).then(|| clocks.shifted(entry.end)),
                entry,
            };
            if call.begin < self.part.end
                && (call.begin >= self.part.start || self.facts.has_messages(&entry))
            {
                return Ok(Some(call));
            }
        }
    }

    /// The mistake in an entry, if there is one.
    fn problem(&self, entry: &Entry) -> Option<String> {
        let operations = self.facts.operations.len();
        let Entry { begin, end, .. } = *entry;
        if usize::from(entry.operation) >= operations {
            return Some(format!("operation {} of {operations}", entry.operation));
        }
        if begin == 0 || begin >= MAX_NANOSECONDS || end >= MAX_NANOSECONDS {
            return Some(format!("a call from {begin} ns to {end} ns"));
        }
        if end != 0 && end < begin {
            return Some(format!(
                "a call that ends {} ns before it begins",
                begin - end
            ));
        }
        let counts = [entry.sent, entry.received];
        let negative = counts.iter().find(|count| **count < 0)?;
        Some(format!("an array of {negative} elements"))
    }

    fn read(&mut self) -> Result<()> {
        let entries = trace::read(&self.path, self.shown, self.capacity);
        let mut entries = entries.map_err(|error| TimelineError::of(&self.path, error))?;
        for (position, entry) in (self.shown..).zip(&entries) {
            if let Some(problem) = self.problem(entry) {
                return Err(TimelineError::at(
                    &self.path,
                    trace::offset(position),
                    problem,
                ));
            }
        }
        // A thread that takes its place among the calls may be stopped before it looks at the clock: its
        // call began no later than those with later places.
        let mut latest = u64::MAX;
        for entry in entries.iter_mut().rev() {
            latest = latest.min(entry.begin);
            entry.begin = latest;
        }
        // The last ones are read again, with those that follow them.
        if entries.len() == self.capacity {
            entries.truncate(self.capacity * 7 / 8);
        }
        self.entries = entries.into();
        self.is_over = self.entries.is_empty();
        Ok(())
    }
}

/// The calls in a file that began at this time or later and are over, with the times of rank 0's clock.
pub fn read_calls(path: &Path, begin: u64, clocks: &Clocks) -> io::Result<Vec<Entry>> {
    /// Number of entries that are read at a time.
    const CHUNK: usize = 1 << 14;
    let (mut calls, mut shown) = (Vec::new(), 0);
    loop {
        let entries = trace::read(path, shown, CHUNK)?;
        if entries.is_empty() {
            return Ok(calls);
        }
        shown += entries.len() as u64;
        let wanted = |entry: &Entry| entry.begin >= begin && entry.end != 0;
        calls.extend(entries.into_iter().filter(wanted).map(|entry| Entry {
            begin: clocks.shifted(entry.begin) as u64,
            end: clocks.shifted(entry.end) as u64,
            ..entry
        }));
    }
}
