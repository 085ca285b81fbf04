//! The report for users: a table of what ranks do, and the findings.

use std::collections::BTreeMap;

use super::findings::Diagnosis;
use super::note::{CallNote, Note, SILENT, State, ThreadActivity};
use super::notes::Notes;
use super::ranks::Ranks;

/// How many lines the table has at most.
const MOST_LINES: usize = 18;

/// The activity of ranks in words, and their Python line.
pub type Activity = (String, String);

/// The activity of a rank in a call.
fn in_call(call: &CallNote) -> Activity {
    (format!("in {}", call.text), call.line.clone())
}

/// The activity of a rank in a call, with no more than the operation.
fn in_call_in_short(call: &CallNote) -> Activity {
    let text = format!("in {} on {}", call.operation, call.communicator_name);
    (text, call.line.clone())
}

/// The activity of a thread that is not in a call, of a process that is in one, or not.
fn beside_calls(thread: &ThreadActivity, is_in_call: bool) -> Activity {
    let activity = match thread.activity.as_str() {
        "" => "not in MPI",
        activity => activity,
    };
    let text = match thread.thread.as_str() {
        "" if is_in_call => format!("main thread: {activity}"),
        "" => activity.to_owned(),
        name => format!("thread {name}: {activity}"),
    };
    (text, thread.line.clone())
}

/// The activities of a process: several, if it has several threads.
fn activities(note: &Note, in_call: fn(&CallNote) -> Activity) -> Vec<Activity> {
    let ended = |how: &str, reason: &str| match reason {
        "" => how.to_owned(),
        reason => format!("{how}: {reason}"),
    };
    match &note.state {
        State::Running(running) => {
            let ending = running.ending.iter();
            let ending = ending.map(|end| (ended("is ending", &end.reason), String::new()));
            let calls = running.calls.iter().map(in_call);
            let is_in_call = !running.calls.is_empty();
            let threads = running.elsewhere.iter();
            let threads = threads.map(|thread| beside_calls(thread, is_in_call));
            let all: Vec<Activity> = ending.chain(calls).chain(threads).collect();
            if all.is_empty() {
                vec![("not in MPI".to_owned(), String::new())]
            } else {
                all
            }
        }
        State::Ended(end) => vec![(ended("has ended", &end.reason), String::new())],
        State::Silent => vec![("does not answer".to_owned(), String::new())],
    }
}

/// Joins ranks with equal activities.
fn groups(ranks: impl IntoIterator<Item = (Ranks, Activity)>) -> Vec<(Ranks, Activity)> {
    let mut groups: BTreeMap<Activity, Ranks> = BTreeMap::new();
    for (ranks, activity) in ranks {
        groups.entry(activity).or_default().extend(ranks.iter());
    }
    let groups = groups
        .into_iter()
        .map(|(activity, ranks)| (ranks, activity));
    let mut groups: Vec<(Ranks, Activity)> = groups.collect();
    groups.sort();
    groups
}

/// The table of some ranks: a line for each activity.
pub fn rows(ranks: impl IntoIterator<Item = (i32, Activity)>) -> Vec<String> {
    let ranks = ranks.into_iter();
    table(groups(ranks.map(|(rank, activity)| {
        ([rank].into_iter().collect(), activity)
    })))
}

/// The table of ranks below `size`, from their notes.
pub fn rows_of(notes: &Notes, size: i32) -> Vec<String> {
    let all = |in_call: fn(&CallNote) -> Activity| {
        let known: Ranks = notes.iter().flat_map(|(ranks, _)| ranks.iter()).collect();
        let is_complete = known.len() == size as usize;
        let silent = (0..size).filter(|rank| !is_complete && !known.contains(*rank));
        let silent: Ranks = silent.collect();
        let silent = (!silent.is_empty()).then_some((&silent, &SILENT));
        let activities = notes.iter().chain(silent).flat_map(|(ranks, note)| {
            let activities = activities(note, in_call).into_iter();
            activities.map(|activity| (ranks.clone(), activity))
        });
        groups(activities.collect::<Vec<_>>())
    };
    let groups = all(in_call);
    if groups.len() > MOST_LINES {
        return table(all(in_call_in_short));
    }
    table(groups)
}

/// A table with a line for each group.
fn table(mut groups: Vec<(Ranks, Activity)>) -> Vec<String> {
    // What most ranks do is shown, whichever ranks these are.
    if groups.len() > MOST_LINES {
        groups.sort_by_key(|(ranks, _)| std::cmp::Reverse(ranks.len()));
        groups[..MOST_LINES].sort();
    }
    let hidden: Ranks = groups
        .iter()
        .skip(MOST_LINES)
        .flat_map(|(ranks, _)| ranks.iter())
        .collect();
    let others = groups.len().saturating_sub(MOST_LINES);
    groups.truncate(MOST_LINES);
    let shown: Vec<(String, &Activity)> = groups
        .iter()
        .map(|(ranks, activity)| (pad(&ranks.to_string()), activity))
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
        lines.push(format!("  {hidden}: {others} other lines"));
    }
    lines
}

/// The report: a line for each group of ranks that do the same, and what is wrong.
pub fn report(notes: &Notes, size: i32, diagnosis: &Diagnosis) -> String {
    let waiting = notes.iter().filter(|(_, note)| note.seconds().is_some());
    let count: usize = waiting.map(|(ranks, _)| ranks.len()).sum();
    let all = match count {
        count if count == size as usize => size.to_string(),
        count => format!("{count} of {size}"),
    };
    let seconds = notes.iter().filter_map(|(_, note)| note.seconds());
    let seconds = seconds.fold(0.0, f64::max);
    let (ranks, have) = match size {
        1 => ("rank", "has"),
        _ => ("ranks", if count == 1 { "has" } else { "have" }),
    };
    let mut lines = vec![format!(
        "mpi4jax: {all} {ranks} {have} been waiting for {seconds:.0} s"
    )];
    lines.extend(rows_of(notes, size));
    let findings = &diagnosis.findings;
    lines.extend(findings.iter().take(MOST_LINES).cloned());
    if findings.len() > MOST_LINES {
        lines.push("...".to_owned());
    }
    lines.join("\n") + "\n"
}

/// "rank 1", so that the number stands below that of "ranks 0-3".
fn pad(ranks: &str) -> String {
    ranks
        .strip_prefix("rank ")
        .map_or_else(|| ranks.to_owned(), |rank| format!("rank  {rank}"))
}
