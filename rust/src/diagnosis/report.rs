//! The report for users: a table of what ranks do, and the findings.

use std::collections::BTreeMap;

use super::findings::Diagnosis;
use super::lines::{WIDTH, fit, wrap};
use super::note::{CallNote, Note, SILENT, State, ThreadActivity};
use super::notes::Notes;
use super::ranks::Ranks;

/// Largest number of different activities in the table, and of findings after it.
const MAX_GROUPS: usize = 18;
/// Largest number of lines of the table, where activities take several.
const MAX_LINES: usize = 24;
/// Of ranks whose names are longer, the activity stands on a line of its own.
const WIDEST_RANKS: usize = 24;

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
        State::NotThere => vec![("not known".to_owned(), String::new())],
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

/// The table of some ranks, no wider than `width` where it can be broken.
pub fn rows(ranks: impl IntoIterator<Item = (i32, Activity)>, width: usize) -> Vec<String> {
    let ranks = ranks
        .into_iter()
        .map(|(rank, activity)| ([rank].into_iter().collect(), activity));
    table(groups(ranks), width)
}

/// The table of ranks below `size`, from their notes.
pub fn rows_of(notes: &Notes, size: i32, width: usize) -> Vec<String> {
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
    let fits = groups.len() <= MAX_GROUPS && lines_of(&groups, width).len() <= MAX_LINES;
    table(if fits { groups } else { all(in_call_in_short) }, width)
}

/// A table of the groups, of those of most ranks if there are too many.
fn table(mut groups: Vec<(Ranks, Activity)>, width: usize) -> Vec<String> {
    let mut lines = lines_of(&groups, width);
    let mut count = groups.len();
    if count > MAX_GROUPS || lines.len() > MAX_LINES {
        // What most ranks do is shown, whichever ranks these are.
        groups.sort_by_key(|(ranks, _)| std::cmp::Reverse(ranks.len()));
        for fewer in (1..=count.min(MAX_GROUPS)).rev() {
            count = fewer;
            let mut shown = groups[..count].to_vec();
            shown.sort();
            lines = lines_of(&shown, width);
            if lines.len() <= MAX_LINES {
                break;
            }
        }
    }
    let hidden = &groups[count..];
    if !hidden.is_empty() {
        let ranks: Ranks = hidden.iter().flat_map(|(ranks, _)| ranks.iter()).collect();
        lines.push(format!("  {ranks}: {} other lines", hidden.len()));
    }
    lines
}

/// The lines of a table: one for each group if all fit, with the Python line at its end. Otherwise
/// the Python lines are below the activities.
fn lines_of(groups: &[(Ranks, Activity)], width: usize) -> Vec<String> {
    let length = |text: &str| text.chars().count();
    let rows: Vec<(String, &Activity)> = groups
        .iter()
        .map(|(ranks, activity)| (pad(&ranks.to_string()), activity))
        .collect();
    let widest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
    let first = widest(&mut rows.iter().map(|(ranks, _)| length(ranks)));
    let second = widest(
        &mut rows
            .iter()
            .filter(|(_, (_, line))| !line.is_empty())
            .map(|(_, (text, _))| length(text)),
    );
    let wide: Vec<String> = rows
        .iter()
        .map(|(ranks, (text, line))| {
            let row = format!("  {ranks:first$}   {text:second$}   {line}");
            row.trim_end().to_owned()
        })
        .collect();
    if wide.iter().all(|row| length(row) <= width) {
        return wide;
    }
    let first = widest(
        &mut rows
            .iter()
            .map(|(ranks, _)| length(ranks))
            .filter(|length| *length <= WIDEST_RANKS),
    );
    rows.iter()
        .flat_map(|(ranks, activity)| tall_row(ranks, activity, first, width))
        .collect()
}

/// The lines of one group: its ranks, the activity beside them, and the Python line below that.
fn tall_row(
    ranks: &str,
    (text, line): &Activity,
    first: usize,
    width: usize,
) -> impl Iterator<Item = String> {
    let margin = 2 + first + 3;
    let room = width.saturating_sub(margin);
    let mut lines = Vec::new();
    for (part, is_line) in [(text.clone(), false), (format!("at {line}"), true)] {
        if !(is_line && line.is_empty()) {
            lines.extend(wrap(&part, room));
        }
    }
    let heads = if ranks.chars().count() <= first {
        vec![format!("  {ranks:first$}   {}", lines.remove(0))]
    } else {
        let wrapped = wrap(ranks, width.saturating_sub(2)).into_iter();
        wrapped.map(|line| format!("  {line}")).collect()
    };
    let below = lines
        .into_iter()
        .map(move |line| format!("{}{line}", " ".repeat(margin)));
    heads.into_iter().chain(below)
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
    lines.extend(rows_of(notes, size, WIDTH));
    let findings = &diagnosis.findings;
    lines.extend(findings.iter().take(MAX_GROUPS).cloned());
    if findings.len() > MAX_GROUPS {
        lines.push("...".to_owned());
    }
    fit(&lines)
}

/// "rank 1", so that the number stands below that of "ranks 0-3".
fn pad(ranks: &str) -> String {
    ranks
        .strip_prefix("rank ")
        .map_or_else(|| ranks.to_owned(), |rank| format!("rank  {rank}"))
}
