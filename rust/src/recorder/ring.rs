//! The records, in a ring.
//!
//! A call takes the next slot by one atomic increment, claims it by one exchange, and fills it by plain
//! stores (`sequence_lock`). So nobody waits for anybody, and a thread that hangs in MPI has its record
//! where others see it. A record that is being written, or that of a call in progress, is never
//! overwritten: a call whose slot is occupied by one takes the next slot.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
};
use std::sync::{LazyLock, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use super::clock::{Instant, now};
use super::facts::CallFacts;
use super::operation::{ATTRIBUTES, Operation};
use super::os_thread;
use super::sequence_lock::SequenceLock;
use crate::lock::lock;
use crate::mpi::GrowingList;
use crate::xla::{Buffer, Frame};

/// Number of calls that are kept: a power of two, so that the slot of a call is some bits of its id.
static CAPACITY: AtomicUsize = AtomicUsize::new(1024);

/// The data type of an array, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Array {
    /// XLA's number for the data type.
    pub dtype: i32,
    /// The number of elements.
    pub count: i64,
}

impl From<&Buffer<'_>> for Array {
    fn from(buffer: &Buffer) -> Self {
        Self {
            dtype: buffer.dtype,
            count: buffer.count,
        }
    }
}

/// One call.
#[derive(Clone)]
pub struct Record {
    /// Its position among all calls of this process, from 1.
    pub id: u64,
    /// The operation that was called.
    pub operation: &'static Operation,
    /// For a collective operation: its position among those on the communicator, from 1.
    pub sequence: u64,
    /// When the call began.
    pub begin: Instant,
    /// When it returned, if it has.
    pub end: Option<Instant>,
    /// The operand that is sent, if there is one.
    pub sent: Option<Array>,
    /// The result that is received, if there is one.
    pub received: Option<Array>,
    /// The number of the operation in flight that the call has started, or waits for, or 0.
    pub in_flight: u32,
    /// Message that the call waits for, of several, if it has told.
    pub awaited: Option<Awaited>,
    /// The system's number of the thread that made the call.
    pub thread: u32,
    /// Whether the call has come to MPI. Before that, it waits for its operands in device memory.
    pub has_reached_mpi: bool,
    /// The arguments of the call.
    pub facts: CallFacts,
}

/// The memory of a record: two lines of the processor's cache.
#[derive(Default)]
#[repr(align(128))]
struct Slot {
    lock: SequenceLock,
    operation: AtomicPtr<Operation>,
    sequence: AtomicU64,
    begin: AtomicU64,
    /// The data types of both arrays. 0 where there is no array.
    sent_type: AtomicU8,
    received_type: AtomicU8,
    has_reached_mpi: AtomicBool,
    thread: AtomicU32,
    sent: AtomicI64,
    received: AtomicI64,
    in_flight: AtomicU32,
    /// Message that is waited for: [`Awaited`] as a number.
    awaited: AtomicU32,
    attributes: [AtomicI64; ATTRIBUTES],
}

const _: () = assert!(size_of::<Slot>() == 128);

/// The slot of all calls for which the ring has no room. Nobody reads it.
static NO_SLOT: LazyLock<Slot> = LazyLock::new(Slot::default);

impl Slot {
    /// The record of a call, with the time of its end.
    fn copy(&self, id: u64, end: u64) -> Option<Record> {
        let array = |dtype: &AtomicU8, count: &AtomicI64| {
            let dtype = dtype.load(Relaxed);
            (dtype != 0).then(|| Array {
                dtype: dtype.into(),
                count: count.load(Relaxed),
            })
        };
        // SAFETY: null, or an operation that lives for good.
        let operation = unsafe { self.operation.load(Relaxed).as_ref() }?;
        let names = operation.attributes.get().into_iter().flatten();
        let values = self.attributes.iter().map(|value| value.load(Relaxed));
        Some(Record {
            id,
            operation,
            sequence: self.sequence.load(Relaxed),
            begin: Instant(self.begin.load(Relaxed)),
            end: (end != 0).then_some(Instant(end)),
            sent: array(&self.sent_type, &self.sent),
            received: array(&self.received_type, &self.received),
            in_flight: self.in_flight.load(Relaxed),
            awaited: decode_awaited(self.awaited.load(Relaxed)),
            thread: self.thread.load(Relaxed),
            has_reached_mpi: self.has_reached_mpi.load(Relaxed),
            facts: CallFacts::of(names.map(String::as_str).zip(values)),
        })
    }
}

struct Ring {
    slots: Box<[Slot]>,
    /// Number of ids that were given to calls.
    count: AtomicU64,
    /// The id of the first call that would overwrite a record that a reader of all calls still needs.
    limit: AtomicU64,
    /// The ids that no call got, as their slots were occupied, while there is a reader of all calls.
    skipped: Mutex<Vec<u64>>,
}

/// The limit while there is no reader of all calls.
const NO_LIMIT: u64 = u64::MAX;
/// The limit while the reader of all calls comes to nothing, so that none waits for it.
const STALLED: u64 = NO_LIMIT - 1;

/// Sets the least number of calls that are kept. This has to be said before the first call.
pub fn set_capacity(calls: usize) {
    CAPACITY.store(calls.next_power_of_two(), Relaxed);
}

/// Number of calls that are kept.
pub(super) fn capacity() -> usize {
    Ring::get().slots.len()
}

/// Sets the id of the call that the reader of all calls will read next, so that its record is kept, or `None`
/// without a reader.
pub(super) fn set_reader_position(next: Option<u64>) {
    let ring = Ring::get();
    let limit = next.map_or(NO_LIMIT, |next| next + ring.slots.len() as u64);
    ring.limit.store(limit, Release);
    let first_kept = next.unwrap_or(NO_LIMIT);
    lock(&ring.skipped).retain(|id| *id >= first_kept);
}

/// Whether no call has got this id.
pub(super) fn is_skipped(id: u64) -> bool {
    lock(&Ring::get().skipped).contains(&id)
}

impl Ring {
    fn get() -> &'static Self {
        static RING: OnceLock<Ring> = OnceLock::new();
        RING.get_or_init(|| Self {
            slots: (0..CAPACITY.load(Relaxed))
                .map(|_| Slot::default())
                .collect(),
            count: AtomicU64::new(0),
            limit: AtomicU64::new(NO_LIMIT),
            skipped: Mutex::new(Vec::new()),
        })
    }

    /// The slot of the next call, and its id.
    #[inline(always)]
    fn next(&self) -> (&Slot, u64) {
        self.claim_next().unwrap_or_else(|id| self.next_free(id))
    }

    /// The slot of the next id, and that, or the id alone if the slot is occupied.
    #[inline(always)]
    fn claim_next(&self) -> Result<(&Slot, u64), u64> {
        let id = self.count.fetch_add(1, Relaxed) + 1;
        if self.is_taken(id) {
            self.wait(id);
        }
        let slot = self.slot(id);
        if slot.lock.claim() {
            Ok((slot, id))
        } else {
            Err(id)
        }
    }

    /// The slot of the next call, where that for this id is occupied.
    #[cold]
    #[inline(never)]
    fn next_free(&self, mut id: u64) -> (&Slot, u64) {
        for _ in 0..self.slots.len() {
            self.skip(id);
            id = match self.claim_next() {
                Ok(claimed) => return claimed,
                Err(id) => id,
            };
        }
        // There are more calls in progress than the ring has room for.
        self.skip(id);
        (&NO_SLOT, id)
    }

    /// Notes that no record has this id.
    fn skip(&self, id: u64) {
        if self.limit.load(Relaxed) != NO_LIMIT {
            lock(&self.skipped).push(id);
        }
    }

    #[inline(always)]
    fn slot(&self, id: u64) -> &Slot {
        &self.slots[id as usize & (self.slots.len() - 1)]
    }

    /// Whether the reader of all calls still needs the record whose slot this call takes.
    #[inline(always)]
    fn is_taken(&self, id: u64) -> bool {
        id >= self.limit.load(Relaxed)
    }

    /// Waits for the reader of all calls.
    #[cold]
    #[inline(never)]
    fn wait(&self, id: u64) {
        const STEP: Duration = Duration::from_micros(50);
        // It waits for nothing but the disk. If that hangs, calls are lost until it goes on.
        for _ in 0..20_000 {
            if !self.is_taken(id) {
                return;
            }
            thread::sleep(STEP);
        }
        let limit = self.limit.load(Relaxed);
        if limit <= id {
            let _ = self
                .limit
                .compare_exchange(limit, STALLED, Relaxed, Relaxed);
        }
    }
}

/// Number of collective calls on each communicator.
static SEQUENCES: GrowingList<AtomicU64> = GrowingList::new();

/// The record of a call in progress. The call is over when this is dropped.
pub struct Recording {
    slot: &'static Slot,
    id: u64,
}

/// A call that can be recorded.
pub trait Recordable {
    /// The data type and the number of elements of the array that is sent, if there is one.
    fn sent(&self) -> Option<(i32, i64)> {
        None
    }
    /// The data type and the number of elements of the array that is received, if there is one.
    fn received(&self) -> Option<(i32, i64)> {
        None
    }
    /// Shows the first `count` attributes, with their indices.
    fn integers(&self, count: usize, see: impl FnMut(usize, i64));
    /// The names of all attributes, which [`CallFacts`] gives a meaning.
    fn attribute_names(&self) -> Vec<String>;
}

impl Recordable for Frame<'_> {
    #[inline(always)]
    fn sent(&self) -> Option<(i32, i64)> {
        self.operands.first_type()
    }

    #[inline(always)]
    fn received(&self) -> Option<(i32, i64)> {
        self.results.first_type()
    }

    #[inline(always)]
    fn integers(&self, count: usize, see: impl FnMut(usize, i64)) {
        self.attributes.see_integers(count, see);
    }

    fn attribute_names(&self) -> Vec<String> {
        self.attributes.names()
    }
}

/// Records that a call begins, on the communicator with this number.
#[inline(always)]
pub fn begin(
    operation: &'static Operation,
    call: &impl Recordable,
    communicator: i64,
) -> Recording {
    let sequence = if operation.is_collective() {
        next_on(communicator)
    } else {
        0
    };
    begin_at(operation, call, sequence)
}

/// Records that a call begins, which has this position among the collective ones, or 0.
#[inline(always)]
pub(super) fn begin_at(
    operation: &'static Operation,
    call: &impl Recordable,
    sequence: u64,
) -> Recording {
    let (slot, id) = Ring::get().next();
    slot.sequence.store(sequence, Relaxed);
    slot.operation
        .store(ptr::from_ref(operation).cast_mut(), Relaxed);
    slot.in_flight.store(0, Relaxed);
    slot.awaited.store(0, Relaxed);
    let sent = match operation.sends {
        true => call.sent(),
        false => None,
    };
    // The result of a nonblocking operation is its ticket.
    let received = match operation.is_nonblocking {
        true => None,
        false => call.received(),
    };
    let dtype = |array: Option<(i32, i64)>| array.map_or(0, |(dtype, _)| dtype as u8);
    slot.sent_type.store(dtype(sent), Relaxed);
    slot.received_type.store(dtype(received), Relaxed);
    slot.has_reached_mpi.store(true, Relaxed);
    slot.thread.store(os_thread::current(), Relaxed);
    slot.sent.store(sent.map_or(0, |(_, count)| count), Relaxed);
    slot.received
        .store(received.map_or(0, |(_, count)| count), Relaxed);
    call.integers(operation.attribute_limit, |index, value| {
        if let Some(attribute) = slot.attributes.get(index) {
            attribute.store(value, Relaxed);
        }
    });
    if operation.attributes.get().is_none() {
        let mut names = call.attribute_names();
        names.truncate(operation.attribute_limit);
        let _ = operation.attributes.set(names);
    }
    slot.begin.store(now().0, Relaxed);
    slot.lock.publish(id);
    Recording { slot, id }
}

/// The position of a collective call among those on the communicator. Two of them at once are an error
/// of the program (MPI-4.1 §6.14), which is then told of calls that have positions of their own.
#[inline(always)]
fn next_on(communicator: i64) -> u64 {
    let count = SEQUENCES.get(communicator).unwrap_or_else(|| {
        // Calls on other numbers than communicators have were refused before.
        SEQUENCES.get_or_grow(usize::try_from(communicator).unwrap_or(0))
    });
    count.fetch_add(1, Relaxed) + 1
}

/// Number of collective calls on a communicator so far.
pub fn calls_on(communicator: i64) -> u64 {
    SEQUENCES
        .get(communicator)
        .map_or(0, |count| count.load(Relaxed))
}

impl Recording {
    /// The position of the call among all calls of this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// For a collective operation, its position among those on the communicator; else 0.
    pub fn sequence(&self) -> u64 {
        self.slot.sequence.load(Relaxed)
    }

    /// A copy of the record, if it is still kept.
    pub fn record(&self) -> Option<Record> {
        record(self.id)
    }

    /// The slot, unless it was too many calls ago that it was the call's.
    #[inline(always)]
    fn own_slot(&self) -> Option<&'static Slot> {
        self.slot.lock.has(self.id).then_some(self.slot)
    }

    /// Records the operation in flight that the call has started, or waits for: its number, and its
    /// position among the collective operations, if the call itself has none.
    pub fn set_flight(&self, flight: u32, sequence: Option<u64>) {
        if let Some(slot) = self.own_slot() {
            slot.in_flight.store(flight, Relaxed);
            if let Some(sequence) = sequence {
                slot.sequence.store(sequence, Relaxed);
            }
        }
    }

    /// Records whether the call has reached MPI. A call on host memory always has.
    pub fn set_reached_mpi(&self, has_reached: bool) {
        if let Some(slot) = self.own_slot() {
            slot.has_reached_mpi.store(has_reached, Relaxed);
        }
    }

    /// Records which of several messages the call waits for: its index among those that it receives, and
    /// then those that it sends.
    #[inline(always)]
    pub fn set_awaited_message(&self, index: usize) {
        if let Some(slot) = self.own_slot() {
            slot.awaited.store(index as u32 + 1, Relaxed);
        }
    }

    /// Records that all messages have come, and that the call waits for those that it sends.
    pub fn set_awaited_sends(&self) {
        if let Some(slot) = self.own_slot() {
            slot.awaited.store(SENDS, Relaxed);
        }
    }
}

impl Drop for Recording {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(slot) = self.own_slot() {
            slot.lock.finish(now().0);
        }
    }
}

/// The messages that a call with several waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// One: its index among those that are received, and then those that are sent.
    Message(usize),
    /// Any of those that are sent.
    Sends,
}

/// [`Awaited::Sends`] in a slot, where 0 says that nothing is known, and other numbers are one more
/// than the index of a message.
const SENDS: u32 = u32::MAX;

fn decode_awaited(encoded: u32) -> Option<Awaited> {
    match encoded {
        0 => None,
        SENDS => Some(Awaited::Sends),
        _ => Some(Awaited::Message(encoded as usize - 1)),
    }
}

/// The ids of the calls that are kept.
pub fn recorded() -> Range<u64> {
    let ring = Ring::get();
    let count = ring.count.load(Acquire);
    let capacity = ring.slots.len() as u64;
    (count + 1).saturating_sub(capacity).max(1)..count + 1
}

/// The record of a call, unless it is not kept any more, or just being written.
pub fn record(id: u64) -> Option<Record> {
    let slot = Ring::get().slot(id);
    slot.lock.read(id, |end| slot.copy(id, end))
}

/// The ids of the calls in progress, the oldest first.
pub fn in_progress() -> Vec<u64> {
    let slots = Ring::get().slots.iter();
    let mut ids: Vec<u64> = slots.filter_map(|slot| slot.lock.in_progress()).collect();
    ids.sort_unstable();
    ids
}

/// The last calls that are kept, and those in progress, the oldest first.
pub fn recent() -> Vec<Record> {
    let last = recorded();
    let older = in_progress().into_iter().take_while(|n| *n < last.start);
    older.chain(last.clone()).filter_map(record).collect()
}
