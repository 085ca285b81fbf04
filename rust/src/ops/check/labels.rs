//! The comparing of messages: each has a label, which travels ahead of it.
//!
//! Label and message have the same communicator and tag, so the label is the first of both to be
//! received (MPI-4.1 §3.5), and says who sends the message if that is anybody.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Mutex;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{byte_type, table_width, world_rank};
use crate::diagnosis::{Activity, Route, Sent, Traffic, rows};
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::memory::Memory;
use crate::mpi::{Abi, Neighbor, OwnStatus, REGISTRY, RecvBuffer, SendBuffer, SizedDatatype};
use crate::ops::call::Call;
use crate::recorder::{self, Array, Record};

/// The envelope and the array of a message, which travel ahead of it.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
pub struct Label {
    magic: u64,
    /// The number that the sender has for the communicator.
    communicator: i64,
    /// The elements of the message.
    count: i64,
    /// XLA's number for their type.
    dtype: i32,
    /// The length of the line.
    length: u32,
    /// The Python line of the sender, in part if it is long.
    line: [u8; LONGEST_LINE],
}

const LONGEST_LINE: usize = 224;
/// Nothing that a user sends begins like this, but by a rare accident.
const MAGIC: u64 = 0x8f5a_6d70_6934_6a78;
/// The size of a label in bytes.
pub const BYTES: c_int = size_of::<Label>() as c_int;

impl Label {
    /// An empty label, as room for one that is received.
    pub const EMPTY: Self = Self {
        magic: 0,
        communicator: 0,
        count: 0,
        dtype: 0,
        length: 0,
        line: [0; LONGEST_LINE],
    };

    fn new(record: &Record, sent: Array, line: &str) -> Self {
        let mut length = line.len().min(LONGEST_LINE);
        while !line.is_char_boundary(length) {
            length -= 1;
        }
        let mut label = Self {
            magic: MAGIC,
            communicator: record.communicator(),
            count: sent.count,
            dtype: sent.dtype,
            length: length as u32,
            ..Self::EMPTY
        };
        label.line[..length].copy_from_slice(&line.as_bytes()[..length]);
        label
    }

    fn array(&self) -> Array {
        Array {
            dtype: self.dtype,
            count: self.count,
        }
    }

    fn line(&self) -> String {
        let length = LONGEST_LINE.min(self.length as usize);
        String::from_utf8_lossy(&self.line[..length]).into_owned()
    }
}

/// A message, as its label describes it.
pub struct Labelled {
    /// Sender and tag.
    pub from: Neighbor,
    /// Reason why the message does not fit, if any. In a box, as a call without checks has room for it, too.
    pub refusal: Option<Box<Refusal>>,
}

/// A message that does not fit.
pub struct Refusal {
    pub error: Error,
    /// Room for the message and the type of its elements, unless it has arrived already.
    room: Option<(Vec<u8>, SizedDatatype)>,
}

impl Refusal {
    /// Receive buffer of the message, unless it has arrived already.
    pub fn buffer(&mut self) -> Option<RecvBuffer<'_>> {
        let (bytes, datatype) = self.room.as_mut()?;
        Some(RecvBuffer::of(&mut bytes[..], *datatype))
    }
}

/// The messages sent and received so far, by their routes.
#[derive(Default)]
struct Tallies {
    /// Number of messages on each route, with the line of the last one.
    sent: BTreeMap<Route, (u64, String)>,
    received: BTreeMap<Route, u64>,
}

static TALLIES: Mutex<Option<Tallies>> = Mutex::new(None);

fn with_tallies<T>(body: impl FnOnce(&mut Tallies) -> T) -> T {
    let mut tallies = lock(&TALLIES);
    body(tallies.get_or_insert_default())
}

/// The messages of this process that were checked so far.
pub fn traffic() -> Traffic {
    with_tallies(|tallies| Traffic {
        sent: tallies
            .sent
            .iter()
            .map(|(kind, (count, line))| Sent {
                route: *kind,
                count: *count,
                communicator: recorder::communicator_name(kind.communicator),
                line: line.clone(),
            })
            .collect(),
        received: tallies.received.clone().into_iter().collect(),
    })
}

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// Sends the label of a message.
    pub fn send_label(&self, to: Neighbor, sent: Array) -> Result<()> {
        let Some(label) = self.label(to, sent) else {
            return Ok(());
        };
        let send = SendBuffer::of(&label, byte_type()?);
        self.unlogged().send(send, to)
    }

    /// Receives the label of a message, if there is one.
    pub fn receive_label(&self, from: Neighbor, wanted: Array) -> Result<Option<Labelled>> {
        let Some(record) = self.checked_with(from) else {
            return Ok(None);
        };
        let (mut label, mut status) = (Label::EMPTY, OwnStatus::EMPTY);
        let recv = RecvBuffer::of(&mut label, byte_type()?);
        self.unlogged().recv(recv, from, status.place())?;
        self.read_label(record, &label, wanted, status.source_and_tag::<A>())
            .map(Some)
    }

    /// Exchanges the labels of a message that is sent and one that is received.
    pub fn exchange_labels(
        &self,
        (to, sent): (Neighbor, Array),
        (from, wanted): (Neighbor, Array),
    ) -> Result<Option<Labelled>> {
        if self.checked.is_none() {
            return Ok(None);
        }
        let Some(record) = self.checked_with(from) else {
            return self.send_label(to, sent).map(|()| None);
        };
        let Some(own) = self.label(to, sent) else {
            return self.receive_label(from, wanted);
        };
        let (mut label, mut status) = (Label::EMPTY, OwnStatus::EMPTY);
        let sent = SendBuffer::of(&own, byte_type()?);
        let recv = RecvBuffer::of(&mut label, byte_type()?);
        self.unlogged()
            .sendrecv((sent, to), (recv, from), status.place())?;
        self.read_label(record, &label, wanted, status.source_and_tag::<A>())
            .map(Some)
    }

    /// The record of the call, if its message to or from a process has a label.
    fn checked_with(&self, peer: Neighbor) -> Option<&Record> {
        let record = self.checked.as_deref();
        record.filter(|_| peer.rank != A::constants().proc_null)
    }

    /// The label of a message that is sent now, if messages have one.
    pub fn label(&self, to: Neighbor, sent: Array) -> Option<Label> {
        let record = self.checked_with(to)?;
        let line = record.line().unwrap_or_default();
        let label = Label::new(record, sent, &line);
        let kind = Route {
            from: world_rank(record, self.communicator.rank),
            to: world_rank(record, to.rank),
            communicator: label.communicator,
            tag: to.tag,
        };
        with_tallies(|tallies| {
            let (count, last) = tallies.sent.entry(kind).or_default();
            *count += 1;
            *last = line;
        });
        Some(label)
    }

    /// Compares a label from a source with what is to be received.
    pub fn read_label(
        &self,
        record: &Record,
        label: &Label,
        wanted: Array,
        (rank, tag): (c_int, c_int),
    ) -> Result<Labelled> {
        let own = world_rank(record, self.communicator.rank);
        let from = world_rank(record, rank);
        let refusal = if label.magic == MAGIC {
            let kind = Route {
                from,
                to: own,
                communicator: label.communicator,
                tag,
            };
            with_tallies(|tallies| *tallies.received.entry(kind).or_default() += 1);
            self.compare(record, label, wanted, (from, own, tag))?
        } else {
            Some(Refusal {
                error: self.refuse_message(
                    vec![(own, activity(record))],
                    format!(
                        "the message from rank {from} with tag {tag} was not sent by mpi4jax: \
                         MPI4JAX_CHECK compares messages that both sides leave to mpi4jax."
                    ),
                ),
                room: None,
            })
        };
        Ok(Labelled {
            from: Neighbor { rank, tag },
            refusal: refusal.map(Box::new),
        })
    }

    /// Reason why a message does not fit, if any.
    fn compare(
        &self,
        record: &Record,
        label: &Label,
        wanted: Array,
        (from, own, tag): (i32, i32, c_int),
    ) -> Result<Option<Refusal>> {
        let sent = label.array();
        // Who has a status can ask it how long the message was.
        let has_status = record.facts.status.is_some_and(|status| status >= 0);
        let is_short = sent.count < wanted.count;
        if sent.dtype == wanted.dtype && (sent.count == wanted.count || has_status && is_short) {
            return Ok(None);
        }
        let communicator = record.communicator_name();
        let to = self.communicator.rank;
        let sender = format!("sends {sent} to {to} with tag {tag} on {communicator}");
        let error = self.refuse_message(
            vec![(from, (sender, label.line())), (own, activity(record))],
            format!("rank {from} sends {sent}, where rank {own} receives {wanted}."),
        );
        let datatype = REGISTRY.datatype(label.dtype)?;
        let bytes = vec![0; label.count.max(0) as usize * datatype.size];
        Ok(Some(Refusal {
            error,
            room: Some((bytes, datatype)),
        }))
    }

    fn refuse_message(&self, sides: Vec<(i32, Activity)>, finding: String) -> Error {
        let mut report = vec!["mpi4jax: a message that does not fit (MPI4JAX_CHECK)".to_owned()];
        report.extend(rows(sides, table_width()));
        report.push(finding);
        self.refuse(report, None)
    }
}

/// The activity of this rank in a call.
fn activity(record: &Record) -> Activity {
    (format!("in {record}"), record.line().unwrap_or_default())
}
