//! When ranks ask each other, and what follows.
//!
//! A rank that waits for long alarms rank 0, the leader, which asks all ranks for a note and makes the
//! report of what comes back. If rank 0 does not answer, another rank leads. Nobody waits for anybody
//! here: [`Watcher::step`] gets what has come, and says what to do.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::round::{Collection, Question, RoundId, position_above, rank_at};
use super::verdict::{Ruling, Verdict};
use crate::diagnosis::{
    Collective, DEADLOCK, Diagnosis, INTERRUPTED, Note, Notes, Ranks, SETTLED, Snapshot, State,
    Traffic, diagnose, fit, join_words, report, settling_time, unreceived,
};
use crate::recorder::Group;

/// A message between the watchers of two ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum WatcherMessage {
    /// On the way to a rank that leads: a rank has reason to ask all others.
    Alarm {
        /// The reason.
        reason: Alarm,
        /// The rank that is to ask.
        leader: i32,
    },
    /// Say what you do, and have others say it.
    Ask(Question),
    /// The question has come.
    Heard(RoundId),
    /// The answer.
    Answer {
        /// The round that this belongs to.
        round: RoundId,
        /// The notes of the ranks.
        notes: Notes,
    },
    /// To rank 0, from a rank that ends: the messages that it has sent and received, or nothing if
    /// it has failed.
    Traffic(Option<Traffic>),
}

/// Why a rank alarms the others. What comes later in this list is more urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Alarm {
    /// It ends with an error. If others wait for it, they do so in vain.
    Ending,
    /// It has been in a call for long.
    Waiting,
    /// It was interrupted in a call.
    Interrupted,
    /// It has been in a call for so long that all shall end.
    Timeout,
}

/// The settings of the user.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Settings {
    /// Report a call after so many seconds.
    pub report_after: f64,
    /// End all ranks after so many seconds in a call.
    pub timeout: Option<f64>,
    /// End all ranks if they can't go on.
    pub end_deadlocks: bool,
}

/// Something to be done after a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send a message to a rank.
    Send(i32, WatcherMessage),
    /// Print a text.
    Print(String),
    /// End all ranks with this exit code.
    Abort(i32),
}

/// The process of a watcher, as it sees itself.
pub trait WatchedProcess {
    /// Its calls in progress: their ids, and for how many seconds it has seen them.
    fn calls(&self) -> &[(u64, f64)];
    /// Whether it ends, or has ended, with an error.
    fn fails(&self) -> bool;
    /// How often it was interrupted in a call, where Python can't handle that.
    fn interrupts(&self) -> u32;
    /// Its note, with the groups of the communicators in it. It may take a while to find out the state
    /// of Python's threads: until then there is none, and the process is asked again.
    fn note(&mut self, about: &[Collective]) -> Option<(Note, Vec<Group>)>;
}

/// A rank whose alarm is not heard for so many seconds alarms another leader.
const HEARING: f64 = 9.0;
/// How long after an ending the leader asks for the first time, and how long at the most until it
/// asks again.
const FIRST_PAUSE: f64 = 1.2;
const LONGEST_PAUSE: f64 = 10.0;
/// In large jobs it is so many seconds for each rank.
const PAUSE_PER_RANK: f64 = 0.01;

/// A leader that has not asked for so many of these, and for the time after which calls are reported, is
/// lost.
const LOST_AFTER: f64 = 6.0;

/// About how many collective calls all ranks are asked at most.
const MOST_QUESTIONS: usize = 8;
/// How many hosts are named.
const MOST_HOSTS: usize = 8;

/// An alarm that this rank has given, and that was not followed by a question yet.
struct Unheard {
    reason: Alarm,
    since: f64,
    /// How many leaders were tried.
    attempts: usize,
}

/// An asking under way, of this rank as the leader.
struct Round {
    reason: Alarm,
    begin: f64,
    collection: Collection,
}

/// The watcher of one rank.
#[derive(Default)]
pub struct Watcher {
    rank: i32,
    size: i32,
    settings: Settings,
    /// The time of the step.
    now: f64,
    /// The actions that whoever runs the step has to carry out.
    actions: Vec<Action>,
    /// The calls of this rank that were reported, of those in progress.
    reported: HashSet<u64>,
    /// The call that is past the timeout.
    timed_out: u64,
    has_told_of_end: bool,
    interrupts: u32,
    unheard: Option<Unheard>,
    /// When alarms to each leader were passed on last.
    passed_on: HashMap<(i32, Alarm), f64>,
    /// The notes that it collects for others.
    collections: Vec<Collection>,
    rounds: u64,
    round: Option<Round>,
    /// As the leader: the reason for the next round.
    due: Option<Alarm>,
    /// As the leader: the calls, by rank and id, that were reported to be in a deadlock.
    told: HashSet<(i32, u64)>,
    /// As the leader: the proof that ends all ranks if it is the same again.
    verdict: Verdict,
    /// When this rank was asked last.
    asked: f64,
    /// As the leader, after an ending or a report: when to ask again, and the pause after that.
    next_look: Option<(f64, f64)>,
    /// On rank 0: the messages of the ranks that have ended.
    traffic: BTreeMap<i32, Option<Traffic>>,
    /// On rank 0: the host of each rank.
    hosts: Vec<String>,
}

impl Watcher {
    /// The watcher of a rank.
    pub fn new(rank: i32, size: i32, settings: Settings) -> Self {
        Self {
            rank,
            size,
            settings,
            ..Self::default()
        }
    }

    /// Says where each rank runs.
    pub fn set_hosts(&mut self, hosts: Vec<String>) {
        self.hosts = hosts;
    }

    /// This rank has ended with these messages.
    pub fn end(&mut self, traffic: Option<Traffic>) -> Vec<Action> {
        if self.rank == 0 {
            self.note_traffic(0, traffic);
        } else {
            self.send(0, WatcherMessage::Traffic(traffic));
        }
        std::mem::take(&mut self.actions)
    }

    fn end_all(&mut self, why: &str, code: i32) {
        let text = format!("mpi4jax: {}\n", ending_text(why, code));
        self.actions
            .extend([Action::Print(text), Action::Abort(code)]);
    }

    fn send(&mut self, rank: i32, message: WatcherMessage) {
        self.actions.push(Action::Send(rank, message));
    }

    /// Whether this rank waits for no more messages about traffic.
    pub fn knows_traffic(&self) -> bool {
        self.rank != 0 || self.traffic.len() == self.size as usize
    }

    fn note_traffic(&mut self, rank: i32, traffic: Option<Traffic>) {
        self.traffic.insert(rank, traffic);
        if self.knows_traffic() {
            let all: Option<Vec<Traffic>> = self.traffic.values().cloned().collect();
            let report = all.and_then(|all| unreceived(&all));
            self.actions.extend(report.map(Action::Print));
        }
    }

    /// Whether answers are expected soon.
    pub fn is_busy(&self) -> bool {
        self.round.is_some() || !self.collections.is_empty()
    }

    /// Takes messages in at a time in seconds, and says what is to be done.
    pub fn step(
        &mut self,
        now: f64,
        messages: Vec<(i32, WatcherMessage)>,
        process: &mut dyn WatchedProcess,
    ) -> Vec<Action> {
        self.now = now;
        for (from, message) in messages {
            self.receive(from, message, process);
        }
        if now - self.asked > self.settings.report_after + LOST_AFTER * self.longest_pause() {
            // The leader that was told has asked no more: it is lost, and another one has to lead.
            self.reported.clear();
        }
        let calls = process.calls();
        self.reported
            .retain(|id| calls.iter().any(|call| call.0 == *id));
        if calls.is_empty() {
            self.unheard = None;
        }
        if let Some(reason) = self.alarm(process) {
            self.unheard = Some(Unheard {
                reason,
                since: now,
                attempts: 0,
            });
            self.give_alarm();
        } else if self
            .unheard
            .as_ref()
            .is_some_and(|alarm| now - alarm.since > HEARING)
        {
            self.give_alarm();
        }
        if process.interrupts() > self.interrupts.max(1) {
            // The report was made when it was interrupted first.
            self.end_all("interrupted again", INTERRUPTED);
        }
        self.interrupts = process.interrupts();
        if let Some((when, pause)) = self.next_look
            && now >= when
            && self.round.is_none()
        {
            let longer = (1.5 * pause).min(self.longest_pause());
            self.next_look = Some((now + longer, longer));
            self.due.get_or_insert(Alarm::Ending);
        }
        if self.round.is_none()
            && let Some(reason) = self.due.take()
        {
            self.begin_round(reason, Vec::new(), process);
        }
        self.collect(process);
        std::mem::take(&mut self.actions)
    }

    /// How long the leader waits at most until it looks again.
    fn longest_pause(&self) -> f64 {
        LONGEST_PAUSE.max(PAUSE_PER_RANK * f64::from(self.size))
    }

    fn receive(&mut self, from: i32, message: WatcherMessage, process: &dyn WatchedProcess) {
        match message {
            WatcherMessage::Alarm { reason, leader } if leader == self.rank => self.hear(reason),
            WatcherMessage::Alarm { reason, leader } => self.pass_on(reason, leader),
            WatcherMessage::Ask(question) => {
                self.send(from, WatcherMessage::Heard(question.round));
                let collection = self.begin_collection(question, Some(from), process);
                self.collections.push(collection);
            }
            WatcherMessage::Heard(round) => {
                if let Some(collection) = self.collection_of(round) {
                    collection.hear(from);
                }
            }
            WatcherMessage::Answer { round, notes } => {
                if let Some(collection) = self.collection_of(round) {
                    collection.add(from, notes);
                }
            }
            WatcherMessage::Traffic(traffic) => self.note_traffic(from, traffic),
        }
    }

    fn collection_of(&mut self, round: RoundId) -> Option<&mut Collection> {
        let led = self.round.as_mut().map(|round| &mut round.collection);
        let mut all = self.collections.iter_mut().chain(led);
        all.find(|collection| collection.question().round == round)
    }

    /// The alarm that this rank has reason to give, by the calls that it is in.
    fn alarm(&mut self, process: &dyn WatchedProcess) -> Option<Alarm> {
        if process.fails() && !self.has_told_of_end {
            self.has_told_of_end = true;
            return Some(Alarm::Ending);
        }
        if process.interrupts() > 0
            && self.interrupts == 0
            && self.settings.report_after.is_finite()
        {
            return Some(Alarm::Interrupted);
        }
        let calls = process.calls();
        let (oldest, seconds) = *calls.first()?;
        if self.settings.timeout.is_some_and(|limit| seconds >= limit) && oldest != self.timed_out {
            self.timed_out = oldest;
            return Some(Alarm::Timeout);
        }
        let is_news = |(id, seconds): &(u64, f64)| {
            *seconds >= self.settings.report_after && !self.reported.contains(id)
        };
        (calls.iter().any(is_news) && self.unheard.is_none()).then_some(Alarm::Waiting)
    }

    /// The rank above in the tree of a leader.
    fn rank_above(&self, leader: i32) -> i32 {
        let position = (self.rank - leader).rem_euclid(self.size);
        rank_at(position_above(position, self.size), leader, self.size)
    }

    /// Alarms the next one of those that may lead.
    fn give_alarm(&mut self) {
        let along_tree = (self.rank != 0 && self.rank_above(0) != 0).then_some(0);
        let Some(unheard) = &mut self.unheard else {
            return;
        };
        let (reason, attempts) = (unheard.reason, unheard.attempts);
        unheard.since = self.now;
        unheard.attempts += 1;
        // Along the tree, so that rank 0 does not hear of all at once; then directly; then others.
        let others = (0..31).map(|power| 1 << power);
        let mut leaders = along_tree.into_iter().chain([0]).chain(others);
        let leader = leaders.nth(attempts).unwrap_or(self.rank).min(self.rank);
        if leader == self.rank {
            self.hear(reason);
            self.unheard = None;
        } else if attempts == 0 {
            self.pass_on(reason, leader);
        } else {
            self.send(leader, WatcherMessage::Alarm { reason, leader });
        }
    }

    /// Passes an alarm on to the leader, but not each of many.
    fn pass_on(&mut self, reason: Alarm, leader: i32) {
        let last = self.passed_on.get(&(leader, reason));
        if last.is_some_and(|last| self.now - last < HEARING / 2.0) {
            return;
        }
        self.passed_on.insert((leader, reason), self.now);
        let above = self.rank_above(leader);
        self.send(above, WatcherMessage::Alarm { reason, leader });
    }

    /// This rank is the leader, and was alarmed.
    fn hear(&mut self, reason: Alarm) {
        if reason == Alarm::Ending {
            // The ranks that wait for it may not have waited for long.
            self.next_look
                .get_or_insert((self.now + FIRST_PAUSE, FIRST_PAUSE));
            self.unheard = None;
            return;
        }
        match &mut self.round {
            // Ranks say so once only.
            Some(round) if round.reason != Alarm::Ending => round.reason = round.reason.max(reason),
            _ => self.due = self.due.max(Some(reason)),
        }
    }

    /// This rank is asked, by another one or itself, and asks others. A call that is told to the user is
    /// not told again.
    fn begin_collection(
        &mut self,
        question: Question,
        asked_by: Option<i32>,
        process: &dyn WatchedProcess,
    ) -> Collection {
        self.asked = self.now;
        if question.is_report {
            let is_urgent = |alarm: &Unheard| alarm.reason == Alarm::Timeout;
            self.unheard = self.unheard.take().filter(is_urgent);
            let ids = process.calls().iter().map(|call| call.0);
            self.reported.extend(ids);
        }
        let mut collection = Collection::new(question, asked_by, self.size, self.now);
        ask(collection.ask_others(self.now), &mut self.actions);
        collection
    }

    fn begin_round(&mut self, reason: Alarm, about: Vec<Collective>, process: &dyn WatchedProcess) {
        self.rounds += 1;
        let question = Question {
            round: RoundId {
                leader: self.rank,
                index: self.rounds,
            },
            range: (0, self.size),
            is_report: reason != Alarm::Ending,
            about,
        };
        self.round = Some(Round {
            reason,
            begin: self.now,
            collection: self.begin_collection(question, None, process),
        });
    }

    /// Goes on with what it collects, for itself and for others.
    fn collect(&mut self, process: &mut dyn WatchedProcess) {
        let (rank, now) = (self.rank, self.now);
        let led = self.round.as_mut().map(|round| &mut round.collection);
        let mut done = Vec::new();
        for collection in self.collections.iter_mut().chain(led) {
            if collection.lacks_own_note()
                && let Some((note, groups)) = process.note(&collection.question().about)
            {
                collection.add_own_note(|notes| notes.add(rank, note, groups));
            }
            ask(collection.give_up(now), &mut self.actions);
            if let Some(notes) = collection.take_if_complete(now) {
                done.push((collection.asked_by, collection.question().clone(), notes));
            }
        }
        for (asked_by, question, notes) in done {
            let round = question.round;
            if let Some(to) = asked_by {
                self.collections
                    .retain(|collection| collection.question() != &question);
                self.send(to, WatcherMessage::Answer { round, notes });
            } else if let Some(round) = self.round.take() {
                self.end_round(&round, &notes, process);
            }
        }
    }

    /// All notes are there that come.
    fn end_round(&mut self, round: &Round, notes: &Notes, process: &dyn WatchedProcess) {
        let (reason, about) = (round.reason, &round.collection.question().about);
        let snapshot = Snapshot::new(notes, self.size, about);
        if about.is_empty() {
            let about = snapshot.questions(MOST_QUESTIONS);
            if !about.is_empty() {
                self.begin_round(reason, about, process);
                return;
            }
        }
        let diagnosis = diagnose(&snapshot, settling_time(notes, self.settings.report_after));
        let is_deadlock = !diagnosis.stuck.is_empty() && self.settings.end_deadlocks;
        if is_deadlock && (reason == Alarm::Timeout || fails_anyway(notes)) {
            self.tell(reason, notes, &diagnosis, true);
            return;
        }
        let mut is_news = self.rule(round.begin, is_deadlock, notes, &diagnosis);
        is_news |= match reason {
            Alarm::Ending => self.is_news(notes, about),
            // The waiting may be over by now.
            Alarm::Waiting => snapshot.calls().next().is_some(),
            Alarm::Interrupted | Alarm::Timeout => true,
        };
        match reason {
            // All ranks note then that they were reported.
            Alarm::Ending if is_news => self.due = self.due.max(Some(Alarm::Waiting)),
            _ if is_news => self.tell(reason, notes, &diagnosis, false),
            _ => {}
        }
        // A rank that is awaited may come to its end later, or to a call that does not fit: the
        // ranks that wait don't alarm again.
        let is_fine = notes.iter().all(|(_, note)| is_fine(note));
        let due = self.verdict.due(self.settings.report_after);
        let first_look = (self.now + FIRST_PAUSE, FIRST_PAUSE);
        let (mut when, pause) = self.next_look.unwrap_or(first_look);
        if let Some(due) = due.filter(|due| *due > self.now) {
            when = when.min(due);
        }
        self.next_look = (!is_fine || due.is_some()).then_some((when, pause));
    }

    /// Ends all ranks if nothing has moved since that was announced, or says what has. Gives whether it
    /// is to be announced.
    fn rule(
        &mut self,
        asked: f64,
        is_deadlock: bool,
        notes: &Notes,
        diagnosis: &Diagnosis,
    ) -> bool {
        if !self.settings.end_deadlocks {
            return false;
        }
        let wait = self.settings.report_after;
        match self.verdict.consider(asked, notes, &diagnosis.stuck, wait) {
            Ruling::Wait => false,
            Ruling::Announce => is_deadlock,
            Ruling::End => {
                let why = format!("nothing has moved for {wait} s");
                self.end_all(&why, diagnosis.exit_code);
                false
            }
            Ruling::Withdraw(moved) => {
                let text = format!("mpi4jax: something moved on {moved}: nothing is ended");
                self.actions.push(Action::Print(fit(&[text])));
                false
            }
        }
    }

    /// Prints the report, and ends all ranks if there is reason to.
    fn tell(&mut self, reason: Alarm, notes: &Notes, diagnosis: &Diagnosis, is_over: bool) {
        for (ranks, note) in notes.iter() {
            let stuck = ranks.iter().filter(|rank| diagnosis.stuck.contains(*rank));
            let calls = stuck.flat_map(|rank| note.calls().iter().map(move |call| (rank, call.id)));
            self.told.extend(calls);
        }
        let mut text = report(notes, self.size, diagnosis);
        text.extend(lost_hosts(notes, &self.hosts));
        let mut code = None;
        if is_over {
            code = Some(diagnosis.exit_code);
            text += &format!(
                "{}\n",
                ending_text("this is a deadlock", diagnosis.exit_code)
            );
        } else if reason == Alarm::Timeout {
            code = Some(DEADLOCK);
            text += &timeout_text("all ranks", DEADLOCK);
        } else if !diagnosis.stuck.is_empty() && self.settings.end_deadlocks {
            self.verdict.announce(self.now);
            let wait = self.settings.report_after;
            text += &format!(
                "this is a deadlock: ending all ranks in {wait} s unless something moves\n"
            );
        } else if !diagnosis.stuck.is_empty() {
            text += "this is a deadlock: no rank can go on\n";
        }
        if code.is_none() && reason == Alarm::Interrupted {
            text += "Ctrl-C again ends all ranks\n";
        }
        self.actions.push(Action::Print(text));
        self.actions.extend(code.map(Action::Abort));
    }

    /// Whether there is a deadlock that is not reported, in a program that goes on nevertheless. A
    /// rank that waits for one in a reported deadlock makes no other one.
    fn is_news(&self, notes: &Notes, about: &[Collective]) -> bool {
        if !self.settings.report_after.is_finite() {
            return false;
        }
        let is_told = |rank: i32, note: &Note| {
            let mut calls = note.calls().iter();
            calls.any(|call| self.told.contains(&(rank, call.id)))
        };
        let untold = notes.without(is_told);
        let snapshot = Snapshot::new(&untold, self.size, about);
        let settled = settling_time(&untold, self.settings.report_after);
        !diagnose(&snapshot, settled).stuck.is_empty()
    }
}

fn ask(questions: Vec<(i32, Question)>, actions: &mut Vec<Action>) {
    let messages = questions.into_iter();
    actions
        .extend(messages.map(|(rank, question)| Action::Send(rank, WatcherMessage::Ask(question))));
}

/// The last line before an end.
fn ending_text(why: &str, code: i32) -> String {
    format!("{why}: ending all ranks with exit code {code}")
}

/// The last line before an end that is no deadlock's.
pub fn timeout_text(who: &str, code: i32) -> String {
    format!("MPI4JAX_TIMEOUT is over: ending {who} with exit code {code}\n")
}

/// The report of a rank that can't ask the others.
pub fn report_alone(rank: i32, note: Note, why: &str) -> String {
    let mut notes = Notes::default();
    notes.add(rank, note, []);
    let diagnosis = Diagnosis {
        findings: vec![format!("what other ranks do is not known: {why}")],
        stuck: Ranks::default(),
        exit_code: DEADLOCK,
    };
    report(&notes, 1, &diagnosis)
}

/// The hosts of which no rank answers, in a line.
fn lost_hosts(notes: &Notes, hosts: &[String]) -> Option<String> {
    let mut answers: BTreeMap<&str, bool> = BTreeMap::new();
    for (note, host) in notes.by_rank(hosts.len() as i32).into_iter().zip(hosts) {
        *answers.entry(host).or_default() |= note.state != State::Silent;
    }
    let mut lost: Vec<String> = answers
        .into_iter()
        .filter(|(_, answers)| !answers)
        .map(|(host, _)| host.to_owned())
        .collect();
    let more = lost.len().saturating_sub(MOST_HOSTS);
    lost.truncate(MOST_HOSTS);
    if more > 0 {
        lost.push(format!("{more} other hosts"));
    }
    let sentence = || format!("no rank on {} answers.", join_words(&lost, "or"));
    (!lost.is_empty()).then(|| fit(&[sentence()]))
}

/// Whether a rank has failed, has ended or was interrupted: the others do not wait for long then.
fn fails_anyway(notes: &Notes) -> bool {
    let mut notes = notes.iter();
    notes.any(|(_, note)| note.is_interrupted || note.end().is_some())
}

/// Whether a rank gives no reason to look again.
fn is_fine(note: &Note) -> bool {
    let is_waiting = note.seconds().is_some_and(|seconds| seconds >= SETTLED);
    !is_waiting && note.end().is_none_or(|end| end.code == 0)
}
