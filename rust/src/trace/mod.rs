//! All calls of this process, written to a file while it runs.
//!
//! A thread of our own reads the records and writes them, some milliseconds later. It never takes
//! Python's lock, and what it holds in memory is no more than the ring. The file has a header, and
//! then an [`Entry`] for each call, in the order in which they began. A long call is written before it
//! is over, and completed in its place.
//!
//! If the file can't be written any more, say as the disk is full, the program runs on without it.

mod entry;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use zerocopy::IntoBytes;

pub use self::entry::{Entry, NONE, SIZE, fields, header, offset, read};
use crate::lock::lock;
use crate::log::print_error;
use crate::recorder::{self, Array, Reader, Record, os_thread};

impl Entry {
    /// The entry of a call, if it is one of these operations.
    fn new(call: &Record, operations: &[String]) -> Option<Self> {
        let facts = &call.facts;
        let integer = |fact: Option<i64>| fact.map_or(NONE, |value| value as i32);
        let count = |array: Option<Array>| array.map_or(0, |array| array.count);
        let dtype = |array: Option<Array>| array.map_or(0, |array| array.dtype as u8);
        let name = call.operation.name;
        let operation = operations.iter().position(|known| known == name)?;
        Some(Self {
            begin: call.begin.0,
            end: call.end.map_or(0, |end| end.0),
            call_site: facts.call_site.unwrap_or(0),
            sent: count(call.sent),
            received: count(call.received),
            // A call that waits has the sequence number of the one that it waits for.
            sequence: if call.operation.is_collective() {
                call.sequence
            } else {
                0
            },
            in_flight: call.in_flight.into(),
            communicator: call.communicator() as i32,
            op: integer(facts.operator),
            root: integer(facts.root),
            dest: integer(facts.dest),
            source: integer(facts.source),
            send_tag: integer(facts.send_tag),
            recv_tag: integer(facts.recv_tag),
            sent_type: dtype(call.sent),
            received_type: dtype(call.received),
            operation: operation as u16,
        })
    }
}

/// How often the thread looks for new calls.
const PERIOD: Duration = Duration::from_millis(2);

/// The calls that are to be written next.
#[derive(Default)]
struct Queue {
    operations: Vec<String>,
    /// The calls that were never written.
    new: Vec<u8>,
    /// Number of calls, those included.
    count: u64,
    /// The indices of entries that were written before their calls were over, by the ids of these.
    unfinished: HashMap<u64, u64>,
    /// The entries of those that are over now, with their indices.
    finished: Vec<(u64, Entry)>,
}

impl Queue {
    fn add(&mut self, call: &Record) {
        let Some(entry) = Entry::new(call, &self.operations) else {
            return;
        };
        if let Some(index) = self.unfinished.remove(&call.id) {
            self.finished.push((index, entry));
            return;
        }
        if call.end.is_none() {
            self.unfinished.insert(call.id, self.count);
        }
        self.new.extend(entry.as_bytes());
        self.count += 1;
    }

    fn write(&self, mut file: &File) -> io::Result<()> {
        file.write_all(&self.new)?;
        for (index, entry) in &self.finished {
            file.write_all_at(entry.as_bytes(), offset(*index))?;
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.new.clear();
        self.finished.clear();
    }
}

struct Trace {
    path: PathBuf,
    /// None if it can't be written any more.
    file: Option<File>,
    /// Number of calls in the file.
    written: u64,
    reader: Reader,
    queue: Queue,
}

/// How much of a trace is in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// The number of calls in the file.
    pub count: u64,
    /// The number of calls that are not, as the file could not be written.
    pub lost: u64,
}

static TRACE: Mutex<Option<Trace>> = Mutex::new(None);

/// Writes all calls from now on into a new file. `operations` are the names of all of them, whose
/// places stand in the file.
pub fn start(path: &Path, operations: Vec<String>) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&header())?;
    recorder::set_exact(true);
    let mut current = lock(&TRACE);
    // The calls of one that is under way are read by this one from now on.
    drop(current.take());
    *current = Some(Trace {
        path: path.into(),
        file: Some(file),
        written: 0,
        reader: Reader::start(),
        queue: Queue {
            operations,
            ..Queue::default()
        },
    });
    let started = os_thread::spawn("mpi4jax-trace", || {
        while flush().is_some() {
            thread::sleep(PERIOD);
        }
    });
    if let Err(error) = started {
        *current = None;
        recorder::set_exact(false);
        return Err(error);
    }
    Ok(())
}

impl Trace {
    fn write(&mut self) {
        let queue = &mut self.queue;
        self.reader.read(|call| queue.add(call));
        self.write_queue();
    }

    fn write_queue(&mut self) {
        if let Some(file) = &self.file {
            match self.queue.write(file) {
                Ok(()) => self.written = self.queue.count,
                Err(error) => self.give_up(&format!("{}: {error}", self.path.display())),
            }
        }
        self.queue.clear();
    }

    /// Writes no more calls, and says so once. The program goes on: it is worth more than its trace.
    fn give_up(&mut self, reason: &str) {
        let Some(file) = self.file.take() else {
            return;
        };
        // A part of the last calls may be in the file.
        if let Ok(facts) = file.metadata() {
            self.written = facts.len().saturating_sub(offset(0)) / SIZE as u64;
            let _ = file.set_len(offset(self.written));
        }
        explain(reason);
    }

    fn summary(&self) -> Summary {
        Summary {
            count: self.written,
            lost: self.queue.count - self.written + self.reader.lost(),
        }
    }
}

/// Writes the calls that are over into the file. Gives a summary so far, if there is a trace.
pub fn flush() -> Option<Summary> {
    let mut current = lock(&TRACE);
    let trace = current.as_mut()?;
    trace.write();
    Some(trace.summary())
}

/// Stops the writing of calls, as something that belongs to the trace can't be written.
pub fn give_up(reason: &str) {
    if let Some(trace) = lock(&TRACE).as_mut() {
        trace.give_up(reason);
    }
    explain(reason);
}

/// Says once why calls are not recorded any more.
fn explain(reason: &str) {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if !IS_SAID.swap(true, Ordering::Relaxed) {
        print_error(&format!(
            "mpi4jax: calls are not recorded any more, and the program goes on: {reason}\n"
        ));
    }
}

/// Ends the trace. Calls that are in progress are in it without their end. Gives a summary, if there
/// was a trace.
pub fn stop() -> Option<Summary> {
    let mut trace = lock(&TRACE).take()?;
    recorder::set_exact(false);
    trace.write();
    let queue = &mut trace.queue;
    trace.reader.read_last(|call| queue.add(call));
    trace.write_queue();
    Some(trace.summary())
}
