//! When ranks ask each other, and what follows, without MPI: notes are made up, messages are carried by
//! hand, and so is the time.

use std::collections::{BTreeMap, BTreeSet};

use _core::diagnosis::{CallNote, Collective, End, Note, Notes, Route, Sent, State, Traffic};
use _core::recorder::Group;
use _core::watch::{
    Action, Alarm, Event, Failure, Question, RoundId, Settings, WatchedProcess, Watcher,
    WatcherMessage,
};

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "common/notes.rs"]
mod notes;
use notes::{agreeing, collective, elsewhere, ended, group, receive, waiting};

/// The state of a rank, and since when it has it.
struct Rank {
    note: Note,
    since: f64,
    calls: Vec<(u64, f64)>,
    now: f64,
    size: i32,
    interrupts: u32,
}

impl WatchedProcess for Rank {
    fn calls(&self) -> &[(u64, f64)] {
        &self.calls
    }

    fn end(&self) -> Option<&End> {
        self.note.end()
    }

    fn is_finalised(&self) -> bool {
        matches!(self.note.state, State::Ended(_))
    }

    fn interrupts(&self) -> u32 {
        self.interrupts
    }

    fn note(&mut self, _: &[Collective]) -> Option<(Note, Vec<Group>)> {
        let mut note = self.note.clone();
        note.steady = self.now - self.since;
        note.is_interrupted = self.interrupts > 0;
        if let State::Running(running) = &mut note.state {
            for call in &mut running.calls {
                call.seconds = self.now - self.since;
            }
        }
        Some((note, vec![group(0..self.size)]))
    }
}

/// Ranks, their messages, and their clock.
struct World {
    now: f64,
    watchers: Vec<Watcher>,
    ranks: Vec<Rank>,
    /// Those that are stopped.
    stopped: Vec<i32>,
    /// Those without mpi4jax.
    without: Vec<i32>,
    /// The machine of each.
    hosts: Vec<String>,
    /// The events of each rank, with the times at which they happen.
    mail: BTreeMap<i32, Vec<(f64, Event)>>,
    /// How many messages each rank has sent.
    sent: BTreeMap<i32, usize>,
    printed: Vec<(f64, i32, String)>,
    aborted: Option<(f64, i32, i32)>,
}

const SETTINGS: Settings = Settings {
    report_after: 60.0,
    timeout: None,
    end_deadlocks: true,
};

impl World {
    fn new(size: i32, settings: Settings) -> Self {
        let rank = || Rank {
            note: elsewhere(0),
            since: 0.0,
            calls: Vec::new(),
            now: 0.0,
            size,
            interrupts: 0,
        };
        Self {
            now: 0.0,
            watchers: (0..size)
                .map(|rank| Watcher::new(rank, size, "here", settings))
                .collect(),
            ranks: (0..size).map(|_| rank()).collect(),
            stopped: Vec::new(),
            without: Vec::new(),
            hosts: vec!["here".to_owned(); size as usize],
            mail: BTreeMap::new(),
            sent: BTreeMap::new(),
            printed: Vec::new(),
            aborted: None,
        }
    }

    /// A rank does something from now on.
    fn set(&mut self, rank: i32, note: Note) {
        let rank = &mut self.ranks[rank as usize];
        rank.since = self.now;
        rank.note = note;
    }

    /// A rank calls a barrier.
    fn barrier(&mut self, rank: i32) {
        let size = self.watchers.len() as i32;
        self.set(rank, waiting(collective(size, "barrier")));
    }

    /// Lets time pass, in steps of a tenth of a second, until all ranks are ended.
    fn run(&mut self, seconds: f64) {
        self.run_in_steps(seconds, 0.1);
    }

    fn run_in_steps(&mut self, seconds: f64, step: f64) {
        let until = self.now + seconds;
        while self.now < until && self.aborted.is_none() {
            self.now += step;
            for rank in 0..self.watchers.len() {
                if !self.is_gone(rank as i32) {
                    self.step(rank);
                }
            }
        }
    }

    fn is_gone(&self, rank: i32) -> bool {
        self.stopped.contains(&rank) || self.without.contains(&rank)
    }

    fn step(&mut self, index: usize) {
        let own = index as i32;
        let (now, mail) = (self.now, self.mail.remove(&own).unwrap_or_default());
        let (due, later) = mail.into_iter().partition(|(when, _)| *when <= now);
        self.mail.insert(own, later);
        let events = due.into_iter().map(|(_, event)| event).collect();
        let rank = &mut self.ranks[index];
        rank.now = self.now;
        rank.calls.clear();
        for call in rank.note.calls() {
            rank.calls.push((call.id, self.now - rank.since));
        }
        let actions = self.watchers[index].step(self.now, events, rank);
        self.act(own, actions);
    }

    /// A rank comes to its end, with these messages.
    fn end(&mut self, rank: i32, traffic: Option<Traffic>) {
        let actions = self.watchers[rank as usize].end(traffic);
        self.act(rank, actions);
    }

    fn act(&mut self, own: i32, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(to, message) => {
                    *self.sent.entry(own).or_default() += 1;
                    self.send(own, to, message);
                }
                Action::Print(text) => self.printed.push((self.now, own, text)),
                Action::Abort(code) => self.aborted = Some((self.now, own, code)),
            }
        }
    }

    /// What can't be delivered comes back: after some time, if the rank is stopped.
    fn send(&mut self, from: i32, to: i32, message: WatcherMessage) {
        let failure = if self.without.contains(&to) {
            Failure::NotThere
        } else if self.stopped.contains(&to) {
            let host = Some(self.hosts[to as usize].clone());
            Failure::Silent { host }
        } else {
            let event = Event::Received { from, message };
            self.mail.entry(to).or_default().push((self.now, event));
            return;
        };
        let pause = if failure == Failure::NotThere {
            0.0
        } else {
            3.0
        };
        let event = Event::Undelivered {
            to,
            message,
            failure,
        };
        let mail = self.mail.entry(from).or_default();
        mail.push((self.now + pause, event));
    }

    /// When it was printed, by which rank, and the last line.
    fn last_lines(&self) -> Vec<(i32, i32, &str)> {
        let printed = self.printed.iter();
        printed
            .map(|(when, rank, text)| (*when as i32, *rank, text.lines().last().unwrap()))
            .collect()
    }
}

/// A message from rank 0 to rank 1.
fn one_message() -> Sent {
    Sent {
        route: Route {
            from: 0,
            to: 1,
            communicator: 0,
            tag: 3,
        },
        count: 1,
        communicator: "COMM_WORLD".into(),
        line: "main.py:5".into(),
    }
}

#[test]
fn a_message_that_nobody_has_received() {
    let mut world = World::new(3, SETTINGS);
    let sender = Traffic {
        sent: vec![one_message()],
        received: Vec::new(),
    };
    world.end(0, Some(sender));
    world.end(1, Some(Traffic::default()));
    world.run(1.0);
    assert!(!world.watchers[0].knows_traffic());
    assert_eq!(world.printed, []);
    world.end(2, Some(Traffic::default()));
    world.run(1.0);
    assert!(world.watchers[0].knows_traffic());
    let line = "  1 of 1 from rank 0 to rank 1 with tag 3 on COMM_WORLD   main.py:5";
    assert_eq!(world.last_lines(), [(1, 0, line)]);
}

#[test]
fn messages_are_not_counted_where_a_rank_has_failed() {
    let mut world = World::new(2, SETTINGS);
    let sender = Traffic {
        sent: vec![one_message()],
        received: Vec::new(),
    };
    world.end(0, Some(sender));
    world.end(1, None);
    world.run(1.0);
    assert!(world.watchers[0].knows_traffic());
    assert_eq!(world.printed, []);
}

#[test]
fn a_slow_rank_is_reported_once() {
    let mut world = World::new(4, SETTINGS);
    for rank in 0..3 {
        world.barrier(rank);
    }
    world.run(500.0);
    let line = "rank 3 has made 0 calls on COMM_WORLD, and ranks 0-2 wait for call #1.";
    assert_eq!(world.last_lines(), [(60, 0, line)]);
    assert_eq!(world.aborted, None);
}

#[test]
fn the_next_wait_is_reported_again() {
    let mut world = World::new(2, SETTINGS);
    world.barrier(1);
    world.run(100.0);
    world.set(1, elsewhere(1));
    world.run(10.0);
    let mut call = collective(2, "barrier");
    call.id = 2;
    world.set(1, waiting(call));
    world.run(100.0);
    let times: Vec<i32> = world.last_lines().iter().map(|line| line.0).collect();
    assert_eq!(times, [60, 170]);
}

#[test]
fn a_deadlock_ends_all() {
    let mut world = World::new(3, SETTINGS);
    world.barrier(0);
    world.barrier(2);
    world.set(1, waiting(collective(3, "bcast")));
    world.run(200.0);
    let line = "mpi4jax: nothing has moved for 60 s: ending all ranks with exit code 86";
    assert_eq!(world.last_lines(), [(60, 0, ANNOUNCED), (120, 0, line)]);
    assert_eq!(world.aborted.map(|end| (end.1, end.2)), Some((0, 86)));
}

const ANNOUNCED: &str = "this is a deadlock: ending all ranks in 60 s unless something moves";

/// Three ranks, of which two wait for each other. The deadlock is announced by now.
fn announced() -> World {
    let mut world = World::new(3, SETTINGS);
    world.set(0, waiting(receive(3, 1)));
    world.set(1, waiting(receive(3, 0)));
    world.run(100.0);
    assert_eq!(world.last_lines(), [(60, 0, ANNOUNCED)]);
    world
}

/// Fails if a program is ended in which a message came that nobody could foresee.
#[test]
fn what_moves_withdraws_the_end() {
    let mut world = announced();
    world.set(0, elsewhere(0));
    world.set(1, elsewhere(0));
    world.run(500.0);
    let line = "mpi4jax: something moved on ranks 0, 1: nothing is ended";
    assert_eq!(world.last_lines()[1..], [(105, 0, line)]);
    assert_eq!(world.aborted, None);
}

/// Fails if a deadlock is forgotten where another rank makes progress for a while.
#[test]
fn what_was_withdrawn_is_announced_again() {
    let mut world = announced();
    world.set(2, elsewhere(1));
    world.run(500.0);
    let moved = "mpi4jax: something moved on rank 2: nothing is ended";
    let ended = "mpi4jax: nothing has moved for 60 s: ending all ranks with exit code 86";
    let lines: Vec<&str> = world.last_lines().iter().map(|line| line.2).collect();
    assert_eq!(lines, [ANNOUNCED, moved, ANNOUNCED, ended]);
    let (when, _, _) = world.aborted.expect("an end");
    assert!((220.0..260.0).contains(&when), "{when}");
}

/// Fails if all are ended although the proof is gone, or by another rank that has not proven it.
#[test]
fn nobody_is_ended_by_less_than_was_proven() {
    let mut world = announced();
    world.stopped.push(1);
    world.run(100.0);
    let moved = "mpi4jax: something moved on rank 1: nothing is ended";
    assert_eq!(world.last_lines()[1..], [(108, 0, moved)]);
    assert_eq!(world.aborted, None);
}

/// Fails if nobody says so when the leader is lost that has announced an end.
#[test]
fn another_rank_leads_after_an_announcement() {
    let mut world = announced();
    world.stopped.push(0);
    world.run(300.0);
    let line = "rank 0 does not answer: killed or stopped, or the machine is gone.";
    assert_eq!(world.printed.len(), 2, "{:?}", world.last_lines());
    let (_, rank, text) = &world.printed[1];
    assert!(*rank == 1 && text.contains(line), "{text}");
    assert_eq!(world.aborted, None);
}

const REPORT_ONLY: Settings = Settings {
    end_deadlocks: false,
    ..SETTINGS
};
const DEADLOCK: &str = "this is a deadlock: no rank can go on";

#[test]
fn a_deadlock_may_be_reported_only() {
    let mut world = World::new(2, REPORT_ONLY);
    world.barrier(0);
    world.set(1, waiting(collective(2, "bcast")));
    world.run(500.0);
    assert_eq!(world.last_lines(), [(60, 0, DEADLOCK)]);
    assert_eq!(world.aborted, None);
}

#[test]
fn a_deadlock_after_a_report_is_reported_once() {
    // The ranks that wait have alarmed once, and will not do so again.
    let mut world = World::new(3, REPORT_ONLY);
    world.barrier(0);
    world.barrier(1);
    world.run(100.0);
    world.set(2, ended(0, "in MPI_Finalize", 0));
    world.run(500.0);
    let late = "rank 2 has made 0 calls on COMM_WORLD, and ranks 0, 1 wait for call #1.";
    let lines = world.last_lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], (60, 0, late));
    assert_eq!(lines[1].2, DEADLOCK);
    assert!((110..125).contains(&lines[1].0), "{lines:?}");
}

#[test]
fn a_deadlock_by_a_rank_that_comes_late_is_reported_once() {
    // Its call is reported when it is proven that it does not fit, and not again after a minute.
    let mut world = World::new(3, REPORT_ONLY);
    world.barrier(0);
    world.barrier(1);
    world.run(100.0);
    world.set(2, waiting(collective(3, "bcast")));
    world.run(500.0);
    let lines = world.last_lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[1].2, DEADLOCK);
    assert!((110..125).contains(&lines[1].0), "{lines:?}");
}

#[test]
fn each_deadlock_is_reported() {
    // Two ranks wait for each other, then two others; the last one waits for one of these.
    let mut world = World::new(5, REPORT_ONLY);
    world.set(0, waiting(receive(5, 1)));
    world.set(1, waiting(receive(5, 0)));
    world.run(100.0);
    world.set(2, waiting(receive(5, 3)));
    world.set(3, waiting(receive(5, 2)));
    world.run(100.0);
    world.set(4, waiting(receive(5, 3)));
    world.run(500.0);
    let lines = world.last_lines();
    let times: Vec<i32> = lines.iter().map(|line| line.0).collect();
    assert!(lines.iter().all(|line| line.2 == DEADLOCK), "{lines:?}");
    assert_eq!((times.len(), times[0], times[2]), (3, 60, 260), "{lines:?}");
    assert!((110..125).contains(&times[1]), "{lines:?}");
}

#[test]
fn an_error_is_reported_soon_if_nobody_is_ended() {
    let mut world = World::new(3, REPORT_ONLY);
    world.barrier(0);
    world.barrier(1);
    world.run(20.0);
    world.set(2, ended(7, "sys.exit(7)", 0));
    world.run(500.0);
    assert_eq!(world.last_lines(), [(21, 0, DEADLOCK)]);
    assert_eq!(world.aborted, None);
}

#[test]
fn nothing_is_reported_if_reports_are_off() {
    let settings = Settings {
        report_after: f64::INFINITY,
        ..REPORT_ONLY
    };
    let mut world = World::new(3, settings);
    world.barrier(0);
    world.set(1, waiting(collective(3, "bcast")));
    world.set(2, ended(7, "sys.exit(7)", 0));
    world.run(500.0);
    assert_eq!(world.last_lines(), []);
    assert_eq!(world.aborted, None);
}

#[test]
fn an_error_is_told_soon() {
    let mut world = World::new(3, SETTINGS);
    world.barrier(0);
    world.barrier(1);
    world.run(20.0);
    world.set(2, ended(7, "sys.exit(7)", 0));
    world.run(20.0);
    let line = "this is a deadlock: ending all ranks with exit code 7";
    assert_eq!(world.last_lines(), [(21, 0, line)]);
    assert_eq!(world.aborted.map(|end| end.2), Some(7));
}

#[test]
fn an_error_that_nobody_waits_for() {
    let mut world = World::new(3, SETTINGS);
    world.set(2, ended(7, "sys.exit(7)", 0));
    world.run(1000.0);
    assert_eq!(world.last_lines(), []);
    assert_eq!(world.aborted, None);
}

#[test]
fn who_ends_after_the_report_is_noticed() {
    // The ranks that wait have alarmed once, and will not do so again.
    let mut world = World::new(3, SETTINGS);
    world.barrier(0);
    world.barrier(1);
    world.run(100.0);
    world.set(2, ended(0, "", 0));
    world.run(40.0);
    let lines = world.last_lines();
    assert_eq!(lines.len(), 2);
    assert_eq!(
        lines[1].2,
        "this is a deadlock: ending all ranks with exit code 86"
    );
}

#[test]
fn an_alarm_during_another_round_is_not_lost() {
    // Rank 2 is stopped, so that asking takes its time. Lost, the alarm would make rank 1 report
    // that rank 0 does not answer.
    let mut world = World::new(4, SETTINGS);
    world.stopped.push(2);
    world.barrier(1);
    world.run(58.0);
    world.set(3, ended(1, "an error", 0));
    world.run(30.0);
    let printed = world.last_lines();
    assert_eq!(printed.len(), 1, "{printed:?}");
    let line = "rank 2 does not answer: killed or stopped, or the machine is gone.";
    assert_eq!((printed[0].1, printed[0].2), (0, line));
}

#[test]
fn hosts_are_named_of_which_no_rank_answers() {
    let hosts = ["here", "there", "there", "elsewhere"].map(str::to_owned);
    for (stopped, line) in [
        (vec![1], None),
        (vec![1, 2], Some("no rank on there answers.")),
        (
            vec![1, 2, 3],
            Some("no rank on elsewhere or there answers."),
        ),
    ] {
        let mut world = World::new(4, SETTINGS);
        for (rank, host) in hosts.iter().enumerate() {
            world.watchers[rank] = Watcher::new(rank as i32, 4, host, SETTINGS);
        }
        world.hosts = hosts.to_vec();
        world.stopped = stopped;
        world.barrier(0);
        world.run(70.0);
        let (_, _, report) = world.printed.last().expect("a report");
        let last = report.lines().last();
        assert_eq!(
            last.filter(|last| last.starts_with("no rank")),
            line,
            "{report}"
        );
    }
}

/// Fails if a rank in C keeps the others from proving what they can, or if what it does counts as known.
#[test]
fn ranks_without_mpi4jax_are_not_known() {
    for without in [0, 1, 3] {
        let mut world = World::new(4, SETTINGS);
        world.without.push(without);
        let others: Vec<i32> = (0..4).filter(|rank| *rank != without).collect();
        world.set(others[0], waiting(receive(4, others[1])));
        world.set(others[1], waiting(receive(4, others[0])));
        world.run(500.0);
        let unknown =
            format!("what rank {without} does is not known: mpi4jax was not imported there.");
        let (_, leader, report) = &world.printed[0];
        assert!(report.contains(&unknown), "{report}");
        assert!(report.contains(ANNOUNCED), "{report}");
        let end = world
            .aborted
            .map(|(when, rank, code)| (when as i32, rank, code));
        assert_eq!(end, Some((120, *leader, 86)));

        let mut world = World::new(4, SETTINGS);
        world.without.push(without);
        world.set(others[0], waiting(receive(4, without)));
        world.set(others[2], waiting(receive(4, others[0])));
        world.run(500.0);
        assert_eq!((world.printed.len(), world.aborted), (1, None));
    }
}

/// Fails if a rank that greets one that comes late is not heard, or greets without an end.
#[test]
fn the_rank_above_is_greeted_until_it_is_there() {
    let mut world = World::new(2, SETTINGS);
    world.without.push(0);
    world.run(100.0);
    let attempts = world.sent[&1];
    assert!((5..15).contains(&attempts), "{attempts}");
    world.without.clear();
    world.run(100.0);
    assert_eq!(world.sent[&1], attempts + 1);
}

/// Fails if ranks that wait for each other are ended by one proof, as another one has ended that nobody waits
/// for: what can't be seen may still come between them.
#[test]
fn only_a_rank_that_is_awaited_ends_others_at_once() {
    let mut world = World::new(4, SETTINGS);
    world.set(0, waiting(receive(4, 1)));
    world.set(1, waiting(receive(4, 0)));
    world.set(2, ended(0, "in MPI_Finalize", 0));
    world.run(80.0);
    assert_eq!(world.last_lines(), [(60, 0, ANNOUNCED)]);
    // One of these is awaited.
    world.set(3, waiting(receive(4, 2)));
    world.run(30.0);
    assert_eq!(world.aborted.map(|end| end.2), Some(86));
}

/// Fails if a leader calls MPI in `MPI_Finalize`, or if nobody ends the others for it.
#[test]
fn a_leader_that_has_ended_has_another_rank_end_all() {
    let mut world = World::new(3, SETTINGS);
    world.set(0, ended(0, "in MPI_Finalize", 0));
    world.set(1, waiting(receive(3, 0)));
    world.run(100.0);
    let line = "this is a deadlock: ending all ranks with exit code 86";
    assert_eq!(world.last_lines(), [(60, 0, line)]);
    assert_eq!(world.aborted.map(|end| (end.1, end.2)), Some((1, 86)));
}

/// Fails if the others wait for ever for a rank that has failed and can't ask them.
#[test]
fn a_rank_that_fails_alone_ends_all() {
    for (code, end_deadlocks) in [(3, true), (0, true), (3, false)] {
        let settings = Settings {
            end_deadlocks,
            ..SETTINGS
        };
        let mut world = World::new(3, settings);
        for watcher in &mut world.watchers {
            watcher.set_isolation(Some("there is no directory".into()));
        }
        world.without = vec![0, 2];
        world.run(10.0);
        world.set(1, ended(code, "sys.exit(3), main.py:9", 0));
        world.run(200.0);
        if code == 0 || !end_deadlocks {
            assert_eq!((&world.printed[..], world.aborted), (&[][..], None));
            continue;
        }
        let report = "mpi4jax: rank 1 has failed (sys.exit(3), main.py:9), and can't ask others\n  \
                      whether they wait for it: there is no directory. Ending all ranks in 60 s\n";
        assert_eq!(world.printed[0].2, report);
        let line = "mpi4jax: rank 1 has failed: ending all ranks with exit code 3";
        assert_eq!(world.last_lines()[1], (72, 1, line));
        assert_eq!(world.aborted.map(|end| (end.1, end.2)), Some((1, 3)));
    }
}

/// Fails if a rank that can't ask others says nothing about its wait.
#[test]
fn a_rank_that_waits_alone_is_reported() {
    let mut world = World::new(3, SETTINGS);
    world.watchers[1].set_isolation(Some("there is no directory".into()));
    world.without = vec![0, 2];
    world.barrier(1);
    world.run(500.0);
    let line = "what ranks 0, 2 do is not known: there is no directory.";
    assert_eq!(world.last_lines(), [(60, 1, line)]);
    assert_eq!(world.aborted, None);
}

#[test]
fn a_timeout_ends_what_could_go_on() {
    let settings = Settings {
        timeout: Some(90.0),
        ..SETTINGS
    };
    let mut world = World::new(2, settings);
    world.barrier(1);
    world.run(200.0);
    let lines = world.last_lines();
    assert_eq!((lines.len(), lines[0].0, lines[1].0), (2, 60, 90));
    let line = "MPI4JAX_TIMEOUT is over: ending all ranks with exit code 86";
    assert_eq!(lines[1].2, line);
    assert_eq!(world.aborted.map(|end| end.2), Some(86));
}

#[test]
fn a_silent_rank_0() {
    let settings = Settings {
        timeout: Some(90.0),
        ..SETTINGS
    };
    let mut world = World::new(3, settings);
    world.stopped.push(0);
    world.barrier(1);
    world.run(200.0);
    assert_eq!(
        world.last_lines(),
        [
            (
                69,
                1,
                "rank 0 does not answer: killed or stopped, or the machine is gone."
            ),
            (
                101,
                1,
                "MPI4JAX_TIMEOUT is over: ending all ranks with exit code 86"
            ),
        ]
    );
    assert_eq!(world.aborted.map(|end| (end.1, end.2)), Some((1, 86)));
}

#[test]
fn the_second_interrupt_ends_all() {
    let mut world = World::new(2, SETTINGS);
    world.barrier(1);
    world.run(5.0);
    world.ranks[1].interrupts = 1;
    world.run(60.0);
    let hint = "Ctrl-C again ends all ranks";
    assert_eq!(world.last_lines(), [(5, 0, hint)]);
    assert_eq!(world.aborted, None);
    world.ranks[1].interrupts = 2;
    world.run(20.0);
    let line = "mpi4jax: interrupted again: ending all ranks with exit code 130";
    assert_eq!(world.last_lines()[1..], [(65, 1, line)]);
    assert_eq!(world.aborted.map(|end| (end.1, end.2)), Some((1, 130)));
}

/// Fails if a program that handles interrupts is reported, or ended.
#[test]
fn interrupts_are_forgotten_when_they_are_handled() {
    let mut world = World::new(2, SETTINGS);
    world.barrier(1);
    for interrupts in [1, 0, 1, 0] {
        world.ranks[1].interrupts = interrupts;
        world.run(3.0);
    }
    assert_eq!(world.aborted, None);
    assert_eq!(world.printed.len(), 2);
}

#[test]
fn an_interrupt_in_a_deadlock_ends_all() {
    let mut world = World::new(2, SETTINGS);
    world.barrier(0);
    world.set(1, waiting(collective(2, "bcast")));
    world.run(20.0);
    world.ranks[1].interrupts = 1;
    world.run(20.0);
    let line = "this is a deadlock: ending all ranks with exit code 130";
    assert_eq!(world.last_lines(), [(20, 0, line)]);
    assert_eq!(world.aborted.map(|end| end.2), Some(130));
}

#[test]
fn messages_survive_their_form_on_the_wire() {
    let mut notes = Notes::default();
    notes.add(1, waiting(agreeing(2, "roots", "1")), [group(0..2)]);
    let round = RoundId {
        leader: 0,
        index: 3,
    };
    let call = collective(2, "barrier");
    let messages = [
        WatcherMessage::Alarm {
            reason: Alarm::Timeout,
            leader: 3,
        },
        WatcherMessage::Ask(Question {
            round,
            range: (1, 5),
            is_report: true,
            about: call.collective().into_iter().collect(),
        }),
        WatcherMessage::Answer { round, notes },
        WatcherMessage::Hello,
        WatcherMessage::Abort(86),
    ];
    for message in messages {
        let bytes = serde_json::to_vec(&message).unwrap();
        let copy = serde_json::from_slice::<WatcherMessage>(&bytes).unwrap();
        assert_eq!(copy, message);
    }
}

/// A rank with two threads: one waits for requests, for hours, and the other one works.
#[test]
fn each_call_of_a_rank_is_reported() {
    let mut world = World::new(2, SETTINGS);
    let call = |id, from| CallNote {
        id,
        ..receive(2, from)
    };
    world.set(1, notes::in_calls(vec![call(1, 0)]));
    world.run(100.0);
    world.set(1, notes::in_calls(vec![call(1, 0), call(7, 0)]));
    world.run(100.0);
    let times: Vec<i32> = world.last_lines().iter().map(|line| line.0).collect();
    assert_eq!(times, [60, 160]);
}

/// Fails if rank 0 sends or receives more than a few messages, of thousands of ranks.
#[test]
fn a_large_job_asks_along_a_tree() {
    let size = 2000;
    let mut world = World::new(size, SETTINGS);
    for rank in 1..size {
        world.barrier(rank);
    }
    world.run_in_steps(59.5, 5.0);
    world.run_in_steps(10.0, 0.5);
    let line = "rank 0 has made 0 calls on COMM_WORLD, and ranks 1-1999 wait for call #1.";
    assert_eq!(world.printed.len(), 1);
    assert_eq!(world.last_lines()[0].2, line);
    let most = world.sent.values().max().unwrap();
    assert!(*most < 500, "{most}");
    assert_eq!(world.aborted, None);
}

/// If rank 0 is lost, one other rank reports for all.
#[test]
fn another_rank_leads_if_rank_0_is_lost() {
    let size = 100;
    for lost in [1, 4] {
        let mut world = World::new(size, SETTINGS);
        world.stopped = (0..lost).collect();
        for rank in 0..size {
            world.barrier(rank);
        }
        world.run_in_steps(160.0, 0.5);
        let reporters: BTreeSet<i32> = world.printed.iter().map(|line| line.1).collect();
        assert_eq!(world.printed.len(), 1, "{reporters:?}");
        let (when, rank, text) = &world.printed[0];
        assert!(*when < 120.0 && *rank >= lost, "{when} {rank}");
        assert!(text.contains("not answer: killed or stopped"), "{text}");
    }
}

/// A timeout is served, whoever is lost, and while reports are made.
#[test]
fn a_timeout_is_served_whoever_is_lost() {
    let settings = Settings {
        timeout: Some(62.0),
        ..SETTINGS
    };
    for stopped in [vec![], vec![0], vec![0, 1, 2, 4], (0..49).collect()] {
        let mut world = World::new(50, settings);
        world.stopped = stopped;
        world.barrier(49);
        world.barrier(48);
        world.run_in_steps(300.0, 0.5);
        let (when, _, code) = world.aborted.expect("an end");
        assert_eq!(code, 86);
        assert!(when < 160.0, "{when}");
    }
}
