//! Matching of calls across processes: participants of a collective call, and sends with receives.
//!
//! Calls are added in the order in which they began, whatever their process.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::rules::{ANY_TAG, Pattern, Unreceived};

/// The part of a process in a collective call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Participant {
    /// The call, if it waits to be drawn.
    pub(super) call: Option<u64>,
    /// The process's rank in `MPI_COMM_WORLD`.
    pub(super) rank: i32,
    pub(super) begin: i64,
}

/// The key of a collective call: the communicator, the position on it, and the operation, which keeps
/// calls apart that a mistake in the program mixes.
pub(super) type CollectiveKey = (usize, u64, u16);

/// Finds the calls by which all processes of a communicator do one thing.
#[derive(Default)]
pub(super) struct CollectiveMatcher {
    incomplete: HashMap<CollectiveKey, Vec<Participant>>,
}

impl CollectiveMatcher {
    /// Adds a participant, and returns all participants if this was the last one.
    pub(super) fn add(
        &mut self,
        key: CollectiveKey,
        size: usize,
        participant: Participant,
    ) -> Vec<Participant> {
        let participants = self.incomplete.entry(key).or_default();
        participants.push(participant);
        if participants.len() < size {
            return Vec::new();
        }
        self.incomplete.remove(&key).unwrap_or_default()
    }

    /// Forgets the calls that were added with this key.
    pub(super) fn forget(&mut self, key: &CollectiveKey) {
        self.incomplete.remove(key);
    }
}

/// The last one of those that a participant in a collective call needs, if it needs others. `root`
/// is a rank in `MPI_COMM_WORLD`.
pub(super) fn needed<'a>(
    pattern: Pattern,
    root: Option<i32>,
    participant: &Participant,
    all: &'a [Participant],
) -> Option<&'a Participant> {
    match pattern {
        Pattern::OneToAll => all.iter().find(|each| Some(each.rank) == root),
        Pattern::AllToOne if Some(participant.rank) != root => None,
        // Its messages are matched one by one.
        Pattern::Neighborhood => None,
        // Of several, the first in the order of ranks.
        Pattern::AllToOne | Pattern::AllToAll => all
            .iter()
            .max_by_key(|each| (each.begin, Reverse(each.rank))),
    }
}

/// The channel of a message: the communicator, whether it is between neighbors in a topology, which
/// is on a communicator of ours, and the receiver's rank in `MPI_COMM_WORLD`.
pub(super) type Channel = (usize, bool, i32);

/// A message that was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentMessage {
    /// The arrow that stands for it.
    pub(super) flow: u64,
    /// The sender's rank in `MPI_COMM_WORLD`.
    pub(super) rank: i32,
    pub(super) tag: i64,
    /// When the call that sent it began, and by how much that may be wrong.
    pub(super) begin: i64,
    pub(super) error: i64,
    /// Whether the sender's call is drawn.
    pub(super) is_drawn: bool,
}

/// A message that a call receives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receive {
    /// The call.
    pub(super) call: u64,
    /// The sender's rank in `MPI_COMM_WORLD`, unless it may be any.
    pub(super) source: Option<i32>,
    /// Negative if it may be any.
    pub(super) tag: i64,
    /// When the call ended, and by how much that may be wrong.
    pub(super) end: i64,
    pub(super) error: i64,
}

#[derive(Default)]
struct Queues {
    /// The messages, by sender.
    sent: HashMap<i32, Unreceived<SentMessage>>,
    /// In the order of the calls' ends.
    receives: VecDeque<Receive>,
}

/// Finds the message that a call received.
///
/// A receive from any process is taken to get the message that was sent first. Of receives by several
/// threads, the one that ended first got the first message.
#[derive(Default)]
pub(super) struct MessageMatcher {
    channels: HashMap<Channel, Queues>,
    /// When all messages are known that a receive on a channel can have got.
    settled: BinaryHeap<Reverse<(i64, Channel)>>,
    /// Number of messages that wait.
    count: usize,
}

/// Number of unreceived messages after which the oldest one to a process is forgotten.
const MAX_WAITING: usize = 1 << 22;

impl MessageMatcher {
    /// Adds a message.
    pub(super) fn send(&mut self, channel: Channel, message: SentMessage) {
        let queues = self.channels.entry(channel).or_default();
        let sent = queues.sent.entry(message.rank).or_default();
        sent.push(message.tag, message);
        self.count += 1;
        if self.count > MAX_WAITING {
            sent.take(ANY_TAG);
            self.count -= 1;
        }
    }

    /// Adds a receive. `largest_error` is by how much the time of any sender may be wrong.
    pub(super) fn receive(&mut self, channel: Channel, receive: Receive, largest_error: i64) {
        let receives = &mut self.channels.entry(channel).or_default().receives;
        let position = receives.partition_point(|other| other.end <= receive.end);
        receives.insert(position, receive);
        let settled = receive.end.saturating_add(receive.error + largest_error);
        self.settled.push(Reverse((settled, channel)));
    }

    /// The next receive whose candidates are all known, and the message that it got. The caller has added
    /// all calls that began before `now`.
    pub(super) fn next_before(&mut self, now: i64) -> Option<(Receive, Option<SentMessage>)> {
        let Reverse((settled, channel)) = self.settled.peek()?;
        if *settled >= now {
            return None;
        }
        let queues = self.channels.get_mut(channel)?;
        self.settled.pop();
        let receive = queues.receives.pop_front()?;
        let sent = queues.take(&receive);
        self.count -= usize::from(sent.is_some());
        Some((receive, sent))
    }
}

impl Queues {
    /// Takes the message that a receive got.
    fn take(&mut self, receive: &Receive) -> Option<SentMessage> {
        let source = receive.source.or_else(|| self.first_sender(receive))?;
        let sent = self.sent.get_mut(&source)?;
        first(sent, receive)?;
        sent.take(receive.tag)
    }

    /// The process whose message was sent first, of those that a receive can have got.
    fn first_sender(&self, receive: &Receive) -> Option<i32> {
        let senders = self.sent.iter();
        let first = senders
            .filter_map(|(rank, sent)| Some((first(sent, receive)?.begin, *rank)))
            .min();
        first.map(|(_, rank)| rank)
    }
}

/// The first message from one process that a receive can have got.
fn first<'a>(sent: &'a Unreceived<SentMessage>, receive: &Receive) -> Option<&'a SentMessage> {
    let latest = receive.end.saturating_add(receive.error);
    // Nothing arrives before it is sent.
    sent.first(receive.tag)
        .filter(|sent| sent.begin.saturating_sub(sent.error) <= latest)
}
