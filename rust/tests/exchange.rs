//! Any number of messages in one call.

use std::sync::Once;

use _core::ops;

mod common;
use common::recorder::*;
use common::*;

#[test]
fn receives_are_posted_before_sends() {
    let _alone = alone();
    assert_eq!(
        messages("exchange", exchange()),
        of_floats(
            COMM[0],
            &[
                ("MPI_Irecv", OUT, 3, 0, 3),
                ("MPI_Irecv", OUT + 12, 5, 1, 2),
                ("MPI_Isend", IN, 5, 1, 2),
                ("MPI_Isend", IN + 20, 3, 0, 3),
            ]
        )
    );
}

#[test]
fn there_may_be_messages_in_one_direction_or_none() {
    let _alone = alone();
    let none = || {
        let call = on(RANK_0).list("dests", &[]).list("sendtags", &[]);
        call.list("sources", &[]).list("recvtags", &[])
    };
    assert_eq!(messages("exchange", none()), []);
    let send_only = on(RANK_0).list("dests", &[1]).list("sendtags", &[7]);
    let send_only = send_only.list("sources", &[]).list("recvtags", &[]);
    assert_eq!(
        messages("exchange", send_only.operand(floats(IN, &[2, 2]))),
        of_floats(COMM[0], &[("MPI_Isend", IN, 4, 1, 7)])
    );
}

#[test]
fn each_array_needs_a_process() {
    let _alone = alone();
    assert_eq!(
        refused("exchange", exchange().operand(floats(IN, &[1]))),
        invalid("2 ranks and 2 tags for 3 arrays")
    );
    assert_eq!(
        refused("exchange", exchange().result(floats(OUT, &[1]))),
        invalid("2 ranks and 2 tags for 3 arrays")
    );
    let call = on(RANK_0).list("dests", &[1 << 40]).list("sendtags", &[0]);
    assert_eq!(
        refused("exchange", call.operand(floats(IN, &[1]))),
        invalid("attribute `dests` has 1099511627776, not an int of MPI's")
    );
}

#[test]
fn more_than_an_int_counts() {
    let _alone = alone();
    let with_limit = |use_large| {
        ops::set_count_limit(4, use_large);
        let calls = messages("exchange", exchange());
        ops::set_count_limit(i32::MAX.into(), true);
        calls
    };
    assert_eq!(
        with_limit(true),
        of_floats(
            COMM[0],
            &[
                ("MPI_Irecv", OUT, 3, 0, 3),
                ("MPI_Irecv_c", OUT + 12, 5, 1, 2),
                ("MPI_Isend_c", IN, 5, 1, 2),
                ("MPI_Isend", IN + 20, 3, 0, 3),
            ]
        )
    );
    let counts: Vec<_> = with_limit(false)
        .into_iter()
        .filter(|(function, _)| ["MPI_Irecv", "MPI_Isend"].contains(function))
        .map(|(_, arguments)| (arguments[1], arguments[2] == FLOAT))
        .collect();
    assert_eq!(counts, [(3, true), (1, false), (1, false), (3, true)]);
}

/// Three floats to rank 1, and one from any, on a communicator on which messages travel in pieces of
/// two floats.
fn in_pieces(floats_sent: &[f32; 3]) -> CallFrame {
    const IN_PIECES: i64 = 900;
    static MADE: Once = Once::new();
    MADE.call_once(|| {
        set_communicator_in_pieces(IN_PIECES as usize, (0x77, 0, 2), 8);
    });
    let call = on(IN_PIECES).list("dests", &[1]).list("sendtags", &[7]);
    let call = call.list("sources", &[-1]).list("recvtags", &[4]);
    let call = call.operand(floats(floats_sent.as_ptr() as i64, &[3]));
    call.result(floats(OUT, &[1]))
}

/// The functions that are called, with the buffer and the count of each message.
fn buffers(calls: Vec<Recorded>) -> Vec<(&'static str, Vec<i64>)> {
    let call = |(function, arguments): Recorded| {
        (function, arguments.into_iter().take(2).collect::<Vec<_>>())
    };
    calls.into_iter().map(call).collect()
}

/// Who receives learns by a shorter piece that it was the last: it receives one after the other.
#[test]
fn in_pieces_all_sends_come_first() {
    let _alone = alone();
    let sent = [1.0, 2.0, 3.0];
    let calls = buffers(messages("exchange", in_pieces(&sent)));
    let copy = calls[0].1[0];
    assert_ne!(copy, sent.as_ptr() as i64);
    assert_eq!(
        calls[..2],
        [
            ("MPI_Isend", vec![copy, 2]),
            ("MPI_Isend", vec![copy + 8, 1])
        ]
    );
    assert_eq!(calls[2], ("MPI_Recv", vec![OUT, 1]));
}

/// Fails if the memory of a message that may be in flight is the operand's, or is used again.
#[test]
fn sends_keep_their_memory_if_a_receive_fails() {
    let _alone = alone();
    let sent = [1.0, 2.0, 3.0];
    let (outcome, calls) = raising("MPI_Recv", 5, || run("exchange", in_pieces(&sent)));
    assert_eq!(
        outcome,
        internal("r0 | MPI_Recv returned error code 5: number 5 is wrong")
    );
    assert!(calls.iter().all(|(function, _)| *function != "MPI_Wait"));
    let in_flight = buffers(calls)[0].1[0];
    let again = buffers(messages("exchange", in_pieces(&sent)));
    assert_ne!(again[0].1[0], in_flight);
}

#[test]
fn an_error_names_the_waiting() {
    let _alone = alone();
    let (outcome, _) = raising("MPI_Isend", 5, || run("exchange", exchange()));
    assert_eq!(
        outcome,
        internal("r0 | MPI_Waitall returned error code 5: number 5 is wrong")
    );
}

/// An exchange that is fused with copies, of messages with these processes.
fn fused(dests: &[i64], sources: &[i64], lists: [&[i64]; 8]) -> CallFrame {
    let tags = |ranks: &[i64]| vec![0; ranks.len()];
    let call = on(RANK_0).list("dests", dests);
    let call = call.list("sendtags", &tags(dests)).list("sources", sources);
    call.list("recvtags", &tags(sources)).with_copies(1, lists)
}

/// A copy of one element.
fn element(source: i64, from: i64, result: i64, to: i64) -> [i64; 5] {
    [source, from, result, to, 0]
}

/// Arrays of a fused call: one that a result updates, one that is only read, a list of rows, and a new
/// result.
struct Arrays {
    updated: [f32; 4],
    read: [f32; 4],
    rows: [i32; 2],
    new: [f32; 4],
}

/// Their numbers. The updated array has two.
const UPDATED_OPERAND: i64 = 0;
const READ: i64 = 1;
const ROWS: i64 = 2;
const UPDATED: i64 = 3;
const NEW: i64 = 4;

impl Arrays {
    fn new() -> Self {
        Self {
            updated: [1.0, 2.0, 3.0, 4.0],
            read: [5.0, 6.0, 7.0, 8.0],
            rows: [3, 0],
            new: [-1.0; 4],
        }
    }

    fn run(&mut self, call: CallFrame) -> (Outcome, Vec<Recorded>) {
        let updated = floats(self.updated.as_mut_ptr() as i64, &[4]);
        let call = call.operand(updated.clone());
        let call = call.operand(floats(self.read.as_ptr() as i64, &[4]));
        let call = call.operand(buffer(S32, self.rows.as_ptr() as usize, &[2]));
        let new = floats(self.new.as_mut_ptr() as i64, &[4]);
        run("exchange", call.result(updated).result(new))
    }
}

#[test]
fn messages_are_parts_of_arrays_between_copies() {
    let _alone = alone();
    let mut arrays = Arrays::new();
    let before = [element(READ, 1, NEW, 0), element(UPDATED, 1, NEW, 1)].concat();
    // By listed rows, of which the last one is read first.
    let after = [&element(READ, 0, UPDATED_OPERAND, 0)[..4], &[1, 2, 1, 1]].concat();
    let call = fused(
        &[1],
        &[1],
        [
            &[NEW, 0, 2],
            &[UPDATED, 2, 2],
            &before,
            &[2],
            &[],
            &after,
            &[1],
            &[ROWS, 0, 0, 4, -1, 0],
        ],
    );
    let (outcome, calls) = arrays.run(call);
    assert_eq!(outcome, Ok(()));
    let received = arrays.updated[2..].as_ptr() as i64;
    let messages = [
        ("MPI_Irecv", received, 2, 1, 0),
        ("MPI_Isend", arrays.new.as_ptr() as i64, 2, 1, 0),
    ];
    assert_eq!(calls, of_floats(COMM[0], &messages));
    assert_eq!(arrays.new, [6.0, 2.0, -1.0, -1.0]);
    assert_eq!(arrays.updated, [8.0, 5.0, 3.0, 4.0]);
    assert_eq!(arrays.read, Arrays::new().read);
}

/// Fails if a wrong number writes over an array that a program still reads.
#[test]
fn only_results_are_written() {
    let _alone = alone();
    let (to_read, to_rows) = (element(NEW, 0, READ, 0), element(NEW, 0, ROWS, 0));
    let (from_read, to_none) = (element(READ, 0, NEW, 0), element(READ, 0, 5, 0));
    let not_updated = |array: i64| {
        let text = format!("array {array} can't be written: no result updates the operand");
        invalid(&text)
    };
    for (lists, expected) in [
        (
            [&[][..], &[], &to_read, &[1], &[], &[], &[], &[]],
            not_updated(READ),
        ),
        (
            [&[], &[], &[], &[], &[], &to_read, &[1], &[]],
            not_updated(READ),
        ),
        (
            [&[], &[], &to_rows, &[1], &[], &[], &[], &[]],
            not_updated(ROWS),
        ),
        // The transpose of a copy writes both arrays.
        (
            [&[], &[], &[], &[], &[], &from_read, &[], &[]],
            not_updated(READ),
        ),
        (
            [&[], &[], &to_none, &[1], &[], &[], &[], &[]],
            invalid("there is no array 5"),
        ),
    ] {
        let mut arrays = Arrays::new();
        assert_eq!(arrays.run(fused(&[], &[], lists)), (expected, vec![]));
        assert_eq!(
            (arrays.read, arrays.rows),
            (Arrays::new().read, Arrays::new().rows)
        );
    }
    let mut arrays = Arrays::new();
    let received = [&[][..], &[READ, 0, 1], &[], &[], &[], &[], &[], &[]];
    let outcome = arrays.run(fused(&[], &[1], received));
    assert_eq!(outcome, (not_updated(READ), vec![]));
}

/// Fails if MPI writes to memory of another message (MPI-4.1 §3.7.2).
#[test]
fn messages_in_flight_are_apart() {
    let _alone = alone();
    const PROC_NULL: i64 = -7;
    let run = |dests: &[i64], sources: &[i64], sent: &[i64], received: &[i64]| {
        let lists = [sent, received, &[], &[], &[], &[], &[], &[]];
        let (outcome, calls) = Arrays::new().run(fused(dests, sources, lists));
        outcome.map(|()| calls.len())
    };
    let overlapping = invalid("a message is received into memory of another one").map(|()| 0);
    // The operand is the result's memory.
    for sent in [UPDATED_OPERAND, UPDATED] {
        let beside = run(&[1], &[1], &[sent, 0, 2], &[UPDATED, 2, 2]);
        assert_eq!(beside, Ok(4));
        let within = run(&[1], &[1], &[sent, 0, 3], &[UPDATED, 2, 2]);
        assert_eq!(within, overlapping);
        let around = run(&[1], &[1], &[sent, 1, 1], &[UPDATED, 0, 4]);
        assert_eq!(around, overlapping);
        // Nobody sends or receives.
        let nothing = run(&[1], &[PROC_NULL], &[sent, 0, 3], &[UPDATED, 2, 2]);
        assert_eq!(nothing, Ok(2));
        let empty = run(&[1], &[1], &[sent, 3, 0], &[UPDATED, 2, 2]);
        assert_eq!(empty, Ok(4));
    }
    let both = [NEW, 0, 2, NEW, 1, 2];
    assert_eq!(run(&[], &[1, 1], &[], &both), overlapping);
    assert_eq!(run(&[1, 1], &[], &both, &[]), Ok(4));
}
