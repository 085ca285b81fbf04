//! The state of all processes at one time, as their notes tell it, sorted by communicators and
//! messages.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::note::{
    Attendance, CallNote, Collective, CommunicatorId, CommunicatorKind, Endpoint, Note, Peer,
    Running,
};
use super::notes::Notes;
use super::ranks::Ranks;
use crate::mpi::CopyCounts;
use crate::recorder::Group;

/// The signature of a collective call: the operation, and the values about which all ranks have to
/// agree. Calls with equal signatures fit.
pub type Signature<'a> = (&'a str, &'a [(String, String)]);

/// The collective operation that a call belongs to: one that waits belongs to what it waits for.
fn collective_operation(name: &str) -> &str {
    name.strip_prefix("wait for ").unwrap_or(name)
}

/// The first aspect about which two ranks in one collective call disagree.
pub fn disagreement<'a>(left: Signature<'a>, right: Signature<'a>) -> Option<&'a str> {
    if left.0 != right.0 {
        return Some("operations");
    }
    let mut pairs = left.1.iter().flat_map(|(aspect, value)| {
        let others = right.1.iter().filter(move |(other, _)| other == aspect);
        others.map(move |(_, other_value)| (aspect, value, other_value))
    });
    let (aspect, ..) = pairs.find(|(_, value, other_value)| value != other_value)?;
    Some(aspect)
}

/// The communicator and the tag of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope<'a> {
    communicator: CommunicatorId,
    /// The name of the communicator.
    pub name: &'a str,
    /// The tag, or `None` for `MPI_ANY_TAG`.
    pub tag: Option<i64>,
}

/// The notes of all ranks, by what they have in common.
#[derive(Default)]
pub struct Snapshot<'a> {
    /// Number of ranks.
    pub size: i32,
    notes: Vec<&'a Note>,
    groups: HashMap<u64, &'a Group>,
    /// The groups in which copies can't be told from other communicators.
    ambiguous: BTreeSet<u64>,
    /// Whether mpi4jax knows all that is communicated on the default communicator.
    default_is_private: bool,
    /// The messages that ranks send, in calls and by nonblocking operations, by sender and receiver.
    sent: HashMap<(i32, i32), Vec<Envelope<'a>>>,
    /// The senders to each rank.
    senders: HashMap<i32, Vec<i32>>,
    /// The messages that ranks receive, by receiver and sender. `None` is any sender.
    received: HashMap<(i32, Option<i32>), Vec<Envelope<'a>>>,
    /// The ranks in each collective call.
    collectives: BTreeMap<Collective, Vec<i32>>,
    /// The calls that ranks were asked about, in the order of the answers.
    about: &'a [Collective],
}

impl<'a> Snapshot<'a> {
    /// The snapshot of `size` ranks, which were asked about collective calls.
    pub fn new(notes: &'a Notes, size: i32, about: &'a [Collective]) -> Self {
        let all = notes.iter().flat_map(|(_, note)| communicators_of(note));
        let groups = all.filter_map(|id| Some((id.group, notes.group(id.group)?)));
        let mut snapshot = Self {
            size,
            notes: notes.by_rank(size),
            groups: groups.collect(),
            ambiguous: ambiguous_groups(notes),
            default_is_private: notes.iter().all(|(_, note)| !note.shares_default),
            about,
            ..Self::default()
        };
        for rank in 0..size {
            snapshot.add_messages(rank);
        }
        snapshot.collectives = snapshot.collect_collectives();
        snapshot
    }

    /// The ranks in each collective call. Communicators that can't be told apart otherwise are told
    /// apart by their names, unless each rank has one of its own.
    fn collect_collectives(&self) -> BTreeMap<Collective, Vec<i32>> {
        let mut users: HashMap<(CommunicatorId, &str), BTreeSet<i32>> = HashMap::new();
        for (rank, call) in self.calls() {
            let key = (
                self.communicator(&call.communicator),
                &call.communicator_name[..],
            );
            users.entry(key).or_default().insert(rank);
        }
        let shared = users.iter().filter(|(_, ranks)| ranks.len() > 1);
        let has_shared_names: BTreeSet<&CommunicatorId> = shared.map(|((id, _), _)| id).collect();
        let mut names: HashMap<&CommunicatorId, (i32, &str)> = HashMap::new();
        for ((id, name), ranks) in &users {
            let first = (ranks.first().copied().unwrap_or(0), *name);
            let known = names.entry(id).or_insert(first);
            *known = first.min(*known);
        }
        let mut collectives: BTreeMap<Collective, Vec<i32>> = BTreeMap::new();
        for (rank, call) in self.calls() {
            let Some(mut collective) = call.collective() else {
                continue;
            };
            collective.communicator = self.communicator(&collective.communicator);
            let id = &collective.communicator;
            if id.kind != CommunicatorKind::Unknown || !has_shared_names.contains(id) {
                collective.name = names[id].1.to_owned();
            }
            collectives.entry(collective).or_default().push(rank);
        }
        collectives
    }

    /// The collective calls in progress, with the ranks in each.
    pub fn collectives(&self) -> impl Iterator<Item = (&Collective, &[i32])> {
        let collectives = self.collectives.iter();
        collectives.map(|(collective, ranks)| (collective, &ranks[..]))
    }

    /// The calls to ask all ranks about: collective calls that some members have not made, or have
    /// left. Those of most ranks come first.
    pub fn questions(&self, most: usize) -> Vec<Collective> {
        let mut incomplete: Vec<_> = self
            .collectives()
            .filter(|(collective, ranks)| ranks.len() < self.size_of(&collective.communicator))
            .collect();
        incomplete.sort_by_key(|(collective, ranks)| (-(ranks.len() as i64), collective.sequence));
        let question = |(collective, ranks): (&Collective, &[i32])| {
            let call = self.call_in(*ranks.first()?, collective)?;
            Some(Collective {
                communicator: call.communicator.clone(),
                ..collective.clone()
            })
        };
        incomplete
            .into_iter()
            .take(most)
            .filter_map(question)
            .collect()
    }

    /// The call of a rank that is in a collective call.
    pub fn call_in(&self, rank: i32, collective: &Collective) -> Option<&'a CallNote> {
        self.note(rank).calls().iter().find(|call| {
            call.sequence == collective.sequence
                && self.communicator(&call.communicator) == collective.communicator
        })
    }

    fn add_messages(&mut self, rank: i32) {
        let Some(running) = self.note(rank).running() else {
            return;
        };
        for (id, name, messages) in running.messages() {
            let communicator = self.communicator(id);
            for endpoint in messages {
                let envelope = Envelope {
                    communicator: communicator.clone(),
                    name,
                    tag: endpoint.tag,
                };
                let other = match endpoint.peer {
                    Peer::Rank(other) => Some(other),
                    Peer::Any => None,
                    Peer::Null | Peer::Outside => continue,
                };
                let list = match (endpoint.is_receive, other) {
                    (true, other) => self.received.entry((rank, other)).or_default(),
                    (false, Some(other)) => {
                        self.senders.entry(other).or_default().push(rank);
                        self.sent.entry((rank, other)).or_default()
                    }
                    (false, None) => continue,
                };
                list.push(envelope);
            }
        }
    }

    /// The note of a rank, if it is one of `MPI_COMM_WORLD`.
    pub fn get(&self, rank: i32) -> Option<&'a Note> {
        self.notes.get(usize::try_from(rank).ok()?).copied()
    }

    /// The note of a rank.
    pub fn note(&self, rank: i32) -> &'a Note {
        self.notes[rank as usize]
    }

    /// All calls in progress, with their ranks.
    pub fn calls(&self) -> impl Iterator<Item = (i32, &'a CallNote)> {
        let notes = self.notes.iter().enumerate();
        notes.flat_map(|(rank, note)| note.calls().iter().map(move |call| (rank as i32, call)))
    }

    /// A communicator, as far as all ranks can know which one it is: two that are equal may be one.
    pub fn communicator(&self, id: &CommunicatorId) -> CommunicatorId {
        let mut id = id.clone();
        if let CommunicatorKind::Copy(path) = &mut id.kind {
            if self.ambiguous.contains(&id.group) {
                id.kind = CommunicatorKind::Unknown;
            } else {
                for (_, count) in path {
                    *count = 0;
                }
            }
        }
        id
    }

    /// Whether all calls on a communicator are mpi4jax's.
    pub fn is_private(&self, id: &CommunicatorId) -> bool {
        id.kind == CommunicatorKind::Default && self.default_is_private
    }

    /// The members of a communicator. Those that are not in `MPI_COMM_WORLD` are negative.
    pub fn members(&self, id: &CommunicatorId) -> impl Iterator<Item = i32> + use<'a> {
        let group = self.groups.get(&id.group).copied();
        group.into_iter().flat_map(Group::iter)
    }

    /// The number of members of a communicator.
    pub fn size_of(&self, id: &CommunicatorId) -> usize {
        self.groups.get(&id.group).map_or(0, |group| group.len())
    }

    /// The answer of a rank that was asked about a collective call.
    fn attendance(&self, rank: i32, of: &Collective) -> Option<&'a Attendance> {
        let is_same = |asked: &&Collective| {
            asked.sequence == of.sequence
                && self.communicator(&asked.communicator) == of.communicator
                && (of.communicator.kind != CommunicatorKind::Unknown || asked.name == of.name)
        };
        let index = self.about.iter().position(|asked| is_same(&asked))?;
        self.note(rank).attendances.get(index)?.as_ref()
    }

    /// Number of collective calls of a rank on the communicator of a call, if that is known.
    pub fn count(&self, rank: i32, of: &Collective) -> Option<u64> {
        let note = self.note(rank);
        match of.communicator.kind {
            CommunicatorKind::Default => note.is_known().then_some(note.default_calls),
            _ => self.attendance(rank, of).map(|attendance| attendance.count),
        }
    }

    /// The members of a communicator that do something else where others made this collective call,
    /// and have left it: the operation, and its ranks.
    pub fn strays(&self, collective: &Collective) -> BTreeMap<&'a str, Ranks> {
        let mut strays: BTreeMap<&str, Ranks> = BTreeMap::new();
        let ranks = self.collectives.get(collective);
        let Some((first, present)) = ranks.and_then(|ranks| Some((ranks.first()?, ranks))) else {
            return strays;
        };
        let Some(expected) = self.call_in(*first, collective).map(signature) else {
            return strays;
        };
        let present: BTreeSet<i32> = present.iter().copied().collect();
        for member in self.members(&collective.communicator) {
            if member < 0 || member >= self.size || present.contains(&member) {
                continue;
            }
            let attendance = self.attendance(member, collective);
            if let Some((operation, agreed)) = attendance.and_then(|known| known.call.as_ref())
                && disagreement(expected, (collective_operation(operation), agreed)).is_some()
            {
                strays.entry(operation).or_default().extend([member]);
            }
        }
        strays
    }

    /// The aspect about which the ranks in a collective call disagree, and the ranks with each value.
    pub fn disagreement(&self, collective: &Collective) -> Option<(&'a str, Vec<(String, Ranks)>)> {
        let ranks = self.collectives.get(collective)?;
        let mut views: BTreeMap<Signature, Vec<i32>> = BTreeMap::new();
        for rank in ranks {
            if let Some(call) = self.call_in(*rank, collective) {
                views.entry(signature(call)).or_default().push(*rank);
            }
        }
        let mut all = views.keys();
        let first = all.next()?;
        let about = all.find_map(|other| disagreement(*first, *other))?;
        let mut sides: BTreeMap<String, Ranks> = BTreeMap::new();
        for ((operation, agreed), ranks) in &views {
            let value = agreed.iter().find(|(name, _)| name == about);
            let value = value.map_or(*operation, |(_, value)| value);
            sides
                .entry(value.to_owned())
                .or_default()
                .extend(ranks.iter().copied());
        }
        let mut sides: Vec<(String, Ranks)> = sides.into_iter().collect();
        sides.sort_by_key(|(_, ranks)| ranks.first());
        Some((about, sides))
    }

    /// Whether ranks have made different calls where each takes its own for this one.
    pub fn has_disagreement(&self, collective: &Collective) -> bool {
        self.disagreement(collective).is_some() || !self.strays(collective).is_empty()
    }

    /// Whether a message of a rank may match one that another rank receives or sends.
    pub fn is_matched(&self, rank: i32, id: &CommunicatorId, endpoint: Endpoint) -> bool {
        let communicator = self.communicator(id);
        let fits = |envelopes: Option<&Vec<Envelope>>| {
            envelopes.is_some_and(|envelopes| {
                envelopes.iter().any(|other| {
                    let (sent, wanted) = if endpoint.is_receive {
                        (other.tag, endpoint.tag)
                    } else {
                        (endpoint.tag, other.tag)
                    };
                    other.communicator == communicator && (wanted.is_none() || wanted == sent)
                })
            })
        };
        match (endpoint.peer, endpoint.is_receive) {
            (Peer::Rank(sender), true) => fits(self.sent.get(&(sender, rank))),
            (Peer::Any, true) => self.senders.get(&rank).is_some_and(|senders| {
                let mut senders = senders.iter();
                senders.any(|sender| fits(self.sent.get(&(*sender, rank))))
            }),
            (Peer::Rank(receiver), false) => {
                fits(self.received.get(&(receiver, Some(rank))))
                    || fits(self.received.get(&(receiver, None)))
            }
            _ => false,
        }
    }

    /// The first message that another rank sends to this one, or receives from it.
    pub fn counterpart(&self, rank: i32, other: i32, is_receive: bool) -> Option<&Envelope<'a>> {
        let envelopes = if is_receive {
            self.sent.get(&(other, rank))
        } else {
            self.received.get(&(other, Some(rank)))
        };
        envelopes?.first()
    }
}

/// The groups in which copies can't be told from other communicators: a rank has a communicator of
/// which it does not know whether it is a copy, or ranks know different numbers of copies.
fn ambiguous_groups(notes: &Notes) -> BTreeSet<u64> {
    let mut counts = CopyCounts::default();
    let mut kinds: BTreeMap<u64, BTreeSet<bool>> = BTreeMap::new();
    let mut has_conflict = false;
    for id in notes.iter().flat_map(|(_, note)| communicators_of(note)) {
        let kinds = kinds.entry(id.group).or_default();
        match &id.kind {
            CommunicatorKind::Copy(path) => {
                kinds.insert(true);
                has_conflict |= !counts.add(path);
            }
            CommunicatorKind::Unknown => drop(kinds.insert(false)),
            CommunicatorKind::Default
            | CommunicatorKind::World
            | CommunicatorKind::Jax(_)
            | CommunicatorKind::Meeting(_) => {}
        }
    }
    let is_ambiguous = |kinds: &BTreeSet<bool>| has_conflict || kinds.len() > 1;
    let groups = kinds.iter().filter(|(_, kinds)| is_ambiguous(kinds));
    groups.map(|(group, _)| *group).collect()
}

/// All communicators in a note.
fn communicators_of(note: &Note) -> impl Iterator<Item = &CommunicatorId> {
    let running = note.running().into_iter();
    running.flat_map(Running::messages).map(|(id, ..)| id)
}

/// The ranks in collective calls that fit each other.
pub struct Attendants<'a> {
    by_signature: HashMap<(CommunicatorId, Signature<'a>), BTreeSet<i32>>,
}

impl<'a> Attendants<'a> {
    /// The attendants in a snapshot. A rank that has started a nonblocking operation attends it.
    pub fn new(snapshot: &Snapshot<'a>) -> Self {
        let mut by_signature: HashMap<_, BTreeSet<i32>> = HashMap::new();
        for rank in 0..snapshot.size {
            let Some(running) = snapshot.note(rank).running() else {
                continue;
            };
            let calls = running.calls.iter().filter(|call| call.sequence > 0);
            let calls = calls.map(|call| (&call.communicator, signature(call)));
            let posted = running.posted.iter();
            let posted = posted.filter(|posted| !posted.operation.is_empty());
            let posted =
                posted.map(|posted| (&posted.communicator, (&posted.operation[..], &[][..])));
            for (id, signature) in calls.chain(posted) {
                let key = (snapshot.communicator(id), signature);
                by_signature.entry(key).or_default().insert(rank);
            }
        }
        Self { by_signature }
    }

    /// Whether all ranks that a call waits for are in calls that fit it.
    pub fn are_complete(&self, snapshot: &Snapshot, rank: i32, call: &'a CallNote) -> bool {
        let key = (snapshot.communicator(&call.communicator), signature(call));
        let Some(present) = self.by_signature.get(&key) else {
            return false;
        };
        match &call.neighbors {
            Some(neighbors) => neighbors
                .iter()
                .all(|neighbor| *neighbor == rank || present.contains(neighbor)),
            None => present.len() == snapshot.size_of(&call.communicator),
        }
    }
}

/// The signature of a call.
pub fn signature(call: &CallNote) -> Signature<'_> {
    (collective_operation(&call.operation), &call.agreed)
}
