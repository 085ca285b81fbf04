//! What is wrong, from the notes of all ranks.
//!
//! A rank is stuck if only ranks that are stuck or have ended could bring its call to an end. What
//! ranks say holds for one moment: every call that counts here has been under way for some seconds.
//! So nothing is on its way between them any more.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::note::{CommunicatorId, Half, Note, Peer, State, Waiting};
use super::ranks::Ranks;

/// Of a job that fails anyway, a call counts from so many seconds on.
pub const SETTLED: f64 = 1.0;
/// Of any other: on a machine that has more to do than it can, a message may have been under way for
/// some seconds when both sides are in other calls already.
const SURELY_SETTLED: f64 = 10.0;

/// How many seconds a call has to last to count, if users have calls reported after so many.
pub fn settled(notes: &[Note], report_after: f64) -> f64 {
    let fails = |note: &Note| {
        note.is_interrupted || matches!(&note.state, State::Ended(end) if end.code != 0)
    };
    if notes.iter().any(fails) {
        SETTLED
    } else {
        (report_after / 2.0).clamp(SETTLED, SURELY_SETTLED)
    }
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// What was found, a sentence each.
    pub findings: Vec<String>,
    /// The ranks that wait for each other, or for one that has ended: they never go on.
    pub stuck: Ranks,
    /// The exit code for all, if the stuck ones are ended.
    pub exit_code: i32,
}

/// The exit code where no rank's own says more.
pub const DEADLOCK: i32 = 86;
/// That of a process that was interrupted, as shells have it.
pub const INTERRUPTED: i32 = 130;

/// A collective call: its communicator, and its place among the calls on it.
type Collective<'a> = (&'a CommunicatorId, u64);

struct Scene<'a> {
    notes: HashMap<i32, &'a Note>,
    calls: BTreeMap<i32, &'a Waiting>,
    /// The ranks in each collective call.
    collectives: BTreeMap<Collective<'a>, Vec<i32>>,
}

/// How things stand with a collective call.
#[derive(Default)]
struct Attendance {
    /// What those who are there disagree about, with the ranks for each view.
    disagreement: Option<Disagreement>,
    /// Members who have not called it yet.
    missing: Vec<i32>,
}

struct Disagreement {
    about: String,
    sides: Vec<(String, Ranks)>,
}

impl<'a> Scene<'a> {
    fn new(notes: &'a [Note]) -> Self {
        let calls: BTreeMap<i32, &Waiting> = notes
            .iter()
            .filter_map(|note| Some((note.rank, note.waiting()?)))
            .collect();
        let mut collectives: BTreeMap<Collective, Vec<i32>> = BTreeMap::new();
        for (rank, call) in &calls {
            if call.sequence > 0 {
                let key = (&call.communicator, call.sequence);
                collectives.entry(key).or_default().push(*rank);
            }
        }
        Self {
            notes: notes.iter().map(|note| (note.rank, note)).collect(),
            calls,
            collectives,
        }
    }

    fn attendance(&self, key: Collective, ranks: &[i32]) -> Attendance {
        let first = self.calls[&ranks[0]];
        let there: HashSet<i32> = ranks.iter().copied().collect();
        let missing = first.members().filter(|member| {
            // Who has made as many calls has left this one, or left it early as it may.
            let count = self.notes.get(member).map_or(0, |note| note.count(key.0));
            let is_needed = || ranks.iter().any(|rank| self.calls[rank].needs(*member));
            !there.contains(member) && count < key.1 && is_needed()
        });
        Attendance {
            missing: missing.collect(),
            disagreement: self.disagreement(ranks),
        }
    }

    fn disagreement(&self, ranks: &[i32]) -> Option<Disagreement> {
        let split = |about: &str, value: &dyn Fn(&Waiting) -> Option<String>| {
            let mut sides: BTreeMap<String, Vec<i32>> = BTreeMap::new();
            for rank in ranks {
                sides
                    .entry(value(self.calls[rank])?)
                    .or_default()
                    .push(*rank);
            }
            let mut sides: Vec<_> = sides
                .into_iter()
                .map(|(value, ranks)| (value, ranks.into_iter().collect()))
                .collect();
            sides.sort_by_key(|(_, ranks): &(String, Ranks)| ranks.iter().next());
            (sides.len() > 1).then(|| Disagreement {
                about: about.to_owned(),
                sides,
            })
        };
        if let Some(found) = split("operations", &|call| Some(call.operation.clone())) {
            return Some(found);
        }
        let agreed = &self.calls[&ranks[0]].agreed;
        agreed.iter().find_map(|(about, _)| {
            split(about, &|call| {
                let values = call.agreed.iter();
                let mut values = values.filter(|(name, _)| name == about);
                Some(values.next()?.1.clone())
            })
        })
    }

    /// Whether a rank may still come and act: it is neither stuck nor has it ended.
    fn may_act(&self, rank: i32, stuck: &HashSet<i32>) -> bool {
        let has_ended = matches!(
            self.notes.get(&rank).map(|note| &note.state),
            Some(State::Ended(_))
        );
        !has_ended && !stuck.contains(&rank)
    }

    /// Whether one rank sends what another one receives.
    fn is_message(&self, sender: i32, receiver: i32) -> bool {
        let (Some(from), Some(to)) = (self.calls.get(&sender), self.calls.get(&receiver)) else {
            return false;
        };
        let is_received = |send: &Half| {
            let fits = |receive: &Half| {
                [Peer::Rank(sender), Peer::Any].contains(&receive.peer)
                    && receive.tag.is_none_or(|tag| send.tag == Some(tag))
            };
            send.peer == Peer::Rank(receiver) && to.receives.iter().any(fits)
        };
        from.communicator == to.communicator && from.sends.iter().any(is_received)
    }

    /// The messages of a point-to-point call of which it surely waits for one, and whether it
    /// receives them. What it sends besides may be done already.
    fn awaited(call: &Waiting) -> (Vec<Half>, bool) {
        let real = |halves: &[Half]| -> Vec<Half> {
            let real = |half: &&Half| half.peer != Peer::Nobody;
            halves.iter().filter(real).copied().collect()
        };
        let receives = real(&call.receives);
        if receives.is_empty() {
            (real(&call.sends), false)
        } else {
            (receives, true)
        }
    }

    /// The same, or only the one that it waits for now, if that is known.
    fn awaited_now(call: &Waiting) -> (Vec<Half>, bool) {
        let now = call
            .awaited
            .map(|(half, is_receive)| (vec![half], is_receive));
        now.unwrap_or_else(|| Self::awaited(call))
    }

    /// Whether two ranks are at the two ends of a message.
    fn meets(&self, rank: i32, other: i32, is_receive: bool) -> bool {
        if is_receive {
            self.is_message(other, rank)
        } else {
            self.is_message(rank, other)
        }
    }

    /// Whether a point-to-point call may come to its end. Of several messages, each may be the one
    /// that it waits for.
    fn can_go_on(&self, rank: i32, call: &Waiting, stuck: &HashSet<i32>) -> bool {
        let (halves, is_receive) = Self::awaited(call);
        let helps = |other| self.may_act(other, stuck) || self.meets(rank, other, is_receive);
        let can_come = |half: &Half| match half.peer {
            Peer::Rank(other) => helps(other),
            Peer::Any => call.members().any(helps),
            Peer::Nobody => true,
        };
        halves.is_empty() || halves.iter().any(can_come)
    }

    /// The ranks that never go on.
    fn stuck(&self, attendances: &BTreeMap<Collective, Attendance>, settled: f64) -> HashSet<i32> {
        let lasting = self
            .calls
            .iter()
            .filter(|(_, call)| call.seconds >= settled);
        let mut stuck: HashSet<i32> = lasting.map(|(rank, _)| *rank).collect();
        loop {
            let mut free: Vec<i32> = Vec::new();
            for (key, attendance) in attendances {
                let ranks = &self.collectives[key];
                // A rank of those that is elsewhere now was there: it has not been there for long.
                let is_lost = attendance.disagreement.is_some()
                    && ranks.iter().all(|rank| self.calls[rank].seconds >= settled);
                let waits = |rank: &i32| {
                    let missing = attendance.missing.iter().copied();
                    let mut missing = missing.filter(|m| self.calls[rank].needs(*m)).peekable();
                    missing.peek().is_some() && !missing.any(|m| self.may_act(m, &stuck))
                };
                let is_free = |rank: &&i32| stuck.contains(rank) && !is_lost && !waits(rank);
                free.extend(ranks.iter().filter(is_free));
            }
            for rank in &stuck {
                let call = self.calls[rank];
                if call.sequence == 0 && self.can_go_on(*rank, call, &stuck) {
                    free.push(*rank);
                }
            }
            if free.is_empty() {
                return stuck;
            }
            for rank in free {
                stuck.remove(&rank);
            }
        }
    }
}

/// Says what is wrong. Calls count that have lasted for so many seconds.
pub fn diagnose(notes: &[Note], settled: f64) -> Diagnosis {
    let scene = Scene::new(notes);
    let attendances: BTreeMap<Collective, Attendance> = scene
        .collectives
        .iter()
        .map(|(key, ranks)| (*key, scene.attendance(*key, ranks)))
        .collect();
    let stuck = scene.stuck(&attendances, settled);

    let mut findings = Vec::new();
    let mut exit_code = DEADLOCK;
    for note in notes {
        if let State::Ended(end) = &note.state
            && end.code != 0
            && !stuck.is_empty()
        {
            exit_code = end.code;
        }
    }
    let interrupted: Ranks = notes
        .iter()
        .filter(|note| note.is_interrupted)
        .map(|note| note.rank)
        .collect();
    if !interrupted.is_empty() {
        findings.push(format!(
            "{} interrupted (Ctrl-C) in a call.",
            interrupted.with_verb("was", "were")
        ));
        exit_code = INTERRUPTED;
    }
    for (key, attendance) in &attendances {
        findings.extend(of_collective(&scene, *key, attendance));
    }
    let circles = circles(&scene);
    let explained: HashSet<i32> = circles.iter().flatten().copied().collect();
    findings.extend(
        circles
            .iter()
            .take(MOST_LISTED)
            .map(|circle| in_words(circle)),
    );
    findings.extend(messages(&scene, &explained));
    let silent: Ranks = notes
        .iter()
        .filter(|note| note.state == State::Silent)
        .map(|note| note.rank)
        .collect();
    if !silent.is_empty() {
        findings.push(format!(
            "{} not answer: killed or stopped, or the machine is gone.",
            silent.with_verb("does", "do")
        ));
    }
    if findings.is_empty() && !scene.calls.is_empty() {
        findings.push(
            "no two ranks disagree, and none is missing: MPI itself takes this long.".to_owned(),
        );
    }
    Diagnosis {
        findings,
        stuck: stuck.into_iter().collect(),
        exit_code,
    }
}

/// What ranks that are in the same collective call disagree about.
pub fn disagreements(notes: &[Note]) -> Vec<String> {
    let scene = Scene::new(notes);
    let in_words = |(key, ranks): (&Collective, &Vec<i32>)| {
        let attendance = Attendance {
            disagreement: scene.disagreement(ranks),
            missing: Vec::new(),
        };
        of_collective(&scene, *key, &attendance)
    };
    scene.collectives.iter().flat_map(in_words).collect()
}

fn of_collective(scene: &Scene, key: Collective, attendance: &Attendance) -> Vec<String> {
    let ranks = &scene.collectives[&key];
    let first = scene.calls[&ranks[0]];
    let name = &first.communicator_name;
    let mut findings = Vec::new();
    if let Some(Disagreement { about, sides }) = &attendance.disagreement {
        let who: Vec<String> = sides.iter().map(|(_, ranks)| ranks.to_string()).collect();
        let values: Vec<&str> = sides.iter().map(|(value, _)| value.as_str()).collect();
        let what = match about.as_str() {
            "operations" => "they called different operations".to_owned(),
            "counts" => "they gave different counts".to_owned(),
            "structures" => "they are about to pass trees that differ in their structure, or in \
                             the shapes or types of their leaves"
                .to_owned(),
            "communicators" => {
                "they use communicators of the same ranks in different order".to_owned()
            }
            _ => format!("they gave different {about} ({})", listed(&values)),
        };
        findings.push(format!(
            "{} disagree about call #{} of {name}: {what}.",
            listed(&who),
            key.1
        ));
    }
    let mut missing: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
    for rank in &attendance.missing {
        // What a silent rank has called is not known.
        let note = scene.notes.get(rank);
        if let Some(note) = note.filter(|note| note.state != State::Silent) {
            missing.entry(note.count(key.0)).or_default().push(*rank);
        }
    }
    for (count, absent) in missing {
        let needs = |rank: &&i32| absent.iter().any(|m| scene.calls[rank].needs(*m));
        let there: Ranks = ranks.iter().filter(needs).copied().collect();
        let absent: Ranks = absent.iter().copied().collect();
        let calls = if count == 1 { "call" } else { "calls" };
        let who = if first.neighbors.is_none() {
            there.to_string()
        } else {
            let their = if absent.len() == 1 { "its" } else { "their" };
            let plural = if there.len() == 1 { "" } else { "s" };
            format!("{their} neighbor{plural}, {there},")
        };
        findings.push(format!(
            "{} made {count} {calls} on {name}, and {who} {} for call #{}.",
            absent.with_verb("has", "have"),
            if there.len() == 1 { "waits" } else { "wait" },
            key.1
        ));
    }
    findings
}

/// Ranks in a circle, where each waits for a message of the next.
fn circles(scene: &Scene) -> Vec<Vec<i32>> {
    let next = |rank: i32| {
        let call = scene.calls.get(&rank).filter(|call| call.sequence == 0)?;
        let (halves, is_receive) = Scene::awaited_now(call);
        let &[
            Half {
                peer: Peer::Rank(other),
                ..
            },
        ] = halves.as_slice()
        else {
            return None;
        };
        let meets = scene.meets(rank, other, is_receive);
        // Two ranks that mean each other, one by a send, have the tags or communicators wrong.
        let is_crossed = crossed(scene, rank, other, is_receive).is_some();
        (!meets && !is_crossed).then_some(other)
    };
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for start in scene.calls.keys() {
        let mut path = Vec::new();
        let mut at = Some(*start);
        while let Some(rank) = at.filter(|rank| seen.insert(*rank)) {
            path.push(rank);
            at = next(rank);
        }
        if let Some(begin) = at.and_then(|rank| path.iter().position(|other| *other == rank)) {
            found.push(path.split_off(begin));
        }
    }
    found
}

/// A circle: `0 -> 1 -> 0`.
fn in_words(circle: &[i32]) -> String {
    let mut words: Vec<String> = circle.iter().map(ToString::to_string).collect();
    if words.len() > MOST_LISTED {
        words.truncate(MOST_LISTED);
        words.push("...".to_owned());
    }
    words.push(circle[0].to_string());
    let circle = words.join(" -> ");
    format!("{circle} is a circle: each rank waits for the next one.")
}

/// More of a kind are not listed.
const MOST_LISTED: usize = 8;

/// Messages that one side waits for, and the other side does not send or receive. Those of some
/// ranks are explained already.
fn messages(scene: &Scene, explained: &HashSet<i32>) -> Vec<String> {
    // Who waits, by what is said of them.
    let mut waiting: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    let mut crossings = HashSet::new();
    for (rank, call) in &scene.calls {
        if call.sequence > 0 || explained.contains(rank) {
            continue;
        }
        let (halves, is_receive) = Scene::awaited_now(call);
        for half in halves {
            let meets = |other| scene.meets(*rank, other, is_receive);
            let (is_met, peer, them) = match half.peer {
                Peer::Rank(other) => (meets(other), format!("rank {other}"), Some(other)),
                _ => (call.members().any(meets), "anyone".to_owned(), None),
            };
            if is_met {
                continue;
            }
            let they = them.map_or_else(|| "nobody".to_owned(), |_| peer.clone());
            let crossed = them.and_then(|other| crossed(scene, *rank, other, is_receive));
            if let (Some(other), Some(_)) = (them, &crossed)
                && !crossings.insert((*rank.min(&other), *rank.max(&other)))
            {
                // It was said of the other one.
                continue;
            }
            let (wish, deed) = match (is_receive, them) {
                (true, Some(_)) => ("for a message from", "is not sending one"),
                (true, None) => ("for a message from", "is sending one"),
                (false, _) => ("to send a message to", "is not receiving it"),
            };
            let deed = crossed.unwrap_or_else(|| deed.to_owned());
            let (tag, name) = (tag_in_words(half), &call.communicator_name);
            let text = format!("{wish} {peer} with {tag} on {name}, and {they} {deed}.");
            waiting.entry(text).or_default().push(*rank);
        }
    }
    let mut waiting: Vec<(Ranks, String)> = waiting
        .into_iter()
        .map(|(text, ranks)| (ranks.into_iter().collect(), text))
        .collect();
    waiting.sort();
    let others: usize = waiting
        .iter()
        .skip(MOST_LISTED)
        .map(|(ranks, _)| ranks.len())
        .sum();
    waiting.truncate(MOST_LISTED);
    let findings = waiting.into_iter();
    let mut findings: Vec<String> = findings
        .map(|(ranks, text)| format!("{} {text}", ranks.with_verb("waits", "wait")))
        .collect();
    if others > 0 {
        findings.push(format!("{others} other ranks wait in the same way."));
    }
    findings
}

fn tag_in_words(half: Half) -> String {
    half.tag
        .map_or_else(|| "any tag".to_owned(), |tag| format!("tag {tag}"))
}

/// What the other side does if it has to do with this rank, but not as this rank wants.
fn crossed(scene: &Scene, rank: i32, other: i32, is_receive: bool) -> Option<String> {
    let theirs = scene.calls.get(&other)?;
    let halves = if is_receive {
        &theirs.sends
    } else {
        &theirs.receives
    };
    let half = *halves.iter().find(|half| half.peer == Peer::Rank(rank))?;
    let verb = if is_receive { "sends" } else { "receives" };
    let (tag, name) = (tag_in_words(half), &theirs.communicator_name);
    Some(format!("{verb} one with {tag} on {name}"))
}

/// "a, b and c".
pub fn listed<T: AsRef<str>>(words: &[T]) -> String {
    match words {
        [] => String::new(),
        [one] => one.as_ref().to_owned(),
        [most @ .., last] => {
            let most: Vec<&str> = most.iter().map(AsRef::as_ref).collect();
            format!("{} and {}", most.join(", "), last.as_ref())
        }
    }
}
