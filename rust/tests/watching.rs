//! What the watchers find out, and what they do then, without MPI: notes are made up, messages are
//! carried by hand, and so is the time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use _core::diagnosis::{
    CommunicatorId, End, Half, Kind, Note, Peer, Sent, State, Traffic, Waiting, diagnose, report,
};
use _core::watch::{Action, Alarm, Message, Settings, Watcher};

const WORLD: CommunicatorId = CommunicatorId {
    members: 1,
    number: 0,
};

/// A note of a rank that has made so many collective calls.
fn note(rank: i32, state: State, count: u64) -> Note {
    Note {
        rank,
        state,
        is_interrupted: false,
        counts: vec![(WORLD, count)],
    }
}

/// A rank that is in a call for ten seconds.
fn waiting(rank: i32, call: Waiting) -> Note {
    let count = call.sequence.max(1);
    note(rank, State::Waiting(Box::new(call)), count)
}

fn elsewhere(rank: i32, count: u64) -> Note {
    let state = State::Elsewhere {
        activity: String::new(),
        line: "main.py:7 in load".into(),
    };
    note(rank, state, count)
}

fn ended(rank: i32, code: i32, reason: &str, count: u64) -> Note {
    let reason = reason.into();
    note(rank, State::Ended(End { code, reason }), count)
}

/// The first collective call on a communicator of so many ranks.
fn collective(size: i32, operation: &str) -> Waiting {
    Waiting {
        number: 1,
        operation: operation.into(),
        text: format!("{operation} #1 on COMM_WORLD"),
        line: "main.py:5".into(),
        seconds: 10.0,
        communicator: WORLD,
        communicator_name: "COMM_WORLD".into(),
        members: vec![(0, size - 1)],
        sequence: 1,
        agreed: Vec::new(),
        neighbors: None,
        sends: Vec::new(),
        receives: Vec::new(),
        awaited: None,
    }
}

fn agreeing(size: i32, about: &str, value: &str) -> Waiting {
    Waiting {
        agreed: vec![(about.into(), value.into())],
        ..collective(size, "bcast")
    }
}

fn message(size: i32, send: Option<Half>, receive: Option<Half>) -> Waiting {
    Waiting {
        sequence: 0,
        text: "a message".into(),
        sends: send.into_iter().collect(),
        receives: receive.into_iter().collect(),
        ..collective(size, "sendrecv")
    }
}

fn half(peer: Peer, tag: Option<i64>) -> Option<Half> {
    Some(Half { peer, tag })
}

fn receive(size: i32, from: i32) -> Waiting {
    message(size, None, half(Peer::Rank(from), None))
}

/// What is found, the ranks that are stuck, and the exit code.
fn found(notes: &[Note]) -> (Vec<String>, String, i32) {
    let diagnosis = diagnose(notes, 1.0);
    let stuck = if diagnosis.stuck.is_empty() {
        "nobody".into()
    } else {
        diagnosis.stuck.to_string()
    };
    (diagnosis.findings, stuck, diagnosis.exit_code)
}

#[track_caller]
fn assert_found(notes: &[Note], findings: &[&str], stuck: &str, exit_code: i32) {
    let findings = findings.iter().map(ToString::to_string).collect();
    assert_eq!(found(notes), (findings, stuck.into(), exit_code));
}

#[test]
fn different_operations() {
    let notes = [
        waiting(0, collective(3, "allreduce")),
        waiting(1, collective(3, "bcast")),
        waiting(2, collective(3, "bcast")),
    ];
    assert_found(
        &notes,
        &[
            "rank 0 and ranks 1, 2 disagree about call #1 of COMM_WORLD: they called different operations.",
        ],
        "ranks 0-2",
        86,
    );
}

#[test]
fn what_ranks_have_to_agree_about() {
    for (about, values, text) in [
        ("roots", ["0", "1"], "they gave different roots (0 and 1)"),
        (
            "operators",
            ["SUM", "MAX"],
            "they gave different operators (SUM and MAX)",
        ),
        (
            "types",
            ["f32", "f64"],
            "they gave different types (f32 and f64)",
        ),
        ("sizes", ["3", "4"], "they gave different sizes (3 and 4)"),
        ("counts", ["a1", "b2"], "they gave different counts"),
        (
            "communicators",
            ["rows, place 0", "columns, place 1"],
            "they use communicators of the same ranks in different order",
        ),
    ] {
        let notes = [
            waiting(0, agreeing(2, about, values[0])),
            waiting(1, agreeing(2, about, values[1])),
        ];
        let text = format!("rank 0 and rank 1 disagree about call #1 of COMM_WORLD: {text}.");
        assert_found(&notes, &[&text], "ranks 0, 1", 86);
    }
}

#[test]
fn a_rank_that_has_ended() {
    let text = "rank 1 has made 0 calls on COMM_WORLD, and ranks 0, 2 wait for call #1.";
    for (code, exit_code) in [(0, 86), (3, 3)] {
        let notes = [
            waiting(0, collective(3, "barrier")),
            ended(1, code, "", 0),
            waiting(2, collective(3, "barrier")),
        ];
        assert_found(&notes, &[text], "ranks 0, 2", exit_code);
    }
}

#[test]
fn a_rank_that_may_still_come() {
    let notes = [waiting(0, collective(2, "barrier")), elsewhere(1, 0)];
    let text = "rank 1 has made 0 calls on COMM_WORLD, and rank 0 waits for call #1.";
    assert_found(&notes, &[text], "nobody", 86);
}

#[test]
fn a_rank_that_left_early_is_not_missing() {
    // A root may leave a broadcast before the others have got it.
    let notes = [waiting(0, collective(2, "bcast")), elsewhere(1, 1)];
    let text = "no two ranks disagree, and none is missing: MPI itself takes this long.";
    assert_found(&notes, &[text], "nobody", 86);
}

#[test]
fn a_call_that_has_just_begun_proves_nothing() {
    let late = Waiting {
        seconds: 0.5,
        ..collective(2, "bcast")
    };
    let notes = [waiting(0, collective(2, "barrier")), waiting(1, late)];
    assert_eq!(found(&notes).1, "nobody");
}

#[test]
fn a_silent_rank() {
    // What it has called is not known, so nothing is said of that.
    let notes = [
        waiting(0, collective(2, "barrier")),
        note(1, State::Silent, 0),
    ];
    let text = "rank 1 does not answer: killed or stopped, or the machine is gone.";
    assert_found(&notes, &[text], "nobody", 86);
}

#[test]
fn circles_of_messages() {
    let notes = [
        waiting(0, receive(3, 2)),
        waiting(1, receive(3, 0)),
        waiting(2, receive(3, 1)),
    ];
    let text = "0 -> 2 -> 1 -> 0 is a circle: each rank waits for the next one.";
    assert_found(&notes, &[text], "ranks 0-2", 86);
}

#[test]
fn a_long_circle_is_cut() {
    let notes: Vec<Note> = (0..100)
        .map(|rank| waiting(rank, receive(100, (rank + 1) % 100)))
        .collect();
    let text = "0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 6 -> 7 -> ... -> 0 is a circle: each rank waits \
                for the next one.";
    assert_found(&notes, &[text], "ranks 0-99", 86);
}

#[test]
fn who_waits_behind_a_circle_is_stuck_too() {
    let notes = [
        waiting(0, receive(3, 1)),
        waiting(1, receive(3, 0)),
        waiting(2, receive(3, 0)),
    ];
    let texts = [
        "0 -> 1 -> 0 is a circle: each rank waits for the next one.",
        "rank 2 waits for a message from rank 0 with any tag on COMM_WORLD, and rank 0 is not \
         sending one.",
    ];
    assert_found(&notes, &texts, "ranks 0-2", 86);
}

#[test]
fn crossed_tags() {
    let notes = [
        waiting(0, message(2, half(Peer::Rank(1), Some(7)), None)),
        waiting(1, message(2, None, half(Peer::Rank(0), Some(8)))),
    ];
    let text = "rank 0 waits to send a message to rank 1 with tag 7 on COMM_WORLD, and rank 1 \
                receives one with tag 8 on COMM_WORLD.";
    assert_found(&notes, &[text], "ranks 0, 1", 86);
}

#[test]
fn a_message_that_fits_is_no_deadlock() {
    for tag in [Some(7), None] {
        let notes = [
            waiting(0, message(2, half(Peer::Rank(1), Some(7)), None)),
            waiting(1, message(2, None, half(Peer::Rank(0), tag))),
        ];
        let text = "no two ranks disagree, and none is missing: MPI itself takes this long.";
        assert_found(&notes, &[text], "nobody", 86);
    }
}

#[test]
fn a_message_that_nobody_sends_or_receives() {
    let barrier = || collective(2, "barrier");
    let missing = "rank 1 has made 0 calls on COMM_WORLD, and rank 0 waits for call #1.";
    for (call, text) in [
        (
            message(2, None, half(Peer::Any, None)),
            "rank 1 waits for a message from anyone with any tag on COMM_WORLD, and nobody is \
             sending one.",
        ),
        (
            message(2, None, half(Peer::Rank(0), Some(5))),
            "rank 1 waits for a message from rank 0 with tag 5 on COMM_WORLD, and rank 0 is not \
             sending one.",
        ),
        (
            message(2, half(Peer::Rank(0), Some(5)), None),
            "rank 1 waits to send a message to rank 0 with tag 5 on COMM_WORLD, and rank 0 is not \
             receiving it.",
        ),
    ] {
        let mut other = waiting(1, call);
        other.counts = vec![(WORLD, 0)];
        let notes = [waiting(0, barrier()), other];
        assert_found(&notes, &[missing, text], "ranks 0, 1", 86);
    }
}

#[test]
fn ranks_that_wait_for_the_same_are_told_together() {
    let anyone = || message(5, None, half(Peer::Any, None));
    let notes: Vec<Note> = (0..5).map(|rank| waiting(rank, anyone())).collect();
    let text = "ranks 0-4 wait for a message from anyone with any tag on COMM_WORLD, and nobody \
                is sending one.";
    assert_found(&notes, &[text], "ranks 0-4", 86);
}

#[test]
fn an_interrupt() {
    let mut notes = [waiting(0, receive(2, 1)), elsewhere(1, 0)];
    notes[0].is_interrupted = true;
    let texts = [
        "rank 0 was interrupted (Ctrl-C) in a call.",
        "rank 0 waits for a message from rank 1 with any tag on COMM_WORLD, and rank 1 is not \
         sending one.",
    ];
    assert_found(&notes, &texts, "nobody", 130);
}

#[test]
fn thousands_of_ranks() {
    let size = 4096;
    let state = |rank: i32| match rank {
        17 => ended(rank, 1, "ValueError: no input, main.py:3", 0),
        4000..4090 => waiting(rank, collective(size, "bcast")),
        100 | 102 | 104 => elsewhere(rank, 0),
        _ => waiting(rank, collective(size, "allreduce")),
    };
    let notes: Vec<Note> = (0..size).map(state).collect();
    let begin = Instant::now();
    let text = report(&notes, &diagnose(&notes, 1.0));
    println!("{size} notes: {:?}", begin.elapsed());
    assert_eq!(
        text,
        "\
mpi4jax: 4092 of 4096 ranks have been waiting for 10 s
  ranks 0-16, 18-99, 101, 103, 105-3999, 4090-4095   in allreduce #1 on COMM_WORLD   main.py:5
  rank  17                                           has ended: ValueError: no input, main.py:3
  ranks 100, 102, 104                                not in MPI                      main.py:7 in load
  ranks 4000-4089                                    in bcast #1 on COMM_WORLD       main.py:5
ranks 0-16, 18-99, 101, 103, 105-3999, 4090-4095 and ranks 4000-4089 disagree about call #1 of COMM_WORLD: they called different operations.
ranks 17, 100, 102, 104 have made 0 calls on COMM_WORLD, and ranks 0-16, 18-99, 101, 103, 105-4095 wait for call #1.
"
    );
}

#[test]
fn thousands_of_lines() {
    let call = |rank: i32| Waiting {
        line: format!("main.py:{rank}"),
        ..receive(4096, 4095 - rank)
    };
    let notes: Vec<Note> = (0..4096).map(|rank| waiting(rank, call(rank))).collect();
    let begin = Instant::now();
    let text = report(&notes, &diagnose(&notes, 1.0));
    println!("4096 lines: {:?}", begin.elapsed());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 20 + 1 + 8, "{text}");
    assert_eq!(
        lines[20],
        "  rank  19   in sendrecv on COMM_WORLD   main.py:19"
    );
    assert_eq!(lines[21], "  ranks 20-4095: other lines");
    assert_eq!(
        lines[22],
        "0 -> 4095 -> 0 is a circle: each rank waits for the next one."
    );
}

/// Ranks, their messages, and their clock.
struct World {
    now: f64,
    watchers: Vec<Watcher>,
    /// What the ranks do.
    notes: Vec<Note>,
    /// When each began to do so.
    since: Vec<f64>,
    /// Those that are stopped.
    stopped: Vec<i32>,
    mail: BTreeMap<i32, VecDeque<(i32, Message)>>,
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
        Self {
            now: 0.0,
            watchers: (0..size)
                .map(|rank| Watcher::new(rank, size, settings))
                .collect(),
            notes: (0..size).map(|rank| elsewhere(rank, 0)).collect(),
            since: vec![0.0; size as usize],
            stopped: Vec::new(),
            mail: BTreeMap::new(),
            printed: Vec::new(),
            aborted: None,
        }
    }

    /// A rank does something from now on.
    fn set(&mut self, note: Note) {
        let rank = note.rank as usize;
        self.since[rank] = self.now;
        self.notes[rank] = note;
    }

    /// A rank calls a barrier.
    fn barrier(&mut self, rank: i32) {
        let size = self.watchers.len() as i32;
        self.set(waiting(rank, collective(size, "barrier")));
    }

    fn note(&self, rank: usize) -> Note {
        let mut note = self.notes[rank].clone();
        if let State::Waiting(call) = &mut note.state {
            call.seconds = self.now - self.since[rank];
        }
        note
    }

    /// Lets time pass, in steps of a tenth of a second, until all ranks are ended.
    fn run(&mut self, seconds: f64) {
        let until = self.now + seconds;
        while self.now < until && self.aborted.is_none() {
            self.now += 0.1;
            for rank in 0..self.watchers.len() {
                if !self.stopped.contains(&(rank as i32)) {
                    self.step(rank);
                }
            }
        }
    }

    fn step(&mut self, rank: usize) {
        let own = rank as i32;
        let messages = self.mail.remove(&own).unwrap_or_default();
        let note = self.note(rank);
        let look = || note.clone();
        let actions = self.watchers[rank].step(self.now, messages.into(), &note, &look);
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
                    self.mail.entry(to).or_default().push_back((own, message));
                }
                Action::Print(text) => self.printed.push((self.now, own, text)),
                Action::Abort(code) => self.aborted = Some((self.now, own, code)),
            }
        }
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
        kind: Kind {
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
    world.set(elsewhere(1, 1));
    world.run(10.0);
    let mut call = collective(2, "barrier");
    call.number = 2;
    world.set(waiting(1, call));
    world.run(100.0);
    let times: Vec<i32> = world.last_lines().iter().map(|line| line.0).collect();
    assert_eq!(times, [60, 170]);
}

#[test]
fn a_deadlock_ends_all() {
    let mut world = World::new(3, SETTINGS);
    world.barrier(0);
    world.barrier(2);
    world.set(waiting(1, collective(3, "bcast")));
    world.run(100.0);
    let line = "this is a deadlock: ending all ranks with exit code 86";
    assert_eq!(world.last_lines(), [(60, 0, line)]);
    assert_eq!(world.aborted.map(|end| (end.1, end.2)), Some((0, 86)));
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
    world.set(waiting(1, collective(2, "bcast")));
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
    world.set(ended(2, 0, "in MPI_Finalize", 0));
    world.run(500.0);
    let late = "rank 2 has made 0 calls on COMM_WORLD, and ranks 0, 1 wait for call #1.";
    let lines = world.last_lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], (60, 0, late));
    assert_eq!(lines[1].2, DEADLOCK);
    assert!((100..115).contains(&lines[1].0), "{lines:?}");
}

#[test]
fn a_deadlock_by_a_rank_that_comes_late_is_reported_once() {
    // Its call is reported when it is proven that it does not fit, and not again after a minute.
    let mut world = World::new(3, REPORT_ONLY);
    world.barrier(0);
    world.barrier(1);
    world.run(100.0);
    world.set(waiting(2, collective(3, "bcast")));
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
    world.set(waiting(0, receive(5, 1)));
    world.set(waiting(1, receive(5, 0)));
    world.run(100.0);
    world.set(waiting(2, receive(5, 3)));
    world.set(waiting(3, receive(5, 2)));
    world.run(100.0);
    world.set(waiting(4, receive(5, 3)));
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
    world.set(ended(2, 7, "sys.exit(7)", 0));
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
    world.set(waiting(1, collective(3, "bcast")));
    world.set(ended(2, 7, "sys.exit(7)", 0));
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
    world.set(ended(2, 7, "sys.exit(7)", 0));
    world.run(20.0);
    let line = "this is a deadlock: ending all ranks with exit code 7";
    assert_eq!(world.last_lines(), [(21, 0, line)]);
    assert_eq!(world.aborted.map(|end| end.2), Some(7));
}

#[test]
fn an_error_that_nobody_waits_for() {
    let mut world = World::new(3, SETTINGS);
    world.set(ended(2, 7, "sys.exit(7)", 0));
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
    world.set(ended(2, 0, "", 0));
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
    world.set(ended(3, 1, "an error", 0));
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
        (vec![1, 2, 3], Some("no rank on elsewhere or there answers.")),
    ] {
        let mut world = World::new(4, SETTINGS);
        world.watchers[0].set_hosts(hosts.to_vec());
        world.stopped = stopped;
        world.barrier(0);
        world.run(70.0);
        let (_, _, report) = world.printed.last().expect("a report");
        let last = report.lines().last();
        assert_eq!(last.filter(|last| last.starts_with("no rank")), line, "{report}");
    }
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
                "what other ranks do is not known: rank 0 does not answer"
            ),
            (
                99,
                1,
                "MPI4JAX_TIMEOUT is over: ending all ranks with exit code 86"
            ),
        ]
    );
    assert_eq!(world.aborted.map(|end| (end.1, end.2)), Some((1, 86)));
}

#[test]
fn an_interrupt_ends_all() {
    let mut world = World::new(2, SETTINGS);
    world.barrier(1);
    world.run(5.0);
    world.notes[1].is_interrupted = true;
    world.run(20.0);
    let line = "ending all ranks with exit code 130";
    assert_eq!(world.last_lines(), [(6, 0, line)]);
    assert_eq!(world.aborted.map(|end| end.2), Some(130));
}

#[test]
fn messages_survive_their_form_on_the_wire() {
    let messages = [
        Message::Alarm(Alarm::Timeout),
        Message::Ask {
            round: 3,
            is_report: true,
        },
        Message::Note {
            round: 3,
            note: Box::new(waiting(1, agreeing(2, "roots", "1"))),
        },
    ];
    for message in messages {
        let bytes = serde_json::to_vec(&message).unwrap();
        assert_eq!(serde_json::from_slice::<Message>(&bytes).unwrap(), message);
    }
}

/// A call with several messages, of which it may wait for any.
fn exchange(size: i32, sends: &[(i32, i64)], receives: &[(i32, i64)]) -> Waiting {
    let halves = |ends: &[(i32, i64)]| {
        let half = |(rank, tag): &(i32, i64)| Half {
            peer: Peer::Rank(*rank),
            tag: Some(*tag),
        };
        ends.iter().map(half).collect()
    };
    Waiting {
        sends: halves(sends),
        receives: halves(receives),
        ..message(size, None, None)
    }
}

#[test]
fn several_messages_at_once() {
    // Each waits for two messages, of which the other sends one.
    let both = |other, missing| exchange(2, &[(other, 0)], &[(other, 0), (other, missing)]);
    let notes = [waiting(0, both(1, 5)), waiting(1, both(0, 5))];
    let (_, stuck, _) = found(&notes);
    assert_eq!(stuck, "nobody", "one of them may take its time");
    // None that comes is waited for.
    let notes = [
        waiting(0, exchange(2, &[(1, 1)], &[(1, 2)])),
        waiting(1, exchange(2, &[(0, 1)], &[(0, 2), (0, 3)])),
    ];
    let (findings, stuck, _) = found(&notes);
    assert_eq!(stuck, "ranks 0, 1");
    assert_eq!(
        findings,
        [
            "rank 0 waits for a message from rank 1 with tag 2 on COMM_WORLD, and rank 1 sends one \
             with tag 1 on COMM_WORLD.",
        ]
    );
    // The other one has ended.
    let notes = [
        waiting(0, exchange(2, &[(1, 1)], &[(1, 1), (1, 2)])),
        ended(1, 3, "", 0),
    ];
    let (_, stuck, code) = found(&notes);
    assert_eq!((stuck.as_str(), code), ("rank 0", 3));
}

#[test]
fn the_message_that_is_missing() {
    // Rank 0 has got what rank 1 sent, and rank 1 has gone on.
    let call = Waiting {
        awaited: half(Peer::Rank(2), Some(0)).map(|half| (half, true)),
        ..exchange(3, &[(1, 0), (2, 0)], &[(1, 0), (2, 0)])
    };
    let notes = [waiting(0, call), ended(1, 0, "", 0), ended(2, 0, "", 0)];
    assert_found(
        &notes,
        &[
            "rank 0 waits for a message from rank 2 with tag 0 on COMM_WORLD, and rank 2 is not \
             sending one.",
        ],
        "rank 0",
        86,
    );
}

/// A call between the processes of a line, of which each knows those beside it.
fn in_a_line(size: i32, rank: i32) -> Waiting {
    let beside = [rank - 1, rank + 1].into_iter();
    Waiting {
        neighbors: Some(beside.filter(|n| (0..size).contains(n)).collect()),
        ..collective(size, "neighbor_alltoall")
    }
}

#[test]
fn who_waits_for_a_neighbor() {
    // Rank 0 may be as late as it likes: who waits is no neighbor of it.
    let notes = [
        elsewhere(0, 0),
        elsewhere(1, 1),
        waiting(2, in_a_line(4, 2)),
        ended(3, 0, "", 0),
    ];
    assert_found(
        &notes,
        &["rank 3 has made 0 calls on COMM_WORLD, and its neighbor, rank 2, waits for call #1."],
        "rank 2",
        86,
    );
    // Rank 1 waits for one that may come, and rank 3 for one that does not.
    let notes = [
        elsewhere(0, 0),
        waiting(1, in_a_line(5, 1)),
        elsewhere(2, 1),
        waiting(3, in_a_line(5, 3)),
        ended(4, 0, "", 0),
    ];
    assert_found(
        &notes,
        &[
            "ranks 0, 4 have made 0 calls on COMM_WORLD, and their neighbors, ranks 1, 3, wait for \
           call #1.",
        ],
        "rank 3",
        86,
    );
}
