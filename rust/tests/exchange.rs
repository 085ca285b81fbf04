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
