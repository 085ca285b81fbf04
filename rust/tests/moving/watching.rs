//! The watchers of the processes on this MPI. Time passes when a test says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use _core::diagnosis::{
    CallNote, Collective, DEADLOCK, End, Note, Running, State, ThreadActivity, group_of,
};
use _core::recorder::{self, CommunicatorFacts, Group, Identity, Record};
use _core::watch::{Action, Mailbox, Settings, WatchedProcess, Watcher};

#[path = "../common/board.rs"]
mod board;
use board::Board;

use super::messages::{peers, recv, send};
use super::mpi::*;
use super::values;

const SETTINGS: Settings = Settings {
    report_after: 10.0,
    timeout: None,
    end_deadlocks: true,
};
/// The seconds between two looks of a watcher.
const STEP: f64 = 0.1;
/// Waits that take longer are mistakes.
const MAX_LOOKS: usize = 100_000;

/// A process as its records say it.
struct Records {
    rank: Rank,
    now: f64,
    calls: Vec<(u64, f64)>,
    begins: HashMap<u64, f64>,
    /// Since when it does what it does.
    since: f64,
}

impl Records {
    fn of_calls(&self) -> impl Iterator<Item = Record> {
        let calls = recorder::in_progress().into_iter();
        calls
            .filter_map(recorder::record)
            .filter(|record| record.communicator() == self.rank.comm && record.end.is_none())
    }

    fn look(&mut self, now: f64) {
        self.now = now;
        let ids: Vec<_> = self.of_calls().map(|record| record.id).collect();
        if !ids.iter().eq(self.calls.iter().map(|(id, _)| id)) {
            self.since = now;
        }
        let age = |id: &u64| (*id, now - *self.begins.entry(*id).or_insert(now));
        self.calls = ids.iter().map(age).collect();
    }
}

impl WatchedProcess for Records {
    fn calls(&self) -> &[(u64, f64)] {
        &self.calls
    }

    fn end(&self) -> Option<&End> {
        None
    }

    fn is_finalised(&self) -> bool {
        false
    }

    fn interrupts(&self) -> u32 {
        0
    }

    fn note(&mut self, about: &[Collective]) -> Option<(Note, Vec<Group>)> {
        let records: Vec<_> = self.of_calls().collect();
        let in_python = ThreadActivity {
            thread: String::new(),
            activity: String::new(),
            line: "main.py:7 in load".into(),
        };
        let running = Running {
            calls: records.iter().map(CallNote::new).collect(),
            elsewhere: records
                .is_empty()
                .then_some(in_python)
                .into_iter()
                .collect(),
            ..Running::default()
        };
        let note = Note {
            steady: self.now - self.since,
            attendances: vec![None; about.len()],
            ..Note::new(State::Running(Box::new(running)))
        };
        Some((note, records.iter().map(group_of).collect()))
    }
}

/// The watcher of a process.
struct Watched {
    watcher: Watcher,
    mailbox: Arc<Mailbox>,
    process: Records,
}

/// The watchers of all processes, and their clock.
struct Watchers {
    now: f64,
    all: Vec<Watched>,
    printed: Vec<String>,
    aborted: Option<i32>,
}

impl Watchers {
    fn new(world: &World) -> Self {
        let group: Arc<Group> = Arc::new((0..world.ranks.len() as i32).collect());
        let board = Board::default();
        let watched = |rank: &Rank| {
            let facts = CommunicatorFacts {
                name: "COMM_WORLD".into(),
                group: Arc::clone(&group),
                identity: Identity::World,
            };
            recorder::set_communicator_facts(rank.comm, facts);
            let (own, size) = (rank.rank as i32, rank.size as i32);
            let mailbox = Mailbox::open(own, "here", false, board.of(own), || ()).unwrap();
            mailbox.publish().unwrap();
            Watched {
                watcher: Watcher::new(own, size, "here", SETTINGS),
                mailbox,
                process: Records {
                    rank: *rank,
                    now: 0.0,
                    calls: Vec::new(),
                    begins: HashMap::new(),
                    since: 0.0,
                },
            }
        };
        Self {
            now: 0.0,
            all: world.ranks.iter().map(watched).collect(),
            printed: Vec::new(),
            aborted: None,
        }
    }

    /// Lets each watcher look at its process and its mailbox.
    fn look(&mut self) {
        for watched in &mut self.all {
            watched.process.look(self.now);
            let events = watched.mailbox.take_events();
            let process = &mut watched.process;
            for action in watched.watcher.step(self.now, events, process) {
                match action {
                    Action::Send(rank, message) => watched.mailbox.send(rank, message),
                    Action::Print(text) => self.printed.push(text),
                    Action::Abort(code) => self.aborted = Some(code),
                }
            }
            // No time passes while messages are on their way.
            while !watched.mailbox.has_sent_all() {
                thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Lets time pass.
    fn pass(&mut self, seconds: f64) {
        let until = self.now + seconds;
        while self.now < until && self.aborted.is_none() {
            self.now += STEP;
            self.look();
        }
    }

    /// Looks until `count` processes are in a call, while no time passes.
    fn until_in_calls(&mut self, count: usize) {
        for _ in 0..MAX_LOOKS {
            self.look();
            let in_calls = self
                .all
                .iter()
                .filter(|watched| !watched.process.calls.is_empty());
            if in_calls.count() == count {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("{count} processes don't come to be in a call");
    }
}

/// Runs a program, while `watch` lets time pass.
fn watch(body: impl Fn(Rank) + Sync, watch: impl FnOnce(&mut Watchers, &World)) {
    let world = World::new(2, LATE);
    let mut watchers = Watchers::new(&world);
    thread::scope(|scope| {
        scope.spawn(|| world.run(&body));
        watch(&mut watchers, &world);
    });
    watchers.until_in_calls(0);
}

/// Fails if a deadlock is not found, or is said of another call.
#[test]
fn a_deadlock_is_reported() {
    const COUNT: usize = 100;
    watch(
        |rank| {
            let partner = 1 - rank.rank as i64;
            assert_eq!(recv(rank, partner, 5, COUNT), values(7, COUNT));
        },
        |watchers, world| {
            watchers.until_in_calls(2);
            watchers.pass(60.0);
            for rank in &world.ranks {
                send(*rank, 1 - rank.rank as i64, 5, &values(7, COUNT));
            }
            let report = watchers.printed.concat();
            assert_eq!(watchers.aborted, Some(DEADLOCK), "{report}");
            assert!(watchers.now < 2.0 * SETTINGS.report_after + 10.0);
            for line in [
                "rank  0   in recv (from 1 ",
                "rank  1   in recv (from 0 ",
                "circle",
            ] {
                assert!(report.contains(line), "{report}");
            }
        },
    );
}

/// Fails if an exchange is reported that does not take long, or if one that does is ended.
#[test]
fn a_slow_exchange_comes_to_its_end() {
    const COUNT: usize = 100;
    for seconds in [0.9 * SETTINGS.report_after, 6.0 * SETTINGS.report_after] {
        let may_begin = AtomicBool::new(false);
        watch(
            |rank| {
                while rank.rank == 1 && !may_begin.load(SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
                let partner = 1 - rank.rank;
                let (sent, mut received) = (values(rank.rank, COUNT), vec![0.0; COUNT]);
                let call = peers(rank, &[partner as i64], &[partner as i64]);
                let call = call.operand(array(&sent)).result(array_mut(&mut received));
                rank.succeed("exchange", call);
                assert_eq!(received, values(partner, COUNT));
            },
            |watchers, _| {
                watchers.until_in_calls(1);
                watchers.pass(seconds);
                may_begin.store(true, SeqCst);
                watchers.until_in_calls(0);
                watchers.pass(30.0);
                let is_reported = !watchers.printed.is_empty();
                assert_eq!(is_reported, seconds > SETTINGS.report_after);
                assert_eq!(watchers.aborted, None);
            },
        );
    }
}
