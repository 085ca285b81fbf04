//! The report that users read.

use std::collections::BTreeMap;

use super::findings::Diagnosis;
use super::note::{Note, State};
use super::ranks::Ranks;

/// More lines than this are not for people.
const MOST_LINES: usize = 20;

/// What a group of ranks does, and its Python line.
pub type Doing = (String, String);

fn doing(note: &Note) -> Doing {
    match &note.state {
        State::Waiting(call) => (format!("in {}", call.text), call.line.clone()),
        State::Elsewhere { activity, line } if activity.is_empty() => {
            ("not in MPI".to_owned(), line.clone())
        }
        State::Elsewhere { activity, line } => (activity.clone(), line.clone()),
        State::Ended(end) if end.reason.is_empty() => ("has ended".to_owned(), String::new()),
        State::Ended(end) => (format!("has ended: {}", end.reason), String::new()),
        State::Silent => ("does not answer".to_owned(), String::new()),
    }
}

/// The same, with no more than the operation of a call.
fn doing_in_short(note: &Note) -> Doing {
    match &note.state {
        State::Waiting(call) => (
            format!("in {} on {}", call.operation, call.communicator_name),
            call.line.clone(),
        ),
        _ => doing(note),
    }
}

/// What ranks do, by what it is.
fn groups(ranks: impl IntoIterator<Item = (i32, Doing)>) -> Vec<(Ranks, Doing)> {
    let mut groups: BTreeMap<Doing, Vec<i32>> = BTreeMap::new();
    for (rank, doing) in ranks {
        groups.entry(doing).or_default().push(rank);
    }
    let mut groups: Vec<(Ranks, Doing)> = groups
        .into_iter()
        .map(|(doing, ranks)| (ranks.into_iter().collect(), doing))
        .collect();
    groups.sort();
    groups
}

/// A line for all ranks that do the same.
pub fn rows(ranks: impl IntoIterator<Item = (i32, Doing)>) -> Vec<String> {
    table(groups(ranks))
}

/// The same, from their notes.
pub fn rows_of(notes: &[Note]) -> Vec<String> {
    let mut found = groups(notes.iter().map(|note| (note.rank, doing(note))));
    if found.len() > MOST_LINES {
        found = groups(notes.iter().map(|note| (note.rank, doing_in_short(note))));
    }
    table(found)
}

/// A line for each group.
fn table(mut groups: Vec<(Ranks, Doing)>) -> Vec<String> {
    let hidden: Ranks = groups
        .iter()
        .skip(MOST_LINES)
        .flat_map(|(ranks, _)| ranks.iter())
        .collect();
    groups.truncate(MOST_LINES);
    let shown: Vec<(String, &Doing)> = groups
        .iter()
        .map(|(ranks, doing)| (padded(&ranks.to_string()), doing))
        .collect();
    let width = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
    let first = width(&mut shown.iter().map(|(ranks, _)| ranks.chars().count()));
    let second = width(
        &mut shown
            .iter()
            .filter(|(_, (_, line))| !line.is_empty())
            .map(|(_, (text, _))| text.chars().count()),
    );
    let mut lines: Vec<String> = shown
        .iter()
        .map(|(ranks, (text, line))| {
            let row = format!("  {ranks:first$}   {text:second$}   {line}");
            row.trim_end().to_owned()
        })
        .collect();
    if !hidden.is_empty() {
        lines.push(format!("  {hidden}: other lines"));
    }
    lines
}

/// The report: a line for each group of ranks that do the same, and what is wrong.
pub fn report(notes: &[Note], diagnosis: &Diagnosis) -> String {
    let waiting: Vec<f64> = notes
        .iter()
        .filter_map(|note| note.waiting().map(|call| call.seconds))
        .collect();
    let all = if waiting.len() == notes.len() {
        notes.len().to_string()
    } else {
        format!("{} of {}", waiting.len(), notes.len())
    };
    let seconds = waiting.iter().copied().fold(0.0, f64::max);
    let (ranks, have) = match notes.len() {
        1 => ("rank", "has"),
        _ => ("ranks", if waiting.len() == 1 { "has" } else { "have" }),
    };
    let mut lines = vec![format!(
        "mpi4jax: {all} {ranks} {have} been waiting for {seconds:.0} s"
    )];

    lines.extend(rows_of(notes));
    lines.extend(diagnosis.findings.iter().cloned());
    lines.join("\n") + "\n"
}

/// "rank 1", so that the number stands below that of "ranks 0-3".
fn padded(ranks: &str) -> String {
    ranks
        .strip_prefix("rank ")
        .map_or_else(|| ranks.to_owned(), |number| format!("rank  {number}"))
}
