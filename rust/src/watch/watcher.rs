//! Watcher of a rank, which decides when to ask all ranks, and acts on their notes.
//!
//! A rank that waits for long alarms rank 0, the leader. The leader asks all ranks for a note and makes
//! the report from the answers. If rank 0 does not answer, another rank leads. Nothing here blocks:
//! [`Watcher::step`] takes the events since the last step and returns the actions to carry out.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::round::{Collection, Failure, Question, RoundId, position_above, rank_at};
use super::verdict::{Ruling, Verdict};
use crate::diagnosis::{
    Collective, DEADLOCK, Diagnosis, End, INTERRUPTED, Note, Notes, Ranks, SETTLED, Snapshot,
    State, Traffic, diagnose, fit, join_words, report, settling_time, unreceived,
};
use crate::recorder::Group;

/// Message between the watchers of two ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum WatcherMessage {
    /// Alarm for a leader, which may pass through other ranks.
    Alarm {
        /// Reason to ask all ranks.
        reason: Alarm,
        /// Rank that is to ask.
        leader: i32,
    },
    /// Request for the notes of a range of ranks.
    Ask(Question),
    /// Answer to a question.
    Answer {
        /// Round of the question.
        round: RoundId,
        /// Notes of the ranks.
        notes: Notes,
    },
    /// Greeting by which a rank announces its address to the rank above.
    Hello,
    /// Order to end all ranks with an exit code, from a leader in `MPI_Finalize`, which must not call MPI.
    Abort(i32),
    /// Messages that a rank has sent and received, from that rank at its end to rank 0. `None` if the rank
    /// has failed.
    Traffic(Option<Traffic>),
}

/// Reason of an alarm. Later ones in this list are more urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Alarm {
    /// The rank ends with an error: others may wait for it in vain.
    Ending,
    /// The rank has been in a call for longer than `report_after`.
    Waiting,
    /// The rank was interrupted in a call.
    Interrupted,
    /// The rank has been in a call for longer than the timeout: all ranks shall end.
    Timeout,
}

/// Settings of the user.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Settings {
    /// Seconds after which a call is reported.
    pub report_after: f64,
    /// Seconds in a call after which all ranks are ended.
    pub timeout: Option<f64>,
    /// Whether to end all ranks in a deadlock.
    pub end_deadlocks: bool,
}

/// Input of a watcher's step.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A message has arrived.
    Received {
        /// Sender.
        from: i32,
        /// The message.
        message: WatcherMessage,
    },
    /// A message of this rank could not be delivered.
    Undelivered {
        /// Destination.
        to: i32,
        /// The message.
        message: WatcherMessage,
        /// Reason.
        failure: Failure,
    },
}

/// Output of a watcher's step, which the caller carries out.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send a message to a rank.
    Send(i32, WatcherMessage),
    /// Print a text.
    Print(String),
    /// End all ranks with this exit code.
    Abort(i32),
}

/// Process that a watcher watches.
pub trait WatchedProcess {
    /// Ids of the calls in progress, with the seconds for which they were observed.
    fn calls(&self) -> &[(u64, f64)];
    /// End of the program, if it ends or has ended.
    fn end(&self) -> Option<&End>;
    /// Whether the process is in `MPI_Finalize`, so that the watcher must not call MPI.
    fn is_finalised(&self) -> bool;
    /// Whether the program ends, or has ended, with an error.
    fn fails(&self) -> bool {
        self.end().is_some_and(|end| end.code != 0)
    }
    /// Number of interrupts in a call that Python can't handle.
    fn interrupts(&self) -> u32;
    /// Note of the process, with the groups of the communicators in it. `None` until Python has told the
    /// state of its threads: the watcher asks again.
    fn note(&mut self, about: &[Collective]) -> Option<(Note, Vec<Group>)>;
}

/// Seconds after which a rank whose alarm had no effect alarms another leader.
const HEARING: f64 = 9.0;
/// Seconds from an ending to the leader's first look, and the longest pause between further looks.
const FIRST_PAUSE: f64 = 1.2;
const LONGEST_PAUSE: f64 = 10.0;
/// Seconds per rank of the longest pause, in large jobs.
const PAUSE_PER_RANK: f64 = 0.01;

/// Number of longest pauses, added to `report_after`, for which a leader may not ask before it counts as
/// lost.
const LOST_AFTER: f64 = 6.0;

/// Largest number of collective calls whose attendance a round asks for.
const MAX_QUESTIONS: usize = 8;
/// Largest number of hosts that a report names.
const MAX_HOSTS: usize = 8;

/// Seconds between two attempts to send the own traffic to rank 0.
const TRAFFIC_PAUSE: f64 = 0.5;
/// Pause in seconds after the first attempt to greet the rank above, and the longest one.
const FIRST_GREETING: f64 = 0.1;
const LONGEST_GREETING: f64 = 30.0;
/// Seconds after which a rank that can't ask others prints that it has failed.
const FAILED_ALONE: f64 = 2.0;

/// Alarm of this rank that no question has followed yet.
struct Unheard {
    reason: Alarm,
    since: f64,
    /// Number of leaders tried.
    attempts: usize,
}

/// Round in progress, of which this rank is the leader.
struct Round {
    reason: Alarm,
    begin: f64,
    collection: Collection,
}

/// Watcher of one rank.
#[derive(Default)]
pub struct Watcher {
    rank: i32,
    size: i32,
    settings: Settings,
    /// Time of the step.
    now: f64,
    /// Actions that the step returns.
    actions: Vec<Action>,
    /// Calls in progress that were reported.
    reported: HashSet<u64>,
    /// Call that is past the timeout.
    timed_out: u64,
    has_told_of_end: bool,
    interrupts: u32,
    unheard: Option<Unheard>,
    /// Time at which an alarm was last passed on, by leader and reason.
    passed_on: HashMap<(i32, Alarm), f64>,
    /// Collections for other ranks.
    collections: Vec<Collection>,
    rounds: u64,
    round: Option<Round>,
    /// As the leader: reason for the next round.
    due: Option<Alarm>,
    /// As the leader: calls, by rank and id, that were reported as stuck in a deadlock.
    told: HashSet<(i32, u64)>,
    /// As the leader: proof that ends all ranks when it is repeated.
    verdict: Verdict,
    /// Time at which this rank was last asked.
    asked: f64,
    /// As the leader, after an ending or a report: time of the next look, and the pause after it.
    next_look: Option<(f64, f64)>,
    /// On rank 0: messages of the ranks that have ended.
    traffic: BTreeMap<i32, Option<Traffic>>,
    /// Host of this rank.
    host: String,
    /// Time of the next greeting to the rank above, until one is delivered.
    next_greeting: Option<f64>,
    /// Time of the next attempt to send the own traffic to rank 0, which was not there yet, and the
    /// message.
    next_traffic: Option<(f64, WatcherMessage)>,
    /// Pause after a failed greeting.
    greeting_pause: f64,
    /// Reason why this rank can't ask others, if any.
    isolation: Option<String>,
    /// Time at which this rank has failed while it can't ask others.
    failed_alone: Option<f64>,
    has_told_of_failure: bool,
}

impl Watcher {
    /// Watcher of a rank on a host.
    pub fn new(rank: i32, size: i32, host: &str, settings: Settings) -> Self {
        Self {
            rank,
            size,
            settings,
            host: host.to_owned(),
            next_greeting: (rank != 0).then_some(0.0),
            greeting_pause: FIRST_GREETING,
            ..Self::default()
        }
    }

    /// Sets the reason why this rank can't ask others, or `None` if it can.
    pub fn set_isolation(&mut self, why: Option<String>) {
        self.isolation = why;
    }

    /// Notes that this rank has ended, with the messages that it has sent and received.
    pub fn end(&mut self, traffic: Option<Traffic>) -> Vec<Action> {
        if self.rank == 0 {
            self.note_traffic(0, traffic);
        } else {
            self.send(0, WatcherMessage::Traffic(traffic));
        }
        std::mem::take(&mut self.actions)
    }

    fn end_all(&mut self, why: &str, code: i32, executor: Option<i32>) {
        let text = format!("mpi4jax: {}\n", ending_text(why, code));
        self.actions.push(Action::Print(text));
        self.abort(code, executor);
    }

    /// Ends all ranks, or orders the rank `executor` to do so.
    fn abort(&mut self, code: i32, executor: Option<i32>) {
        self.actions.push(match executor {
            Some(rank) => Action::Send(rank, WatcherMessage::Abort(code)),
            None => Action::Abort(code),
        });
    }

    fn send(&mut self, rank: i32, message: WatcherMessage) {
        self.actions.push(Action::Send(rank, message));
    }

    /// Whether this rank awaits no more `Traffic` messages.
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

    /// Whether all that this rank had to send at its end was delivered.
    pub fn has_taken_leave(&self) -> bool {
        self.next_traffic.is_none()
    }

    /// Whether answers are expected soon.
    pub fn is_busy(&self) -> bool {
        self.round.is_some() || !self.collections.is_empty()
    }

    /// Processes events at a time in seconds, and returns the actions to carry out.
    pub fn step(
        &mut self,
        now: f64,
        events: Vec<Event>,
        process: &mut dyn WatchedProcess,
    ) -> Vec<Action> {
        self.now = now;
        for event in events {
            match event {
                Event::Received { from, message } => self.receive(from, message, process),
                Event::Undelivered {
                    to,
                    message,
                    failure,
                } => self.try_otherwise(to, message, failure),
            }
        }
        if let Some((_, message)) = self.next_traffic.take_if(|(when, _)| now >= *when) {
            self.send(0, message);
        }
        if self.next_greeting.is_some_and(|when| now >= when) {
            self.next_greeting = None;
            self.send(self.rank_above(0), WatcherMessage::Hello);
        }
        if now - self.asked > self.settings.report_after + LOST_AFTER * self.longest_pause() {
            // The leader that has reported these calls asks no more, so another rank has to lead.
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
            // The first interrupt made a report.
            self.end_all("interrupted again", INTERRUPTED, None);
        }
        self.fail_alone(process);
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

    /// Longest pause in seconds between two looks of the leader.
    fn longest_pause(&self) -> f64 {
        LONGEST_PAUSE.max(PAUSE_PER_RANK * f64::from(self.size))
    }

    fn receive(&mut self, from: i32, message: WatcherMessage, process: &dyn WatchedProcess) {
        match message {
            WatcherMessage::Alarm { reason, leader } if leader == self.rank => self.hear(reason),
            WatcherMessage::Alarm { reason, leader } => self.pass_on(reason, leader),
            WatcherMessage::Ask(question) => {
                let collection = self.begin_collection(question, Some(from), process);
                self.collections.push(collection);
            }
            WatcherMessage::Answer { round, notes } => {
                if let Some(collection) = self.collection_of(round) {
                    collection.add(from, notes);
                }
            }
            WatcherMessage::Traffic(traffic) => self.note_traffic(from, traffic),
            WatcherMessage::Abort(code) => self.abort(code, None),
            WatcherMessage::Hello => {}
        }
    }

    /// Reacts to a message that could not be delivered.
    fn try_otherwise(&mut self, to: i32, message: WatcherMessage, failure: Failure) {
        match message {
            WatcherMessage::Ask(question) => {
                let now = self.now;
                if let Some(collection) = self.collection_of(question.round) {
                    let questions = collection.lose(to, failure, now);
                    ask(questions, &mut self.actions);
                }
            }
            // The alarm was sent along the tree: now it is sent directly.
            WatcherMessage::Alarm { leader, .. } if leader != to => self.send(leader, message),
            WatcherMessage::Alarm { reason, leader } => {
                let next = if leader == 0 { 1 } else { 2 * leader };
                self.alarm_leader(reason, next);
            }
            WatcherMessage::Hello => {
                self.next_greeting = Some(self.now + self.greeting_pause);
                self.greeting_pause = (2.0 * self.greeting_pause).min(LONGEST_GREETING);
            }
            WatcherMessage::Abort(code) => self.abort(code, None),
            // A rank can be at its end before rank 0 has made its first call.
            WatcherMessage::Traffic(_) => {
                self.next_traffic = Some((self.now + TRAFFIC_PAUSE, message));
            }
            WatcherMessage::Answer { .. } => {}
        }
    }

    /// Ends all ranks some time after this rank has failed, if it can't ask whether they wait for it.
    fn fail_alone(&mut self, process: &dyn WatchedProcess) {
        let (Some(why), Some(end)) = (&self.isolation, process.end()) else {
            return;
        };
        let Settings {
            report_after: wait,
            end_deadlocks,
            ..
        } = self.settings;
        if end.code == 0 || !end_deadlocks || self.size == 1 {
            return;
        }
        let is_first = self.failed_alone.is_none();
        let since = *self.failed_alone.get_or_insert(self.now);
        let rank = self.rank;
        // Where all ranks fail, the program is over by then.
        let told_after = FAILED_ALONE.min(wait);
        if !is_first && !self.has_told_of_failure && self.now - since >= told_after {
            self.has_told_of_failure = true;
            let text = format!(
                "mpi4jax: rank {rank} has failed ({}), and can't ask others whether they wait for \
                 it: {why}. Ending all ranks in {wait} s",
                end.reason
            );
            self.actions.push(Action::Print(fit(&[text])));
        }
        if self.now - since >= told_after + wait {
            let code = end.code;
            self.failed_alone = Some(f64::INFINITY);
            self.end_all(&format!("rank {rank} has failed"), code, None);
        }
    }

    fn collection_of(&mut self, round: RoundId) -> Option<&mut Collection> {
        let led = self.round.as_mut().map(|round| &mut round.collection);
        let mut all = self.collections.iter_mut().chain(led);
        all.find(|collection| collection.question().round == round)
    }

    /// Alarm for which this rank has a new reason, if any.
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

    /// Rank above this one in the tree of a leader.
    fn rank_above(&self, leader: i32) -> i32 {
        let position = (self.rank - leader).rem_euclid(self.size);
        rank_at(position_above(position, self.size), leader, self.size)
    }

    /// Alarms the next rank that may lead.
    fn give_alarm(&mut self) {
        let along_tree = (self.rank != 0 && self.rank_above(0) != 0).then_some(0);
        let Some(unheard) = &mut self.unheard else {
            return;
        };
        let (reason, attempts) = (unheard.reason, unheard.attempts);
        unheard.since = self.now;
        unheard.attempts += 1;
        // First along the tree, so that rank 0 does not hear from all at once; then rank 0 directly; then
        // other ranks.
        let others = (0..31).map(|power| 1 << power);
        let mut leaders = along_tree.into_iter().chain([0]).chain(others);
        let leader = leaders.nth(attempts).unwrap_or(self.rank);
        if attempts == 0 && leader < self.rank {
            self.pass_on(reason, leader);
        } else {
            self.alarm_leader(reason, leader);
        }
    }

    /// Alarms a leader of lower rank, or makes this rank the leader.
    fn alarm_leader(&mut self, reason: Alarm, leader: i32) {
        if leader < self.rank {
            self.send(leader, WatcherMessage::Alarm { reason, leader });
        } else {
            self.hear(reason);
            self.unheard = None;
        }
    }

    /// Passes an alarm on to the leader, unless a similar one was passed on a short time ago.
    fn pass_on(&mut self, reason: Alarm, leader: i32) {
        let last = self.passed_on.get(&(leader, reason));
        if last.is_some_and(|last| self.now - last < HEARING / 2.0) {
            return;
        }
        self.passed_on.insert((leader, reason), self.now);
        let above = self.rank_above(leader);
        self.send(above, WatcherMessage::Alarm { reason, leader });
    }

    /// Takes an alarm for this rank as the leader.
    fn hear(&mut self, reason: Alarm) {
        if reason == Alarm::Ending {
            // Ranks that wait for the ended rank may have begun to wait only now.
            self.next_look
                .get_or_insert((self.now + FIRST_PAUSE, FIRST_PAUSE));
            self.unheard = None;
            return;
        }
        match &mut self.round {
            // Ranks give an alarm only once, so the round in progress takes over its reason.
            Some(round) if round.reason != Alarm::Ending => round.reason = round.reason.max(reason),
            _ => self.due = self.due.max(Some(reason)),
        }
    }

    /// Begins to collect notes for a question, of another rank or this one, and asks other ranks. For a
    /// report, notes that the calls in progress are reported.
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
        if collection.question().is_report {
            collection.add_host(&self.host, self.rank);
        }
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

    /// Continues all collections: adds the note of this rank, and sends or evaluates complete ones.
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
            collection.give_up(now);
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

    /// Evaluates the notes of a round: asks for details, reports, or ends all ranks.
    fn end_round(&mut self, round: &Round, notes: &Notes, process: &dyn WatchedProcess) {
        let (reason, about) = (round.reason, &round.collection.question().about);
        let snapshot = Snapshot::new(notes, self.size, about);
        if about.is_empty() {
            let about = snapshot.questions(MAX_QUESTIONS);
            if !about.is_empty() {
                self.begin_round(reason, about, process);
                return;
            }
        }
        let diagnosis = diagnose(&snapshot, settling_time(notes, self.settings.report_after));
        let is_deadlock = !diagnosis.stuck.is_empty() && self.settings.end_deadlocks;
        if is_deadlock && (reason == Alarm::Timeout || fails_anyway(notes, &diagnosis)) {
            self.tell(reason, notes, &diagnosis, process, true);
            return;
        }
        let mut is_news = self.rule(round.begin, is_deadlock, notes, &diagnosis, process);
        is_news |= match reason {
            Alarm::Ending => self.is_news(notes, about),
            // The call may have returned by now.
            Alarm::Waiting => snapshot.calls().next().is_some(),
            Alarm::Interrupted | Alarm::Timeout => true,
        };
        match reason {
            // The round for this reason has all ranks note that their calls were reported.
            Alarm::Ending if is_news => self.due = self.due.max(Some(Alarm::Waiting)),
            _ if is_news => self.tell(reason, notes, &diagnosis, process, false),
            _ => {}
        }
        // An awaited rank may later end, or make a call that does not match. The waiting ranks give no
        // second alarm, so the leader looks again.
        let is_fine = notes.iter().all(|(_, note)| is_fine(note));
        let due = self.verdict.due(self.settings.report_after);
        let first_look = (self.now + FIRST_PAUSE, FIRST_PAUSE);
        let (mut when, pause) = self.next_look.unwrap_or(first_look);
        if let Some(due) = due.filter(|due| *due > self.now) {
            when = when.min(due);
        }
        self.next_look = (!is_fine || due.is_some()).then_some((when, pause));
    }

    /// Ends all ranks if nothing has moved since the end was announced, or prints which ranks have moved.
    /// Returns whether the end is to be announced.
    fn rule(
        &mut self,
        asked: f64,
        is_deadlock: bool,
        notes: &Notes,
        diagnosis: &Diagnosis,
        process: &dyn WatchedProcess,
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
                self.end_all(&why, diagnosis.exit_code, executor(notes, process));
                false
            }
            Ruling::Withdraw(moved) => {
                let text = format!("mpi4jax: something moved on {moved}: nothing is ended");
                self.actions.push(Action::Print(fit(&[text])));
                false
            }
        }
    }

    /// Prints the report, and ends all ranks with `is_over` or after a timeout.
    fn tell(
        &mut self,
        reason: Alarm,
        notes: &Notes,
        diagnosis: &Diagnosis,
        process: &dyn WatchedProcess,
        is_over: bool,
    ) {
        for (ranks, note) in notes.iter() {
            let stuck = ranks.iter().filter(|rank| diagnosis.stuck.contains(*rank));
            let calls = stuck.flat_map(|rank| note.calls().iter().map(move |call| (rank, call.id)));
            self.told.extend(calls);
        }
        let mut text = report(notes, self.size, diagnosis);
        text.extend(self.unknown_ranks(notes));
        text.extend(lost_hosts(notes));
        let mut code = None;
        if is_over {
            code = Some(diagnosis.exit_code);
            text += &format!(
                "{}\n",
                ending_text("this is a deadlock", diagnosis.exit_code)
            );
        } else if reason == Alarm::Timeout {
            code = Some(DEADLOCK);
            text += &timeout_text(DEADLOCK);
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
        if let Some(code) = code {
            self.abort(code, executor(notes, process));
        }
    }

    /// Line about the ranks that can't be asked, if any.
    fn unknown_ranks(&self, notes: &Notes) -> Option<String> {
        let unknown = notes
            .iter()
            .filter(|(_, note)| note.state == State::NotThere);
        let unknown: Ranks = unknown.flat_map(|(ranks, _)| ranks.iter()).collect();
        let why = self
            .isolation
            .as_deref()
            .unwrap_or("mpi4jax was not imported there");
        let sentence = || {
            format!(
                "what {} is not known: {why}.",
                unknown.with_verb("does", "do")
            )
        };
        (!unknown.is_empty()).then(|| fit(&[sentence()]))
    }

    /// Whether there is a deadlock that was not reported yet, in a program that continues elsewhere. A rank
    /// that waits for a rank in a reported deadlock makes no new deadlock.
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

/// Last line before an end by the timeout.
fn timeout_text(code: i32) -> String {
    format!("MPI4JAX_TIMEOUT is over: ending all ranks with exit code {code}\n")
}

/// Rank that ends all ranks for a leader that must not call MPI: a rank that is in a call.
fn executor(notes: &Notes, leader: &dyn WatchedProcess) -> Option<i32> {
    let mut in_calls = notes.iter().filter(|(_, note)| !note.calls().is_empty());
    let (ranks, _) = in_calls.next().filter(|_| leader.is_finalised())?;
    ranks.first()
}

/// Line about the hosts of which no rank answers, if any.
fn lost_hosts(notes: &Notes) -> Option<String> {
    let silent: Ranks = (notes.iter())
        .filter(|(_, note)| note.state == State::Silent)
        .flat_map(|(ranks, _)| ranks.iter())
        .collect();
    let hosts = notes
        .hosts()
        .filter(|(_, ranks)| ranks.iter().all(|rank| silent.contains(rank)));
    let mut lost: Vec<String> = hosts.map(|(host, _)| host.to_owned()).collect();
    let more = lost.len().saturating_sub(MAX_HOSTS);
    lost.truncate(MAX_HOSTS);
    if more > 0 {
        lost.push(format!("{more} other hosts"));
    }
    let sentence = || format!("no rank on {} answers.", join_words(&lost, "or"));
    (!lost.is_empty()).then(|| fit(&[sentence()]))
}

/// Whether the program fails anyway, as a rank has failed or was interrupted, or as an ended rank is
/// awaited: then all ranks are ended without a second proof.
fn fails_anyway(notes: &Notes, diagnosis: &Diagnosis) -> bool {
    let has_failed = |note: &Note| note.end().is_some_and(|end| end.code != 0);
    let mut notes = notes.iter();
    diagnosis.waits_for_ended || notes.any(|(_, note)| note.is_interrupted || has_failed(note))
}

/// Whether the note of a rank gives no reason to look again.
fn is_fine(note: &Note) -> bool {
    let is_waiting = note.seconds().is_some_and(|seconds| seconds >= SETTLED);
    !is_waiting && note.end().is_none_or(|end| end.code == 0)
}
