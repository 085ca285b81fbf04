//! Verdict that ends a deadlocked program: it needs the same proof twice.
//!
//! The proof knows only what can be seen. A library's thread that sleeps and calls MPI later can't be
//! seen, but the effect of its call can. So all ranks are ended only if, after the report, no rank has
//! moved for as long again as the reported wait.

use std::collections::BTreeMap;

use crate::diagnosis::{Endpoint, Note, Notes, Ranks};

/// The part of a rank's note that changes with progress: its current calls, each with the message that it
/// awaits, and the number of calls made on the default communicator. `None` if the rank does not answer.
type Position = Option<(Vec<(u64, Option<Endpoint>)>, u64)>;

fn position(note: &Note) -> Position {
    let calls = note.calls().iter().map(|call| (call.id, call.awaited));
    note.is_known()
        .then(|| (calls.collect(), note.default_calls))
}

/// Consequence of a look at all ranks.
#[derive(Debug, PartialEq)]
pub enum Ruling {
    /// Do nothing yet.
    Wait,
    /// End all ranks: nothing has moved since the proof was announced.
    End,
    /// Announce the proof again: nothing has moved since it was withdrawn.
    Announce,
    /// Withdraw the announced proof: these ranks have moved, or may do so.
    Withdraw(Ranks),
}

/// The leader's latest proof of a deadlock.
#[derive(Default)]
pub struct Verdict {
    positions: BTreeMap<i32, Position>,
    stuck: Ranks,
    /// Time since which nothing has moved.
    since: f64,
    is_announced: bool,
}

impl Verdict {
    /// Notes that the user was told that all ranks will be ended.
    pub fn announce(&mut self, now: f64) {
        self.since = now;
        self.is_announced = true;
    }

    /// Time at which an announced proof is to be taken again.
    pub fn due(&self, wait: f64) -> Option<f64> {
        self.is_announced.then_some(self.since + wait)
    }

    /// Compares notes, requested at the time `asked`, and the ranks that these prove `stuck`, with the
    /// latest proof.
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
            // A thread that wakes up for a moment interrupts the proof, but is no progress.
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
