//! Any number of messages in one call.

use _core::mpi::{Communicator, REGISTRY};
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

/// Who receives learns by a shorter piece that it was the last: it receives one after the other.
#[test]
fn in_pieces_all_sends_come_first() {
    let _alone = alone();
    const IN_PIECES: i64 = 900;
    let communicator = Communicator::new(0x77, 0, 2, 8);
    REGISTRY.set_communicator(IN_PIECES as usize, communicator);
    let call = on(IN_PIECES).list("dests", &[1]).list("sendtags", &[7]);
    let call = call.list("sources", &[-1]).list("recvtags", &[4]);
    let call = call.operand(floats(IN, &[3]));
    let calls: Vec<_> = messages("exchange", call.result(floats(OUT, &[1])))
        .into_iter()
        .map(|(function, arguments)| (function, arguments.into_iter().take(2).collect::<Vec<_>>()))
        .collect();
    assert_eq!(
        calls[..2],
        [("MPI_Isend", vec![IN, 2]), ("MPI_Isend", vec![IN + 8, 1])]
    );
    assert_eq!(calls[2], ("MPI_Recv", vec![OUT, 1]));
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
