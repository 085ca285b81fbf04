//! When ranks ask each other, and what follows.
//!
//! A rank that waits for long alarms rank 0, which asks all ranks for a note, and makes the report
//! of what comes back. Nobody waits for anybody here: [`Watcher::step`] gets what has come, and
//! says what to do.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::diagnosis::{
    DEADLOCK, Note, SETTLED, State, Traffic, diagnose, report, settled, unreceived,
};

/// What ranks say to each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// To rank 0: this rank has reason to ask all others.
    Alarm(Alarm),
    /// From rank 0: say what you do. Whether this is for a report of who waits.
    Ask {
        /// Which asking this is.
        round: u64,
        /// Whether it will be told to the user.
        is_report: bool,
    },
    /// The answer.
    Note {
        /// Which asking this is for.
        round: u64,
        /// What the rank does.
        note: Box<Note>,
    },
    /// To rank 0, from a rank that ends: the messages that it has sent and received, or nothing if
    /// it has failed.
    Traffic(Option<Traffic>),
}

/// Why a rank alarms the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Alarm {
    /// It has been in a call for long.
    Waiting,
    /// It has been in a call for so long that all shall end.
    Timeout,
    /// It ends with an error, or was interrupted in a call. If others wait for it, they do so in
    /// vain.
    Ending,
}

/// What users have set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Report a call after so many seconds.
    pub report_after: f64,
    /// End all ranks after so many seconds in a call.
    pub timeout: Option<f64>,
    /// End all ranks if they can't go on.
    pub end_deadlocks: bool,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send a message to a rank.
    Send(i32, Message),
    /// Print a text.
    Print(String),
    /// End all ranks with this exit code.
    Abort(i32),
}

/// Rank 0 waits so many seconds for notes.
pub const PATIENCE: f64 = 3.0;
/// A rank whose alarm is not heard for so many seconds reports for itself.
const HEARING: f64 = 3.0 * PATIENCE;
/// How long after an ending rank 0 asks for the first time, and how long at the most until it asks
/// again.
const FIRST_PAUSE: f64 = 1.2;
const LONGEST_PAUSE: f64 = 10.0;

/// More hosts are not named.
const MOST_HOSTS: usize = 8;

/// An asking under way, on rank 0.
struct Round {
    number: u64,
    reason: Alarm,
    started: f64,
    notes: BTreeMap<i32, Note>,
}

/// The part of one rank.
pub struct Watcher {
    rank: i32,
    size: i32,
    settings: Settings,
    /// The call of this rank that was reported last, by its number.
    reported: u64,
    /// The call that is past the timeout.
    timed_out: u64,
    /// Whether it has said that it ends.
    has_told_of_end: bool,
    /// When this rank alarmed rank 0, until it is asked.
    alarmed: Option<f64>,
    rounds: u64,
    round: Option<Round>,
    /// On rank 0: whether a round that is no report showed that there is something to report.
    is_report_due: bool,
    /// On rank 0: the calls, by rank and number, that were reported to be in a deadlock.
    told: HashSet<(i32, u64)>,
    /// On rank 0, after an ending or a report: when to ask again, and the pause after that.
    next_look: Option<(f64, f64)>,
    /// On rank 0: the messages of the ranks that have ended.
    traffic: BTreeMap<i32, Option<Traffic>>,
    /// On rank 0: the host of each rank.
    hosts: Vec<String>,
}

impl Watcher {
    /// The part of a rank.
    pub fn new(rank: i32, size: i32, settings: Settings) -> Self {
        Self {
            rank,
            size,
            settings,
            reported: 0,
            timed_out: 0,
            has_told_of_end: false,
            alarmed: None,
            rounds: 0,
            round: None,
            is_report_due: false,
            told: HashSet::new(),
            next_look: None,
            traffic: BTreeMap::new(),
            hosts: Vec::new(),
        }
    }

    /// Says where each rank runs.
    pub fn set_hosts(&mut self, hosts: Vec<String>) {
        self.hosts = hosts;
    }

    /// This rank has ended with these messages.
    pub fn end(&mut self, traffic: Option<Traffic>) -> Vec<Action> {
        if self.rank != 0 {
            return vec![Action::Send(0, Message::Traffic(traffic))];
        }
        let mut actions = Vec::new();
        self.note_traffic(0, traffic, &mut actions);
        actions
    }

    /// Whether all have said so that this rank listens to.
    pub fn knows_traffic(&self) -> bool {
        self.rank != 0 || self.traffic.len() == self.size as usize
    }

    fn note_traffic(&mut self, rank: i32, traffic: Option<Traffic>, actions: &mut Vec<Action>) {
        self.traffic.insert(rank, traffic);
        if self.knows_traffic() {
            let all: Option<Vec<Traffic>> = self.traffic.values().cloned().collect();
            actions.extend(all.and_then(|all| unreceived(&all)).map(Action::Print));
        }
    }

    /// Whether answers are expected soon.
    pub fn is_busy(&self) -> bool {
        self.round.is_some()
    }

    /// What this rank has reason to say, by the call that it is in.
    fn alarm(&mut self, note: &Note) -> Option<Alarm> {
        let has_failed = matches!(&note.state, State::Ended(end) if end.code != 0);
        if (has_failed || note.is_interrupted) && !self.has_told_of_end {
            self.has_told_of_end = true;
            return Some(Alarm::Ending);
        }
        let call = note.waiting()?;
        if self
            .settings
            .timeout
            .is_some_and(|limit| call.seconds >= limit)
            && call.number != self.timed_out
        {
            self.timed_out = call.number;
            return Some(Alarm::Timeout);
        }
        if call.seconds >= self.settings.report_after
            && call.number != self.reported
            && self.alarmed.is_none()
        {
            return Some(Alarm::Waiting);
        }
        None
    }

    /// Takes in what has come, at a time in seconds. `look` says in short what this rank does; the
    /// full note, which may take a while to make, is asked for where it is needed.
    pub fn step(
        &mut self,
        now: f64,
        messages: Vec<(i32, Message)>,
        brief: &Note,
        full: &dyn Fn() -> Note,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        for (from, message) in messages {
            match message {
                Message::Alarm(reason) => self.hear(now, reason, full, &mut actions),
                Message::Ask { round, is_report } => {
                    let note = Box::new(self.answer(is_report, full));
                    actions.push(Action::Send(from, Message::Note { round, note }));
                }
                Message::Note { round, note } => {
                    if let Some(open) = self.round.as_mut().filter(|open| open.number == round) {
                        open.notes.insert(from, *note);
                    }
                }
                Message::Traffic(traffic) => self.note_traffic(from, traffic, &mut actions),
            }
        }
        if let Some(reason) = self.alarm(brief) {
            self.alarmed = Some(now);
            if self.rank == 0 {
                self.hear(now, reason, full, &mut actions);
            } else {
                actions.push(Action::Send(0, Message::Alarm(reason)));
            }
        }
        if brief.waiting().is_none() {
            self.alarmed = None;
        }
        if self.alarmed.is_some_and(|since| now - since > HEARING) {
            self.alarmed = None;
            self.report_alone(full, &mut actions);
        }
        if let Some((when, pause)) = self.next_look
            && now >= when
            && self.round.is_none()
        {
            let longer = (1.5 * pause).min(LONGEST_PAUSE);
            self.next_look = Some((now + longer, longer));
            self.ask(now, Alarm::Ending, full, &mut actions);
        }
        self.close(now, &mut actions);
        if self.round.is_none() && std::mem::take(&mut self.is_report_due) {
            self.ask(now, Alarm::Waiting, full, &mut actions);
            self.close(now, &mut actions);
        }
        actions
    }

    /// The note of this rank. A call that is told to the user is not told again.
    fn answer(&mut self, is_report: bool, full: &dyn Fn() -> Note) -> Note {
        let note = full();
        if is_report {
            self.alarmed = None;
            self.reported = note.waiting().map_or(self.reported, |call| call.number);
        }
        note
    }

    /// Rank 0 has been alarmed.
    fn hear(
        &mut self,
        now: f64,
        reason: Alarm,
        full: &dyn Fn() -> Note,
        actions: &mut Vec<Action>,
    ) {
        if reason == Alarm::Ending {
            // Who waits for it may not have waited for long.
            self.next_look
                .get_or_insert((now + FIRST_PAUSE, FIRST_PAUSE));
            self.alarmed = None;
        } else if let Some(round) = &mut self.round {
            if reason == Alarm::Timeout {
                // The rank says so once only.
                round.reason = reason;
            } else if round.reason == Alarm::Ending {
                self.is_report_due = true;
            }
        } else {
            self.ask(now, reason, full, actions);
        }
    }

    fn ask(&mut self, now: f64, reason: Alarm, full: &dyn Fn() -> Note, actions: &mut Vec<Action>) {
        self.rounds += 1;
        let is_report = reason != Alarm::Ending;
        let (round, own) = (self.rounds, self.answer(is_report, full));
        for rank in 1..self.size {
            actions.push(Action::Send(rank, Message::Ask { round, is_report }));
        }
        self.round = Some(Round {
            number: round,
            reason,
            started: now,
            notes: [(0, own)].into(),
        });
    }

    /// Rank 0 has all notes, or has waited for them.
    fn close(&mut self, now: f64, actions: &mut Vec<Action>) {
        let is_complete = |round: &Round| {
            round.notes.len() == self.size as usize || now - round.started > PATIENCE
        };
        let Some(mut round) = self.round.take_if(|round| is_complete(round)) else {
            return;
        };
        let notes: Vec<Note> = (0..self.size)
            .map(|rank| round.notes.remove(&rank).unwrap_or_else(|| silent(rank)))
            .collect();
        let diagnosis = diagnose(&notes, settled(&notes, self.settings.report_after));
        let is_interrupted = notes.iter().any(|note| note.is_interrupted);
        let is_over = !diagnosis.stuck.is_empty() && self.settings.end_deadlocks || is_interrupted;
        let is_waiting = notes.iter().any(|note| note.waiting().is_some());
        if !is_over {
            // Who is awaited may come to its end later, or to a call that does not fit: the ranks
            // that wait don't alarm again.
            let is_fine = notes.iter().all(is_fine);
            let first = (now + FIRST_PAUSE, FIRST_PAUSE);
            self.next_look = (!is_fine).then(|| self.next_look.unwrap_or(first));
        }
        match round.reason {
            Alarm::Ending if !is_over => {
                self.is_report_due |= self.is_news(&notes);
                return;
            }
            // The waiting may be over by now.
            Alarm::Waiting if !is_waiting => return,
            _ => {}
        }
        let stuck = notes
            .iter()
            .filter(|note| diagnosis.stuck.contains(note.rank));
        self.told.extend(stuck.filter_map(call));
        let mut text = report(&notes, &diagnosis);
        if let Some(lost) = lost_hosts(&notes, &self.hosts) {
            text += &lost;
        }
        let code = match round.reason {
            _ if is_over => Some(diagnosis.exit_code),
            Alarm::Timeout => Some(DEADLOCK),
            _ => None,
        };
        if let Some(code) = code {
            text += &if is_interrupted {
                format!("ending all ranks with exit code {code}\n")
            } else if is_over {
                format!("this is a deadlock: ending all ranks with exit code {code}\n")
            } else {
                timed_out("all ranks", code)
            };
        } else if !diagnosis.stuck.is_empty() {
            text += "this is a deadlock: no rank can go on\n";
        }
        actions.push(Action::Print(text));
        actions.extend(code.map(Action::Abort));
    }

    /// Whether there is a deadlock that is not told, in a program that goes on nevertheless. Who
    /// waits for a rank in one that is told makes no other one.
    fn is_news(&self, notes: &[Note]) -> bool {
        let untold: Vec<Note> = notes
            .iter()
            .map(|note| match call(note) {
                Some(call) if self.told.contains(&call) => silent(note.rank),
                _ => note.clone(),
            })
            .collect();
        let report_after = self.settings.report_after;
        let stuck = diagnose(&untold, settled(&untold, report_after)).stuck;
        report_after.is_finite() && !stuck.is_empty()
    }

    /// Nobody listens to this rank.
    fn report_alone(&mut self, full: &dyn Fn() -> Note, actions: &mut Vec<Action>) {
        let note = self.answer(true, full);
        if note.waiting().is_none() {
            return;
        }
        let mut text = alone(note, "rank 0 does not answer");
        let is_over = self.settings.timeout.is_some() && self.timed_out == self.reported;
        if is_over {
            text += &timed_out("all ranks", DEADLOCK);
        }
        actions.push(Action::Print(text));
        if is_over {
            actions.push(Action::Abort(DEADLOCK));
        }
    }
}

/// The last line before an end that is no deadlock's.
pub fn timed_out(who: &str, code: i32) -> String {
    format!("MPI4JAX_TIMEOUT is over: ending {who} with exit code {code}\n")
}

/// The report of a rank that can't ask the others.
pub fn alone(note: Note, why: &str) -> String {
    let mut diagnosis = diagnose(std::slice::from_ref(&note), SETTLED);
    diagnosis.findings = vec![format!("what other ranks do is not known: {why}")];
    report(&[note], &diagnosis)
}

/// The hosts of which no rank answers, in a line.
fn lost_hosts(notes: &[Note], hosts: &[String]) -> Option<String> {
    let mut answers: BTreeMap<&str, bool> = BTreeMap::new();
    for (note, host) in notes.iter().zip(hosts) {
        *answers.entry(host).or_default() |= note.state != State::Silent;
    }
    let mut lost: Vec<String> = answers
        .into_iter()
        .filter_map(|(host, answers)| (!answers).then(|| host.to_owned()))
        .collect();
    let more = lost.len().saturating_sub(MOST_HOSTS);
    lost.truncate(MOST_HOSTS);
    if more > 0 {
        lost.push(format!("{more} other hosts"));
    }
    (!lost.is_empty()).then(|| format!("no rank on {} answers.\n", listed_or(&lost)))
}

/// "a, b or c".
fn listed_or(words: &[String]) -> String {
    match words {
        [one] => one.clone(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
        [] => String::new(),
    }
}

/// Whether a rank gives no reason to look again.
fn is_fine(note: &Note) -> bool {
    match &note.state {
        State::Waiting(call) => call.seconds < SETTLED,
        State::Ended(end) => end.code == 0,
        State::Elsewhere { .. } | State::Silent => true,
    }
}

/// The rank, and the number of the call that it is in.
fn call(note: &Note) -> Option<(i32, u64)> {
    Some((note.rank, note.waiting()?.number))
}

fn silent(rank: i32) -> Note {
    Note {
        rank,
        state: State::Silent,
        is_interrupted: false,
        counts: Vec::new(),
    }
}
