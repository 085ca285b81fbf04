//! Writing a trace in Perfetto's format: messages of Protocol Buffers, as `perfetto_trace.proto` of
//! <https://github.com/google/perfetto> has them.

use std::collections::HashMap;
use std::io::{self, Write};

/// The numbers of the fields that we write.
mod field {
    pub(super) const PACKET: u32 = 1;

    pub(super) mod packet {
        pub(in super::super) const TIMESTAMP: u32 = 8;
        pub(in super::super) const SEQUENCE: u32 = 10;
        pub(in super::super) const TRACK_EVENT: u32 = 11;
        pub(in super::super) const INTERNED_DATA: u32 = 12;
        pub(in super::super) const SEQUENCE_FLAGS: u32 = 13;
        pub(in super::super) const TRACK_DESCRIPTOR: u32 = 60;
    }
    pub(super) mod track {
        pub(in super::super) const UUID: u32 = 1;
        pub(in super::super) const NAME: u32 = 2;
        pub(in super::super) const PROCESS: u32 = 3;
        pub(in super::super) const THREAD: u32 = 4;
        pub(in super::super) const PARENT: u32 = 5;
    }
    pub(super) mod process {
        pub(in super::super) const PID: u32 = 1;
        pub(in super::super) const NAME: u32 = 6;
    }
    pub(super) mod thread {
        pub(in super::super) const PID: u32 = 1;
        pub(in super::super) const TID: u32 = 2;
        pub(in super::super) const NAME: u32 = 5;
    }
    pub(super) mod event {
        pub(in super::super) const ANNOTATION: u32 = 4;
        pub(in super::super) const TYPE: u32 = 9;
        pub(in super::super) const NAME: u32 = 10;
        pub(in super::super) const TRACK: u32 = 11;
        pub(in super::super) const FLOW: u32 = 47;
        pub(in super::super) const TERMINATING_FLOW: u32 = 48;
    }
    pub(super) mod annotation {
        pub(in super::super) const NAME: u32 = 1;
        pub(in super::super) const INT: u32 = 4;
        pub(in super::super) const ARRAY: u32 = 12;
        pub(in super::super) const STRING: u32 = 17;
    }
    pub(super) mod interned {
        pub(in super::super) const EVENT_NAMES: u32 = 2;
        pub(in super::super) const ANNOTATION_NAMES: u32 = 3;
        pub(in super::super) const STRINGS: u32 = 29;
        pub(in super::super) const ID: u32 = 1;
        pub(in super::super) const TEXT: u32 = 2;
    }
}

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;

/// What is written before this is of no meaning to what follows.
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;

/// All packets are one sequence, in which texts have numbers.
const SEQUENCE: u64 = 1;

/// A message that is being written.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Encoder(Vec<u8>);

impl Encoder {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn number(&mut self, field: u32, number: u64) {
        self.varint(u64::from(field) << 3);
        self.varint(number);
    }

    fn fixed(&mut self, field: u32, number: u64) {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend(number.to_le_bytes());
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

/// A track: a process of the run, and what it does at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Track {
    pub(super) rank: i32,
    pub(super) row: Row,
}

/// A track of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Row {
    /// A row of slices, from 1.
    Thread(u16),
    /// What is in flight, from 0.
    Flight(u16),
}

/// Viewers take 0 for an idle machine.
fn pid(rank: i32) -> u64 {
    (i64::from(rank) + 1) as u64
}

/// Threads of two processes may not have the same number either.
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

/// The numbers of texts that have been written, by what they are for.
#[derive(Default)]
struct Interned {
    numbers: HashMap<(u32, String), u64>,
    /// Those that have not been written yet.
    new: Encoder,
}

impl Interned {
    fn number(&mut self, field: u32, text: &str) -> u64 {
        let next = self.numbers.len() as u64 + 1;
        let key = (field, text.to_owned());
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let mut entry = Encoder::default();
        entry.number(field::interned::ID, next);
        entry.bytes(field::interned::TEXT, text.as_bytes());
        self.new.message(field, &entry);
        self.numbers.insert(key, next);
        next
    }
}

/// What is said of a slice besides its name. It refers to texts of one [`Writer`].
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

    /// The number of the name of slices.
    pub(super) fn name(&mut self, name: &str) -> u64 {
        self.interned.number(field::interned::EVENT_NAMES, name)
    }

    /// Adds an argument of a slice.
    pub(super) fn annotate(&mut self, annotations: &mut Annotations, name: &str, value: &Value) {
        let mut annotation = self.value(value);
        let name = self
            .interned
            .number(field::interned::ANNOTATION_NAMES, name);
        annotation.number(field::annotation::NAME, name);
        annotations.0.message(field::event::ANNOTATION, &annotation);
    }

    fn value(&mut self, value: &Value) -> Encoder {
        let mut message = Encoder::default();
        match value {
            Value::Number(number) => message.number(field::annotation::INT, *number as u64),
            Value::Text(text) => {
                let number = self.interned.number(field::interned::STRINGS, text);
                message.number(field::annotation::STRING, number);
            }
            Value::List(values) => {
                for value in values {
                    let value = self.value(value);
                    message.message(field::annotation::ARRAY, &value);
                }
            }
        }
        message
    }

    fn write(&mut self, fill: impl FnOnce(&mut Encoder)) -> io::Result<()> {
        let packet = &mut self.packet;
        packet.0.clear();
        packet.number(field::packet::SEQUENCE, SEQUENCE);
        packet.number(field::packet::SEQUENCE_FLAGS, self.flags);
        self.flags = NEEDS_STATE;
        if !self.interned.new.0.is_empty() {
            packet.message(field::packet::INTERNED_DATA, &self.interned.new);
            self.interned.new.0.clear();
        }
        fill(packet);
        let mut head = Encoder::default();
        head.varint(u64::from(field::PACKET) << 3 | 2);
        head.varint(packet.0.len() as u64);
        self.output.write_all(&head.0)?;
        self.output.write_all(&packet.0)
    }

    /// Names a process.
    pub(super) fn process(&mut self, rank: i32, name: &str) -> io::Result<()> {
        let mut process = Encoder::default();
        process.number(field::process::PID, pid(rank));
        process.bytes(field::process::NAME, name.as_bytes());
        let mut track = Encoder::default();
        track.number(field::track::UUID, pid(rank) << 20);
        track.message(field::track::PROCESS, &process);
        self.write(|packet| packet.message(field::packet::TRACK_DESCRIPTOR, &track))
    }

    /// Names a track of a process.
    pub(super) fn track(&mut self, track: Track, name: &str) -> io::Result<()> {
        let mut descriptor = Encoder::default();
        descriptor.number(field::track::UUID, track.uuid());
        descriptor.number(field::track::PARENT, pid(track.rank) << 20);
        match track.row {
            Row::Thread(number) => {
                let mut thread = Encoder::default();
                thread.number(field::thread::PID, pid(track.rank));
                thread.number(field::thread::TID, tid(track.rank, number));
                thread.bytes(field::thread::NAME, name.as_bytes());
                descriptor.message(field::track::THREAD, &thread);
            }
            Row::Flight(_) => descriptor.bytes(field::track::NAME, name.as_bytes()),
        }
        self.write(|packet| packet.message(field::packet::TRACK_DESCRIPTOR, &descriptor))
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
        self.event.number(field::event::TYPE, SLICE_BEGIN);
        self.event.number(field::event::NAME, name);
        for part in annotations {
            self.event.0.extend(&part.0.0);
        }
        for flow in flows {
            self.event.fixed(field::event::FLOW, flow);
        }
        self.write_event(track, time)
    }

    /// Ends the innermost slice of a track, to which arrows lead.
    pub(super) fn end(&mut self, track: Track, time: u64, flows: &[u64]) -> io::Result<()> {
        self.event.0.clear();
        self.event.number(field::event::TYPE, SLICE_END);
        for flow in flows {
            self.event.fixed(field::event::TERMINATING_FLOW, *flow);
        }
        self.write_event(track, time)
    }

    fn write_event(&mut self, track: Track, time: u64) -> io::Result<()> {
        let mut event = std::mem::take(&mut self.event);
        event.number(field::event::TRACK, track.uuid());
        let written = self.write(|packet| {
            packet.number(field::packet::TIMESTAMP, time);
            packet.message(field::packet::TRACK_EVENT, &event);
        });
        self.event = event;
        written
    }
}
