//! The notes of many processes.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::note::{Note, SILENT, State};
use super::ranks::Ranks;
use crate::recorder::Group;

/// The notes of processes. Those that are equal but for their times are kept once.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Notes {
    entries: Vec<(Ranks, Note)>,
    /// The groups of the communicators in the notes, by their hashes.
    groups: BTreeMap<u64, Group>,
    /// The ranks on each machine, as far as they are known.
    hosts: BTreeMap<String, Ranks>,
    /// The indices of the entries, by the texts of their notes without the times.
    #[serde(skip)]
    indices: HashMap<String, usize>,
}

impl PartialEq for Notes {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries && self.groups == other.groups && self.hosts == other.hosts
    }
}

/// The text of a note without the times in it.
fn timeless(note: &Note) -> String {
    let mut note = note.clone();
    note.steady = 0.0;
    if let State::Running(running) = &mut note.state {
        for call in &mut running.calls {
            call.seconds = 0.0;
        }
    }
    serde_json::to_string(&note).unwrap_or_default()
}

/// Merges another note, which is equal but for its times, into a note.
fn combine(note: &mut Note, other: &Note) {
    note.steady = note.steady.min(other.steady);
    if let (State::Running(running), State::Running(other)) = (&mut note.state, &other.state) {
        for (call, other) in running.calls.iter_mut().zip(&other.calls) {
            call.seconds = call.seconds.max(other.seconds);
        }
    }
}

impl Notes {
    /// Adds the note of a process, and the groups of its communicators.
    pub fn add(&mut self, rank: i32, note: Note, groups: impl IntoIterator<Item = Group>) {
        let groups = groups.into_iter().map(|group| (group.hash(), group));
        self.groups.extend(groups);
        self.add_entry([rank].into_iter().collect(), note);
    }

    /// Adds the machine of a process.
    pub fn add_host(&mut self, host: &str, rank: i32) {
        self.hosts
            .entry(host.to_owned())
            .or_default()
            .extend([rank]);
    }

    /// The machines that are known, and the ranks on each.
    pub fn hosts(&self) -> impl Iterator<Item = (&str, &Ranks)> {
        self.hosts
            .iter()
            .map(|(host, ranks)| (host.as_str(), ranks))
    }

    /// Adds the notes of other processes.
    pub fn merge(&mut self, other: Self) {
        self.groups.extend(other.groups);
        for (host, ranks) in other.hosts {
            self.hosts.entry(host).or_default().extend(ranks.iter());
        }
        for (ranks, note) in other.entries {
            self.add_entry(ranks, note);
        }
    }

    fn add_entry(&mut self, ranks: Ranks, note: Note) {
        if self.indices.len() != self.entries.len() {
            // They come from another process.
            let indices = self.entries.iter().enumerate();
            self.indices = indices
                .map(|(index, (_, note))| (timeless(note), index))
                .collect();
        }
        let key = timeless(&note);
        if let Some(index) = self.indices.get(&key) {
            let (entry_ranks, entry_note) = &mut self.entries[*index];
            combine(entry_note, &note);
            entry_ranks.extend(ranks.iter());
        } else {
            self.indices.insert(key, self.entries.len());
            self.entries.push((ranks, note));
        }
    }

    /// Number of processes.
    pub fn len(&self) -> usize {
        self.entries.iter().map(|(ranks, _)| ranks.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The notes, each with the ranks that say so.
    pub fn iter(&self) -> impl Iterator<Item = (&Ranks, &Note)> {
        self.entries.iter().map(|(ranks, note)| (ranks, note))
    }

    /// The notes, by rank. A rank without one is silent.
    pub fn by_rank(&self, size: i32) -> Vec<&Note> {
        let mut notes = vec![&SILENT; usize::try_from(size).unwrap_or(0)];
        for (ranks, note) in &self.entries {
            for rank in ranks.iter() {
                if let Some(slot) = usize::try_from(rank).ok().and_then(|r| notes.get_mut(r)) {
                    *slot = note;
                }
            }
        }
        notes
    }

    /// The notes of the other ranks than those for which something holds.
    pub fn without(&self, holds: impl Fn(i32, &Note) -> bool) -> Self {
        let entries = self.entries.iter().map(|(ranks, note)| {
            let rest = ranks.iter().filter(|rank| !holds(*rank, note));
            (rest.collect::<Ranks>(), note.clone())
        });
        Self {
            entries: entries.filter(|(ranks, _)| !ranks.is_empty()).collect(),
            groups: self.groups.clone(),
            hosts: self.hosts.clone(),
            indices: HashMap::new(),
        }
    }

    /// The group with a hash, if it belongs to a communicator in a note.
    pub fn group(&self, hash: u64) -> Option<&Group> {
        self.groups.get(&hash)
    }
}
