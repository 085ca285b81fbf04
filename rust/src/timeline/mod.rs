//! One timeline of the traces of all processes, for Perfetto.
//!
//! The calls of all processes are read in the order in which they began, on whichever process. What
//! is in memory is what the processes wrote besides their calls, a part of each file, and the calls
//! that are not matched yet. Files are open only while a part of them is read.

mod call_reader;
mod clocks;
mod drawing;
mod error;
mod matching;
mod perfetto;
mod rules;
mod run;
mod slots;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use call_reader::read_calls;
use call_reader::{CallReader, TimedCall};
pub use clocks::{ClockComparison, Clocks};
use drawing::Drawing;
use error::Result;
pub use error::TimelineError;
pub use rules::{Pattern, match_messages};
use run::Run;

/// Writes the timeline of the traces in a folder into a file. `seconds` is the part to show, from
/// the beginning of the run. Gives a summary, line by line.
pub fn merge(folder: &Path, output: &Path, seconds: Range<f64>) -> Result<Vec<String>> {
    let run = Run::read(folder)?;
    let target = Target::new(&run, output)?;
    let failed = |error| TimelineError::of(output, error);
    let summary = File::create(&target.unfinished)
        .map_err(failed)
        .and_then(|file| draw(&run, file, output, &seconds))
        .and_then(|summary| target.complete().map(|()| summary).map_err(failed));
    if summary.is_err() {
        target.abandon();
    }
    let mut lines = vec![summary?];
    lines.extend(run.about());
    Ok(lines)
}

/// A file that is replaced when all of it is written.
struct Target {
    path: PathBuf,
    /// The file that is written: another one, or the file itself if that is a device or a pipe.
    unfinished: PathBuf,
}

impl Target {
    fn new(run: &Run, output: &Path) -> Result<Self> {
        // What a link leads to is replaced.
        let path = output.canonicalize().unwrap_or_else(|_| output.into());
        if path.is_dir() {
            return Err(TimelineError::of(output, "is a folder, expected a file"));
        }
        let is_same = |input: PathBuf| input.canonicalize().is_ok_and(|input| input == path);
        if run.files().any(is_same) {
            return Err(TimelineError::of(
                output,
                "is a part of the trace, expected another file",
            ));
        }
        let mut unfinished = path.clone();
        if let Ok(facts) = path.metadata() {
            if facts.permissions().readonly() {
                return Err(TimelineError::of(output, "is read-only"));
            }
            if !facts.is_file() {
                return Ok(Self { path, unfinished });
            }
        }
        unfinished.as_mut_os_string().push(".part");
        Ok(Self { path, unfinished })
    }

    fn complete(&self) -> io::Result<()> {
        if self.unfinished == self.path {
            return Ok(());
        }
        fs::rename(&self.unfinished, &self.path)
    }

    fn abandon(&self) {
        if self.unfinished != self.path {
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}

/// How much is in memory before it is written.
const BUFFER: usize = 1 << 20;

fn draw(run: &Run, file: File, output: &Path, seconds: &Range<f64>) -> Result<String> {
    let failed = |error: io::Error| TimelineError::of(output, error);
    let mut drawing = Drawing::new(run, BufWriter::with_capacity(BUFFER, file));
    let start = run.started();
    let at = |seconds: f64| start.saturating_add((seconds * 1e9) as i64);
    let part = at(seconds.start)..at(seconds.end);
    for process in &run.processes {
        drawing.add_process(process).map_err(failed)?;
        process.for_each_span(|span| {
            if part.contains(&span.begin) {
                drawing.add_span(process, &span).map_err(failed)?;
            }
            Ok(())
        })?;
    }
    let mut merged = Merged::new(run, part.clone())?;
    while let Some((process, call)) = merged.next()? {
        let is_drawn = call.begin >= part.start;
        drawing
            .add_call(&run.processes[process], call, is_drawn)
            .map_err(failed)?;
    }
    let (summary, mut writer) = drawing.finish().map_err(failed)?;
    writer.flush().map_err(failed)?;
    Ok(summary)
}

/// The calls of all processes, in the order in which they began.
struct Merged<'a> {
    calls: Vec<CallReader<'a>>,
    /// The next call of each process, by its beginning.
    next: BinaryHeap<Reverse<(i64, usize)>>,
    heads: Vec<Option<TimedCall>>,
}

/// Bytes of all files that are in memory.
const READ_AHEAD: usize = 64 << 20;

impl<'a> Merged<'a> {
    fn new(run: &'a Run, part: Range<i64>) -> Result<Self> {
        let capacity = READ_AHEAD / run.processes.len();
        let calls: Vec<_> = run
            .processes
            .iter()
            .map(|process| CallReader::new(process, &run.facts, part.clone(), capacity))
            .collect();
        let mut merged = Self {
            heads: vec![None; calls.len()],
            next: BinaryHeap::new(),
            calls,
        };
        for process in 0..merged.calls.len() {
            merged.read(process)?;
        }
        Ok(merged)
    }

    fn read(&mut self, process: usize) -> Result<()> {
        let call = self.calls[process].next()?;
        if let Some(call) = call {
            self.next.push(Reverse((call.begin, process)));
        }
        self.heads[process] = call;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(usize, TimedCall)>> {
        let Some(Reverse((_, process))) = self.next.pop() else {
            return Ok(None);
        };
        let call = self.heads[process].take();
        self.read(process)?;
        Ok(call.map(|call| (process, call)))
    }
}
