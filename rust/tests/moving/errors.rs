//! Errors after something has begun: what MPI may still read or write stays as it is.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use _core::ops;

use super::flights::iexchange;
use super::messages::{peers, recv};
use super::mpi::*;
use super::values;
use crate::common::recorder::SUM;
use crate::common::*;

const COUNT: usize = 2000;

/// A call of rank 0 with an error, after which the rank uses the memory for something else. Rank 1
/// then does `answer`.
fn after_an_error(
    rank: Rank,
    function: &'static str,
    after: usize,
    is_over: &AtomicBool,
    call: impl FnOnce() -> Outcome,
    answer: impl FnOnce(),
) {
    if rank.rank == 0 {
        rank.fail(function, after);
        let (_, text) = call().unwrap_err();
        assert!(text.contains("number 5 was asked for"), "{text}");
        is_over.store(true, SeqCst);
    } else {
        rank.until_waiting(0, is_over);
        answer();
    }
}

/// Sends two arrays to rank 1, and receives one.
fn blocking_exchange(rank: Rank) -> Outcome {
    let (mut first, mut second) = (values(0, COUNT), values(1, COUNT));
    let mut received = vec![0.0; COUNT];
    let call = peers(rank, &[1, 1], &[1]);
    let call = call.operand(array(&first)).operand(array(&second));
    let outcome = rank.call("exchange", call.result(array_mut(&mut received)));
    // XLA has other uses for them.
    first.fill(-9.0);
    second.fill(-9.0);
    outcome
}

/// Fails if a call returns while MPI may read its operands: all receives were posted before.
#[test]
fn a_send_that_fails_leaves_no_other_one() {
    let mut world = World::new(2, LATE);
    let is_over = AtomicBool::new(false);
    world.run_raising(|rank| {
        let answer = || assert_eq!(recv(rank, 0, 4, COUNT), values(0, COUNT));
        after_an_error(
            rank,
            "MPI_Isend",
            1,
            &is_over,
            || blocking_exchange(rank),
            answer,
        );
    });
    world.is_left_untidy = true;
}

/// Fails if a call returns while MPI may read its operands: messages are received one after another.
#[test]
fn a_receive_that_fails_leaves_no_send() {
    for (function, piece_bytes, check) in [("MPI_Recv", 4 * COUNT, false), ("MPI_Recv", 0, true)] {
        let mut world = World::in_pieces(2, LATE, piece_bytes);
        ops::set_check(check);
        let is_over = AtomicBool::new(false);
        world.run_raising(|rank| {
            let answer = || {
                assert_eq!(recv(rank, 0, 4, COUNT), values(0, COUNT));
                assert_eq!(recv(rank, 0, 4, COUNT), values(1, COUNT));
            };
            after_an_error(
                rank,
                function,
                0,
                &is_over,
                || blocking_exchange(rank),
                answer,
            );
        });
        world.is_left_untidy = true;
    }
}

/// Uses blocks of the core's on rank 0 for something else: a hold, and then a message.
fn use_blocks_again(rank: Rank) {
    let held_values = values(7, 2 * COUNT);
    let call = rank.on().operand(array(&held_values));
    let ticket = rank.start("hold", call);
    rank.progress();
    let mut held = vec![0.0; 2 * COUNT];
    assert_eq!(rank.wait(&ticket, &mut [&mut held]), Ok(()));
    assert_eq!(held, held_values);
}

/// Fails if the block of a nonblocking call goes to another one while MPI may read it.
#[test]
fn a_nonblocking_send_that_fails_leaves_no_other_one() {
    let mut world = World::new(2, LATE);
    let is_over = AtomicBool::new(false);
    world.run_raising(|rank| {
        let call = || {
            let (first, second) = (values(0, COUNT), values(1, COUNT));
            let call = iexchange(rank, &[(1, &first), (1, &second)], &[]);
            let outcome = rank.try_to_start("iexchange", call).map(|_| ());
            use_blocks_again(rank);
            outcome
        };
        let answer = || assert_eq!(recv(rank, 0, 4, COUNT), values(0, COUNT));
        after_an_error(rank, "MPI_Isend", 1, &is_over, call, answer);
    });
    assert_eq!(ops::in_flight(), 0);
    world.is_left_untidy = true;
}

/// Fails if the block of a nonblocking call goes to another one while MPI may write to it.
#[test]
fn a_nonblocking_receive_that_fails_leaves_no_other_one() {
    let mut world = World::new(2, LATE);
    let is_over = AtomicBool::new(false);
    world.run_raising(|rank| {
        let call = || {
            let call = iexchange(rank, &[], &[(1, COUNT), (1, COUNT)]);
            let outcome = rank.try_to_start("iexchange", call).map(|_| ());
            use_blocks_again(rank);
            outcome
        };
        after_an_error(rank, "MPI_Irecv", 1, &is_over, call, || ());
    });
    world.is_left_untidy = true;
}

/// Fails if the blocks of a collective call of several parts go to another one while MPI may use them.
#[test]
fn a_part_of_a_collective_call_that_fails_leaves_no_other_one() {
    let mut world = World::new(2, LATE);
    ops::set_count_limit(8, false);
    world.run_raising(|rank| {
        let operand = values(rank.rank, 20);
        let call = rank
            .on()
            .ints(&[("op_number", SUM)])
            .operand(array(&operand));
        rank.fail("MPI_Iallreduce", 1);
        let outcome = rank.try_to_start("iallreduce", call).map(|_| ());
        assert!(outcome.is_err());
        use_blocks_again(rank);
    });
    world.is_left_untidy = true;
}

/// Fails if a wait that ends with an error leaves the memory of the other messages to somebody else.
#[test]
fn a_wait_that_fails_leaves_no_other_message() {
    for check in [false, true] {
        let mut world = World::new(2, LATE);
        ops::set_check(check);
        let is_over = AtomicBool::new(false);
        world.run_raising(|rank| {
            let call = || {
                let call = iexchange(rank, &[], &[(1, COUNT), (1, COUNT)]);
                let ticket = rank.start("iexchange", call);
                let mut received = [vec![0.0; COUNT], vec![0.0; COUNT]];
                let [first, second] = &mut received;
                let outcome = rank.wait(&ticket, &mut [first, second]);
                use_blocks_again(rank);
                outcome
            };
            let answer = || {
                let (first, second) = (values(1, COUNT), values(2, COUNT));
                let call = iexchange(rank, &[(0, &first), (0, &second)], &[]);
                let ticket = rank.start("iexchange", call);
                assert_eq!(rank.wait(&ticket, &mut []), Ok(()));
            };
            if rank.rank == 0 {
                after_an_error(rank, "MPI_Wait", 0, &is_over, call, || ());
            } else {
                answer();
            }
        });
        world.is_left_untidy = true;
    }
}

/// Fails if a message that has no room leaves a request, or memory, to somebody else.
#[test]
fn a_message_that_has_no_room_is_an_error() {
    let world = World::new(2, LATE);
    world.run_raising(|rank| {
        let peer = 1 - rank.rank;
        let sent = values(rank.rank, COUNT + 100 * rank.rank);
        let call = iexchange(rank, &[(peer, &sent)], &[(peer, COUNT)]);
        let ticket = rank.start("iexchange", call);
        let mut received = vec![0.0; COUNT];
        let outcome = rank.wait(&ticket, &mut [&mut received]);
        if rank.rank == 0 {
            let text =
                "r0 | MPI_Waitall returned error code 14: the message is longer than its buffer";
            assert_eq!(outcome, internal(text));
        } else {
            assert_eq!((outcome, received), (Ok(()), values(0, COUNT)));
        }
        use_blocks_again(rank);
    });
}
