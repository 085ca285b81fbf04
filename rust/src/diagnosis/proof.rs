//! The ranks that can never continue.
//!
//! A program is ended only if this is proven, so everything that could bring a call to its end is
//! taken into account: other threads, calls of mpi4py, and communicators that ranks can't tell apart.
//! A rank is *frozen* if nothing in its process can act before one of its calls returns, and if it
//! has been so for long enough that nothing is on its way any more. A call can't return if only
//! ranks could bring that about that are frozen, have no call that can return, or have ended.

use std::collections::HashMap;

use super::note::{CallNote, Collective, CommunicatorId, Endpoint, Note, Peer, State};
use super::ranks::Ranks;
use super::snapshot::{Attendants, Snapshot};

/// For how many seconds processes have to be unchanged to count, in a job that fails anyway.
pub const SETTLED: f64 = 1.0;

/// Bytes that the slowest MPI on the busiest machine moves in a second. A message that was sent
/// before, or by mpi4py, is on its way for no longer than this allows.
const SLOWEST_TRANSFER: f64 = 1e6;

/// The ranks that can never continue. Processes count that have been unchanged for `settled` seconds.
pub fn stuck_ranks(snapshot: &Snapshot, settled: f64) -> Vec<i32> {
    let steady = |note: &Note| match &note.state {
        State::Running(running) if running.calls.is_empty() => 0.0,
        State::Running(running) if !running.elsewhere.is_empty() => 0.0,
        State::Running(running) if !running.doubt.is_empty() => 0.0,
        State::Running(_) | State::Ended(_) => note.steady,
        State::Silent | State::NotThere => 0.0,
    };
    stuck_if(snapshot, settled, &steady)
}

/// Whether one of the ranks that can never continue waits for one that has ended.
pub fn waits_for_ended(snapshot: &Snapshot, stuck: &Ranks) -> bool {
    let ended: Ranks = (0..snapshot.size)
        .filter(|rank| matches!(snapshot.note(*rank).state, State::Ended(_)))
        .collect();
    if ended.is_empty() {
        return false;
    }
    let is_missing = |collective: &Collective, member: i32| {
        let count = snapshot.count(member, collective);
        ended.contains(member) && count.is_none_or(|count| count < collective.sequence)
    };
    // All ranks in a collective call wait for the same members, but neighbors do for theirs only.
    let mut collectives = snapshot.collectives();
    let is_incomplete = collectives.any(|(collective, ranks)| {
        let mut calls = ranks
            .iter()
            .filter(|rank| stuck.contains(**rank))
            .filter_map(|rank| snapshot.call_in(*rank, collective));
        calls.next().is_some_and(|first| match &first.neighbors {
            Some(neighbors) => {
                let others = calls.filter_map(|call| call.neighbors.as_ref());
                let mut awaited = others.flatten().chain(neighbors);
                awaited.any(|neighbor| is_missing(collective, *neighbor))
            }
            None => {
                let mut members = snapshot.members(&collective.communicator);
                members.any(|member| is_missing(collective, member))
            }
        })
    });
    let is_awaited = |endpoint: &Endpoint| match endpoint.peer {
        Peer::Rank(rank) => ended.contains(rank),
        Peer::Any | Peer::Null | Peer::Outside => false,
    };
    let mut calls = snapshot.calls().filter(|(rank, _)| stuck.contains(*rank));
    is_incomplete || calls.any(|(_, call)| call.awaited_messages().iter().any(is_awaited))
}

/// The ranks that could never continue if nothing acted in any process that is in a call.
pub fn stuck_unless_others_act(snapshot: &Snapshot) -> Vec<i32> {
    let steady = |note: &Note| match &note.state {
        State::Running(running) if running.calls.is_empty() => 0.0,
        State::Running(_) | State::Ended(_) => f64::INFINITY,
        State::Silent | State::NotThere => 0.0,
    };
    stuck_if(snapshot, SETTLED, &steady)
}

/// The ranks that can never continue if `steady` gives the seconds for which nothing has been able to
/// act in a process.
fn stuck_if(snapshot: &Snapshot, settled: f64, steady: &dyn Fn(&Note) -> f64) -> Vec<i32> {
    let attendants = Attendants::new(snapshot);
    let mut graph = Graph::new(snapshot, settled, steady);
    for rank in 0..snapshot.size {
        let note = snapshot.note(rank);
        if steady(note) < settled {
            graph.free(rank);
        } else if matches!(note.state, State::Ended(_)) {
            graph.state[rank as usize] = Outlook::Ended;
        }
    }
    for (rank, call) in snapshot.calls() {
        if graph.state[rank as usize] == Outlook::Stuck {
            graph.add_call(&attendants, rank, call);
        }
    }
    graph.propagate();
    let ranks = 0..snapshot.size;
    ranks
        .filter(|rank| graph.state[*rank as usize] == Outlook::Stuck)
        .collect()
}

/// Whether a rank may act, as far as is known.
#[derive(Clone, Copy, PartialEq)]
enum Outlook {
    /// It may act.
    Free,
    /// It can't act unless a call of its returns.
    Stuck,
    /// It never acts again.
    Ended,
}

/// Something that happens if any of several ranks acts.
#[derive(Default)]
struct Event {
    has_happened: bool,
    /// The ranks that have a call that returns then.
    waiting: Vec<i32>,
    /// An event that happens, too.
    next: Option<usize>,
}

struct Graph<'s, 'a> {
    snapshot: &'s Snapshot<'a>,
    settled: f64,
    steady: &'s dyn Fn(&Note) -> f64,
    state: Vec<Outlook>,
    events: Vec<Event>,
    /// The events that each rank brings about when it acts.
    of_rank: Vec<Vec<usize>>,
    /// The event that a member of a group acts.
    of_group: HashMap<u64, usize>,
    /// The positions of ranks among the calls on the default communicator, in order, each with the
    /// event that one of those acts that are not further.
    positions: Vec<(u64, usize)>,
    /// Seconds for which all members of a group have done nothing.
    steady_on: HashMap<u64, f64>,
    /// Whether ranks disagree about a call on the default communicator, by its position.
    disagreements: HashMap<u64, bool>,
    /// Ranks that are free, and what follows from it is not known yet.
    queue: Vec<i32>,
}

impl<'s, 'a> Graph<'s, 'a> {
    fn new(snapshot: &'s Snapshot<'a>, settled: f64, steady: &'s dyn Fn(&Note) -> f64) -> Self {
        let size = snapshot.size as usize;
        Self {
            snapshot,
            settled,
            steady,
            state: vec![Outlook::Stuck; size],
            events: Vec::new(),
            of_rank: vec![Vec::new(); size],
            of_group: HashMap::new(),
            positions: Vec::new(),
            steady_on: HashMap::new(),
            disagreements: HashMap::new(),
            queue: Vec::new(),
        }
    }

    fn free(&mut self, rank: i32) {
        let state = &mut self.state[rank as usize];
        if *state != Outlook::Free {
            *state = Outlook::Free;
            self.queue.push(rank);
        }
    }

    fn new_event(&mut self, ranks: impl IntoIterator<Item = i32>) -> usize {
        let index = self.events.len();
        self.events.push(Event::default());
        for rank in ranks {
            match usize::try_from(rank)
                .ok()
                .and_then(|rank| self.of_rank.get_mut(rank))
            {
                Some(events) => events.push(index),
                // Nothing is known of a process outside of MPI_COMM_WORLD.
                None => self.events[index].has_happened = true,
            }
        }
        index
    }

    /// Makes a rank free once an event has happened.
    fn wait_for(&mut self, rank: i32, event: usize) {
        if self.events[event].has_happened {
            self.free(rank);
        } else {
            self.events[event].waiting.push(rank);
        }
    }

    fn member_acts(&mut self, id: &CommunicatorId) -> usize {
        if let Some(event) = self.of_group.get(&id.group) {
            return *event;
        }
        let event = self.new_event(self.snapshot.members(id));
        self.of_group.insert(id.group, event);
        event
    }

    /// The event that a rank acts that has made fewer calls on the default communicator than that.
    fn latecomer_acts(&mut self, sequence: u64) -> Option<usize> {
        if self.positions.is_empty() {
            let mut by_count: Vec<(u64, i32)> = (0..self.snapshot.size)
                .map(|rank| (self.snapshot.note(rank).default_calls, rank))
                .collect();
            by_count.sort_unstable();
            let mut before: Option<usize> = None;
            for calls in by_count.chunk_by(|left, right| left.0 == right.0) {
                let event = self.new_event(calls.iter().map(|(_, rank)| *rank));
                if let Some(before) = before.replace(event) {
                    self.events[before].next = Some(event);
                }
                self.positions.push((calls[0].0, event));
            }
        }
        let fewer = self
            .positions
            .partition_point(|(count, _)| *count < sequence);
        fewer.checked_sub(1).map(|last| self.positions[last].1)
    }

    /// Notes what could bring a call of a frozen rank to its end.
    fn add_call(&mut self, attendants: &Attendants<'a>, rank: i32, call: &'a CallNote) {
        let is_private = self.snapshot.is_private(&call.communicator);
        match call.collective() {
            Some(collective) if is_private => self.add_private_collective(rank, call, &collective),
            Some(_) => self.add_collective(attendants, rank, call),
            None => self.add_messages(rank, call),
        }
    }

    /// Whether data may still be on its way: what mpi4py sends or receives, or what was sent before
    /// ranks made calls that do not fit. Of the ranks that may have sent or received it, the last one
    /// has done nothing for `last` seconds since.
    fn may_be_moving(&self, call: &CallNote, last: f64) -> bool {
        last < self.settled + call.bytes as f64 / SLOWEST_TRANSFER
    }

    /// Seconds for which a rank has done nothing.
    fn steady_of(&self, rank: i32) -> f64 {
        self.snapshot.get(rank).map_or(0.0, self.steady)
    }

    fn least_steady(&self, ranks: impl Iterator<Item = i32>) -> f64 {
        let seconds = ranks.map(|rank| self.steady_of(rank));
        seconds.fold(f64::INFINITY, f64::min)
    }

    /// Seconds for which all members of a communicator have done nothing.
    fn steady_on(&mut self, id: &CommunicatorId) -> f64 {
        if let Some(seconds) = self.steady_on.get(&id.group) {
            return *seconds;
        }
        let seconds = self.least_steady(self.snapshot.members(id));
        self.steady_on.insert(id.group, seconds);
        seconds
    }

    /// On a communicator that only mpi4jax uses, all calls are known, and their order is.
    fn add_private_collective(&mut self, rank: i32, call: &CallNote, collective: &Collective) {
        if let Some(event) = self.latecomer_acts(call.sequence) {
            self.wait_for(rank, event);
            return;
        }
        // All ranks have made the call. If they agree, MPI takes its time. If they don't, one may
        // help itself out of it by a later call, as MPIs don't look at what calls they are.
        let snapshot = self.snapshot;
        let known = self.disagreements.entry(call.sequence);
        let has_disagreement = *known.or_insert_with(|| snapshot.has_disagreement(collective));
        let last = self.steady_on(&call.communicator);
        if has_disagreement && !self.may_be_moving(call, last) {
            let event = self.member_acts(&call.communicator);
            self.wait_for(rank, event);
        } else {
            self.free(rank);
        }
    }

    /// On any other, the other ranks may be in a call that is no mpi4jax's, at any position.
    fn add_collective(&mut self, attendants: &Attendants<'a>, rank: i32, call: &'a CallNote) {
        let last = match &call.neighbors {
            Some(neighbors) => self.least_steady(neighbors.iter().copied()),
            None => self.steady_on(&call.communicator),
        };
        if attendants.are_complete(self.snapshot, rank, call) || self.may_be_moving(call, last) {
            self.free(rank);
            return;
        }
        let event = match &call.neighbors {
            Some(neighbors) => self.new_event(neighbors.iter().copied()),
            None => self.member_acts(&call.communicator),
        };
        self.wait_for(rank, event);
    }

    fn add_messages(&mut self, rank: i32, call: &CallNote) {
        let (awaited, id) = (call.awaited_messages(), &call.communicator);
        let is_matched = |endpoint: &Endpoint| self.snapshot.is_matched(rank, id, *endpoint);
        if awaited.is_empty() || awaited.iter().any(is_matched) {
            self.free(rank);
            return;
        }
        let mut last = self.steady_of(rank);
        let mut peers = Vec::new();
        for endpoint in awaited {
            match endpoint.peer {
                Peer::Rank(peer) => {
                    last = last.min(self.steady_of(peer));
                    peers.push(peer);
                }
                Peer::Any => {
                    last = last.min(self.steady_on(id));
                    let event = self.member_acts(id);
                    self.wait_for(rank, event);
                }
                Peer::Outside => peers.push(-1),
                Peer::Null => {}
            }
        }
        if self.may_be_moving(call, last) {
            self.free(rank);
        }
        let event = self.new_event(peers);
        self.wait_for(rank, event);
    }

    fn propagate(&mut self) {
        while let Some(rank) = self.queue.pop() {
            for event in std::mem::take(&mut self.of_rank[rank as usize]) {
                self.happen(event);
            }
        }
    }

    fn happen(&mut self, event: usize) {
        let mut next = Some(event);
        while let Some(event) = next {
            let event = &mut self.events[event];
            if std::mem::replace(&mut event.has_happened, true) {
                return;
            }
            next = event.next;
            for rank in std::mem::take(&mut event.waiting) {
                self.free(rank);
            }
        }
    }
}
