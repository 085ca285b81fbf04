//! All calls of this process, written to a file while it runs.
//!
//! A thread of our own reads the records and writes them, some milliseconds later. It never takes
//! Python's lock, and what it holds in memory is no more than the ring. The file has a header of
//! two words, [`MAGIC`] and the size of an [`Entry`], and then one entry for each call.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::recorder::{self, Array, Reader, Record};

/// The first eight bytes of a file: what it is, and the version of its format.
pub const MAGIC: [u8; 8] = *b"mpi4jax1";

/// Stands for an attribute that an operation does not have.
pub const NONE: i32 = i32::MIN;

/// A call, in the machine's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Entry {
    /// When the call began, in nanoseconds of the monotonic clock.
    pub begin: u64,
    /// When it returned, or 0.
    pub end: u64,
    /// Which call of which program it is.
    pub call_site: i64,
    /// The number of elements sent.
    pub sent: i64,
    /// The number of elements received.
    pub received: i64,
    /// The place among the collective calls on the communicator, or 0.
    pub sequence: u64,
    /// The number of what the call has begun, or waits for, or 0.
    pub in_flight: u64,
    /// The number of the communicator.
    pub communicator: i32,
    /// The number of the operator.
    pub op: i32,
    /// The root.
    pub root: i32,
    /// Who a message goes to.
    pub dest: i32,
    /// Who one comes from.
    pub source: i32,
    /// The tag of what is sent.
    pub send_tag: i32,
    /// The tag of what is received.
    pub recv_tag: i32,
    /// XLA's number for the data type that is sent, or 0.
    pub sent_type: u8,
    /// The same for what is received.
    pub received_type: u8,
    /// The place of the operation in the list of them.
    pub operation: u16,
}

const SIZE: usize = size_of::<Entry>();

impl Entry {
    /// The entry of a call, if it is one of these operations.
    fn new(call: &Record, operations: &[String]) -> Option<Self> {
        let number = |name| call.attribute(name).map_or(NONE, |value| value as i32);
        let tag = |name| match number(name) {
            NONE => number("tag"),
            tag => tag,
        };
        let count = |array: Option<Array>| array.map_or(0, |array| array.count);
        let dtype = |array: Option<Array>| array.map_or(0, |array| array.dtype as u8);
        let name = call.operation.name;
        let operation = operations.iter().position(|known| known == name)?;
        Some(Self {
            begin: call.begin.0,
            end: call.end.map_or(0, |end| end.0),
            call_site: call.attribute("call_site").unwrap_or(0),
            sent: count(call.sent),
            received: count(call.received),
            // A call that waits has that of the one that it waits for.
            sequence: if call.operation.is_collective() {
                call.sequence
            } else {
                0
            },
            in_flight: call.in_flight.into(),
            communicator: call.communicator() as i32,
            op: number("op_number"),
            root: number("root"),
            dest: number("dest"),
            source: number("source"),
            send_tag: tag("sendtag"),
            recv_tag: tag("recvtag"),
            sent_type: dtype(call.sent),
            received_type: dtype(call.received),
            operation: operation as u16,
        })
    }

    fn bytes(&self) -> [u8; SIZE] {
        // SAFETY: an entry is numbers, which leave no gap between them.
        unsafe { std::mem::transmute(*self) }
    }
}

fn bytes_of(call: &Record, operations: &[String]) -> impl Iterator<Item = u8> + use<> {
    let entry = Entry::new(call, operations);
    entry.map(|entry| entry.bytes()).into_iter().flatten()
}

/// How often the thread looks for new calls.
const PERIOD: Duration = Duration::from_millis(2);

struct Trace {
    file: File,
    reader: Reader,
    operations: Vec<String>,
    /// What was read and is not written yet.
    buffer: Vec<u8>,
    count: u64,
}

/// What became of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// The number of calls in the file.
    pub count: u64,
    /// The number of calls that were overwritten before they were read.
    pub lost: u64,
}

static TRACE: Mutex<Option<Trace>> = Mutex::new(None);

fn trace() -> MutexGuard<'static, Option<Trace>> {
    TRACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes all calls from now on into a new file. `operations` are the names of all of them, whose
/// places stand in the file.
pub fn start(path: &Path, operations: Vec<String>) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&MAGIC)?;
    file.write_all(&(SIZE as u64).to_ne_bytes())?;
    recorder::set_exact(true);
    let mut current = trace();
    // The calls of one that is under way are read by this one from now on.
    drop(current.take());
    *current = Some(Trace {
        file,
        reader: Reader::start(),
        operations,
        buffer: Vec::new(),
        count: 0,
    });
    thread::Builder::new()
        .name("mpi4jax-trace".into())
        .spawn(|| {
            recorder::os_thread::claim();
            while is_written() {
                thread::sleep(PERIOD);
            }
        })?;
    Ok(())
}

/// Writes what there is. Gives false if there is nothing to write any more.
fn is_written() -> bool {
    let mut current = trace();
    let Some(trace) = current.as_mut() else {
        return false;
    };
    if trace.write().is_err() {
        // The disk is full, say: the program is worth more than its trace.
        *current = None;
        recorder::set_exact(false);
    }
    current.is_some()
}

impl Trace {
    fn write(&mut self) -> io::Result<()> {
        let Self {
            reader,
            operations,
            buffer,
            ..
        } = self;
        reader.read(|call| buffer.extend(bytes_of(call, operations)));
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.count += (self.buffer.len() / SIZE) as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Writes the calls that are over into the file. Gives false if none is written.
pub fn flush() -> bool {
    is_written()
}

/// Ends the trace. Calls that are under way are in it without their end. Gives what became of it,
/// or nothing if it could not be written, or there was none.
pub fn stop() -> Option<Summary> {
    let mut trace = trace().take()?;
    recorder::set_exact(false);
    let (operations, buffer) = (&trace.operations, &mut trace.buffer);
    // Drops it in the end, so that calls don't wait for it any more.
    let lost = trace
        .reader
        .read_last(|call| buffer.extend(bytes_of(call, operations)));
    let count = trace.count + (buffer.len() / SIZE) as u64;
    trace.file.write_all(buffer).ok()?;
    Some(Summary { count, lost })
}
