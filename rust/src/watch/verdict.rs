//! What ends a program in a deadlock: the same proof, twice.
//!
//! A proof rests on what can be seen. A thread of a library that sleeps and calls MPI later can't be, but
//! what follows from its call can. So all ranks are ended only if nothing has moved on any of them for as
//! long again as the wait that was reported.

use std::collections::BTreeMap;

use crate::diagnosis::{Endpoint, Note, Notes, Ranks, State};

/// What changes in the note of a rank when it makes progress: its calls, each with the message that it
/// waits for, and how many it has made. Nothing, if the rank does not answer.
type Position = Option<(Vec<(u64, Option<Endpoint>)>, u64)>;

fn position(note: &Note) -> Position {
    let calls = note.calls().iter().map(|call| (call.id, call.awaited));
    (note.state != State::Silent).then(|| (calls.collect(), note.default_calls))
}

/// What follows from a look at all ranks.
#[derive(Debug, PartialEq)]
pub enum Ruling {
    /// Nothing yet.
    Wait,
    /// Nothing has moved since the proof was announced: all ranks are to be ended.
    End,
    /// It is to be announced: nothing has moved since it was withdrawn.
    Announce,
    /// What was announced does not hold: these ranks have moved, or may do so.
    Withdraw(Ranks),
}

/// The proof of a deadlock, as the leader has seen it last.
#[derive(Default)]
pub struct Verdict {
    positions: BTreeMap<i32, Position>,
    stuck: Ranks,
    /// Since when nothing has moved.
    since: f64,
    is_announced: bool,
}

impl Verdict {
    /// The user is told that the ranks are ended.
    pub fn announce(&mut self, now: f64) {
        self.since = now;
        self.is_announced = true;
    }

    /// When the proof is to be taken again, if it was announced.
    pub fn due(&self, wait: f64) -> Option<f64> {
        self.is_announced.then_some(self.since + wait)
    }

    /// Considers the notes of all ranks, which were asked at a time, and the ranks that can never
    /// continue by them.
    pub fn consider(&mut self, asked: f64, notes: &Notes, stuck: &Ranks, wait: f64) -> Ruling {
        let positions = notes.iter().flat_map(|(ranks, note)| {
            let ranks = ranks.iter();
            ranks.map(|rank| (rank, position(note)))
        });
        let positions: BTreeMap<i32, Position> = positions.collect();
        let known = self.positions.keys().chain(positions.keys()).copied();
        let mut moved: Ranks = known
            .filter(|rank| self.positions.get(rank) != positions.get(rank))
            .collect();
        if moved.is_empty() {
            let seconds = asked - self.since;
            moved = self
                .stuck
                .iter()
                .filter(|rank| !stuck.contains(*rank))
                .collect();
            if moved.is_empty() && !stuck.is_empty() {
                return match (seconds >= wait, self.is_announced) {
                    (false, _) => Ruling::Wait,
                    (true, true) => Ruling::End,
                    (true, false) => Ruling::Announce,
                };
            }
            // A thread that wakes up for a moment spoils the proof, but is no progress.
            if self.is_announced && seconds < 2.0 * wait {
                return Ruling::Wait;
            }
        }
        let was_announced = self.is_announced;
        *self = Self {
            positions,
            stuck: stuck.clone(),
            since: asked,
            is_announced: false,
        };
        if was_announced {
            Ruling::Withdraw(moved)
        } else {
            Ruling::Wait
        }
    }
}
