//! Blocking messages.

use _core::ops;

use super::mpi::network::Lateness;
use super::mpi::*;
use super::values;
use crate::common::*;

pub fn send(rank: Rank, dest: i64, tag: i64, operand: &[f32]) {
    let call = rank.on().ints(&[("dest", dest), ("tag", tag)]);
    rank.succeed("send", call.operand(array(operand)));
}

pub fn recv(rank: Rank, source: i64, tag: i64, count: usize) -> Vec<f32> {
    let mut received = vec![-1.0; count];
    let call = rank
        .on()
        .ints(&[("source", source), ("tag", tag), ("status_number", -1)]);
    rank.succeed("recv", call.result(array_mut(&mut received)));
    received
}

/// How late messages are, the bytes of a piece, and what an int counts.
const SETTINGS: [(Lateness, usize, i64); 4] = [
    (EARLY, 0, i32::MAX as i64),
    (LATE, 0, i32::MAX as i64),
    (LATE, 12, i32::MAX as i64),
    (LATE, 0, 5),
];

const ANY_SOURCE: i64 = -2;
const ANY_TAG: i64 = -1;

#[test]
fn messages_come() {
    for (lateness, piece_bytes, count_limit) in SETTINGS {
        let world = World::in_pieces(2, lateness, piece_bytes);
        ops::set_count_limit(count_limit, true);
        world.run(|rank| {
            if rank.rank == 0 {
                send(rank, 1, 9, &values(0, 100));
                send(rank, 1, 7, &values(1, 3));
                send(rank, 1, 7, &values(2, 3));
            } else {
                assert_eq!(recv(rank, ANY_SOURCE, ANY_TAG, 100), values(0, 100));
                assert_eq!(recv(rank, 0, 7, 3), values(1, 3));
                assert_eq!(recv(rank, 0, ANY_TAG, 3), values(2, 3));
            }
        });
    }
}

#[test]
fn a_ring_is_no_deadlock() {
    for (lateness, piece_bytes, count_limit) in SETTINGS {
        for size in 1..=3 {
            let world = World::in_pieces(size, lateness, piece_bytes);
            ops::set_count_limit(count_limit, true);
            world.run(|rank| {
                let (left, right) = ((rank.rank + size - 1) % size, (rank.rank + 1) % size);
                let sendrecv = || {
                    rank.on().ints(&[
                        ("dest", right as i64),
                        ("sendtag", 3),
                        ("source", left as i64),
                        ("recvtag", 3),
                        ("status_number", -1),
                    ])
                };
                let sent = values(rank.rank, 50);
                let mut received = vec![-1.0; 50];
                let call = sendrecv().operand(array(&sent));
                rank.succeed("sendrecv", call.result(array_mut(&mut received)));
                assert_eq!(received, values(left, 50));
                let mut both = values(rank.rank, 50);
                let call = sendrecv().operand(array(&both));
                rank.succeed("sendrecv", call.result(array_mut(&mut both)));
                assert_eq!(both, values(left, 50));
            });
        }
    }
}

/// Messages to these processes, and from those.
pub fn peers(rank: Rank, dests: &[i64], sources: &[i64]) -> CallFrame {
    let tags = |ranks: &[i64]| vec![4; ranks.len()];
    let call = rank
        .on()
        .list("dests", dests)
        .list("sendtags", &tags(dests));
    call.list("sources", sources)
        .list("recvtags", &tags(sources))
}

/// What all others get from a process, and it from them.
pub fn exchange(rank: Rank) -> (Vec<Vec<f32>>, Vec<Vec<f32>>, CallFrame) {
    let all: Vec<_> = (0..rank.size as i64).collect();
    let sent: Vec<_> = (0..rank.size)
        .map(|dest| values(10 * rank.rank + dest, 20 + dest))
        .collect();
    let call = peers(rank, &all, &all);
    let call = sent
        .iter()
        .fold(call, |call, sent| call.operand(array(sent)));
    let expected = (0..rank.size).map(|source| values(10 * source + rank.rank, 20 + rank.rank));
    (sent, expected.collect(), call)
}

#[test]
fn any_number_of_messages_are_exchanged() {
    for (lateness, piece_bytes, count_limit) in SETTINGS {
        let world = World::in_pieces(3, lateness, piece_bytes);
        ops::set_count_limit(count_limit, true);
        world.run(|rank| {
            let (_sent, expected, call) = exchange(rank);
            let mut received: Vec<_> = expected
                .iter()
                .map(|array| vec![0.0; array.len()])
                .collect();
            let results = received.iter_mut();
            let call = results.fold(call, |call, array| call.result(array_mut(array)));
            rank.succeed("exchange", call);
            assert_eq!(received, expected);
        });
    }
}

/// Fails if a message that has no room ends in memory behind it.
#[test]
fn a_message_that_has_no_room_is_an_error() {
    let world = World::new(2, LATE);
    world.run_raising(|rank| {
        if rank.rank == 0 {
            send(rank, 1, 9, &values(0, 100));
        } else {
            let mut received = [-1.0; 60];
            let call = rank
                .on()
                .ints(&[("source", 0), ("tag", 9), ("status_number", -1)]);
            let outcome = rank.call("recv", call.result(array_mut(&mut received[..50])));
            let text =
                "r1 | MPI_Recv returned error code 14: the message is longer than its buffer";
            assert_eq!(outcome, internal(text));
            assert_eq!(received[50..], [-1.0; 10]);
        }
    });
}

/// Fails if the checks lose a message, or take one for another.
#[test]
fn checked_messages_come() {
    for (lateness, piece_bytes, count_limit) in SETTINGS {
        let world = World::in_pieces(2, lateness, piece_bytes);
        ops::set_count_limit(count_limit, true);
        ops::set_check(true);
        world.run(|rank| {
            if rank.rank == 0 {
                send(rank, 1, 9, &values(0, 100));
                send(rank, 1, 7, &values(1, 3));
            } else {
                assert_eq!(recv(rank, ANY_SOURCE, ANY_TAG, 100), values(0, 100));
                assert_eq!(recv(rank, 0, ANY_TAG, 3), values(1, 3));
            }
            let (_sent, expected, call) = exchange(rank);
            let mut received: Vec<_> = expected
                .iter()
                .map(|array| vec![0.0; array.len()])
                .collect();
            let results = received.iter_mut();
            let call = results.fold(call, |call, array| call.result(array_mut(array)));
            rank.succeed("exchange", call);
            assert_eq!(received, expected);
        });
    }
}

/// Fails if a message that is refused is written to the result, or left for the next receive.
#[test]
fn a_checked_message_that_does_not_fit_is_refused() {
    let world = World::new(2, LATE);
    ops::set_check(true);
    world.run_raising(|rank| {
        if rank.rank == 0 {
            send(rank, 1, 9, &values(0, 100));
            send(rank, 1, 9, &values(1, 30));
        } else {
            let mut received = [-1.0; 50];
            let call = rank
                .on()
                .ints(&[("source", 0), ("tag", 9), ("status_number", -1)]);
            let (_, text) = rank
                .call("recv", call.result(array_mut(&mut received)))
                .unwrap_err();
            assert!(text.contains("a message that does not fit"), "{text}");
            assert_eq!(received, [-1.0; 50]);
            assert_eq!(recv(rank, 0, 9, 30), values(1, 30));
        }
    });
}
