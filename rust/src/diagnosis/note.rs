//! The note in which a process describes itself: its calls in progress, its threads, and how long they
//! have been as they are.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::mpi::{self, CopyPath, PredefinedOp, REGISTRY};
use crate::recorder::{self, Array, Awaited, CommunicatorFacts, Group, Identity, Record, Scope};
use crate::xla;

/// The process at the other end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// The one with this rank in `MPI_COMM_WORLD`.
    Rank(i32),
    /// `MPI_ANY_SOURCE`.
    Any,
    /// `MPI_PROC_NULL`.
    Null,
    /// One that does not belong to `MPI_COMM_WORLD`.
    Outside,
}

/// One end of a message: a send or a receive of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The process at the other end.
    pub peer: Peer,
    /// The tag, or `None` for `MPI_ANY_TAG`.
    pub tag: Option<i64>,
    /// Whether the process receives the message.
    pub is_receive: bool,
}

/// A communicator, as far as processes can say which one they mean. Two that are equal may be one
/// communicator; only those that are `Default` or `World` surely are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CommunicatorId {
    /// The hash of the group.
    pub group: u64,
    /// How it differs from others with this group.
    pub kind: CommunicatorKind,
}

/// How communicators with the same group differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CommunicatorKind {
    /// The default communicator, on which usually nobody but mpi4jax communicates.
    Default,
    /// `MPI_COMM_WORLD`.
    World,
    /// A copy of it, or of such a copy.
    Copy(CopyPath),
    /// One that XLA has made, by its index among those of the same processes.
    Jax(usize),
    /// None, but a place in Python where its processes wait for each other.
    Meeting(String),
    /// Not known.
    Unknown,
}

impl CommunicatorId {
    /// The identity of a communicator of this process.
    pub fn of(facts: &CommunicatorFacts) -> Self {
        Self {
            group: facts.group.hash(),
            kind: match &facts.identity {
                Identity::Default => CommunicatorKind::Default,
                Identity::World => CommunicatorKind::World,
                Identity::Copy(lineage) => CommunicatorKind::Copy(lineage.path()),
                Identity::Jax(index) => CommunicatorKind::Jax(*index),
                Identity::Meeting => CommunicatorKind::Meeting(facts.name.clone()),
                Identity::Unknown => CommunicatorKind::Unknown,
            },
        }
    }

    /// Whether another process means this communicator by that, as far as can be known.
    fn resembles(&self, other: &Self) -> bool {
        self.group == other.group
            && match (&self.kind, &other.kind) {
                (CommunicatorKind::Copy(path), CommunicatorKind::Copy(other)) => {
                    mpi::indices(path) == mpi::indices(other)
                }
                (kind, other) => kind == other,
            }
    }
}

/// A call in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallNote {
    /// Its position among all calls of the process.
    pub id: u64,
    /// The name of the operation.
    pub operation: String,
    /// The call in words, without its line.
    pub text: String,
    /// The Python line, or nothing.
    pub line: String,
    /// Seconds since it began.
    pub seconds: f64,
    /// The communicator.
    pub communicator: CommunicatorId,
    /// Its name.
    pub communicator_name: String,
    /// For a collective call, its position among those of this process on the communicator, from 1;
    /// else 0.
    pub sequence: u64,
    /// For a collective call, what all ranks have to agree about besides the operation: the words
    /// for it, and what this process passed.
    pub agreed: Vec<(String, String)>,
    /// Of a meeting in Python: a sentence for users about who has to come there. Else empty.
    pub rule: String,
    /// For a call between neighbors in a topology: their ranks in `MPI_COMM_WORLD`. It waits for
    /// no others.
    pub neighbors: Option<Vec<i32>>,
    /// The messages that it sends and receives.
    pub messages: Vec<Endpoint>,
    /// The one of several messages that it waits for, if that is known. Others may have arrived.
    pub awaited: Option<Endpoint>,
    /// The bytes of its arrays.
    pub bytes: u64,
}

/// A nonblocking operation that is not completed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Posted {
    /// The communicator.
    pub communicator: CommunicatorId,
    /// Its name.
    pub communicator_name: String,
    /// The name of a collective operation, or nothing.
    pub operation: String,
    /// The messages of an operation that is none.
    pub messages: Vec<Endpoint>,
}

/// A thread of Python's that is not in a call of mpi4jax.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadActivity {
    /// The name of the thread, or nothing for the main thread.
    pub thread: String,
    /// Its activity: "compiling", "in Comm.recv of mpi4py", or nothing.
    pub activity: String,
    /// The Python line.
    pub line: String,
}

/// How a process ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Its exit code.
    pub code: i32,
    /// Why, in words: an exception and its line, or nothing.
    pub reason: String,
}

/// A process that runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// Its calls in progress, the oldest first.
    pub calls: Vec<CallNote>,
    /// Its nonblocking operations.
    pub posted: Vec<Posted>,
    /// The threads that may do something before any of the calls returns.
    pub elsewhere: Vec<ThreadActivity>,
    /// Reason why another thread of this process may still act, if any.
    pub doubt: String,
    /// Its main program is over in this way, and functions run that were registered for its exit.
    pub ending: Option<End>,
}

impl Running {
    /// The messages of each call and each nonblocking operation, with the communicator and its name.
    pub fn messages(&self) -> impl Iterator<Item = (&CommunicatorId, &str, &[Endpoint])> {
        let calls = self.calls.iter();
        let of_calls = calls.map(|call| {
            let name = call.communicator_name.as_str();
            (&call.communicator, name, call.messages.as_slice())
        });
        of_calls.chain(self.posted.iter().map(|posted| {
            let name = posted.communicator_name.as_str();
            (&posted.communicator, name, posted.messages.as_slice())
        }))
    }
}

/// The state of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum State {
    /// It runs.
    Running(Box<Running>),
    /// It is in `MPI_Finalize`, and waits for the others there.
    Ended(End),
    /// It does not answer.
    Silent,
    /// mpi4jax was not imported there, so nobody can ask it.
    NotThere,
}

/// The part of a process in a collective call of others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attendance {
    /// Number of collective calls of the process on the communicator.
    pub count: u64,
    /// The operation of its own call at that position, and what all have to agree about, if it has
    /// made one and remembers it.
    pub call: Option<(String, Vec<(String, String)>)>,
}

/// A collective call: the communicator, what it is called, and the position of the call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Collective {
    /// The communicator.
    pub communicator: CommunicatorId,
    /// Its name. It tells communicators apart of which nothing else is known.
    pub name: String,
    /// The position among the collective calls on the communicator.
    pub sequence: u64,
}

/// The note of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Whether it runs.
    pub state: State,
    /// Seconds for which it has done just that.
    pub steady: f64,
    /// It was interrupted, and Python can't handle that.
    pub is_interrupted: bool,
    /// Number of collective calls of the process on the default communicator.
    pub default_calls: u64,
    /// Whether others than mpi4jax may communicate on that.
    pub shares_default: bool,
    /// Its part in each collective call that it was asked about.
    pub attendances: Vec<Option<Attendance>>,
    /// The loop in which it made the last call that has returned, if it was in one.
    pub last_loop: Option<Loop>,
}

/// A loop of a compiled program whose number of turns the program computes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Loop(String);

impl Loop {
    /// The innermost loop around a call, from the call's line: `solver.py:9 in step (while/body)`. Calls of
    /// one function are in one loop.
    pub fn around(line: &str) -> Option<Self> {
        let place = line.split(", from ").next()?;
        let (place, scopes) = place.strip_suffix(')')?.rsplit_once(" (")?;
        let (outer, _) = scopes.rsplit_once("while/")?;
        let (file, rest) = place.rsplit_once(':')?;
        let function = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        Some(Self(format!("{file}{function} ({outer}while)")))
    }
}

/// The note that stands for a process that does not answer.
pub static SILENT: Note = Note::new(State::Silent);

impl Note {
    /// A note with no more than the state of a process.
    pub const fn new(state: State) -> Self {
        Self {
            state,
            steady: 0.0,
            is_interrupted: false,
            default_calls: 0,
            shares_default: false,
            attendances: Vec::new(),
            last_loop: None,
        }
    }

    /// Whether the process has said what it does.
    pub fn is_known(&self) -> bool {
        !matches!(self.state, State::Silent | State::NotThere)
    }

    /// Its calls and threads, if it runs.
    pub fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Running(running) => Some(running),
            _ => None,
        }
    }

    /// The calls that it is in.
    pub fn calls(&self) -> &[CallNote] {
        self.running().map_or(&[], |running| &running.calls)
    }

    /// The longest time that one of them has taken, if it is in one.
    pub fn seconds(&self) -> Option<f64> {
        self.calls()
            .iter()
            .map(|call| call.seconds)
            .reduce(f64::max)
    }

    /// How it ends, or has ended.
    pub fn end(&self) -> Option<&End> {
        match &self.state {
            State::Running(running) => running.ending.as_ref(),
            State::Ended(end) => Some(end),
            State::Silent | State::NotThere => None,
        }
    }
}

/// The messages of a call on a communicator.
pub fn messages_of(messages: recorder::Messages, facts: &CommunicatorFacts) -> Vec<Endpoint> {
    let peer = |rank: i64| {
        if recorder::is_proc_null(rank) {
            return Peer::Null;
        }
        match facts.group.get(rank) {
            Some(rank) if rank >= 0 => Peer::Rank(rank),
            Some(_) => Peer::Outside,
            None => Peer::Any,
        }
    };
    let endpoint = |message: recorder::Message, is_receive| Endpoint {
        peer: peer(message.rank),
        tag: (message.tag >= 0).then_some(message.tag),
        is_receive,
    };
    let sends = messages.sent.into_iter();
    let receives = messages.received.into_iter();
    receives
        .map(|message| endpoint(message, true))
        .chain(sends.map(|message| endpoint(message, false)))
        .collect()
}

impl CallNote {
    /// A call that is in progress.
    pub fn new(record: &Record) -> Self {
        let facts = recorder::communicator_facts(record.communicator()).unwrap_or_default();
        let messages = record.messages();
        let bytes = bytes_of(record, &messages);
        let mut messages = messages_of(messages, &facts);
        let mut with_process = messages
            .iter()
            .filter(|endpoint| endpoint.peer != Peer::Null);
        let awaited = match record.awaited {
            Some(Awaited::Message(index)) => with_process.nth(index).copied(),
            Some(Awaited::Sends) => {
                messages.retain(|endpoint| !endpoint.is_receive);
                None
            }
            None => None,
        };
        Self {
            id: record.id,
            operation: record.name(),
            text: record.to_string(),
            line: record.line().unwrap_or_default(),
            seconds: recorder::exactly_now().seconds_since(record.begin),
            communicator: CommunicatorId::of(&facts),
            communicator_name: record.communicator_name(),
            sequence: record.sequence,
            agreed: describe_agreed(record).collect(),
            rule: record.operation.rule.unwrap_or_default().to_owned(),
            neighbors: neighbors(record, &facts),
            messages,
            awaited,
            bytes,
        }
    }

    /// The collective call that it is, if it is one.
    pub fn collective(&self) -> Option<Collective> {
        (self.sequence > 0).then(|| Collective {
            communicator: self.communicator.clone(),
            name: self.communicator_name.clone(),
            sequence: self.sequence,
        })
    }

    /// Whether it waits for a member of the communicator to make the same collective call.
    pub fn needs(&self, member: i32) -> bool {
        self.neighbors
            .as_ref()
            .is_none_or(|neighbors| neighbors.contains(&member))
    }

    /// The messages of which it may be waiting for any.
    pub fn awaited_messages(&self) -> Vec<Endpoint> {
        let has_process = |endpoint: &&Endpoint| endpoint.peer != Peer::Null;
        match self.awaited {
            Some(endpoint) => vec![endpoint],
            None => self.messages.iter().filter(has_process).copied().collect(),
        }
    }
}

fn bytes_of(record: &Record, messages: &recorder::Messages) -> u64 {
    let of_messages = messages.sent.iter().chain(&messages.received);
    let of_messages: u64 = of_messages.map(|message| message.bytes).sum();
    let of_array = |array: Option<Array>| {
        let Some(Array { dtype, count }) = array else {
            return 0;
        };
        let size = REGISTRY.datatype(dtype).map_or(1, |datatype| datatype.size);
        count.unsigned_abs().saturating_mul(size as u64)
    };
    of_messages.max(of_array(record.sent) + of_array(record.received))
}

/// The part of this process in collective calls of others.
pub fn attendances(about: &[Collective]) -> Vec<Option<Attendance>> {
    let communicators = recorder::communicators();
    let comm_number = |asked: &Collective| {
        let alike: Vec<_> = communicators
            .iter()
            .filter(|(_, facts)| CommunicatorId::of(facts).resembles(&asked.communicator))
            .collect();
        let mut with_name = alike.iter().filter(|(_, facts)| facts.name == asked.name);
        match (alike.as_slice(), with_name.next(), with_name.next()) {
            ([(comm_number, _)], ..) | (_, Some((comm_number, _)), None) => Some(*comm_number),
            _ => None,
        }
    };
    let attendance = |asked: &Collective| {
        let Some(comm_number) = comm_number(asked) else {
            // One that it would know has never been used here.
            let is_known = asked.communicator.kind != CommunicatorKind::Unknown;
            return is_known.then_some(Attendance {
                count: 0,
                call: None,
            });
        };
        let is_asked = |record: &Record| {
            record.sequence == asked.sequence && record.communicator() == comm_number
        };
        let call = recorder::recent().into_iter().find(is_asked);
        Some(Attendance {
            count: if comm_number < 0 {
                recorder::meetings_of(comm_number)
            } else {
                recorder::calls_on(comm_number)
            },
            call: call.map(|record| (record.name(), describe_agreed(&record).collect())),
        })
    };
    about.iter().map(attendance).collect()
}

/// The neighbors that a call is about, if it is one between neighbors.
fn neighbors(record: &Record, facts: &CommunicatorFacts) -> Option<Vec<i32>> {
    let operation = record.started().unwrap_or(record.operation);
    if operation.scope != Scope::Neighbors {
        return None;
    }
    let neighbors = REGISTRY.neighbors(record.communicator()).ok()?;
    let both = [&neighbors.sources, &neighbors.destinations];
    let both = both.into_iter().flat_map(|ends| &ends.bundles);
    let ranks = both.filter_map(|bundle| facts.group.get(bundle.peer.rank.into()));
    Some(ranks.collect::<BTreeSet<_>>().into_iter().collect())
}

/// The group of a communicator of this process, by the hash that notes have.
pub fn group_of(record: &Record) -> Group {
    let facts = recorder::communicator_facts(record.communicator()).unwrap_or_default();
    Group::clone(&facts.group)
}

/// The aspects about which all ranks have to agree in a collective call, and the values of this rank,
/// in words.
pub fn describe_agreed(record: &Record) -> impl Iterator<Item = (String, String)> {
    agreed(record).map(|(aspect, value)| (aspect.name().to_owned(), aspect.describe(value)))
}

/// The number of the first operator that a user has made.
const FIRST_OF_USERS: i64 = PredefinedOp::ALL.len() as i64;

/// Something about which all ranks have to agree in a collective call, besides the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aspect {
    /// The rank of the root.
    Roots,
    /// The number of the operator. All that users make count as one: their numbers may differ.
    Operators,
    /// XLA's number for the type of the elements.
    Types,
    /// The number of elements.
    Sizes,
    /// A hash of how many rows each rank has.
    Counts,
    /// A hash of the tree of arrays that is passed next.
    Structures,
}

impl Aspect {
    /// The word for it.
    fn name(self) -> &'static str {
        match self {
            Self::Roots => "roots",
            Self::Operators => "operators",
            Self::Types => "types",
            Self::Sizes => "sizes",
            Self::Counts => "counts",
            Self::Structures => "structures",
        }
    }

    /// The value of a rank, in words.
    fn describe(self, value: i64) -> String {
        match self {
            Self::Operators if value == FIRST_OF_USERS => "one of your own".to_owned(),
            Self::Operators => recorder::operator_name(value),
            Self::Types => xla::data_type_name(value as i32).to_owned(),
            Self::Roots | Self::Sizes => value.to_string(),
            Self::Counts | Self::Structures => format!("{value:x}"),
        }
    }
}

/// The aspects about which all ranks have to agree in a collective call, and the values of this rank.
/// Neighbors have to agree with each other only.
pub fn agreed(record: &Record) -> impl Iterator<Item = (Aspect, i64)> {
    let is_shared = record.operation.scope == Scope::All;
    let array = record.agreed();
    let agrees_on_size = record.operation.agrees_on_size;
    let facts = record.facts;
    let operator = facts.operator.map(|op| op.min(FIRST_OF_USERS));
    [
        (Aspect::Roots, facts.root),
        (Aspect::Operators, operator),
        (Aspect::Types, array.map(|array| array.dtype.into())),
        (
            Aspect::Sizes,
            array.filter(|_| agrees_on_size).map(|array| array.count),
        ),
        (Aspect::Counts, facts.counts),
        (Aspect::Structures, facts.structure),
    ]
    .into_iter()
    .filter_map(move |(aspect, value)| Some((aspect, value.filter(|_| is_shared)?)))
}
