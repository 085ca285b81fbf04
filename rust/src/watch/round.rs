//! Asking many ranks for their notes, along a tree.
//!
//! The rank that asks counts the others from itself on, and so do those that help it. A rank that is
//! asked for the notes of a range of ranks, of which it is the first, asks others for parts of it.
//! A rank that does not answer at all is left out, and its part of the range is divided anew.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::diagnosis::{Collective, Notes};

/// How many ranks one rank asks, if there are that many.
pub const FAN_OUT: i32 = 32;
/// A rank that does not say that it was asked within so many seconds does not answer.
const HEARING: f64 = 3.0;
/// Others are given so many seconds to collect their notes.
const COLLECTING: f64 = 20.0;

/// A round of questions: the rank that begins it, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RoundId {
    /// The rank that begins the round.
    pub leader: i32,
    /// The index of the round among those of that rank, from 1.
    pub index: u64,
}

/// A question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// The round that it belongs to.
    pub round: RoundId,
    /// The ranks, counted from the leader on. The one that is asked is the first.
    pub range: (i32, i32),
    /// Whether the answer is shown to the user.
    pub is_report: bool,
    /// Collective calls that the ranks are to say more about.
    pub about: Vec<Collective>,
}

/// The rank at a position, counted from the leader on.
pub fn rank_at(position: i32, leader: i32, size: i32) -> i32 {
    (position + leader) % size
}

/// The parts of a range that are asked one by one.
fn parts(range: Range<i32>) -> impl Iterator<Item = Range<i32>> {
    let (start, length) = (range.start, range.len() as i64);
    let count = length.min(FAN_OUT.into());
    let bound = move |part: i64| start + (length * part / count.max(1)) as i32;
    (0..count).map(move |part| bound(part)..bound(part + 1))
}

/// The position of the rank that asks the one at a position, if nobody is missing.
pub fn position_above(position: i32, size: i32) -> i32 {
    let mut above = 0;
    let mut range = 0..size;
    loop {
        range.start = above + 1;
        match parts(range.clone()).find(|part| part.contains(&position)) {
            Some(part) if part.start != position => {
                above = part.start;
                range = part;
            }
            _ => return above,
        }
    }
}

/// Ranks that were asked.
struct Asked {
    range: Range<i32>,
    when: f64,
    /// Whether the first of them has said that it was.
    is_heard: bool,
}

/// The notes that one rank collects, for itself or for the one that has asked it.
pub struct Collection {
    question: Question,
    /// The rank that gets the notes, if that is another one.
    pub asked_by: Option<i32>,
    size: i32,
    begin: f64,
    has_own_note: bool,
    asked: Vec<Asked>,
    notes: Notes,
}

impl Collection {
    /// Begins to collect the notes of a range.
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

    /// The question for the whole range.
    pub fn question(&self) -> &Question {
        &self.question
    }

    /// The questions to all others in the range, and their ranks.
    pub fn ask_others(&mut self, now: f64) -> Vec<(i32, Question)> {
        let (first, end) = self.question.range;
        self.ask(first + 1..end, now)
    }

    fn ask(&mut self, range: Range<i32>, now: f64) -> Vec<(i32, Question)> {
        let mut questions = Vec::new();
        for part in parts(range) {
            let rank = rank_at(part.start, self.question.round.leader, self.size);
            let question = Question {
                range: (part.start, part.end),
                ..self.question.clone()
            };
            questions.push((rank, question));
            self.asked.push(Asked {
                range: part,
                when: now,
                is_heard: false,
            });
        }
        questions
    }

    fn part_of(&mut self, rank: i32) -> Option<usize> {
        let (leader, size) = (self.question.round.leader, self.size);
        let mut asked = self.asked.iter();
        asked.position(|part| rank_at(part.range.start, leader, size) == rank)
    }

    /// A rank says that it was asked.
    pub fn hear(&mut self, rank: i32) {
        if let Some(part) = self.part_of(rank) {
            self.asked[part].is_heard = true;
        }
    }

    /// A rank gives the notes of its part.
    pub fn add(&mut self, rank: i32, notes: Notes) {
        if let Some(part) = self.part_of(rank) {
            self.asked.swap_remove(part);
            self.notes.merge(notes);
        }
    }

    /// Whether the own note is still to be added.
    pub fn lacks_own_note(&self) -> bool {
        !self.has_own_note
    }

    /// Has the own note added, by a function that adds it.
    pub fn add_own_note(&mut self, add: impl FnOnce(&mut Notes)) {
        add(&mut self.notes);
        self.has_own_note = true;
    }

    /// Gives up ranks that do not answer. Their parts are asked of others.
    pub fn give_up(&mut self, now: f64) -> Vec<(i32, Question)> {
        let mut lost = Vec::new();
        self.asked.retain(|part| {
            let is_silent = !part.is_heard && now - part.when > HEARING;
            if is_silent {
                lost.push(part.range.start + 1..part.range.end);
            }
            !is_silent && now - part.when <= COLLECTING
        });
        lost.into_iter()
            .flat_map(|range| self.ask(range, now))
            .collect()
    }

    /// The notes, if all are there that will come.
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
    fn parts_make_up_the_range() {
        for length in [0, 1, 5, 32, 33, 1000, 9999] {
            let parts: Vec<_> = parts(7..7 + length).collect();
            assert_eq!(parts.len() as i32, length.min(FAN_OUT));
            let positions: Vec<i32> = parts.into_iter().flatten().collect();
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

    /// Asks all ranks, and gives those that answer, and the most questions that one has sent.
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
            let mut now = 0.0;
            while !questions.is_empty() {
                for (rank, question) in questions {
                    let (position, _) = question.range;
                    if silent.contains(&rank) {
                        continue;
                    }
                    if silent.is_empty() {
                        let above = rank_at(position_above(position, size), leader, size);
                        assert_eq!(above, own_rank);
                    }
                    collection.hear(rank);
                    collection.add(rank, notes_of(question, size, silent, most));
                }
                now += HEARING + 0.1;
                questions = collection.give_up(now);
            }
            collection.take_if_complete(now).unwrap()
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
        let (ranks, _) = collect(1000, 0, &silent);
        let others: Vec<i32> = (0..1000).filter(|rank| !silent.contains(rank)).collect();
        assert_eq!(ranks, others);
    }

    #[test]
    fn a_rank_that_was_heard_is_given_time() {
        let mut collection = Collection::new(question(0, (0, 2)), None, 2, 0.0);
        collection.add_own_note(|_| ());
        collection.ask_others(0.0);
        collection.hear(1);
        assert!(collection.give_up(COLLECTING - 1.0).is_empty());
        assert!(collection.take_if_complete(COLLECTING - 1.0).is_none());
        assert!(collection.give_up(COLLECTING + 1.0).is_empty());
        assert!(collection.take_if_complete(COLLECTING + 1.0).is_some());
    }
}
