//! Collective operations, blocking and nonblocking.

use _core::ops;

use super::cases::{bcast, cases};
use super::mpi::functions::large_counts;
use super::mpi::*;

/// Fails if an operation gives MPI the wrong buffers, counts or types.
#[test]
fn each_operation_gives_what_it_should() {
    for (size, lateness) in [(1, EARLY), (2, LATE), (3, LATE)] {
        let world = World::new(size, lateness);
        for root in 0..size {
            world.run(|rank| {
                for case in cases(rank, root, 5) {
                    case.run(rank);
                }
                bcast(rank, root, 5, false).run(rank);
            });
        }
    }
}

/// Fails if memory or lists of an operation go before MPI is done with them.
#[test]
fn each_nonblocking_operation_gives_what_it_should() {
    for size in 1..=3 {
        let world = World::new(size, LATE);
        world.run(|rank| {
            for case in cases(rank, size - 1, 5) {
                case.start(rank).wait(rank);
            }
            bcast(rank, size - 1, 5, true).start(rank).wait(rank);
        });
    }
}

/// Fails if one operation gets the memory of another one that is under way.
#[test]
fn all_may_be_in_flight_at_once() {
    for lateness in [EARLY, LATE] {
        let world = World::new(3, lateness);
        world.run(|rank| {
            let mut started: Vec<_> = cases(rank, 1, 40)
                .into_iter()
                .map(|case| case.start(rank))
                .collect();
            started.push(bcast(rank, 1, 40, true).start(rank));
            // Ranks need not wait in the same order.
            started.rotate_left(5 * rank.rank);
            for started in started {
                started.wait(rank);
            }
        });
    }
}

/// Fails if the functions for large counts get others than the elements, or if the elements of a data
/// type are not where they should be.
#[test]
fn more_than_an_int_counts() {
    let world = World::new(3, LATE);
    for use_large in [true, false] {
        ops::set_count_limit(4, use_large);
        let before = large_counts();
        world.run(|rank| {
            for case in cases(rank, 2, 7) {
                case.run(rank);
            }
            bcast(rank, 2, 7, false).run(rank);
            // Without such functions there are no nonblocking forms of all of them.
            for case in cases(rank, 2, 7).into_iter().filter(|_| use_large) {
                case.start(rank).wait(rank);
            }
        });
        assert_eq!(large_counts() > before, use_large);
    }
}

/// Fails if pieces overlap, or leave something out.
#[test]
fn arrays_may_travel_in_pieces() {
    let world = World::in_pieces(3, LATE, 8);
    world.run(|rank| {
        for case in cases(rank, 0, 7) {
            case.run(rank);
        }
        bcast(rank, 0, 7, false).run(rank);
        for case in cases(rank, 0, 7) {
            case.start(rank).wait(rank);
        }
    });
}

/// Fails if a process compares what it should not, or something that is not there yet.
#[test]
fn all_are_checked() {
    for size in 1..=3 {
        let world = World::new(size, LATE);
        ops::set_check(true);
        world.run(|rank| {
            for case in cases(rank, 0, 5) {
                case.run(rank);
            }
            for case in cases(rank, 0, 5) {
                case.start(rank).wait(rank);
            }
            bcast(rank, 0, 5, true).start(rank).wait(rank);
        });
    }
}
