//! Observer of this process, which makes the process's note for hang reports.
//!
//! A deadlock is concluded from what the processes do *not* do for some time. So the observer keeps
//! looking while a call takes long: where Python's threads are, and whether another thread computes.
//! Only time in which it looked counts: a process that was stopped, or a machine that was suspended,
//! has proven nothing meanwhile.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};

use super::busy_threads::BusyThreads;
use super::python_threads::{Asking, Making, Python};
use super::signals;
use super::watcher::WatchedProcess;
use crate::diagnosis::{
    CallNote, Collective, CommunicatorId, CommunicatorKind, End, Loop, Note, Running, State,
    ThreadActivity, attendances, group_of,
};
use crate::ops;
use crate::recorder::{self, Group, Instant, Record, exactly_now};

/// Seconds in a call after which Python is asked about its threads.
const SOON: f64 = 0.3;
/// Seconds between questions to Python: in the first seconds of a call, and later.
const INTERVAL: f64 = 0.25;
const LATER_INTERVAL: f64 = 1.0;
const FIRST_SECONDS: f64 = 15.0;
/// Shortest and longest pause between questions to Python while there is no call.
const IDLE_INTERVAL: (f64, f64) = (0.5, 10.0);
/// Largest time that counts between two looks.
const LONGEST_STEP: f64 = 0.5;
/// Seconds after which an interrupt counts as one that Python can't handle.
const INTERRUPT_PATIENCE: f64 = 1.0;

/// Observer of this process, which remembers for how long the process has been in its present state.
#[derive(Default)]
pub struct Observer {
    last: Instant,
    /// Seconds in which the process was observed.
    now: f64,
    /// Recorded calls in progress, with their ages.
    recorded: Vec<(u64, f64)>,
    /// Recorded calls, and the call by which the main thread makes a communicator, which has no record.
    calls: Vec<(u64, f64)>,
    /// Time at which each call was seen first.
    seen: HashMap<u64, f64>,
    /// Communicator that the main thread is making by mpi4py, and the times of its first and last sight.
    making: Option<(Making, f64, f64)>,
    /// Seconds between questions to Python while there is no call.
    idle_interval: f64,
    asking: Asking,
    /// Last answer of Python, with the time of the question.
    python: Option<(f64, Option<Python>)>,
    threads: BusyThreads,
    /// Hash of the state that a steady process keeps, and the time since which it is the same.
    steady: (u64, f64),
    /// Reason why something beside Python's threads may still act, if any.
    doubt: String,
    /// Time at which a note was requested, until Python answers.
    wanted: Option<f64>,
    interrupted: Option<f64>,
    end: Option<End>,
    has_ended: bool,
}

impl Observer {
    /// Observer of a process whose calls are reported after `report_after` seconds.
    pub fn new(report_after: f64) -> Self {
        Self {
            last: exactly_now(),
            idle_interval: (report_after / 4.0).clamp(IDLE_INTERVAL.0, IDLE_INTERVAL.1),
            ..Self::default()
        }
    }

    /// Looks at the process. `end` is how the program ends, if it does; with `has_ended`, the process is
    /// in `MPI_Finalize`.
    pub fn look(&mut self, end: Option<End>, has_ended: bool) {
        let now = exactly_now();
        self.now += now.seconds_since(self.last).min(LONGEST_STEP);
        self.last = now;
        self.end = end;
        if has_ended && !std::mem::replace(&mut self.has_ended, has_ended) {
            self.steady = (0, self.now);
        }
        let ids = recorder::in_progress();
        self.seen = ids
            .iter()
            .map(|id| (*id, *self.seen.get(id).unwrap_or(&self.now)))
            .collect();
        if !ids.iter().eq(self.recorded.iter().map(|(id, _)| id)) {
            self.steady = (0, self.now);
        }
        let age = |id: &u64| (*id, self.now - self.seen[id]);
        self.recorded = ids.iter().map(age).collect();
        self.look_at_interrupts();
        self.look_at_threads();
        self.calls.clone_from(&self.recorded);
        let making = self.making.iter();
        self.calls
            .extend(making.map(|(making, first, last)| (id_of(making), last - first)));
    }

    /// Seconds in which the process was observed.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Age in seconds of the oldest call.
    fn oldest(&self) -> f64 {
        self.recorded
            .iter()
            .map(|(_, age)| *age)
            .fold(0.0, f64::max)
    }

    fn look_at_interrupts(&mut self) {
        if signals::interrupts() == 0 {
            self.interrupted = None;
            return;
        }
        let since = *self.interrupted.get_or_insert(self.now);
        let is_in_call = self.recorded.iter().any(|(_, age)| self.now - age <= since);
        let is_handled = |python: &Python| {
            !python.has_default_interrupt || python.elsewhere.iter().any(|p| p.thread.is_empty())
        };
        let answer = self.python.as_ref().filter(|(when, _)| *when >= since);
        let answer = answer.and_then(|(_, python)| python.as_ref());
        if !is_in_call || answer.is_some_and(is_handled) {
            signals::forget_interrupts();
            self.interrupted = None;
        }
    }

    /// Takes Python's answer about its threads, and asks again when that is due.
    fn look_at_threads(&mut self) {
        if self.has_ended {
            return; // Python may not answer any more
        }
        if let Some((when, answer)) = self.asking.poll(self.now) {
            self.judge(when, answer.as_ref());
            self.note_making(when, answer.as_ref());
            self.python = Some((when, answer));
            self.wanted = self.wanted.filter(|wanted| *wanted > when);
        }
        let oldest = self.oldest();
        let interval = if oldest < FIRST_SECONDS {
            INTERVAL
        } else {
            LATER_INTERVAL
        };
        let last = self
            .python
            .as_ref()
            .map_or(f64::NEG_INFINITY, |(when, _)| *when);
        let interval = match (self.recorded.is_empty(), &self.making) {
            (true, None) => self.idle_interval,
            (true, Some(_)) => LATER_INTERVAL,
            (false, _) => interval,
        };
        let is_due = oldest > SOON || self.recorded.is_empty();
        let is_time = is_due && self.now - last >= interval;
        if (is_time || self.wanted.is_some()) && !self.asking.is_pending() {
            self.asking.ask(self.now, self.threads_in_calls());
        }
    }

    /// Notes the communicator that the main thread is making, if any.
    fn note_making(&mut self, when: f64, python: Option<&Python>) {
        let making = python.and_then(|python| python.making.clone());
        let first = match (&self.making, &making) {
            (Some((known, first, _)), Some(making)) if known.call == making.call => *first,
            _ => when,
        };
        self.making = making.map(|making| (making, first, when));
    }

    /// Records of the calls in progress.
    fn records(&self) -> impl Iterator<Item = Record> {
        self.recorded
            .iter()
            .filter_map(|(id, _)| recorder::record(*id))
    }

    fn threads_in_calls(&self) -> Vec<u32> {
        self.records().map(|record| record.thread).collect()
    }

    /// Concludes from an answer of Python whether the process is steady, and whether something in it may
    /// still act.
    fn judge(&mut self, when: f64, python: Option<&Python>) {
        let is_waiting = python.is_some_and(|python| python.wait_for_jax);
        let in_calls: BTreeSet<u32> = self.threads_in_calls().into_iter().collect();
        let is_busy = is_waiting.then(|| self.threads.look(self.now, &in_calls));
        let waits_for_device = || self.records().any(|record| !record.has_reached_mpi);
        self.doubt = match (python, is_busy) {
            (None, _) => "Python does not say what its threads do".to_owned(),
            (Some(python), _) if !python.doubt.is_empty() => python.doubt.clone(),
            (_, None) => String::new(),
            // A Python thread waits for JAX: for a call in progress, unless one of these cases holds.
            (_, Some(None)) => "the system does not say what its threads do".to_owned(),
            (_, Some(Some(true))) => "a thread computes".to_owned(),
            _ if recorder::has_foreign_handlers() => "another package calls MPI, too".to_owned(),
            _ if waits_for_device() => "a call waits for its arrays on the device".to_owned(),
            _ => String::new(),
        };
        let mut hasher = DefaultHasher::new();
        let ids: Vec<u64> = self.recorded.iter().map(|(id, _)| *id).collect();
        let making = python.and_then(|python| python.making.as_ref()).map(id_of);
        let threads = python.map(|python| (&python.waiting, python.is_in_shutdown));
        (ids, threads, making, &self.doubt).hash(&mut hasher);
        let state = hasher.finish();
        let is_elsewhere = python.is_none_or(|python| !python.elsewhere.is_empty());
        if self.steady.0 != state || is_elsewhere || !self.doubt.is_empty() {
            self.steady = (state, when.max(self.now - LATER_INTERVAL));
        }
    }

    /// The last answer of Python, if it has answered.
    fn answer(&self) -> Option<&Python> {
        self.python.as_ref()?.1.as_ref()
    }

    /// Running state of this process, and the groups of the communicators in it.
    fn running(&self) -> (Running, Vec<Group>) {
        let records = self.records().filter(|record| record.end.is_none());
        let records: Vec<_> = records.collect();
        let python = self.answer();
        let mut calls: Vec<CallNote> = records.iter().map(CallNote::new).collect();
        for (call, record) in calls.iter_mut().zip(&records) {
            let lines = python.map(|python| &python.lines);
            let line = lines.and_then(|lines| lines.get(&record.thread).or(lines.get(&0)));
            if let Some(line) = line.filter(|_| call.line.is_empty()) {
                call.line.clone_from(line);
            }
        }
        if python.is_some_and(|python| python.is_in_shutdown) {
            calls.push(shutdown());
        }
        let making = self.making.as_ref();
        let made = making.map(|(making, first, last)| call_that_makes(making, last - first));
        calls.extend(made.iter().map(|(call, _)| call.clone()));
        let unknown = || ThreadActivity {
            thread: String::new(),
            activity: "not in MPI, and Python does not say where".to_owned(),
            line: String::new(),
        };
        let elsewhere = match python {
            Some(python) => python.elsewhere.clone(),
            None if calls.is_empty() => vec![unknown()],
            None => Vec::new(),
        };
        let posted = ops::posted();
        let doubt = match &posted {
            None => "its nonblocking operations are not known".to_owned(),
            Some(_) => self.doubt.clone(),
        };
        let (posted, mut groups) = posted.unwrap_or_default();
        groups.extend(records.iter().map(group_of));
        groups.extend(made.map(|(_, group)| group));
        let running = Running {
            calls,
            posted,
            elsewhere,
            doubt,
            ending: self.end.clone(),
        };
        (running, groups)
    }
}

/// Wait at exit for the JAX of all processes, as the next collective call on the default communicator.
fn shutdown() -> CallNote {
    let comm_number = recorder::DEFAULT_COMMUNICATOR;
    let facts = recorder::communicator_facts(comm_number).unwrap_or_default();
    CallNote {
        id: u64::MAX,
        operation: "jax.distributed.shutdown".to_owned(),
        text: "jax.distributed.shutdown".to_owned(),
        line: String::new(),
        seconds: 0.0,
        communicator: CommunicatorId::of(&facts),
        communicator_name: facts.name,
        sequence: recorder::calls_on(comm_number) + 1,
        agreed: Vec::new(),
        rule: String::new(),
        neighbors: None,
        messages: Vec::new(),
        awaited: None,
        bytes: 0,
    }
}

/// The loop in which the last call was made that has returned, if it was in one.
fn last_loop() -> Option<Loop> {
    let records = recorder::recent().into_iter();
    let returned = records.filter(|record| record.end.is_some());
    Loop::around(&returned.max_by_key(|record| record.end)?.line()?)
}

/// Bit in the id of a call that makes a communicator, which ids of recorded calls lack.
const MADE: u64 = 1 << 63;

fn id_of(making: &Making) -> u64 {
    making.call | MADE
}

/// Call by which the main thread makes a communicator in mpi4py, and the group of ranks that have to make
/// the call. A rank in the same function counts as attending.
fn call_that_makes(making: &Making, seconds: f64) -> (CallNote, Group) {
    let group: Group = making.members.iter().copied().collect();
    let function = making.function.clone();
    let call = CallNote {
        id: id_of(making),
        operation: function.clone(),
        text: function.clone(),
        line: making.line.clone(),
        seconds,
        communicator: CommunicatorId {
            group: group.hash(),
            kind: CommunicatorKind::Meeting(function.clone()),
        },
        communicator_name: function,
        sequence: 1,
        agreed: Vec::new(),
        rule: "all ranks of its communicator have to call it together.".to_owned(),
        neighbors: None,
        messages: Vec::new(),
        awaited: None,
        bytes: 0,
    };
    (call, group)
}

impl WatchedProcess for Observer {
    fn calls(&self) -> &[(u64, f64)] {
        &self.calls
    }

    fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    fn is_finalised(&self) -> bool {
        self.has_ended
    }

    fn interrupts(&self) -> u32 {
        let is_old = |since: f64| self.now - since >= INTERRUPT_PATIENCE;
        if self.interrupted.is_some_and(is_old) {
            signals::interrupts()
        } else {
            0
        }
    }

    fn note(&mut self, about: &[Collective]) -> Option<(Note, Vec<Group>)> {
        let (state, groups) = match &self.end {
            Some(end) if self.has_ended => (State::Ended(end.clone()), Vec::new()),
            _ => {
                let is_fresh = self
                    .python
                    .as_ref()
                    .is_some_and(|(when, _)| self.now - when < INTERVAL);
                if !is_fresh {
                    self.wanted.get_or_insert(self.now);
                    return None;
                }
                let (running, groups) = self.running();
                (State::Running(Box::new(running)), groups)
            }
        };
        let in_shutdown = self.answer().is_some_and(|python| python.is_in_shutdown);
        let calls_made = recorder::calls_on(recorder::DEFAULT_COMMUNICATOR);
        let note = Note {
            steady: self.now - self.steady.1,
            is_interrupted: self.interrupts() > 0,
            default_calls: calls_made + u64::from(in_shutdown),
            shares_default: recorder::is_default_shared(),
            attendances: attendances(about),
            last_loop: last_loop(),
            ..Note::new(state)
        };
        Some((note, groups))
    }
}
