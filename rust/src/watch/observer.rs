//! The note of this process, as its watching thread finds it out.
//!
//! That a program is in a deadlock is concluded from what its processes do *not* do, for some time.
//! So the thread keeps looking while a call takes long: where Python's threads are, and whether any
//! other thread computes. The time that counts is the one in which it looked: a process that was
//! stopped, or a machine that was suspended, has proven nothing meanwhile.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};

use super::busy_threads::BusyThreads;
use super::python_threads::{Asking, Python};
use super::signals;
use super::watcher::WatchedProcess;
use crate::diagnosis::{
    CallNote, Collective, CommunicatorId, End, Note, Running, State, ThreadActivity, attendances,
    group_of,
};
use crate::ops;
use crate::recorder::{self, Group, Instant, Record, exactly_now};

/// After so many seconds in a call, the process is looked at closely.
const SOON: f64 = 0.3;
/// How often the thread asks for the state of Python's threads: in the first seconds of a call, and
/// later.
const INTERVAL: f64 = 0.25;
const LATER_INTERVAL: f64 = 1.0;
const FIRST_SECONDS: f64 = 15.0;
/// The longest time that counts from one look to the next.
const LONGEST_STEP: f64 = 0.5;
/// If Python has not handled an interrupt after so many seconds, it can't.
const INTERRUPT_PATIENCE: f64 = 1.0;

/// Looks at this process, and remembers since when it has been as it is.
#[derive(Default)]
pub struct Observer {
    last: Instant,
    /// The seconds in which the process was looked at.
    now: f64,
    /// The calls in progress, with their ages.
    calls: Vec<(u64, f64)>,
    /// When each call was seen first.
    seen: HashMap<u64, f64>,
    asking: Asking,
    /// The last answer of Python, and when it was asked.
    python: Option<(f64, Option<Python>)>,
    threads: BusyThreads,
    /// A hash of all that has to stay as it is for the process to be steady, and since when it has.
    steady: (u64, f64),
    /// Why it can't be excluded that something acts beside Python's threads.
    doubt: String,
    /// When a note was asked for.
    wanted: Option<f64>,
    interrupted: Option<f64>,
    end: Option<End>,
    has_ended: bool,
}

impl Observer {
    pub fn new() -> Self {
        Self {
            last: exactly_now(),
            ..Self::default()
        }
    }

    /// Looks at the process. `end` says how it ends, if it does, and whether it is in MPI_Finalize.
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
        if !ids.iter().eq(self.calls.iter().map(|(id, _)| id)) {
            self.steady = (0, self.now);
        }
        let age = |id: &u64| (*id, self.now - self.seen[id]);
        self.calls = ids.iter().map(age).collect();
        self.look_at_interrupts();
        self.look_at_threads();
    }

    /// The time that has passed, as far as the process was looked at.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Seconds that the oldest call has taken so far.
    fn oldest(&self) -> f64 {
        self.calls.iter().map(|(_, age)| *age).fold(0.0, f64::max)
    }

    fn look_at_interrupts(&mut self) {
        if signals::interrupts() == 0 {
            self.interrupted = None;
            return;
        }
        let since = *self.interrupted.get_or_insert(self.now);
        let is_in_call = self.calls.iter().any(|(_, age)| self.now - age <= since);
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

    /// Asks where Python's threads are, and looks whether others compute, if it is of interest.
    fn look_at_threads(&mut self) {
        if let Some((when, answer)) = self.asking.poll(self.now) {
            self.judge(when, answer.as_ref());
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
        let is_time = oldest > SOON && self.now - last >= interval;
        if (is_time || self.wanted.is_some()) && !self.asking.is_pending() {
            self.asking.ask(self.now, self.threads_in_calls());
        }
    }

    /// The records of the calls in progress.
    fn records(&self) -> impl Iterator<Item = Record> {
        self.calls
            .iter()
            .filter_map(|(id, _)| recorder::record(*id))
    }

    fn threads_in_calls(&self) -> Vec<u32> {
        self.records().map(|record| record.thread).collect()
    }

    /// Judges by an answer of Python whether the process is as it was at the last look, and whether
    /// something may act in it.
    fn judge(&mut self, when: f64, python: Option<&Python>) {
        let is_waiting = python.is_some_and(|python| python.wait_for_jax);
        let in_calls: BTreeSet<u32> = self.threads_in_calls().into_iter().collect();
        let is_busy = is_waiting.then(|| self.threads.look(self.now, &in_calls));
        let waits_for_device = || self.records().any(|record| !record.has_reached_mpi);
        self.doubt = match (python, is_busy) {
            (None, _) => "Python does not say what its threads do".to_owned(),
            (Some(python), _) if !python.doubt.is_empty() => python.doubt.clone(),
            (_, None) => String::new(),
            // A thread of Python's waits for JAX: for one of the calls, if for nothing else.
            (_, Some(None)) => "the system does not say what its threads do".to_owned(),
            (_, Some(Some(true))) => "a thread computes".to_owned(),
            _ if recorder::has_foreign_handlers() => "another package calls MPI, too".to_owned(),
            _ if waits_for_device() => "a call waits for its arrays on the device".to_owned(),
            _ => String::new(),
        };
        let mut hasher = DefaultHasher::new();
        let ids: Vec<u64> = self.calls.iter().map(|(id, _)| *id).collect();
        let threads = python.map(|python| (&python.waiting, python.is_in_shutdown));
        (ids, threads, &self.doubt).hash(&mut hasher);
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

    /// The calls that this process is in.
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

/// The wait for the JAX of all processes at exit, as if it were a call: the next collective one on the
/// default communicator.
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
        neighbors: None,
        messages: Vec::new(),
        awaited: None,
        bytes: 0,
    }
}

impl WatchedProcess for Observer {
    fn calls(&self) -> &[(u64, f64)] {
        &self.calls
    }

    fn fails(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.code != 0)
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
            ..Note::new(state)
        };
        Some((note, groups))
    }
}
