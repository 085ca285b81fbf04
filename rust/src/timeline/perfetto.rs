//! Writing a trace in Perfetto's format: messages of Protocol Buffers, as `perfetto_trace.proto` of
//! <https://github.com/google/perfetto> has them.

use std::collections::HashMap;
use std::io::{self, Write};

/// The numbers of the fields that we write, by message.
mod field {
    pub const TRACE_PACKET: u32 = 1;

    pub const PACKET_TIMESTAMP: u32 = 8;
    pub const PACKET_SEQUENCE: u32 = 10;
    pub const PACKET_TRACK_EVENT: u32 = 11;
    pub const PACKET_INTERNED_DATA: u32 = 12;
    pub const PACKET_SEQUENCE_FLAGS: u32 = 13;
    pub const PACKET_TRACK_DESCRIPTOR: u32 = 60;

    pub const TRACK_UUID: u32 = 1;
    pub const TRACK_NAME: u32 = 2;
    pub const TRACK_PROCESS: u32 = 3;
    pub const TRACK_THREAD: u32 = 4;
    pub const TRACK_PARENT: u32 = 5;

    pub const PROCESS_PID: u32 = 1;
    pub const PROCESS_NAME: u32 = 6;

    pub const THREAD_PID: u32 = 1;
    pub const THREAD_TID: u32 = 2;
    pub const THREAD_NAME: u32 = 5;

    pub const EVENT_ANNOTATION: u32 = 4;
    pub const EVENT_TYPE: u32 = 9;
    pub const EVENT_NAME: u32 = 10;
    pub const EVENT_TRACK: u32 = 11;
    pub const EVENT_FLOW: u32 = 47;
    pub const EVENT_TERMINATING_FLOW: u32 = 48;

    pub const ANNOTATION_NAME: u32 = 1;
    pub const ANNOTATION_INT: u32 = 4;
    pub const ANNOTATION_ARRAY: u32 = 12;
    pub const ANNOTATION_STRING: u32 = 17;

    pub const INTERNED_EVENT_NAMES: u32 = 2;
    pub const INTERNED_ANNOTATION_NAMES: u32 = 3;
    pub const INTERNED_STRINGS: u32 = 29;
    pub const INTERNED_ID: u32 = 1;
    pub const INTERNED_TEXT: u32 = 2;
}

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;

/// Flags of a packet: the texts before it have no numbers any more, and it needs those after that.
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;

/// All packets are one sequence, in which texts have numbers.
const SEQUENCE: u64 = 1;

/// A message of Protocol Buffers, as it is encoded.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Encoder(Vec<u8>);

impl Encoder {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn integer(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3);
        self.varint(value);
    }

    fn fixed(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn message(&mut self, field: u32, message: &Self) {
        self.bytes(field, &message.0);
    }
}

/// A track: a process of the run, and a row below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Track {
    pub(super) rank: i32,
    pub(super) row: Row,
}

/// A row of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Row {
    /// The slices of a thread, from 1.
    Thread(u16),
    /// Operations in flight, from 0.
    Flight(u16),
}

/// Process number of a rank in the timeline. Viewers take 0 for an idle machine.
fn pid(rank: i32) -> u64 {
    (i64::from(rank) + 1) as u64
}

/// Thread number in the timeline, which differs from those of other processes.
fn tid(rank: i32, thread: u16) -> u64 {
    pid(rank) * 1000 + u64::from(thread)
}

impl Track {
    fn uuid(self) -> u64 {
        let row = match self.row {
            Row::Thread(row) => u64::from(row),
            Row::Flight(row) => 1 << 16 | u64::from(row),
        };
        pid(self.rank) << 20 | row
    }
}

/// The value of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Number(i64),
    Text(String),
    List(Vec<Self>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

/// The ids of texts that have been written, by their purpose.
#[derive(Default)]
struct Interned {
    ids: HashMap<(u32, String), u64>,
    /// The texts that have not been written yet.
    new: Encoder,
}

impl Interned {
    fn id(&mut self, field: u32, text: &str) -> u64 {
        let next = self.ids.len() as u64 + 1;
        let key = (field, text.to_owned());
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let mut entry = Encoder::default();
        entry.integer(field::INTERNED_ID, next);
        entry.bytes(field::INTERNED_TEXT, text.as_bytes());
        self.new.message(field, &entry);
        self.ids.insert(key, next);
        next
    }
}

/// The arguments of a slice. They refer to texts of one [`Writer`].
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Annotations(Encoder);

/// Writes packets.
pub(super) struct Writer<W> {
    output: W,
    interned: Interned,
    flags: u64,
    /// Kept for their memory.
    packet: Encoder,
    event: Encoder,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(output: W) -> Self {
        Self {
            output,
            interned: Interned::default(),
            flags: STATE_CLEARED | NEEDS_STATE,
            packet: Encoder::default(),
            event: Encoder::default(),
        }
    }

    pub(super) fn into_inner(self) -> W {
        self.output
    }

    /// The id of the name of slices.
    pub(super) fn name(&mut self, name: &str) -> u64 {
        self.interned.id(field::INTERNED_EVENT_NAMES, name)
    }

    /// Adds an argument of a slice.
    pub(super) fn annotate(&mut self, annotations: &mut Annotations, name: &str, value: &Value) {
        let mut annotation = self.value(value);
        let name = self.interned.id(field::INTERNED_ANNOTATION_NAMES, name);
        annotation.integer(field::ANNOTATION_NAME, name);
        annotations.0.message(field::EVENT_ANNOTATION, &annotation);
    }

    fn value(&mut self, value: &Value) -> Encoder {
        let mut message = Encoder::default();
        match value {
            Value::Number(value) => message.integer(field::ANNOTATION_INT, *value as u64),
            Value::Text(text) => {
                let id = self.interned.id(field::INTERNED_STRINGS, text);
                message.integer(field::ANNOTATION_STRING, id);
            }
            Value::List(values) => {
                for value in values {
                    let value = self.value(value);
                    message.message(field::ANNOTATION_ARRAY, &value);
                }
            }
        }
        message
    }

    fn write(&mut self, fill: impl FnOnce(&mut Encoder)) -> io::Result<()> {
        let packet = &mut self.packet;
        packet.0.clear();
        packet.integer(field::PACKET_SEQUENCE, SEQUENCE);
        packet.integer(field::PACKET_SEQUENCE_FLAGS, self.flags);
        self.flags = NEEDS_STATE;
        if !self.interned.new.0.is_empty() {
            packet.message(field::PACKET_INTERNED_DATA, &self.interned.new);
            self.interned.new.0.clear();
        }
        fill(packet);
        let mut head = Encoder::default();
        head.varint(u64::from(field::TRACE_PACKET) << 3 | 2);
        head.varint(packet.0.len() as u64);
        self.output.write_all(&head.0)?;
        self.output.write_all(&packet.0)
    }

    /// Names a process.
    pub(super) fn process(&mut self, rank: i32, name: &str) -> io::Result<()> {
        let mut process = Encoder::default();
        process.integer(field::PROCESS_PID, pid(rank));
        process.bytes(field::PROCESS_NAME, name.as_bytes());
        let mut track = Encoder::default();
        track.integer(field::TRACK_UUID, pid(rank) << 20);
        track.message(field::TRACK_PROCESS, &process);
        self.write(|packet| packet.message(field::PACKET_TRACK_DESCRIPTOR, &track))
    }

    /// Names a track of a process.
    pub(super) fn track(&mut self, track: Track, name: &str) -> io::Result<()> {
        let mut descriptor = Encoder::default();
        descriptor.integer(field::TRACK_UUID, track.uuid());
        descriptor.integer(field::TRACK_PARENT, pid(track.rank) << 20);
        match track.row {
            Row::Thread(index) => {
                let mut thread = Encoder::default();
                thread.integer(field::THREAD_PID, pid(track.rank));
                thread.integer(field::THREAD_TID, tid(track.rank, index));
                thread.bytes(field::THREAD_NAME, name.as_bytes());
                descriptor.message(field::TRACK_THREAD, &thread);
            }
            Row::Flight(_) => descriptor.bytes(field::TRACK_NAME, name.as_bytes()),
        }
        self.write(|packet| packet.message(field::PACKET_TRACK_DESCRIPTOR, &descriptor))
    }

    /// Begins a slice, from which arrows start.
    pub(super) fn begin(
        &mut self,
        track: Track,
        time: u64,
        name: u64,
        annotations: &[&Annotations],
        flows: impl IntoIterator<Item = u64>,
    ) -> io::Result<()> {
        self.event.0.clear();
        self.event.integer(field::EVENT_TYPE, SLICE_BEGIN);
        self.event.integer(field::EVENT_NAME, name);
        for part in annotations {
            self.event.0.extend(&part.0.0);
        }
        for flow in flows {
            self.event.fixed(field::EVENT_FLOW, flow);
        }
        self.write_event(track, time)
    }

    /// Ends the innermost slice of a track, to which arrows lead.
    pub(super) fn end(&mut self, track: Track, time: u64, flows: &[u64]) -> io::Result<()> {
        self.event.0.clear();
        self.event.integer(field::EVENT_TYPE, SLICE_END);
        for flow in flows {
            self.event.fixed(field::EVENT_TERMINATING_FLOW, *flow);
        }
        self.write_event(track, time)
    }

    fn write_event(&mut self, track: Track, time: u64) -> io::Result<()> {
        let mut event = std::mem::take(&mut self.event);
        event.integer(field::EVENT_TRACK, track.uuid());
        let outcome = self.write(|packet| {
            packet.integer(field::PACKET_TIMESTAMP, time);
            packet.message(field::PACKET_TRACK_EVENT, &event);
        });
        self.event = event;
        outcome
    }
}
