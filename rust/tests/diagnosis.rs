//! Diagnoses of notes that are made up.

use std::time::{Duration, Instant};

use _core::diagnosis::{
    Attendance, CallNote, Collective, CommunicatorKind, Diagnosis, End, Loop, Note, Notes, Peer,
    Posted, State, report,
};

#[path = "common/notes.rs"]
mod notes;
use notes::*;

/// The findings, the ranks that are stuck, and the exit code.
fn found(notes: &[Note]) -> (Vec<String>, String, i32) {
    describe(diagnosis_of(&notes_of(notes), notes.len() as i32, &[]))
}

fn describe(diagnosis: Diagnosis) -> (Vec<String>, String, i32) {
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

const FINE: &str = "no two ranks disagree, and none is missing: MPI itself takes this long.";

#[test]
fn different_operations() {
    let notes = [
        waiting(collective(3, "allreduce")),
        waiting(collective(3, "bcast")),
        waiting(collective(3, "bcast")),
    ];
    let text = "rank 0 and ranks 1, 2 disagree about call #1 of COMM_WORLD: they called different \
                operations.";
    assert_found(&notes, &[text], "ranks 0-2", 86);
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
    ] {
        let notes = values.map(|value| waiting(agreeing(2, about, value)));
        let text = format!("rank 0 and rank 1 disagree about call #1 of COMM_WORLD: {text}.");
        assert_found(&notes, &[&text], "ranks 0, 1", 86);
    }
}

/// Whether calls that do not fit hang is up to MPI, as long as a rank may still come.
#[test]
fn a_disagreement_is_no_deadlock_before_all_are_there() {
    let notes = [
        waiting(collective(3, "allreduce")),
        waiting(collective(3, "bcast")),
        elsewhere(0),
    ];
    let texts = [
        "rank 0 and rank 1 disagree about call #1 of COMM_WORLD: they called different operations.",
        "rank 2 has made 0 calls on COMM_WORLD, and ranks 0, 1 wait for call #1.",
    ];
    assert_found(&notes, &texts, "nobody", 86);
}

#[test]
fn a_rank_that_has_ended() {
    let text = "rank 1 has made 0 calls on COMM_WORLD, and ranks 0, 2 wait for call #1.";
    for (code, exit_code) in [(0, 86), (3, 3)] {
        let notes = [
            waiting(collective(3, "barrier")),
            ended(code, "", 0),
            waiting(collective(3, "barrier")),
        ];
        assert_found(&notes, &[text], "ranks 0, 2", exit_code);
    }
}

#[test]
fn a_rank_that_is_ending_may_still_act() {
    let mut ending = elsewhere(0);
    let State::Running(running) = &mut ending.state else {
        unreachable!()
    };
    running.ending = Some(End {
        code: 3,
        reason: "sys.exit(3)".into(),
    });
    let notes = [waiting(collective(2, "barrier")), ending];
    let text = "rank 1 has made 0 calls on COMM_WORLD, and rank 0 waits for call #1.";
    assert_found(&notes, &[text], "nobody", 86);
    let notes = notes_of(&notes);
    let text = report(&notes, 2, &diagnosis_of(&notes, 2, &[]));
    assert!(
        text.contains("rank  1   is ending: sys.exit(3)\n"),
        "{text}"
    );
}

#[test]
fn a_rank_that_may_still_come() {
    let notes = [waiting(collective(2, "barrier")), elsewhere(0)];
    let text = "rank 1 has made 0 calls on COMM_WORLD, and rank 0 waits for call #1.";
    assert_found(&notes, &[text], "nobody", 86);
}

#[test]
fn a_rank_whose_calls_nobody_knows_may_be_missing() {
    let notes = [
        waiting(collective(2, "barrier")),
        Note::new(State::NotThere),
    ];
    assert_found(&notes, &[], "nobody", 86);
}

#[test]
fn a_rank_that_left_early_is_not_missing() {
    // A root may leave a broadcast before the others have got it.
    let notes = [waiting(collective(2, "bcast")), elsewhere(1)];
    assert_found(&notes, &[FINE], "nobody", 86);
}

/// The first call on the default communicator, as ranks are asked about it.
fn first_call(size: i32) -> Collective {
    Collective {
        communicator: default(size),
        name: "COMM_WORLD".into(),
        sequence: 1,
    }
}

/// Fails if a rank that left a wrong call early hides that the others wait in vain.
#[test]
fn a_rank_that_made_another_call_and_left_it() {
    let mut notes = [
        waiting(collective(3, "allreduce")),
        waiting(CallNote {
            sequence: 2,
            ..collective(3, "barrier")
        }),
        waiting(collective(3, "allreduce")),
    ];
    let attendance = |operation: &str| {
        vec![Some(Attendance {
            count: 5,
            call: Some((operation.into(), Vec::new())),
        })]
    };
    for note in &mut notes {
        note.attendances = attendance("allreduce");
    }
    let about = [first_call(3)];
    let diagnosis = describe(diagnosis_of(&notes_of(&notes), 3, &about));
    let late = "ranks 0, 2 have made 1 call on COMM_WORLD, and rank 1 waits for call #2.";
    assert_eq!(diagnosis, (vec![late.into()], "nobody".into(), 86));
    notes[1].attendances = attendance("gather");
    let (findings, stuck, _) = describe(diagnosis_of(&notes_of(&notes), 3, &about));
    let text = "rank 1 called gather as call #1 of COMM_WORLD, and left it.";
    assert_eq!((findings[0].as_str(), stuck.as_str()), (text, "ranks 0-2"));
    notes[1].state = elsewhere(2).state;
    let (_, stuck, _) = describe(diagnosis_of(&notes_of(&notes), 3, &about));
    assert_eq!(stuck, "nobody");
}

#[test]
fn what_has_just_begun_proves_nothing() {
    let mut late = waiting(collective(2, "bcast"));
    late.steady = SETTLED / 2.0;
    let notes = [waiting(collective(2, "barrier")), late];
    assert_eq!(found(&notes).1, "nobody");
}

#[test]
fn a_silent_rank() {
    // What it has called is not known, so nothing is said of that.
    let notes = [waiting(collective(2, "barrier")), note(State::Silent, 0)];
    let text = "rank 1 does not answer: killed or stopped, or the machine is gone.";
    assert_found(&notes, &[text], "nobody", 86);
}

#[test]
fn circles_of_messages() {
    let notes = [2, 0, 1].map(|from| waiting(receive(3, from)));
    let text = "0 -> 2 -> 1 -> 0 is a circle: each rank waits for the next one.";
    assert_found(&notes, &[text], "ranks 0-2", 86);
}

#[test]
fn a_long_circle_is_cut() {
    let notes: Vec<Note> = (0..100)
        .map(|rank| waiting(receive(100, (rank + 1) % 100)))
        .collect();
    let text = "0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 6 -> 7 -> ... -> 0 is a circle: each rank waits \
                for the next one.";
    assert_found(&notes, &[text], "ranks 0-99", 86);
}

#[test]
fn who_waits_behind_a_circle_is_stuck_too() {
    let notes = [1, 0, 0].map(|from| waiting(receive(3, from)));
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
        waiting(messages(2, &[to(1, 7)])),
        waiting(messages(2, &[from(0, 8)])),
    ];
    let text = "rank 0 waits to send a message to rank 1 with tag 7 on COMM_WORLD, and rank 1 \
                receives one with tag 8 on COMM_WORLD.";
    assert_found(&notes, &[text], "ranks 0, 1", 86);
}

#[test]
fn a_message_that_fits_is_no_deadlock() {
    for tag in [Some(7), None] {
        let notes = [
            waiting(messages(2, &[to(1, 7)])),
            waiting(messages(2, &[message(Peer::Rank(0), tag, true)])),
        ];
        assert_found(&notes, &[FINE], "nobody", 86);
    }
}

/// A nonblocking operation may be on the other side of a call that blocks.
#[test]
fn a_message_that_was_posted_is_no_deadlock() {
    let mut receiver = waiting(collective(2, "barrier"));
    let State::Running(running) = &mut receiver.state else {
        unreachable!()
    };
    running.posted.push(Posted {
        communicator: default(2),
        communicator_name: "COMM_WORLD".into(),
        operation: String::new(),
        messages: vec![from(0, 7)],
    });
    let notes = [waiting(messages(2, &[to(1, 7)])), receiver];
    assert_eq!(found(&notes).1, "nobody");
}

#[test]
fn a_message_that_nobody_sends_or_receives() {
    let missing = "rank 1 has made 0 calls on COMM_WORLD, and rank 0 waits for call #1.";
    for (wanted, text) in [
        (
            message(Peer::Any, None, true),
            "rank 1 waits for a message from anyone with any tag on COMM_WORLD, and nobody is \
             sending one.",
        ),
        (
            from(0, 5),
            "rank 1 waits for a message from rank 0 with tag 5 on COMM_WORLD, and rank 0 is not \
             sending one.",
        ),
        (
            to(0, 5),
            "rank 1 waits to send a message to rank 0 with tag 5 on COMM_WORLD, and rank 0 is not \
             receiving it.",
        ),
    ] {
        let mut other = waiting(messages(2, &[wanted]));
        other.default_calls = 0;
        let notes = [waiting(collective(2, "barrier")), other];
        assert_found(&notes, &[missing, text], "ranks 0, 1", 86);
    }
}

/// Which of both a sendrecv waits for is not known: its message may have come, and a large one
/// that it sends may wait for a rank that is slow.
#[test]
fn a_sendrecv_may_wait_for_what_it_sends() {
    let slow = elsewhere(0);
    let notes = [
        waiting(messages(3, &[from(1, 0), to(2, 0)])),
        waiting(collective(3, "barrier")),
        slow,
    ];
    assert_eq!(found(&notes).1, "nobody");
    let notes = [
        waiting(messages(3, &[from(1, 0), to(2, 0)])),
        waiting(collective(3, "barrier")),
        ended(0, "", 0),
    ];
    assert_eq!(found(&notes).1, "ranks 0, 1");
}

#[test]
fn ranks_that_wait_for_the_same_are_told_together() {
    let anyone = message(Peer::Any, None, true);
    let notes = vec![waiting(messages(5, &[anyone])); 5];
    let text = "ranks 0-4 wait for a message from anyone with any tag on COMM_WORLD, and nobody \
                is sending one.";
    assert_found(&notes, &[text], "ranks 0-4", 86);
}

#[test]
fn an_interrupt() {
    let mut notes = [waiting(receive(2, 1)), elsewhere(0)];
    notes[0].is_interrupted = true;
    let texts = [
        "rank 0 was interrupted (Ctrl-C) in a call.",
        "rank 0 waits for a message from rank 1 with any tag on COMM_WORLD, and rank 1 is not \
         sending one.",
    ];
    assert_found(&notes, &texts, "nobody", 130);
}

/// A thread may send what the rank itself does not.
#[test]
fn a_rank_with_another_thread_may_act() {
    let notes = [
        waiting(receive(2, 1)),
        with_thread(waiting(receive(2, 0)), "server"),
    ];
    let texts = [
        "0 -> 1 -> 0 is a circle: each rank waits for the next one.",
        "rank 1 may still act beside the call: a thread (server) at serve.py:3 in serve.",
    ];
    assert_found(&notes, &texts, "nobody", 86);
    let notes = notes_of(&notes);
    let text = report(&notes, 2, &diagnosis_of(&notes, 2, &[]));
    assert_eq!(
        text,
        "\
mpi4jax: 2 ranks have been waiting for 20 s
  ranks 0, 1   in a message                main.py:5
  rank  1      thread server: not in MPI   serve.py:3 in serve
0 -> 1 -> 0 is a circle: each rank waits for the next one.
rank 1 may still act beside the call: a thread (server) at serve.py:3 in serve.
"
    );
}

/// With two threads that wait, a rank goes on if either call returns.
#[test]
fn a_rank_with_two_calls_waits_for_either() {
    let call = |id, from| CallNote {
        id,
        ..receive(3, from)
    };
    let both = in_calls(vec![call(1, 1), call(2, 2)]);
    let notes = [both.clone(), waiting(receive(3, 0)), elsewhere(0)];
    assert_eq!(found(&notes).1, "nobody");
    let notes = [both, waiting(receive(3, 0)), waiting(receive(3, 0))];
    assert_eq!(found(&notes).1, "ranks 0-2");
}

fn world(size: i32) -> _core::diagnosis::CommunicatorId {
    communicator(CommunicatorKind::World, &group(0..size))
}

/// mpi4py may have made the calls that a rank has not made by mpi4jax.
#[test]
fn where_mpi4py_communicates_counts_prove_nothing() {
    let reduce = on(world(3), "MPI.COMM_WORLD", collective(3, "reduce"));
    let barrier = on(world(3), "MPI.COMM_WORLD", collective(3, "barrier"));
    let notes = [
        waiting(reduce.clone()),
        waiting(barrier.clone()),
        elsewhere(0),
    ];
    let (findings, stuck, _) = found(&notes);
    assert_eq!(stuck, "nobody");
    assert_eq!(
        findings,
        [
            "rank 0 and rank 1 disagree about call #1 of MPI.COMM_WORLD: they called different \
             operations.",
            "rank 2 is not in a call on MPI.COMM_WORLD, and ranks 0, 1 wait for call #1.",
        ]
    );
    // Nobody is left who could do anything.
    let notes = [waiting(reduce), waiting(barrier.clone()), waiting(barrier)];
    assert_eq!(found(&notes).1, "ranks 0-2");
}

/// A message of mpi4py's may be on its way, for as long as its size allows.
#[test]
fn a_large_message_of_mpi4py_is_given_time() {
    let receive = |bytes| CallNote {
        bytes,
        ..on(world(2), "MPI.COMM_WORLD", receive(2, 1))
    };
    let other = || waiting(on(world(2), "MPI.COMM_WORLD", collective(2, "barrier")));
    let notes = [waiting(receive(1_000)), other()];
    assert_eq!(found(&notes).1, "ranks 0, 1");
    let notes = [waiting(receive(1_000_000_000)), other()];
    assert_eq!(found(&notes).1, "nobody");
}

/// The default communicator is as any other if users have got it.
#[test]
fn the_default_communicator_may_be_shared() {
    let mut notes = [
        waiting(CallNote {
            sequence: 2,
            ..collective(2, "allreduce")
        }),
        waiting(CallNote {
            sequence: 3,
            ..collective(2, "allreduce")
        }),
    ];
    let first = |notes: &[Note]| found(notes).1;
    notes[0].default_calls = 2;
    notes[1].default_calls = 3;
    assert_eq!(first(&notes), "nobody");
    notes[0].shares_default = true;
    assert_eq!(first(&notes), "nobody", "they may be in one call");
}

#[test]
fn communicators_of_the_same_ranks() {
    let on_kind = |kind, name| {
        let id = communicator(kind, &group(0..2));
        waiting(on(id, name, collective(2, "barrier")))
    };
    let copy = |index, count| CommunicatorKind::Copy(vec![(index, count)]);
    // Both know the same two copies, so these surely differ.
    let notes = [on_kind(copy(1, 2), "rows"), on_kind(copy(2, 2), "columns")];
    let texts = [
        "rank 1 is not in a call on rows, and rank 0 waits for call #1.",
        "rank 0 is not in a call on columns, and rank 1 waits for call #1.",
    ];
    assert_found(&notes, &texts, "ranks 0, 1", 86);
    // One of them has begun to count late, or knows nothing of copies.
    for other in [copy(2, 3), CommunicatorKind::Unknown] {
        let notes = [on_kind(copy(1, 2), "rows"), on_kind(other, "columns")];
        assert_eq!(found(&notes).1, "nobody");
    }
    // Names prove nothing: each rank may have given its own.
    let notes = [
        on_kind(CommunicatorKind::Unknown, "solver of rank 0"),
        on_kind(CommunicatorKind::Unknown, "solver of rank 1"),
    ];
    let perhaps = "no two ranks disagree, and none is missing, unless they mean different \
                   communicators: those of the same ranks that Split or Create made can't be told \
                   apart.";
    assert_found(&notes, &[perhaps], "nobody", 86);
    // No copy is the default communicator, or MPI_COMM_WORLD.
    let notes = [
        on_kind(CommunicatorKind::World, "w"),
        on_kind(CommunicatorKind::Default, "d"),
    ];
    assert_eq!(found(&notes).1, "ranks 0, 1");
}

#[test]
fn processes_outside_of_the_world_may_act() {
    let merged = group([0, 1, -1]);
    let id = communicator(CommunicatorKind::Unknown, &merged);
    let call = on(id, "merged", collective(2, "barrier"));
    let mut notes = Notes::default();
    for rank in 0..2 {
        notes.add(rank, waiting(call.clone()), [merged.clone()]);
    }
    assert!(diagnosis_of(&notes, 2, &[]).stuck.is_empty());
}

#[test]
fn several_messages_at_once() {
    // Each waits for two messages, of which the other sends one.
    let both = |other, missing| {
        let all = [to(other, 0), from(other, 0), from(other, missing)];
        waiting(messages(2, &all))
    };
    let notes = [both(1, 5), both(0, 5)];
    assert_eq!(found(&notes).1, "nobody", "one of them may take its time");
    // None that comes is waited for.
    let notes = [
        waiting(messages(2, &[to(1, 1), from(1, 2)])),
        waiting(messages(2, &[to(0, 1), from(0, 2), from(0, 3)])),
    ];
    let text = "rank 0 waits for a message from rank 1 with tag 2 on COMM_WORLD, and rank 1 sends \
                one with tag 1 on COMM_WORLD.";
    assert_found(&notes, &[text], "ranks 0, 1", 86);
    // The other one has ended.
    let notes = [
        waiting(messages(2, &[to(1, 1), from(1, 1), from(1, 2)])),
        ended(3, "", 0),
    ];
    let (_, stuck, code) = found(&notes);
    assert_eq!((stuck.as_str(), code), ("rank 0", 3));
}

#[test]
fn the_message_that_is_missing() {
    // Rank 0 has got what rank 1 sent, and rank 1 has gone on.
    let all = [to(1, 0), to(2, 0), from(1, 0), from(2, 0)];
    let call = CallNote {
        awaited: Some(from(2, 0)),
        ..messages(3, &all)
    };
    let notes = [waiting(call), ended(0, "", 0), ended(0, "", 0)];
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
fn in_a_line(size: i32, rank: i32) -> Note {
    let beside = [rank - 1, rank + 1].into_iter();
    let id = communicator(CommunicatorKind::Unknown, &group(0..size));
    waiting(CallNote {
        neighbors: Some(beside.filter(|n| (0..size).contains(n)).collect()),
        ..on(id, "line", collective(size, "neighbor_alltoall"))
    })
}

#[test]
fn who_waits_for_a_neighbor() {
    // Rank 0 may be as late as it likes: who waits is no neighbor of it.
    let barrier = || waiting(collective(4, "barrier"));
    let notes = [elsewhere(0), barrier(), in_a_line(4, 2), ended(0, "", 0)];
    assert_eq!(found(&notes).1, "nobody", "rank 1 may act when rank 0 does");
    let notes = [
        elsewhere(0),
        waiting(receive(4, 2)),
        in_a_line(4, 2),
        ended(0, "", 0),
    ];
    let (findings, stuck, _) = found(&notes);
    assert_eq!(stuck, "ranks 1, 2");
    let text =
        "ranks 1, 3 are not in a call on line, and their neighbor, rank 2, waits for call #1.";
    assert_eq!(findings[0], text);
}

#[test]
fn notes_that_are_equal_are_kept_once() {
    let mut long = waiting(collective(3, "barrier"));
    long.steady = 30.0;
    let State::Running(running) = &mut long.state else {
        unreachable!()
    };
    running.calls[0].seconds = 40.0;
    let notes = notes_of(&[waiting(collective(3, "barrier")), long, elsewhere(0)]);
    let entries: Vec<_> = notes.iter().collect();
    assert_eq!((entries.len(), notes.len()), (2, 3));
    assert_eq!(entries[0].0.to_string(), "ranks 0, 1");
    assert_eq!(
        (entries[0].1.steady, entries[0].1.seconds()),
        (LONG, Some(40.0))
    );
    let bytes = serde_json::to_vec(&notes).unwrap();
    let mut copy: Notes = serde_json::from_slice(&bytes).unwrap();
    copy.merge(notes_of(&[waiting(collective(3, "barrier"))]));
    assert_eq!(copy.iter().count(), 2);
}

/// The table of ranks in a large job, and the last line of the findings, if they are cut off.
struct Large {
    name: &'static str,
    note: fn(i32, i32) -> Note,
    is_stuck: bool,
}

fn distinct(mut note: Note, rank: i32) -> Note {
    if let State::Running(running) = &mut note.state {
        for call in &mut running.calls {
            call.line = format!("main.py:{rank}");
        }
    }
    note
}

const LARGE: &[Large] = &[
    Large {
        name: "different operations",
        note: |size, rank| {
            let operation = if rank % 3 == 0 { "bcast" } else { "barrier" };
            waiting(collective(size, operation))
        },
        is_stuck: true,
    },
    Large {
        name: "one slow rank",
        note: |size, rank| match rank {
            7 => elsewhere(0),
            _ => waiting(collective(size, "barrier")),
        },
        is_stuck: false,
    },
    Large {
        name: "a ring",
        note: |size, rank| waiting(receive(size, (rank + 1) % size)),
        is_stuck: true,
    },
    Large {
        name: "half in a barrier, half in recv",
        note: |size, rank| {
            if rank % 2 == 0 {
                waiting(collective(size, "barrier"))
            } else {
                waiting(receive(size, rank - 1))
            }
        },
        is_stuck: true,
    },
    Large {
        name: "recv from anyone",
        note: |size, _| waiting(messages(size, &[message(Peer::Any, None, true)])),
        is_stuck: true,
    },
    Large {
        name: "a pipeline whose last rank is slow",
        note: |size, rank| {
            if rank == size - 1 {
                elsewhere(0)
            } else {
                waiting(receive(size, rank + 1))
            }
        },
        is_stuck: false,
    },
    Large {
        name: "each rank at another call",
        note: |size, rank| {
            let sequence = rank as u64 + 1;
            waiting(CallNote {
                sequence,
                text: format!("barrier #{sequence} on COMM_WORLD"),
                ..collective(size, "barrier")
            })
        },
        is_stuck: false,
    },
    Large {
        name: "each rank at another call, and the last has ended",
        note: |size, rank| {
            let sequence = rank as u64 + 2;
            if rank == size - 1 {
                return ended(0, "", 1);
            }
            distinct(
                waiting(CallNote {
                    sequence,
                    text: format!("barrier #{sequence} on COMM_WORLD"),
                    ..collective(size, "barrier")
                }),
                rank,
            )
        },
        is_stuck: true,
    },
    Large {
        name: "each rank on another line, with another message",
        note: |size, rank| distinct(waiting(messages(size, &[from(size - 1 - rank, 3)])), rank),
        is_stuck: true,
    },
    Large {
        name: "pairs, with a communicator each",
        note: |_, rank| {
            let first = rank / 2 * 2;
            let pair = group([first, first + 1]);
            let operation = if rank % 2 == 0 { "barrier" } else { "bcast" };
            let id = communicator(CommunicatorKind::Unknown, &pair);
            waiting(on(id, "pair", collective(2, operation)))
        },
        is_stuck: true,
    },
    Large {
        name: "all to one, which receives from all",
        note: |size, rank| {
            if rank > 0 {
                return waiting(messages(size, &[to(0, i64::from(rank))]));
            }
            let all: Vec<_> = (1..size)
                .map(|other| from(other, i64::from(other) + 1))
                .collect();
            waiting(messages(size, &all))
        },
        is_stuck: true,
    },
    Large {
        name: "each rank with another size",
        note: |size, rank| waiting(agreeing(size, "sizes", &rank.to_string())),
        is_stuck: true,
    },
];

/// Fails if the time grows faster than the number of ranks, or if the text grows with it.
#[test]
fn thousands_of_ranks() {
    let size = 10_000;
    for Large {
        name,
        note,
        is_stuck,
    } in LARGE
    {
        let mut notes = Notes::default();
        notes.add(0, note(size, 0), [group(0..size)]);
        for rank in 0..size {
            let first = rank / 2 * 2;
            notes.add(rank, note(size, rank), [group([first, first + 1])]);
        }
        let begin = Instant::now();
        let diagnosis = diagnosis_of(&notes, size, &[]);
        let text = report(&notes, size, &diagnosis);
        let seconds = begin.elapsed();
        let lines = text.lines().count();
        println!("{name}: {seconds:?}, {lines} lines of {} bytes", text.len());
        assert_eq!(!diagnosis.stuck.is_empty(), *is_stuck, "{name}: {text}");
        assert!(lines <= 40, "{name}: {text}");
        let longest = text.lines().map(str::len).max().unwrap_or(0);
        assert!(longest <= 80, "{name}: {text}");
        // With the square of the number it was a minute, or hours.
        assert!(seconds < Duration::from_secs(30), "{name}: {seconds:?}");
    }
}

#[test]
fn a_report_names_ranks_in_ranges() {
    let size = 4096;
    let note = |rank: i32| match rank {
        17 => ended(1, "ValueError: no input, main.py:3", 0),
        4000..4090 => waiting(collective(size, "bcast")),
        100 | 102 | 104 => elsewhere(0),
        _ => waiting(collective(size, "allreduce")),
    };
    let notes: Vec<Note> = (0..size).map(note).collect();
    let notes = notes_of(&notes);
    let text = report(&notes, size, &diagnosis_of(&notes, size, &[]));
    assert_eq!(
        text,
        "\
mpi4jax: 4092 of 4096 ranks have been waiting for 20 s
  ranks 0-16, 18-99, 101, 103, 105-3999, 4090-4095
                        in allreduce #1 on COMM_WORLD
                        at main.py:5
  rank  17              has ended: ValueError: no input, main.py:3
  ranks 100, 102, 104   not in MPI
                        at main.py:7 in load
  ranks 4000-4089       in bcast #1 on COMM_WORLD
                        at main.py:5
ranks 0-16, 18-99, 101, 103, 105-3999, 4090-4095 and ranks 4000-4089 disagree
  about call #1 of COMM_WORLD: they called different operations.
ranks 17, 100, 102, 104 have made 0 calls on COMM_WORLD, and ranks 0-16, 18-99,
  101, 103, 105-4095 wait for call #1.
"
    );
}

/// A call in a loop of a compiled program.
fn in_loop(function: &str) -> CallNote {
    CallNote {
        line: format!("solver.py:9 in {function} (jit/while/body/branch), from main.py:3"),
        ..collective(3, "allreduce")
    }
}

fn after_a_loop(note: Note, line: &str) -> Note {
    Note {
        last_loop: Loop::around(line),
        ..note
    }
}

#[test]
fn a_loop_that_some_ranks_have_left() {
    let line = "solver.py:12 in step (jit/while/body)";
    let text = "ranks 0, 1 have left the loop that rank 2 is in. If they began it together, its \
                condition depends on values that differ: compute it from what all ranks have, such \
                as a norm over all ranks (mpi4jax.linalg), or parameters passed through \
                mpi4jax.shared.";
    let notes = [
        after_a_loop(ended(0, "", 4), line),
        after_a_loop(waiting(collective(3, "bcast")), line),
        waiting(in_loop("step")),
    ];
    let (findings, stuck, _) = found(&notes);
    assert_eq!(findings.last().map(String::as_str), Some(text));
    assert_eq!(stuck, "ranks 1, 2");
    let says_nothing = [
        // In another loop, and in none.
        after_a_loop(ended(0, "", 4), "solver.py:12 in other (jit/while/body)"),
        after_a_loop(ended(0, "", 4), "solver.py:12 in step (jit/branch)"),
        after_a_loop(ended(0, "", 4), "solver.py:12 in step"),
        // It may be in the loop still, and has a reason of its own not to be.
        after_a_loop(elsewhere(4), line),
        after_a_loop(ended(1, "ValueError", 4), line),
        after_a_loop(waiting(in_loop("step")), line),
    ];
    for other in says_nothing {
        let notes = [other, waiting(in_loop("step")), waiting(in_loop("step"))];
        let (findings, ..) = found(&notes);
        assert!(
            findings.iter().all(|text| !text.contains("loop")),
            "{findings:?}"
        );
    }
}
