//! Reading the calls of a process.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;

use zerocopy::FromBytes;

use super::clocks::MOST_NANOSECONDS;
use super::error::Error;
use super::run::{Facts, Process};
use crate::trace::{self, Entry, HEADER, SIZE};

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
    facts: &'a Facts,
    path: PathBuf,
    /// The part of the run that is wanted.
    part: Range<i64>,
    /// How many entries are read at a time.
    capacity: usize,
    entries: VecDeque<Entry>,
    /// How many entries have been shown.
    shown: u64,
    is_over: bool,
}

impl<'a> CallReader<'a> {
    /// At most `bytes` of the file are in memory.
    pub(super) fn new(
        process: &'a Process,
        facts: &'a Facts,
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
    pub(super) fn next(&mut self) -> Result<Option<TimedCall>, Error> {
        loop {
            if self.entries.is_empty() && !self.is_over {
                self.read()?;
            }
            let Some(entry) = self.entries.pop_front() else {
                return Ok(None);
            };
            let offset = trace::offset(self.shown);
            self.shown += 1;
            if let Some(problem) = self.problem(&entry) {
                return Err(Error::at(&self.path, offset, problem));
            }
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
        if begin == 0 || begin >= MOST_NANOSECONDS || end >= MOST_NANOSECONDS {
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

    fn read(&mut self) -> Result<(), Error> {
        let read = self.bytes().map_err(|error| Error::of(&self.path, error))?;
        let Some(bytes) = read else {
            self.is_over = true;
            return Ok(());
        };
        let body = if self.shown == 0 {
            let Some(body) = bytes.strip_prefix(&trace::header()) else {
                let reason = "is not a file of this version of mpi4jax";
                return Err(Error::at(&self.path, 0, reason));
            };
            body
        } else {
            &bytes[..]
        };
        // Of a process that was killed, the last entry may be incomplete.
        let entries = body.chunks_exact(SIZE);
        self.entries
            .extend(entries.filter_map(|entry| Entry::read_from_bytes(entry).ok()));
        self.is_over = self.entries.is_empty();
        Ok(())
    }

    /// The next bytes of the file. It may not exist, as a process may be killed before its first
    /// call.
    fn bytes(&self) -> io::Result<Option<Vec<u8>>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let (start, header) = match self.shown {
            0 => (0, HEADER),
            shown => (trace::offset(shown), 0),
        };
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        let limit = header + self.capacity * SIZE;
        file.take(limit as u64).read_to_end(&mut bytes)?;
        // The process was killed before it wrote anything.
        Ok((start != 0 || !bytes.is_empty()).then_some(bytes))
    }
}
