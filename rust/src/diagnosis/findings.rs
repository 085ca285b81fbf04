//! The mistakes between ranks, in sentences.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::note::{CallNote, Collective, CommunicatorKind, Endpoint, Loop, Note, Peer, State};
use super::notes::Notes;
use super::proof::{SETTLED, stuck_ranks, stuck_unless_others_act, waits_for_ended};
use super::ranks::Ranks;
use super::snapshot::Snapshot;

/// For how many seconds processes have to be unchanged in a job that does not fail anyway: on an
/// overloaded machine, a message may be on its way for some seconds while both sides are in other
/// calls already.
const SURELY_SETTLED: f64 = 10.0;

/// Largest number of findings of a kind that are listed.
const MAX_OF_A_KIND: usize = 4;
/// If ranks have made more different numbers of calls, they are named together.
const MAX_COUNTS: usize = 3;

/// Number of seconds for which processes have to be unchanged to count, if calls are reported after
/// `report_after` seconds.
pub fn settling_time(notes: &Notes, report_after: f64) -> f64 {
    let fails = |note: &Note| note.is_interrupted || note.end().is_some_and(|end| end.code != 0);
    if notes.iter().any(|(_, note)| fails(note)) {
        SETTLED
    } else {
        (report_after / 2.0).clamp(SETTLED, SURELY_SETTLED)
    }
}

/// A diagnosis of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// The mistakes, a sentence each.
    pub findings: Vec<String>,
    /// The ranks that can never continue.
    pub stuck: Ranks,
    /// Whether one of them waits for a rank that has ended.
    pub waits_for_ended: bool,
    /// The exit code for all, if the stuck ones are ended.
    pub exit_code: i32,
}

/// The exit code where no rank's own says more.
pub const DEADLOCK: i32 = 86;
/// The exit code of a process that was interrupted, as shells have it.
pub const INTERRUPTED: i32 = 130;

/// The snapshot's ranks for which something holds of their notes.
fn ranks_where(snapshot: &Snapshot, holds: impl Fn(&Note) -> bool) -> Ranks {
    let ranks = 0..snapshot.size;
    ranks.filter(|rank| holds(snapshot.note(*rank))).collect()
}

/// Finds the mistakes. Processes count that have been unchanged for `settled` seconds.
pub fn diagnose(snapshot: &Snapshot, settled: f64) -> Diagnosis {
    let stuck: Ranks = stuck_ranks(snapshot, settled).into_iter().collect();
    let mut findings = Vec::new();
    let interrupted = ranks_where(snapshot, |note| note.is_interrupted);
    if !interrupted.is_empty() {
        findings.push(format!(
            "{} interrupted (Ctrl-C) in a call.",
            interrupted.with_verb("was", "were")
        ));
    }
    findings.extend(of_collectives(snapshot));
    let circles = circles(snapshot);
    let explained: HashSet<i32> = circles.iter().flatten().copied().collect();
    let describe = circles.iter().map(|circle| describe_circle(circle));
    findings.extend(shorten(describe.collect(), "circles"));
    findings.extend(of_messages(snapshot, &explained));
    findings.extend(of_loops(snapshot));
    let silent = ranks_where(snapshot, |note| note.state == State::Silent);
    if !silent.is_empty() {
        findings.push(format!(
            "{} not answer: killed or stopped, or the machine is gone.",
            silent.with_verb("does", "do")
        ));
    }
    if findings.is_empty() {
        findings.extend(nothing_found(snapshot));
    }
    if stuck.is_empty() {
        findings.extend(doubts(snapshot));
    }
    let mut exit_code = DEADLOCK;
    for rank in 0..snapshot.size {
        if let Some(end) = snapshot.note(rank).end().filter(|end| end.code != 0)
            && !stuck.is_empty()
        {
            exit_code = end.code;
        }
    }
    if !interrupted.is_empty() {
        exit_code = INTERRUPTED;
    }
    Diagnosis {
        findings,
        waits_for_ended: waits_for_ended(snapshot, &stuck),
        stuck,
        exit_code,
    }
}

/// The sentence for calls without a mistake.
fn nothing_found(snapshot: &Snapshot) -> Option<String> {
    let mut calls = snapshot.calls().peekable();
    calls.peek()?;
    let is_known = |(_, call): (i32, &CallNote)| {
        let mut members = snapshot.members(&call.communicator);
        members.all(|rank| snapshot.get(rank).is_some_and(Note::is_known))
    };
    if !snapshot.calls().all(is_known) {
        // A rank may disagree or be missing whose calls nobody knows.
        return None;
    }
    let is_unknown = calls.any(|(_, call)| call.communicator.kind == CommunicatorKind::Unknown);
    let text = if is_unknown {
        "no two ranks disagree, and none is missing, unless they mean different communicators: \
         those of the same ranks that Split or Create made can't be told apart."
    } else {
        "no two ranks disagree, and none is missing: MPI itself takes this long."
    };
    Some(text.to_owned())
}

/// The first sentences of a kind, and the number of the others.
fn shorten(mut sentences: Vec<String>, kind: &str) -> Vec<String> {
    let more = sentences.len().saturating_sub(MAX_OF_A_KIND);
    sentences.truncate(MAX_OF_A_KIND);
    if more > 0 {
        sentences.push(format!("... and {more} more {kind}."));
    }
    sentences
}

fn of_collectives(snapshot: &Snapshot) -> Vec<String> {
    let mut all: Vec<_> = snapshot.collectives().collect();
    all.sort_by_cached_key(|(collective, ranks)| {
        let has_disagreement = snapshot.disagreement(collective).is_some();
        (
            !has_disagreement,
            -(ranks.len() as i64),
            (*collective).clone(),
        )
    });
    let mut findings = Vec::new();
    let mut all = all.into_iter();
    for (collective, ranks) in all.by_ref().take(MAX_OF_A_KIND) {
        findings.extend(of_collective(snapshot, collective, ranks));
        if findings.len() >= MAX_OF_A_KIND {
            break;
        }
    }
    let others = all.len();
    if others > 0 {
        findings.push(format!(
            "... and {others} more collective calls are in progress."
        ));
    }
    findings
}

/// The disagreement of the ranks in a collective call.
pub fn describe_disagreement(snapshot: &Snapshot, collective: &Collective) -> Option<String> {
    let (about, sides) = snapshot.disagreement(collective)?;
    let mut who: Vec<String> = sides.iter().map(|(_, ranks)| ranks.to_string()).collect();
    let mut values: Vec<String> = sides.iter().map(|(value, _)| value.clone()).collect();
    let others = sides.len().saturating_sub(MAX_OF_A_KIND);
    if others > 0 {
        who.truncate(MAX_OF_A_KIND);
        who.push(format!("{others} others"));
        values.truncate(MAX_OF_A_KIND);
        values.push(format!("{others} others"));
    }
    let mistake = match about {
        "operations" => "they called different operations".to_owned(),
        "counts" => "they gave different counts".to_owned(),
        "structures" => "they are about to pass trees that differ in their structure, or in \
                         the shapes or types of their leaves"
            .to_owned(),
        _ => format!("they gave different {about} ({})", listed(&values)),
    };
    Some(format!(
        "{} disagree about call #{} of {}: {mistake}.",
        listed(&who),
        collective.sequence,
        collective.name
    ))
}

/// "2 calls on COMM_WORLD". Where mpi4py may make others, they are "calls of mpi4jax".
fn calls_on(collective: &Collective, least: u64, most: u64) -> String {
    let count = if least == most {
        least.to_string()
    } else {
        format!("{least} to {most}")
    };
    let calls = if most == 1 { "call" } else { "calls" };
    let whose = match collective.communicator.kind {
        CommunicatorKind::Default | CommunicatorKind::Jax(_) | CommunicatorKind::Meeting(_) => "",
        CommunicatorKind::World | CommunicatorKind::Copy(_) | CommunicatorKind::Unknown => {
            " of mpi4jax"
        }
    };
    format!("{count} {calls}{whose} on {}", collective.name)
}

fn of_collective(snapshot: &Snapshot, collective: &Collective, ranks: &[i32]) -> Vec<String> {
    let Some(first) = ranks
        .first()
        .and_then(|rank| snapshot.call_in(*rank, collective))
    else {
        return Vec::new();
    };
    let mut findings: Vec<String> = describe_disagreement(snapshot, collective)
        .into_iter()
        .collect();
    let sequence = collective.sequence;
    let strays = snapshot.strays(collective);
    for (operation, strays) in &strays {
        let name = match collective.communicator.kind {
            CommunicatorKind::Unknown => {
                format!("{} or another communicator of its ranks", collective.name)
            }
            _ => collective.name.clone(),
        };
        // As MPI has it, the names of nonblocking operations begin with an i (MPI-4.1 §3.7).
        findings.push(if operation.starts_with('i') {
            let who = strays.with_verb("has", "have");
            format!("{who} started {operation} as call #{sequence} of {name}.")
        } else {
            format!("{strays} called {operation} as call #{sequence} of {name}, and left it.")
        });
    }
    let strays: Ranks = strays.values().flat_map(Ranks::iter).collect();
    let there: BTreeSet<i32> = ranks.iter().copied().collect();
    let calls = ranks
        .iter()
        .filter_map(|rank| snapshot.call_in(*rank, collective));
    let neighbors = calls.filter_map(|call| call.neighbors.as_ref()).flatten();
    let neighbors: BTreeSet<i32> = neighbors.copied().collect();
    let mut missing: BTreeMap<Option<u64>, Ranks> = BTreeMap::new();
    for member in snapshot.members(&collective.communicator) {
        let is_known = (0..snapshot.size).contains(&member) && snapshot.note(member).is_known();
        let is_needed = first.neighbors.is_none() || neighbors.contains(&member);
        if !is_known || !is_needed || there.contains(&member) || strays.contains(member) {
            continue;
        }
        let count = snapshot.count(member, collective);
        if count.is_none_or(|count| count < sequence) {
            missing.entry(count).or_default().extend([member]);
        }
    }
    let groups: Vec<(Option<u64>, Option<u64>, Ranks)> = if missing.len() > MAX_COUNTS {
        let least = missing.keys().flatten().next().copied();
        let most = missing.keys().flatten().last().copied();
        let absent = missing.values().flat_map(Ranks::iter).collect();
        vec![(least, most, absent)]
    } else {
        let groups = missing.into_iter();
        groups
            .map(|(count, absent)| (count, count, absent))
            .collect()
    };
    for (least, most, absent) in groups {
        let waits = |rank: &&i32| {
            let call = snapshot.call_in(**rank, collective);
            let neighbors = call.and_then(|call| call.neighbors.as_ref());
            neighbors.is_none_or(|all| all.iter().any(|neighbor| absent.contains(*neighbor)))
        };
        let there: Ranks = ranks.iter().filter(waits).copied().collect();
        let who = if first.neighbors.is_none() {
            there.to_string()
        } else {
            let their = if absent.len() == 1 { "its" } else { "their" };
            let plural = if there.len() == 1 { "" } else { "s" };
            format!("{their} neighbor{plural}, {there},")
        };
        if !first.rule.is_empty() {
            findings.push(format!(
                "{} not there, where {who} {}: {}",
                absent.with_verb("is", "are"),
                if there.len() == 1 { "waits" } else { "wait" },
                first.rule
            ));
            continue;
        }
        let mistake = match least.zip(most) {
            Some((least, most)) => {
                let calls = calls_on(collective, least, most);
                format!("{} made {calls}", absent.with_verb("has", "have"))
            }
            None => format!(
                "{} not in a call on {}",
                absent.with_verb("is", "are"),
                collective.name
            ),
        };
        findings.push(format!(
            "{mistake}, and {who} {} for call #{sequence}.",
            if there.len() == 1 { "waits" } else { "wait" },
        ));
    }
    findings
}

/// Loops that some ranks have left, and others are in.
fn of_loops(snapshot: &Snapshot) -> Vec<String> {
    let mut inside: BTreeMap<Loop, Ranks> = BTreeMap::new();
    for (rank, call) in snapshot.calls() {
        if let Some(around) = Loop::around(&call.line) {
            inside.entry(around).or_default().extend([rank]);
        }
    }
    let describe = |(around, inside): (&Loop, &Ranks)| {
        let is_inside = |call: &CallNote| Loop::around(&call.line).as_ref() == Some(around);
        let left = ranks_where(snapshot, |note| {
            let is_in_call = !note.calls().is_empty();
            let is_ending = note.end().is_some_and(|end| end.code == 0);
            note.last_loop.as_ref() == Some(around)
                && (is_in_call || is_ending)
                && !note.calls().iter().any(is_inside)
        });
        (!left.is_empty()).then(|| {
            format!(
                "{} left the loop that {} in. If they began it together, its condition depends on values \
                 that differ: compute it from what all ranks have, such as a norm over all ranks \
                 (mpi4jax.linalg), or parameters passed through mpi4jax.shared.",
                left.with_verb("has", "have"),
                inside.with_verb("is", "are"),
            )
        })
    };
    shorten(inside.iter().filter_map(describe).collect(), "loops")
}

/// The first call of a rank that sends or receives messages.
fn message_call<'a>(snapshot: &Snapshot<'a>, rank: i32) -> Option<&'a CallNote> {
    let mut calls = snapshot.note(rank).calls().iter();
    calls.find(|call| call.sequence == 0)
}

/// The messages that are named as those that a call waits for: if that is not known, rather those
/// that it receives than those that it sends.
fn named_messages(call: &CallNote) -> Vec<Endpoint> {
    let awaited = call.awaited_messages();
    let is_receive = |endpoint: &&Endpoint| endpoint.is_receive;
    let receives: Vec<Endpoint> = awaited.iter().filter(is_receive).copied().collect();
    if receives.is_empty() {
        awaited
    } else {
        receives
    }
}

/// Ranks in a circle, where each waits for a message of the next.
fn circles(snapshot: &Snapshot) -> Vec<Vec<i32>> {
    let next = |rank: i32| {
        let call = message_call(snapshot, rank)?;
        let [endpoint] = named_messages(call)[..] else {
            return None;
        };
        let Peer::Rank(other) = endpoint.peer else {
            return None;
        };
        let is_matched = snapshot.is_matched(rank, &call.communicator, endpoint);
        // Two ranks that mean each other, one by a send, have the tags or communicators wrong.
        let is_crossed = snapshot
            .counterpart(rank, other, endpoint.is_receive)
            .is_some();
        let is_rank = (0..snapshot.size).contains(&other);
        (is_rank && !is_matched && !is_crossed).then_some(other)
    };
    let mut seen = HashSet::new();
    let mut circles = Vec::new();
    for start in 0..snapshot.size {
        let mut path = Vec::new();
        let mut at = Some(start);
        while let Some(rank) = at.filter(|rank| seen.insert(*rank)) {
            path.push(rank);
            at = next(rank);
        }
        if let Some(begin) = at.and_then(|rank| path.iter().position(|other| *other == rank)) {
            circles.push(path.split_off(begin));
        }
    }
    circles
}

/// Largest number of ranks of a circle that are listed.
const MAX_IN_A_CIRCLE: usize = 8;

/// A circle: `0 -> 1 -> 0`.
fn describe_circle(circle: &[i32]) -> String {
    let mut words: Vec<String> = circle.iter().map(ToString::to_string).collect();
    if words.len() > MAX_IN_A_CIRCLE {
        words.truncate(MAX_IN_A_CIRCLE);
        words.push("...".to_owned());
    }
    words.push(circle[0].to_string());
    let circle = words.join(" -> ");
    format!("{circle} is a circle: each rank waits for the next one.")
}

/// Messages that one side waits for, and the other side does not send or receive. Those of some
/// ranks are explained already.
fn of_messages(snapshot: &Snapshot, explained: &HashSet<i32>) -> Vec<String> {
    // The ranks that wait, by the sentence about them.
    let mut waiting: BTreeMap<String, Ranks> = BTreeMap::new();
    let mut pairs = HashSet::new();
    for (rank, call) in snapshot.calls() {
        if call.sequence > 0 || explained.contains(&rank) {
            continue;
        }
        for endpoint in named_messages(call) {
            if snapshot.is_matched(rank, &call.communicator, endpoint) {
                continue;
            }
            let Endpoint {
                peer,
                tag,
                is_receive,
            } = endpoint;
            let (peer, they, other) = match peer {
                Peer::Rank(other) => (
                    format!("rank {other}"),
                    format!("rank {other}"),
                    Some(other),
                ),
                Peer::Any => ("anyone".to_owned(), "nobody".to_owned(), None),
                Peer::Null | Peer::Outside => continue,
            };
            let counterpart = other.and_then(|other| snapshot.counterpart(rank, other, is_receive));
            if let (Some(other), Some(_)) = (other, counterpart)
                && !pairs.insert((rank.min(other), rank.max(other)))
            {
                // The finding of the other rank covers it.
                continue;
            }
            let wish = if is_receive {
                "for a message from"
            } else {
                "to send a message to"
            };
            let deed = match (counterpart, is_receive) {
                (Some(their), _) => {
                    let verb = if is_receive { "sends" } else { "receives" };
                    format!(
                        "{verb} one with {} on {}",
                        describe_tag(their.tag),
                        their.name
                    )
                }
                (None, true) if peer == "anyone" => "is sending one".to_owned(),
                (None, true) => "is not sending one".to_owned(),
                (None, false) => "is not receiving it".to_owned(),
            };
            let (tag, name) = (describe_tag(tag), &call.communicator_name);
            let text = format!("{wish} {peer} with {tag} on {name}, and {they} {deed}.");
            waiting.entry(text).or_default().extend([rank]);
        }
    }
    let waiting = waiting.into_iter().map(|(text, ranks)| (ranks, text));
    let mut waiting: Vec<(Ranks, String)> = waiting.collect();
    waiting.sort();
    let rest = waiting.iter().skip(MAX_OF_A_KIND);
    let others: Ranks = rest.flat_map(|(ranks, _)| ranks.iter()).collect();
    waiting.truncate(MAX_OF_A_KIND);
    let mut findings: Vec<String> = waiting
        .into_iter()
        .map(|(ranks, text)| format!("{} {text}", ranks.with_verb("waits", "wait")))
        .collect();
    if !others.is_empty() {
        findings.push(format!(
            "{} in the same way.",
            others.with_verb("waits", "wait")
        ));
    }
    findings
}

fn describe_tag(tag: Option<i64>) -> String {
    tag.map_or_else(|| "any tag".to_owned(), |tag| format!("tag {tag}"))
}

/// The reasons why an apparent deadlock is not proven to be one.
fn doubts(snapshot: &Snapshot) -> Vec<String> {
    let mut doubts: BTreeMap<String, Ranks> = BTreeMap::new();
    for rank in stuck_unless_others_act(snapshot) {
        let Some(running) = snapshot.note(rank).running() else {
            continue;
        };
        if let Some(elsewhere) = running.elsewhere.first() {
            let thread = match elsewhere.thread.as_str() {
                "" => "its main thread".to_owned(),
                name => format!("a thread ({name})"),
            };
            let reason = match elsewhere.line.as_str() {
                "" => thread,
                line => format!("{thread} at {line}"),
            };
            doubts.entry(reason).or_default().extend([rank]);
        } else if !running.doubt.is_empty() {
            let reason = running.doubt.clone();
            doubts.entry(reason).or_default().extend([rank]);
        }
    }
    let sentence = |(reason, ranks): (String, Ranks)| {
        format!("{ranks} may still act beside the call: {reason}.")
    };
    shorten(doubts.into_iter().map(sentence).collect(), "of these")
}

/// "a, b and c".
pub fn listed<T: AsRef<str>>(words: &[T]) -> String {
    join_words(words, "and")
}

/// Words as a list, with this conjunction before the last one.
pub fn join_words<T: AsRef<str>>(words: &[T], conjunction: &str) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, most)) => format!("{} {conjunction} {last}", most.join(", ")),
        None => String::new(),
    }
}
