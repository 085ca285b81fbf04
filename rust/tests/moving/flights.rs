//! Nonblocking messages, and the thread that goes on with what is in flight.

use std::process::Command;
use std::time::{Duration, Instant};

use _core::mpi::{Abi, IntHandles, before_finalize, follow_end};
use _core::ops;

use super::messages::{exchange, peers};
use super::mpi::*;
use super::values;
use crate::common::*;

/// Starts to send values to some processes, and to receive a number of values from each source.
pub fn iexchange(rank: Rank, sends: &[(usize, &[f32])], sources: &[(usize, usize)]) -> CallFrame {
    let arrays = sources
        .iter()
        .flat_map(|(_, count)| [F32.into(), *count as i64]);
    let call = peers(
        rank,
        &sends.iter().map(|send| send.0 as i64).collect::<Vec<_>>(),
        &sources
            .iter()
            .map(|source| source.0 as i64)
            .collect::<Vec<_>>(),
    );
    let call = call.list("arrays", &arrays.collect::<Vec<_>>());
    sends
        .iter()
        .fold(call, |call, (_, array_)| call.operand(array(array_)))
}

fn wait_for(rank: Rank, ticket: &Ticket, count: usize) -> Vec<f32> {
    let mut received = vec![-1.0; count];
    assert_eq!(rank.wait(ticket, &mut [&mut received]), Ok(()));
    received
}

/// Fails if what is sent is read where it no longer is, or what comes goes elsewhere.
#[test]
fn messages_come() {
    for check in [false, true] {
        for (lateness, piece_bytes) in [(EARLY, 0), (LATE, 0), (LATE, 12)] {
            let world = World::in_pieces(2, lateness, piece_bytes);
            ops::set_check(check);
            world.run(|rank| {
                let peer = 1 - rank.rank;
                let mut tickets = Vec::new();
                for count in [3, 50, 40] {
                    let sent = values(rank.rank, count);
                    let call = iexchange(rank, &[(peer, &sent)], &[(peer, count)]);
                    tickets.push((rank.start("iexchange", call), count));
                }
                for (ticket, count) in tickets.iter().rev() {
                    assert_eq!(wait_for(rank, ticket, *count), values(peer, *count));
                }
            });
        }
    }
}

/// Fails if only the calls of a program let MPI go on.
#[test]
fn a_thread_goes_on_with_large_messages() {
    let world = World::new(2, LATE);
    ops::set_pushing(true);
    let tickets = std::sync::Mutex::new(Vec::new());
    const COUNT: usize = 5000;
    world.run(|rank| {
        let (peer, sent) = (1 - rank.rank, values(rank.rank, COUNT));
        let call = iexchange(rank, &[(peer, &sent)], &[(peer, COUNT)]);
        let ticket = rank.start("iexchange", call);
        tickets.lock().unwrap().push((rank, ticket));
    });
    world.until_complete();
    for (rank, ticket) in tickets.into_inner().unwrap() {
        assert_eq!(wait_for(rank, &ticket, COUNT), values(1 - rank.rank, COUNT));
    }
}

/// Fails if the thread and a call that waits take a request for theirs at the same time.
#[test]
fn the_thread_and_the_program_wait_for_the_same() {
    let world = World::new(3, LATE);
    ops::set_pushing(true);
    world.run(|rank| {
        const COUNT: usize = 3000;
        let (left, right) = ((rank.rank + 2) % 3, (rank.rank + 1) % 3);
        for round in 0..50 {
            let sent = values(rank.rank, COUNT + round);
            let call = iexchange(rank, &[(right, &sent)], &[(left, COUNT + round)]);
            let ticket = rank.start("iexchange", call);
            if (round + rank.rank) % 3 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
            assert_eq!(
                wait_for(rank, &ticket, COUNT + round),
                values(left, COUNT + round)
            );
        }
    });
}

/// Fails if memory goes before the end of messages for which nobody waits.
#[test]
fn the_end_of_a_program_waits_for_messages() {
    let world = World::new(2, LATE);
    world.run(|rank| {
        let (peer, sent) = (1 - rank.rank, values(rank.rank, 100));
        if rank.rank == 0 {
            rank.start(
                "iexchange",
                iexchange(rank, &[(peer, &sent)], &[(peer, 100)]),
            );
            let unwaited = ops::finish(Duration::from_secs(100));
            assert!(unwaited.iter().all(|flight| flight.is_done));
            assert_eq!((unwaited.len(), ops::in_flight()), (1, 0));
        } else {
            let mut received = vec![0.0; 100];
            let call = peers(rank, &[0], &[0]).operand(array(&sent));
            rank.succeed("exchange", call.result(array_mut(&mut received)));
            assert_eq!(received, values(0, 100));
        }
    });
}

/// Fails if MPI is called after its end, by the thread or by a program that has come to its own end.
#[test]
fn nothing_calls_mpi_after_its_end() {
    let mut test = Command::new(std::env::current_exe().unwrap());
    let outcome = test.args(["--ignored", "--exact", "flights::the_end_of_mpi"]);
    let outcome = outcome.output().unwrap();
    let text = String::from_utf8_lossy(&outcome.stdout);
    assert!(
        outcome.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
#[ignore = "ends MPI in all of its process, so another test runs it in one of its own"]
fn the_end_of_mpi() {
    let mut world = World::new(2, LATE);
    // SAFETY: this MPI takes any handle.
    unsafe { follow_end(IntHandles::functions().get().unwrap(), 0x5e1f) };
    before_finalize(ops::stop_pushing);
    ops::set_pushing(true);
    world.run(|rank| {
        rank.start("iexchange", iexchange(rank, &[], &[(1 - rank.rank, 5000)]));
    });
    world.finalize();
    std::thread::sleep(Duration::from_millis(20));
    let (begin, at_most) = (Instant::now(), Duration::from_secs(30));
    let unwaited = ops::finish(at_most);
    assert!(begin.elapsed() < at_most, "it waits for what can't come");
    assert!(unwaited.iter().all(|flight| !flight.is_done));
    world.is_left_untidy = true;
}

#[test]
fn any_number_of_messages_are_exchanged() {
    for check in [false, true] {
        let world = World::new(3, LATE);
        ops::set_check(check);
        world.run(|rank| {
            let (_sent, expected, call) = exchange(rank);
            let arrays = vec![[F32.into(), expected[0].len() as i64]; rank.size].concat();
            let ticket = rank.start("iexchange", call.list("arrays", &arrays));
            let mut received: Vec<_> = expected
                .iter()
                .map(|array| vec![0.0; array.len()])
                .collect();
            let mut results: Vec<_> = received.iter_mut().map(|array| &mut array[..]).collect();
            assert_eq!(rank.wait(&ticket, &mut results), Ok(()));
            assert_eq!(received, expected);
        });
    }
}
