//! Collection of the notes of many ranks along a tree.
//!
//! The leader begins a round, in which the position of a rank is its distance from the leader. A rank is
//! asked for the notes of a range of positions that begins with its own, and asks other ranks for
//! subranges. A rank that does not answer is left out, and the rest of its range is divided anew.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::diagnosis::{Collective, Note, Notes, State};

/// Largest number of ranks that one rank asks.
pub const FAN_OUT: i32 = 32;
/// Seconds that a rank gets to collect the notes of its range.
const COLLECTING: f64 = 20.0;

/// Reason why a message could not be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The rank has no mailbox: mpi4jax was not imported there, or not yet.
    NotThere,
    /// The rank does not take the message.
    Silent {
        /// Host of the rank, if known.
        host: Option<String>,
    },
}

/// Identity of a round of questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RoundId {
    /// Rank that begins the round.
    pub leader: i32,
    /// Number of the round among the leader's rounds, from 1.
    pub index: u64,
}

/// Request for the notes of a range of ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Round of the question.
    pub round: RoundId,
    /// Positions of the ranks, as begin and end. The rank that is asked is the first.
    pub range: (i32, i32),
    /// Whether the user will see the answers.
    pub is_report: bool,
    /// Collective calls whose attendance the ranks are asked for.
    pub about: Vec<Collective>,
}

/// Rank at a position of the leader's round.
pub fn rank_at(position: i32, leader: i32, size: i32) -> i32 {
    (position + leader) % size
}

/// Divides a range into at most `FAN_OUT` subranges, each for one question.
fn subranges(range: Range<i32>) -> impl Iterator<Item = Range<i32>> {
    let (start, length) = (range.start, range.len() as i64);
    let count = length.min(FAN_OUT.into());
    let bound = move |index: i64| start + (length * index / count.max(1)) as i32;
    (0..count).map(move |index| bound(index)..bound(index + 1))
}

/// Position of the rank that asks the rank at `position`, if all ranks answer.
pub fn position_above(position: i32, size: i32) -> i32 {
    let mut above = 0;
    let mut range = 0..size;
    loop {
        range.start = above + 1;
        match subranges(range.clone()).find(|subrange| subrange.contains(&position)) {
            Some(subrange) if subrange.start != position => {
                above = subrange.start;
                range = subrange;
            }
            _ => return above,
        }
    }
}

/// Range of positions whose notes were requested, and the time of the request.
struct Asked {
    range: Range<i32>,
    when: f64,
}

/// Notes that one rank collects, for itself or for the rank that has asked it.
pub struct Collection {
    question: Question,
    /// Other rank that gets the notes, if any.
    pub asked_by: Option<i32>,
    size: i32,
    begin: f64,
    has_own_note: bool,
    asked: Vec<Asked>,
    notes: Notes,
}

impl Collection {
    /// Begins to collect the notes for a question.
    pub fn new(question: Question, asked_by: Option<i32>, size: i32, now: f64) -> Self {
        Self {
            question,
            asked_by,
            size,
            begin: now,
            has_own_note: false,
            asked: Vec::new(),
            notes: Notes::default(),
        }
    }

    /// Question for the whole range.
    pub fn question(&self) -> &Question {
        &self.question
    }

    /// Questions for the rest of the range, with the ranks to ask.
    pub fn ask_others(&mut self, now: f64) -> Vec<(i32, Question)> {
        let (first, end) = self.question.range;
        self.ask(first + 1..end, now)
    }

    fn ask(&mut self, range: Range<i32>, now: f64) -> Vec<(i32, Question)> {
        let mut questions = Vec::new();
        for subrange in subranges(range) {
            let rank = rank_at(subrange.start, self.question.round.leader, self.size);
            let question = Question {
                range: (subrange.start, subrange.end),
                ..self.question.clone()
            };
            questions.push((rank, question));
            self.asked.push(Asked {
                range: subrange,
                when: now,
            });
        }
        questions
    }

    /// Index in `asked` of the request to a rank.
    fn request_to(&mut self, rank: i32) -> Option<usize> {
        let (leader, size) = (self.question.round.leader, self.size);
        let mut asked = self.asked.iter();
        asked.position(|request| rank_at(request.range.start, leader, size) == rank)
    }

    /// Notes that a rank was not reached. Returns questions to others for the rest of its range.
    pub fn lose(&mut self, rank: i32, failure: Failure, now: f64) -> Vec<(i32, Question)> {
        let Some(index) = self.request_to(rank) else {
            return Vec::new();
        };
        let rest = self.asked.swap_remove(index).range;
        let state = match failure {
            Failure::NotThere => State::NotThere,
            Failure::Silent { host } => {
                if let Some(host) = host {
                    self.add_host(&host, rank);
                }
                State::Silent
            }
        };
        self.notes.add(rank, Note::new(state), []);
        self.ask(rest.start + 1..rest.end, now)
    }

    /// Notes the host of a rank.
    pub fn add_host(&mut self, host: &str, rank: i32) {
        self.notes.add_host(host, rank);
    }

    /// Adds the answer of a rank: the notes of its range.
    pub fn add(&mut self, rank: i32, notes: Notes) {
        if let Some(index) = self.request_to(rank) {
            self.asked.swap_remove(index);
            self.notes.merge(notes);
        }
    }

    /// Whether the note of this rank is still to be added.
    pub fn lacks_own_note(&self) -> bool {
        !self.has_own_note
    }

    /// Adds the note of this rank, by the function `add`.
    pub fn add_own_note(&mut self, add: impl FnOnce(&mut Notes)) {
        add(&mut self.notes);
        self.has_own_note = true;
    }

    /// Drops requests that are too old.
    pub fn give_up(&mut self, now: f64) {
        self.asked
            .retain(|request| now - request.when <= COLLECTING);
    }

    /// Takes the notes, if no more are awaited.
    pub fn take_if_complete(&mut self, now: f64) -> Option<Notes> {
        let is_complete = self.has_own_note && self.asked.is_empty();
        let is_late = now - self.begin > 2.0 * COLLECTING;
        (is_complete || is_late).then(|| std::mem::take(&mut self.notes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::diagnosis::{Note, State};

    #[test]
    fn subranges_make_up_the_range() {
        for length in [0, 1, 5, 32, 33, 1000, 9999] {
            let subranges: Vec<_> = subranges(7..7 + length).collect();
            assert_eq!(subranges.len() as i32, length.min(FAN_OUT));
            let positions: Vec<i32> = subranges.into_iter().flatten().collect();
            assert_eq!(positions, (7..7 + length).collect::<Vec<_>>());
        }
    }

    fn question(leader: i32, range: (i32, i32)) -> Question {
        Question {
            round: RoundId { leader, index: 1 },
            range,
            is_report: false,
            about: Vec::new(),
        }
    }

    /// Runs a round. Returns the ranks with a note, and the largest number of questions of one rank.
    fn collect(size: i32, leader: i32, silent: &BTreeSet<i32>) -> (Vec<i32>, usize) {
        fn notes_of(
            question: Question,
            size: i32,
            silent: &BTreeSet<i32>,
            most: &mut usize,
        ) -> Notes {
            let leader = question.round.leader;
            let own_rank = rank_at(question.range.0, leader, size);
            let mut collection = Collection::new(question, None, size, 0.0);
            collection.add_own_note(|notes| notes.add(own_rank, Note::new(State::Silent), []));
            let mut questions = collection.ask_others(0.0);
            *most = questions.len().max(*most);
            while !questions.is_empty() {
                let mut others = Vec::new();
                for (rank, question) in questions {
                    let (position, _) = question.range;
                    if silent.contains(&rank) {
                        others.extend(collection.lose(rank, Failure::Silent { host: None }, 0.0));
                        continue;
                    }
                    if silent.is_empty() {
                        let above = rank_at(position_above(position, size), leader, size);
                        assert_eq!(above, own_rank);
                    }
                    collection.add(rank, notes_of(question, size, silent, most));
                }
                questions = others;
            }
            collection.take_if_complete(0.0).unwrap()
        }
        let mut most = 0;
        let notes = notes_of(question(leader, (0, size)), size, silent, &mut most);
        let ranks: BTreeSet<i32> = notes.iter().flat_map(|(ranks, _)| ranks.iter()).collect();
        assert_eq!(notes.len(), ranks.len());
        (ranks.into_iter().collect(), most)
    }

    #[test]
    fn all_ranks_are_asked() {
        for size in [1, 2, 33, 34, 1000, 5000] {
            for leader in [0, size / 3] {
                let (ranks, most) = collect(size, leader, &BTreeSet::new());
                assert_eq!(ranks, (0..size).collect::<Vec<_>>());
                assert!(most <= FAN_OUT as usize);
            }
        }
    }

    #[test]
    fn silent_ranks_keep_no_others_from_answering() {
        let silent: BTreeSet<i32> = (1..200).chain([517, 999]).collect();
        let (ranks, most) = collect(1000, 0, &silent);
        assert_eq!(ranks, (0..1000).collect::<Vec<_>>());
        assert!(most <= FAN_OUT as usize);
    }

    #[test]
    fn a_rank_that_was_asked_is_given_time() {
        let mut collection = Collection::new(question(0, (0, 2)), None, 2, 0.0);
        collection.add_own_note(|_| ());
        collection.ask_others(0.0);
        for (now, is_complete) in [(COLLECTING - 1.0, false), (COLLECTING + 1.0, true)] {
            collection.give_up(now);
            assert_eq!(collection.take_if_complete(now).is_some(), is_complete);
        }
    }

    /// Fails if a rank without mpi4jax counts as a rank that does not answer.
    #[test]
    fn ranks_that_are_not_there_are_noted_as_such() {
        let mut collection = Collection::new(question(0, (0, 3)), None, 3, 0.0);
        collection.ask_others(0.0);
        collection.lose(1, Failure::NotThere, 0.0);
        let host = Some("there".to_owned());
        collection.lose(2, Failure::Silent { host }, 0.0);
        collection.add_own_note(|notes| notes.add(0, Note::new(State::Silent), []));
        let notes = collection.take_if_complete(0.0).unwrap();
        let states: Vec<_> = notes.by_rank(3).iter().map(|note| &note.state).collect();
        assert_eq!(states, [&State::Silent, &State::NotThere, &State::Silent]);
        let hosts: Vec<_> = notes
            .hosts()
            .map(|(host, ranks)| (host, ranks.to_string()))
            .collect();
        assert_eq!(hosts, [("there", "rank 2".to_owned())]);
    }
}
