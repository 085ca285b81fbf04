//! MPI's rules: who sends to whom in a collective call, and which message a receive gets.

use std::collections::{HashMap, VecDeque};

/// Pattern of senders and receivers of a collective call (MPI-4.1 §6.2.2 and §8.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// All contribute, and all get a result.
    AllToAll,
    /// The root sends to all.
    OneToAll,
    /// All send to the root.
    AllToOne,
    /// Messages go along the edges of a topology.
    Neighborhood,
}

impl Pattern {
    /// The pattern of a collective operation.
    pub fn of(operation: &str) -> Self {
        match operation {
            "bcast" | "scatter" | "scatterv" => Self::OneToAll,
            "gather" | "gatherv" | "reduce" => Self::AllToOne,
            _ if operation.starts_with("neighbor_") => Self::Neighborhood,
            _ => Self::AllToAll,
        }
    }

    /// Its name for Python.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllToAll => "all to all",
            Self::OneToAll => "one to all",
            Self::AllToOne => "all to one",
            Self::Neighborhood => "neighborhood",
        }
    }
}

/// The messages from one process to another on one communicator that no call has received yet.
///
/// Messages do not overtake each other (MPI-4.1 §3.5): a receive gets the first one with its tag, and
/// the first one of all if its tag is negative, as `MPI_ANY_TAG` is.
#[derive(Debug)]
pub(super) struct Unreceived<T> {
    /// By tag, each with its position among all that were sent. No queue is empty.
    queues: HashMap<i64, VecDeque<(u64, T)>>,
    /// Number of elements sent.
    count: u64,
}

impl<T> Default for Unreceived<T> {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            count: 0,
        }
    }
}

pub(super) const ANY_TAG: i64 = -1;

impl<T> Unreceived<T> {
    pub(super) fn push(&mut self, tag: i64, message: T) {
        let queue = self.queues.entry(tag).or_default();
        queue.push_back((self.count, message));
        self.count += 1;
    }

    /// The message that a receive gets next.
    pub(super) fn first(&self, tag: i64) -> Option<&T> {
        let queue = self.queues.get(&self.first_tag(tag)?)?;
        queue.front().map(|(_, message)| message)
    }

    /// Removes the message that a receive gets next.
    pub(super) fn take(&mut self, tag: i64) -> Option<T> {
        let tag = self.first_tag(tag)?;
        let queue = self.queues.get_mut(&tag)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&tag);
        }
        first.map(|(_, message)| message)
    }

    /// The tag of the message that a receive gets next.
    fn first_tag(&self, tag: i64) -> Option<i64> {
        if tag >= 0 {
            return Some(tag);
        }
        let fronts = self
            .queues
            .iter()
            .filter_map(|(tag, queue)| Some((queue.front()?.0, *tag)));
        fronts.min().map(|(_, tag)| tag)
    }
}

/// The positions of the messages that receives get, from the tags of both. The messages are those
/// from one process to one other, which receives one after another.
pub fn match_messages(sent: &[i64], received: &[i64]) -> Vec<Option<usize>> {
    let mut unreceived = Unreceived::default();
    for (position, tag) in sent.iter().enumerate() {
        unreceived.push(*tag, position);
    }
    received.iter().map(|tag| unreceived.take(*tag)).collect()
}
