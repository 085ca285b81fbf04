//! Draws the timeline: a process for each of the run, with tracks for its calls, for the work of JAX
//! and Python, and for operations in flight.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::ops::Range;

use super::call_reader::TimedCall;
use super::matching::{
    CollectiveKey, CollectiveMatcher, MessageMatcher, Participant, Receive, SentMessage, needed,
};
use super::perfetto::{Annotations, Row, Track, Value, Writer};
use super::rules::Pattern;
use super::run::{IdentifiedCommunicator, Process, Run, RunFacts, Span};
use super::slots::{NestingSlots, Slots};
use crate::recorder::Message;
use crate::trace::{Entry, NONE};

/// The first tracks of the work of JAX and Python, and of calls. Viewers show them in this order.
const COMPILES: u16 = 100;
const EAGER_CALLS: u16 = 200;
const CALLS: u16 = 300;
/// Largest number of tracks of each kind.
const MAX_SLOTS: usize = 99;

/// The name of the rest of a call that has waited.
const REST: &str = "moves bytes";

/// Number of descriptions of calls that are kept.
const MAX_DETAILS: usize = 1 << 14;
/// Largest number of calls that wait for others to be matched.
const MAX_PENDING: usize = 1 << 20;

/// A call that is drawn when it is known whom it waited for.
struct Pending<'a> {
    process: &'a Process,
    call: TimedCall,
    /// None if it is not drawn.
    track: Option<Track>,
    /// The arrows that begin at it.
    sent: Range<u64>,
    /// The arrows that end there.
    received: Vec<u64>,
    /// Number of messages that are not matched yet, or 1 for a collective call.
    unknown: usize,
    collective: Option<CollectiveKey>,
    /// When the last call began that it needs, and the rank of that.
    needed: Option<(i64, i32)>,
}

/// The tracks of a process.
#[derive(Default)]
struct Tracks {
    named: HashSet<Track>,
    compiles: NestingSlots,
    eager_calls: NestingSlots,
    calls: Slots,
    flights: Slots,
    /// The tracks of operations in flight.
    flying: HashMap<u64, u16>,
}

/// Draws calls as they come.
pub(super) struct Drawing<'a, W> {
    run: &'a Run,
    start: i64,
    writer: Writer<W>,
    /// By rank.
    processes: HashMap<i32, &'a Process>,
    tracks: HashMap<i32, Tracks>,
    /// The names of calls.
    names: HashMap<(i32, u16, i64), u64>,
    details: HashMap<(i32, Entry), Annotations>,
    /// The communicators all of whose members are known, or not.
    is_whole: HashMap<usize, bool>,
    largest_error: i64,
    collectives: CollectiveMatcher,
    messages: MessageMatcher,
    pending: BTreeMap<u64, Pending<'a>>,
    call_count: u64,
    drawn_count: u64,
    message_count: u64,
    next_flow: u64,
}

impl<'a, W: Write> Drawing<'a, W> {
    pub(super) fn new(run: &'a Run, output: W) -> Self {
        let processes = run.processes.iter();
        Self {
            run,
            start: run.started(),
            writer: Writer::new(output),
            processes: processes.map(|each| (each.rank, each)).collect(),
            tracks: HashMap::new(),
            names: HashMap::new(),
            details: HashMap::new(),
            is_whole: HashMap::new(),
            largest_error: 0,
            collectives: CollectiveMatcher::default(),
            messages: MessageMatcher::default(),
            pending: BTreeMap::new(),
            call_count: 0,
            drawn_count: 0,
            message_count: 0,
            next_flow: 1,
        }
    }

    /// Writes what is left, and gives a summary and the output.
    pub(super) fn finish(mut self) -> io::Result<(String, W)> {
        self.find_messages(i64::MAX)?;
        for (_, pending) in std::mem::take(&mut self.pending) {
            self.draw(&pending)?;
        }
        let (calls, messages) = (self.drawn_count, self.message_count);
        let processes = self.run.processes.len();
        let summary = format!("{calls} calls of {processes} processes, {messages} messages");
        Ok((summary, self.writer.into_inner()))
    }

    pub(super) fn add_process(&mut self, process: &Process) -> io::Result<()> {
        let name = format!("rank {} ({})", process.rank, process.host);
        self.tracks.insert(process.rank, Tracks::default());
        self.writer.process(process.rank, &name)
    }

    fn tracks(&mut self, process: &Process) -> &mut Tracks {
        self.tracks.entry(process.rank).or_default()
    }

    fn track(&mut self, process: &Process, row: Row, name: &str) -> io::Result<Track> {
        let rank = process.rank;
        let track = Track { rank, row };
        if self.tracks(process).named.insert(track) {
            self.writer.track(track, name)?;
        }
        Ok(track)
    }

    /// One of several tracks beside each other.
    fn thread(
        &mut self,
        process: &Process,
        first: u16,
        slot: usize,
        name: &str,
    ) -> io::Result<Track> {
        let slot = slot.min(MAX_SLOTS) as u16;
        let name = match slot {
            0 => name.into(),
            _ => format!("{name} ({})", slot + 1),
        };
        self.track(process, Row::Thread(first + slot), &name)
    }

    fn time(&self, time: i64) -> u64 {
        time.saturating_sub(self.start).max(0) as u64
    }

    /// Draws a span in which a process did something else than MPI.
    pub(super) fn add_span(&mut self, process: &Process, span: &Span) -> io::Result<()> {
        let times = span.begin..span.end;
        let tracks = self.tracks(process);
        let (first, slot, name) = if span.is_eager {
            let slot = tracks.eager_calls.take(&times);
            (EAGER_CALLS, slot, "Eager calls in Python")
        } else {
            let slot = tracks.compiles.take(&times);
            (COMPILES, slot, "JAX traces and compiles")
        };
        let track = self.thread(process, first, slot, name)?;
        self.slice(track, &span.name, times, &[])
    }

    /// Draws a slice, to whose end arrows lead.
    fn slice(
        &mut self,
        track: Track,
        name: &str,
        times: Range<i64>,
        received: &[u64],
    ) -> io::Result<()> {
        let name = self.writer.name(name);
        let (begin, end) = (self.time(times.start), self.time(times.end));
        self.writer.begin(track, begin, name, &[], [])?;
        self.writer.end(track, end, received)
    }

    /// Adds a call. Those that are not drawn have messages that may belong to others.
    pub(super) fn add_call(
        &mut self,
        process: &'a Process,
        call: TimedCall,
        is_drawn: bool,
    ) -> io::Result<()> {
        self.find_messages(call.begin)?;
        let call_id = self.call_count;
        self.call_count += 1;
        let mut pending = Pending {
            process,
            call,
            track: None,
            sent: self.next_flow..self.next_flow,
            received: Vec::new(),
            unknown: 0,
            collective: None,
            needed: None,
        };
        if is_drawn {
            pending.track = Some(self.track_of(process, &call)?);
            self.draw_flight(process, &call)?;
        }
        if let Some(communicator) = process.communicator(&call.entry) {
            if !self.run.facts.has_messages(&call.entry) {
                self.add_collective(call_id, pending, communicator)?;
            } else {
                self.add_messages(call_id, &mut pending, communicator);
                self.keep(call_id, pending)?;
            }
            return Ok(());
        }
        self.draw(&pending)
    }

    /// Keeps a call until it is known whom it waits for.
    fn keep(&mut self, call_id: u64, pending: Pending<'a>) -> io::Result<()> {
        if pending.unknown == 0 {
            return self.draw(&pending);
        }
        self.pending.insert(call_id, pending);
        if self.pending.len() > MAX_PENDING
            && let Some((_, oldest)) = self.pending.pop_first()
        {
            if let Some(key) = &oldest.collective {
                self.collectives.forget(key);
            }
            return self.draw(&oldest);
        }
        Ok(())
    }

    fn add_collective(
        &mut self,
        call_id: u64,
        mut pending: Pending<'a>,
        communicator: &IdentifiedCommunicator,
    ) -> io::Result<()> {
        let (process, call) = (pending.process, pending.call);
        let members = &communicator.members;
        let processes = &self.processes;
        let is_whole = *self
            .is_whole
            .entry(communicator.key)
            .or_insert_with(|| members.iter().all(|rank| processes.contains_key(&rank)));
        if !is_whole {
            return self.draw(&pending);
        }
        let key = (communicator.key, call.entry.sequence, call.entry.operation);
        let participant = Participant {
            call: call.end.map(|_| call_id),
            rank: process.rank,
            begin: call.begin,
        };
        pending.unknown = usize::from(call.end.is_some());
        pending.collective = Some(key);
        self.keep(call_id, pending)?;
        let participants = self.collectives.add(key, members.len(), participant);
        let pattern = self.run.facts.pattern(&call.entry);
        let root = members.get(call.entry.root.into());
        for participant in &participants {
            let Some(mut pending) = participant.call.and_then(|call| self.pending.remove(&call))
            else {
                continue;
            };
            let last = needed(pattern, root, participant, &participants);
            pending.needed = last.map(|last| (last.begin, last.rank));
            self.draw(&pending)?;
        }
        Ok(())
    }

    fn add_messages(
        &mut self,
        call_id: u64,
        pending: &mut Pending,
        communicator: &IdentifiedCommunicator,
    ) {
        let (process, call) = (pending.process, pending.call);
        let facts = &self.run.facts;
        let is_between_neighbors = facts.pattern(&call.entry) == Pattern::Neighborhood;
        let messages = process.messages(&call.entry, facts);
        let error = process.clocks.error_at(call.begin);
        for message in &messages.sent {
            let Some(receiver) = communicator.members.get(message.rank) else {
                continue;
            };
            let sent = SentMessage {
                flow: pending.sent.end,
                rank: process.rank,
                tag: message.tag,
                begin: call.begin,
                error,
                is_drawn: pending.track.is_some(),
            };
            pending.sent.end += 1;
            if self.processes.contains_key(&receiver) {
                let channel = (communicator.key, is_between_neighbors, receiver);
                self.messages.send(channel, sent);
            }
        }
        self.next_flow = pending.sent.end;
        // One that did not end may not have got its messages.
        let Some(end) = call.end else {
            return;
        };
        let error = process.clocks.error_at(end);
        self.largest_error = self.largest_error.max(error);
        for message in &messages.received {
            let receive = Receive {
                call: call_id,
                source: communicator.members.get(message.rank),
                tag: message.tag,
                end,
                error,
            };
            if message.rank < 0 || receive.source.is_some() {
                let channel = (communicator.key, is_between_neighbors, process.rank);
                self.messages.receive(channel, receive, self.largest_error);
                pending.unknown += 1;
            }
        }
    }

    /// Draws the calls that have received all of their messages, of those that ended before.
    fn find_messages(&mut self, now: i64) -> io::Result<()> {
        while let Some((receive, sent)) = self.messages.next_before(now) {
            let Some(pending) = self.pending.get_mut(&receive.call) else {
                continue;
            };
            pending.unknown -= 1;
            if let Some(sent) = sent.filter(|sent| sent.is_drawn && pending.track.is_some()) {
                self.message_count += 1;
                pending.received.push(sent.flow);
                pending.needed = pending.needed.max(Some((sent.begin, sent.rank)));
            }
            if pending.unknown == 0
                && let Some(pending) = self.pending.remove(&receive.call)
            {
                self.draw(&pending)?;
            }
        }
        Ok(())
    }

    /// The track of a call: beside those that are in progress when it begins.
    fn track_of(&mut self, process: &Process, call: &TimedCall) -> io::Result<Track> {
        let slot = self.tracks(process).calls.take(call.begin, call.end);
        self.thread(process, CALLS, slot, "MPI")
    }

    /// The id of the name of a call.
    fn name_of(&mut self, process: &Process, call: &TimedCall) -> u64 {
        let key = (process.rank, call.entry.operation, call.entry.call_site);
        if let Some(name) = self.names.get(&key) {
            return *name;
        }
        let operation = self.run.facts.operation(&call.entry);
        let line = process.line(&call.entry);
        let space = if line.is_empty() { "" } else { "  " };
        let name = self.writer.name(&format!("{operation}{space}{line}"));
        self.names.insert(key, name);
        name
    }

    /// Draws a bar from the start of an operation to the end of the wait for it.
    fn draw_flight(&mut self, process: &Process, call: &TimedCall) -> io::Result<()> {
        let flight = call.entry.in_flight;
        if flight == 0 {
            return Ok(());
        }
        let is_over = self.run.facts.operation(&call.entry) == "wait";
        let tracks = self.tracks(process);
        if is_over {
            // It may have been started before the part that is shown.
            let (Some(slot), Some(end)) = (tracks.flying.remove(&flight), call.end) else {
                return Ok(());
            };
            tracks.flights.end(slot.into(), end);
            let track = Track {
                rank: process.rank,
                row: Row::Flight(slot),
            };
            let end = self.time(end);
            return self.writer.end(track, end, &[]);
        }
        let slot = tracks.flights.take(call.begin, None) as u16;
        tracks.flying.insert(flight, slot);
        let track = self.track(process, Row::Flight(slot), "in flight")?;
        let name = self.name_of(process, call);
        let begin = self.time(call.begin);
        self.writer.begin(track, begin, name, &[], [])
    }

    /// Draws a call, and the time that it waited for another one to begin.
    fn draw(&mut self, pending: &Pending) -> io::Result<()> {
        let Pending { process, call, .. } = pending;
        let Some(track) = pending.track else {
            return Ok(());
        };
        self.drawn_count += 1;
        let name = self.name_of(process, call);
        let details = self.details_of(process, call);
        let mut its_details = Annotations::default();
        if call.end.is_none() {
            self.writer
                .annotate(&mut its_details, "end", &"never".into());
        }
        if let Ok(sequence @ 1..) = i64::try_from(call.entry.sequence) {
            self.writer
                .annotate(&mut its_details, "number", &Value::Number(sequence));
        }
        let begin = self.time(call.begin);
        let sent = pending.sent.clone();
        self.writer
            .begin(track, begin, name, &[&details, &its_details], sent)?;
        let Some(end) = call.end else {
            return Ok(());
        };
        // An arrow leads to the innermost slice that ends with the call.
        let is_split = self.draw_wait(pending, track, end)?;
        let received = if is_split { &[][..] } else { &pending.received };
        let end = self.time(end);
        self.writer.end(track, end, received)
    }

    /// Draws the time that a call waited, if it did, and the rest of the call. Gives whether there is
    /// a rest.
    fn draw_wait(&mut self, pending: &Pending, track: Track, end: i64) -> io::Result<bool> {
        let Some((needed, rank)) = pending.needed else {
            return Ok(false);
        };
        let error = |process: &Process| process.clocks.error().unwrap_or(0);
        let errors = error(pending.process) + self.processes.get(&rank).map_or(0, |of| error(of));
        // Arrows begin at the innermost slice, which has to be the call.
        let begin = pending.call.begin + 1;
        let last = end.min(needed);
        if last - begin <= errors {
            return Ok(false);
        }
        self.slice(track, &format!("waits for rank {rank}"), begin..last, &[])?;
        if last < end {
            self.slice(track, REST, last..end, &pending.received)?;
        }
        Ok(last < end)
    }

    /// The arguments of a call, in words.
    fn details_of(&mut self, process: &Process, call: &TimedCall) -> Annotations {
        // Nearly all calls are equal to others but for these.
        let entry = Entry {
            begin: 0,
            end: 0,
            sequence: call.entry.sequence.min(1),
            in_flight: 0,
            ..call.entry
        };
        let key = (process.rank, entry);
        if let Some(details) = self.details.get(&key) {
            return details.clone();
        }
        let mut details = Annotations::default();
        for (name, value) in arguments(&self.run.facts, process, &call.entry) {
            self.writer.annotate(&mut details, name, &value);
        }
        if self.details.len() > MAX_DETAILS {
            self.details.clear();
        }
        self.details.insert(key, details.clone());
        details
    }
}

/// The arguments of a call, in words.
fn arguments(facts: &RunFacts, process: &Process, entry: &Entry) -> Vec<(&'static str, Value)> {
    let communicator = process.communicator(entry);
    let mut arguments = vec![("on", communicator.map_or("?", |each| &each.name).into())];
    if entry.op != NONE {
        let name = usize::try_from(entry.op).ok();
        let name = name.and_then(|op| facts.operators.get(op).cloned());
        let name = name.unwrap_or_else(|| format!("operator {}", entry.op));
        arguments.push(("operator", Value::Text(name)));
    }
    if entry.root != NONE {
        arguments.push(("root", Value::Number(entry.root.into())));
    }
    let peer = |rank: i64| match rank {
        0.. => Value::Number(rank),
        _ if rank == facts.proc_null => "nobody".into(),
        _ => "anyone".into(),
    };
    let tag = |tag: i64| match tag {
        0.. => Value::Number(tag),
        _ => "any".into(),
    };
    for (names, rank, its_tag) in [
        (["to", "tag to"], entry.dest, entry.send_tag),
        (["from", "tag from"], entry.source, entry.recv_tag),
    ] {
        if rank != NONE {
            arguments.push((names[0], peer(rank.into())));
            arguments.push((names[1], tag(its_tag.into())));
        }
    }
    if let Some(messages) = process.several_messages(entry) {
        let list = |messages: &[Message], value: &dyn Fn(&Message) -> Value| {
            Value::List(messages.iter().map(value).collect())
        };
        let is_exchange = entry.sequence == 0;
        for (names, messages) in [
            (["to", "tags to", "bytes sent"], &messages.sent),
            (["from", "tags from", "bytes received"], &messages.received),
        ] {
            arguments.push((names[0], list(messages, &|each| peer(each.rank))));
            if is_exchange {
                // Along the edges of a topology, tags are ours.
                arguments.push((names[1], list(messages, &|each| tag(each.tag))));
                let real = messages.iter().filter(|each| each.rank != facts.proc_null);
                let bytes = real.fold(0, |sum: i64, each| sum.saturating_add_unsigned(each.bytes));
                arguments.push((names[2], Value::Number(bytes)));
            }
        }
        if is_exchange {
            // Of its arrays, the record has the first one.
            return arguments;
        }
    }
    let arrays = [
        (["sends", "bytes sent"], entry.sent_type, entry.sent),
        (
            ["receives", "bytes received"],
            entry.received_type,
            entry.received,
        ),
    ];
    for (names, dtype, count) in arrays.into_iter().filter(|(_, dtype, _)| *dtype != 0) {
        let (name, bytes) = facts.array(dtype, count);
        arguments.push((names[0], Value::Text(format!("{name}[{count}]"))));
        arguments.push((names[1], Value::Number(bytes)));
    }
    arguments
}
