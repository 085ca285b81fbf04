//! The messages between neighbors.
//!
//! `neighbors` has rank 1 with tag 0, nobody, and rank 0 with tag 1 as those that send, and ranks 0
//! and 1 with the tags 2 and 3 as those that are sent to.

use _core::mpi::{Abi, Neighbors};
use _core::ops;

mod common;
use common::recorder::*;
use common::*;

/// A new communicator, and the one of its messages, which is there already.
fn communicator() -> (i64, i64) {
    let (index, handle) = new_communicator();
    let calls = messages("neighbor_allgather", neighbor_allgather(index));
    assert_eq!(calls[0], ("MPI_Comm_split", vec![handle, 0, 1]));
    (index, handle + REVERSED)
}

#[test]
fn each_block_is_a_message() {
    let _alone = alone();
    let (index, comm) = communicator();
    assert_eq!(
        messages("neighbor_alltoall", neighbor_alltoall(index, 0)),
        of_floats(
            comm,
            &[
                ("MPI_Irecv", OUT, 5, 1, 0),
                ("MPI_Irecv", OUT + 40, 5, 0, 1),
                ("MPI_Isend", IN, 5, 0, 2),
                ("MPI_Isend", IN + 20, 5, 1, 3),
            ]
        )
    );
}

/// Rank 1 is sent to in two edges, and sends in two, with another process between them on each side.
fn two_edges() -> Neighbors {
    Neighbors {
        sources: ends(&[(1, 4), (0, 0), (Recorder::constants().proc_null, 5), (1, 3)]),
        destinations: ends(&[(1, 6), (0, 0), (1, 7)]),
    }
}

/// The messages of a call: to or from which rank, with which tag, and how many elements.
fn sizes(operation: &str, call: CallFrame) -> Vec<(&'static str, i64, i64, i64)> {
    let calls = messages(operation, call).into_iter();
    let begun = calls.filter(|(function, _)| function.starts_with("MPI_I"));
    begun
        .map(|(function, list)| (function, list[3], list[4], list[1]))
        .collect()
}

#[test]
fn small_blocks_of_one_process_are_a_message() {
    let _alone = alone();
    let (index, _) = new_topology(two_edges());
    let operand: Vec<f32> = (0..15_u8).map(f32::from).collect();
    let mut result = [-1_f32; 20];
    let expected = [
        ("MPI_Irecv", 0, 0, 5),
        ("MPI_Irecv", 1, 5, 10),
        ("MPI_Isend", 0, 0, 5),
        ("MPI_Isend", 1, 8, 10),
    ];
    let call = on(index).ints(&[("backwards", 0)]);
    let call = call
        .operand(floats(operand.as_ptr() as i64, &[3, 5]))
        .result(floats(result.as_mut_ptr() as i64, &[4, 5]));
    assert_eq!(sizes("neighbor_alltoall", call), expected);
    assert_eq!(result, [0.0; 20], "nothing came");
    let call = on(index)
        .operand(floats(operand.as_ptr() as i64, &[5]))
        .result(floats(result.as_mut_ptr() as i64, &[4, 5]));
    assert_eq!(sizes("neighbor_allgather", call), expected);
}

#[test]
fn large_blocks_are_messages_of_their_own() {
    let _alone = alone();
    let (index, _) = new_topology(two_edges());
    let call = on(index).ints(&[("backwards", 0)]);
    assert_eq!(
        sizes("neighbor_alltoall", in_and_out(call, &[3, 257], &[4, 257])),
        [
            ("MPI_Irecv", 1, 4, 257),
            ("MPI_Irecv", 0, 0, 257),
            ("MPI_Irecv", 1, 3, 257),
            ("MPI_Isend", 1, 6, 257),
            ("MPI_Isend", 0, 0, 257),
            ("MPI_Isend", 1, 7, 257),
        ]
    );
}

#[test]
fn bundles_are_in_the_order_of_tags() {
    let bundles = two_edges().sources.bundles;
    let bundles: Vec<_> = bundles
        .iter()
        .map(|bundle| (bundle.peer.rank, bundle.peer.tag, &bundle.places[..]))
        .collect();
    assert_eq!(bundles, [(0, 0, &[1][..]), (1, 5, &[3, 0])]);
}

#[test]
fn cotangents_go_the_same_edges_backwards() {
    let _alone = alone();
    let (index, comm) = communicator();
    assert_eq!(
        messages("neighbor_alltoall", neighbor_alltoall(index, 1)),
        of_floats(
            comm,
            &[
                ("MPI_Irecv", OUT, 5, 0, 2),
                ("MPI_Irecv", OUT + 20, 5, 1, 3),
                ("MPI_Isend", IN, 5, 1, 0),
                ("MPI_Isend", IN + 40, 5, 0, 1),
            ]
        )
    );
    assert_eq!(
        messages("neighbor_alltoallv", neighbor_alltoallv(index, 1)),
        of_floats(
            comm,
            &[
                ("MPI_Irecv", OUT, 3, 0, 2),
                ("MPI_Irecv", OUT + 12, 6, 1, 3),
                ("MPI_Isend", IN, 6, 1, 0),
                ("MPI_Isend", IN + 36, 6, 0, 1),
            ]
        )
    );
}

#[test]
fn all_neighbors_are_sent_the_same() {
    let _alone = alone();
    let (index, comm) = communicator();
    assert_eq!(
        messages("neighbor_allgather", neighbor_allgather(index)),
        of_floats(
            comm,
            &[
                ("MPI_Irecv", OUT, 3, 1, 0),
                ("MPI_Irecv", OUT + 24, 3, 0, 1),
                ("MPI_Isend", IN, 3, 0, 2),
                ("MPI_Isend", IN, 3, 1, 3),
            ]
        )
    );
    assert_eq!(
        messages("neighbor_allgatherv", neighbor_allgatherv(index)),
        of_floats(
            comm,
            &[
                ("MPI_Irecv", OUT, 3, 1, 0),
                // Behind the rows of nobody. Messages without any are sent as well.
                ("MPI_Irecv", OUT + 36, 0, 0, 1),
                ("MPI_Isend", IN, 6, 0, 2),
                ("MPI_Isend", IN, 6, 1, 3),
            ]
        )
    );
}

#[test]
fn parts_lie_one_behind_the_other() {
    let _alone = alone();
    let (index, comm) = communicator();
    assert_eq!(
        messages("neighbor_alltoallv", neighbor_alltoallv(index, 0)),
        of_floats(
            comm,
            &[
                ("MPI_Irecv", OUT, 6, 1, 0),
                ("MPI_Irecv", OUT + 36, 6, 0, 1),
                ("MPI_Isend", IN, 3, 0, 2),
                ("MPI_Isend", IN + 12, 6, 1, 3),
            ]
        )
    );
}

#[test]
fn more_than_an_int_counts() {
    let _alone = alone();
    let (index, comm) = communicator();
    let with_limit = |use_large| {
        ops::set_count_limit(4, use_large);
        let calls = messages("neighbor_alltoall", neighbor_alltoall(index, 0));
        ops::set_count_limit(i32::MAX.into(), true);
        calls
    };
    assert_eq!(
        with_limit(true),
        of_floats(
            comm,
            &[
                ("MPI_Irecv_c", OUT, 5, 1, 0),
                ("MPI_Irecv_c", OUT + 40, 5, 0, 1),
                ("MPI_Isend_c", IN, 5, 0, 2),
                ("MPI_Isend_c", IN + 20, 5, 1, 3),
            ]
        )
    );
    // Otherwise each is one of a data type of its own.
    let messages: Vec<_> = with_limit(false)
        .into_iter()
        .filter(|(function, _)| ["MPI_Irecv", "MPI_Isend"].contains(function))
        .map(|(_, arguments)| (arguments[0], arguments[1], arguments[2] != FLOAT))
        .collect();
    assert_eq!(
        messages,
        [OUT, OUT + 40, IN, IN + 20].map(|address| (address, 1, true))
    );
}

#[test]
fn the_communicator_of_messages_is_freed_with_the_other() {
    let _alone = alone();
    let (index, comm) = communicator();
    ops::free_communicator::<Recorder>(index as usize);
    assert_eq!(recorded(), [("MPI_Comm_free", vec![comm])]);
    ops::free_communicator::<Recorder>(index as usize);
    assert_eq!(recorded(), [], "freed twice");
    let (outcome, _) = run("neighbor_allgather", neighbor_allgather(index));
    assert!(outcome.is_err(), "usable when freed");
}

/// Fails where MPI could write to memory that is no longer the result's.
#[test]
fn receives_are_withdrawn_when_a_message_can_not_be_sent() {
    let _alone = alone();
    let (index, _) = communicator();
    let (outcome, calls) = raising("MPI_Isend", 5, || {
        run("neighbor_alltoall", neighbor_alltoall(index, 0))
    });
    assert_eq!(
        outcome,
        internal("r1 | MPI_Neighbor_alltoall returned error code 5: number 5 is wrong")
    );
    let calls: Vec<_> = calls
        .into_iter()
        .map(|(function, arguments)| (function, arguments[0]))
        .collect();
    assert_eq!(
        calls[3..],
        [
            ("MPI_Cancel", 1),
            ("MPI_Cancel", 2),
            ("MPI_Wait", 1),
            ("MPI_Wait", 2)
        ]
    );
}

/// Fails where an error leaves messages under way.
#[test]
fn all_messages_are_waited_for_when_one_fails() {
    let _alone = alone();
    let (index, _) = communicator();
    let (outcome, calls) = raising("MPI_Wait", 6, || {
        run("neighbor_alltoall", neighbor_alltoall(index, 0))
    });
    assert_eq!(
        outcome,
        internal("r1 | MPI_Neighbor_alltoall returned error code 6: number 6 is wrong")
    );
    let waits = calls.iter().filter(|(function, _)| *function == "MPI_Wait");
    assert_eq!(waits.count(), 4);
}

#[test]
fn arrays_must_have_what_the_topology_says() {
    let _alone = alone();
    let (index, _) = communicator();
    let call = || on(index).ints(&[("backwards", 0)]);
    assert_eq!(
        refused("neighbor_alltoall", in_and_out(call(), &[3, 5], &[3, 5])),
        invalid("an array of shape [3, 5] has not the 2 rows that the call says")
    );
    assert_eq!(
        refused("neighbor_alltoall", in_and_out(call(), &[2, 5], &[2, 5])),
        invalid("an array of shape [2, 5] has not the 3 rows that the call says")
    );
    assert_eq!(
        refused("neighbor_allgather", in_and_out(on(index), &[5], &[2, 5])),
        invalid("arrays do not match: [2, 5] of XLA type 11 is not 3 times [5] of XLA type 11")
    );
    for counts in [&[1, 2][..], &[1, 2, -1]] {
        let call = on(index).list("counts", counts);
        assert_eq!(
            refused("neighbor_allgatherv", in_and_out(call, &[2, 3], &[3, 3])),
            invalid(&format!(
                "attribute `counts` is {counts:?}, expected a number of rows for each of 3 \
                 neighbors"
            ))
        );
    }
}
