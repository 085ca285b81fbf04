//! What a rank says about itself.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use serde::{Deserialize, Serialize};

use super::ranks::runs;
use crate::mpi::{PredefinedOp, REGISTRY};
use crate::recorder::{self, CommunicatorFacts, Record, Scope};
use crate::xla;

/// What a process sends to, or receives from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// The process with this rank in `MPI_COMM_WORLD`.
    Rank(i32),
    /// Whoever sends.
    Any,
    /// Nobody, at the end of a line of processes.
    Nobody,
}

/// One side of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Half {
    /// Who is on the other side.
    pub peer: Peer,
    /// The tag, if only one will do.
    pub tag: Option<i64>,
}

/// A communicator, as far as ranks know it from each other: by its members, and by the order in
/// which it was first used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CommunicatorId {
    /// A hash of the members.
    pub members: u64,
    /// Its number.
    pub number: i64,
}

/// A call under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// Its place among all calls of the rank.
    pub number: u64,
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
    /// The ranks in `MPI_COMM_WORLD` of its members, as runs of first and last.
    pub members: Vec<(i32, i32)>,
    /// For a call between neighbors in a topology: their ranks in `MPI_COMM_WORLD`. It waits for
    /// no others.
    pub neighbors: Option<Vec<i32>>,
    /// For a collective call, its place among those on the communicator; else 0.
    pub sequence: u64,
    /// For a collective call, what all ranks have to agree about besides the operation: the words
    /// for it, and what this rank has.
    pub agreed: Vec<(String, String)>,
    /// What is sent.
    pub sends: Vec<Half>,
    /// What is to be received.
    pub receives: Vec<Half>,
    /// Of several messages the one that it waits for, if that is known, and whether it is one that
    /// is received. Others may be done.
    pub awaited: Option<(Half, bool)>,
}

/// How a process has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Its exit code.
    pub code: i32,
    /// Why, in words: an exception and its line, or nothing.
    pub reason: String,
}

/// What a rank does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum State {
    /// It is in a call.
    Waiting(Box<Waiting>),
    /// It is elsewhere: at this line of Python's, if it could be asked.
    Elsewhere {
        /// What it does there: "compiling", or nothing.
        activity: String,
        /// The line.
        line: String,
    },
    /// It is done, and waits for the others in `MPI_Finalize`.
    Ended(End),
    /// It does not answer.
    Silent,
}

/// What a rank says about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Its rank in `MPI_COMM_WORLD`.
    pub rank: i32,
    /// What it does.
    pub state: State,
    /// An interrupt that Python can't handle, as the process is in a call.
    pub is_interrupted: bool,
    /// How many collective calls it has made on each communicator.
    pub counts: Vec<(CommunicatorId, u64)>,
}

impl Note {
    /// The call that it is in, if it is in one.
    pub fn waiting(&self) -> Option<&Waiting> {
        match &self.state {
            State::Waiting(waiting) => Some(waiting),
            _ => None,
        }
    }

    /// How many collective calls it has made on a communicator.
    pub fn count(&self, communicator: &CommunicatorId) -> u64 {
        self.counts
            .iter()
            .find_map(|(id, count)| (id == communicator).then_some(*count))
            .unwrap_or(0)
    }
}

/// How many collective calls this process has made on each communicator.
pub fn counts() -> Vec<(CommunicatorId, u64)> {
    let mut counts = BTreeMap::new();
    for (number, facts) in recorder::communicators() {
        let members = facts.hash();
        let id = CommunicatorId { members, number };
        counts.insert(id, recorder::calls_on(number));
    }
    counts.into_iter().collect()
}

/// The call that this process has been in for longest.
pub fn longest_call() -> Option<Record> {
    let recorded = recorder::recorded();
    recorded
        .filter_map(recorder::record)
        .find(|record| record.end.is_none())
}

impl Waiting {
    /// A call that is under way.
    pub fn new(record: &Record) -> Self {
        let facts = recorder::communicator_facts(record.communicator()).unwrap_or_default();
        let peer = |rank: i64| {
            if recorder::is_nobody(rank) {
                return Peer::Nobody;
            }
            let rank = usize::try_from(rank).ok();
            let member = rank.and_then(|rank| facts.members.get(rank).copied());
            member.map_or(Peer::Any, Peer::Rank)
        };
        let halves = |messages: Vec<(i64, i64)>| -> Vec<Half> {
            let half = |(rank, tag)| Half {
                peer: peer(rank),
                tag: (tag >= 0).then_some(tag),
            };
            messages.into_iter().map(half).collect()
        };
        let messages = record.messages();
        let (sends, receives) = (halves(messages.sent), halves(messages.received));
        let real = |half: &&Half| half.peer != Peer::Nobody;
        let received = receives.iter().filter(real).map(|half| (*half, true));
        let sent = sends.iter().filter(real).map(|half| (*half, false));
        let awaited = record
            .awaited
            .and_then(|place| received.chain(sent).nth(place));
        Self {
            number: record.number,
            operation: record.name(),
            text: record.to_string(),
            line: record.line().unwrap_or_default(),
            seconds: recorder::exactly_now().seconds_since(record.begin),
            communicator: CommunicatorId {
                members: facts.hash(),
                number: record.communicator(),
            },
            communicator_name: record.communicator_name(),
            members: runs(facts.members.iter().copied()),
            sequence: record.sequence,
            agreed: iter::once(("communicators".to_owned(), identity(&facts)))
                .chain(agreed_in_words(record))
                .collect(),
            neighbors: neighbors(record, &facts),
            sends,
            receives,
            awaited,
        }
    }

    /// Whether it waits for a member of the communicator to make the same collective call.
    pub fn needs(&self, member: i32) -> bool {
        self.neighbors
            .as_ref()
            .is_none_or(|neighbors| neighbors.contains(&member))
    }

    /// The members of the communicator.
    pub fn members(&self) -> impl Iterator<Item = i32> {
        self.members.iter().flat_map(|(first, last)| *first..=*last)
    }
}

/// The neighbors that a call is about, if it is one between neighbors.
fn neighbors(record: &Record, facts: &CommunicatorFacts) -> Option<Vec<i32>> {
    if record.operation.scope != Scope::Neighbors {
        return None;
    }
    let found = REGISTRY.neighbors(record.communicator()).ok()?;
    let both = [&found.sources, &found.destinations];
    let both = both.into_iter().flat_map(|ends| &ends.bundles);
    let ranks = both.filter_map(|bundle| {
        let rank = usize::try_from(bundle.peer.rank).ok()?;
        facts.members.get(rank).copied()
    });
    Some(ranks.collect::<BTreeSet<_>>().into_iter().collect())
}

/// What all ranks have to agree about in a call on one communicator: the words for it, and what
/// this rank has.
pub fn agreed_in_words(record: &Record) -> impl Iterator<Item = (String, String)> {
    agreed(record).map(|(aspect, value)| (aspect.name().to_owned(), aspect.in_words(value)))
}

/// What tells a communicator from others of the same processes, which have its number on other
/// ranks if those use them in another order: its name, and its place by the order in which MPI has
/// made them.
fn identity(facts: &CommunicatorFacts) -> String {
    let earlier = recorder::communicators()
        .into_iter()
        .filter(|(_, other)| other.members == facts.members && other.creation < facts.creation);
    format!("{}, place {}", facts.name, earlier.count())
}

/// The number of the first operator that a user has made.
const FIRST_OF_USERS: i64 = PredefinedOp::ALL.len() as i64;

/// What all ranks have to agree about in a collective call besides the operation.
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
    /// What it is called.
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

    /// What a rank has, in words.
    fn in_words(self, value: i64) -> String {
        match self {
            Self::Operators if value == FIRST_OF_USERS => "one of your own".to_owned(),
            Self::Operators => recorder::operator_name(value),
            Self::Types => xla::data_type_name(value as i32).to_owned(),
            Self::Roots | Self::Sizes => value.to_string(),
            Self::Counts | Self::Structures => format!("{value:x}"),
        }
    }
}

/// What all ranks have to agree about in a collective call, and what this rank has. Neighbors have
/// to agree with each other only.
pub fn agreed(record: &Record) -> impl Iterator<Item = (Aspect, i64)> {
    let is_shared = record.operation.scope == Scope::All;
    // What travels is what root has in the case of a broadcast, and is received by all.
    let array = match record.operation.name {
        "scatter" | "scatterv" => record.received,
        _ => record.sent,
    };
    // Where ranks say how much each of them has, they may have different amounts.
    let has_counts = || {
        let mut names = record.attributes().map(|(name, _)| name);
        record.operation.name.ends_with("_rows") || names.any(|name| name.ends_with("counts"))
    };
    let operator = record.attribute("op_number");
    [
        (Aspect::Roots, record.attribute("root")),
        (
            Aspect::Operators,
            operator.map(|number| number.min(FIRST_OF_USERS)),
        ),
        (Aspect::Types, array.map(|array| array.dtype.into())),
        (
            Aspect::Sizes,
            array.filter(|_| !has_counts()).map(|array| array.count),
        ),
        (Aspect::Counts, record.attribute("counts")),
        (Aspect::Structures, record.attribute("structure")),
    ]
    .into_iter()
    .filter_map(move |(aspect, value)| Some((aspect, value.filter(|_| is_shared)?)))
}
