//! Random programs, each on one to three processes: they give what they should.

use std::env;

use _core::ops;

use super::cases::{Case, Started, bcast, cases};
use super::flights::iexchange;
use super::mpi::network::Lateness;
use super::mpi::*;
use super::random::Random;
use super::values;

/// An operation that a process has started.
enum InFlight {
    Collective(Started),
    /// What comes from the process on the left.
    Messages(Ticket, Vec<f32>),
}

impl InFlight {
    fn wait(self, rank: Rank) {
        match self {
            Self::Collective(started) => started.wait(rank),
            Self::Messages(ticket, expected) => {
                let mut received = vec![-1.0; expected.len()];
                assert_eq!(rank.wait(&ticket, &mut [&mut received]), Ok(()));
                assert_eq!(received, expected);
            }
        }
    }
}

/// A collective call, the same on all processes.
fn pick(random: &mut Random, rank: Rank, is_nonblocking: bool) -> Case {
    let (root, count) = (random.below(rank.size), 1 + random.below(2000));
    let mut all = cases(rank, root, count);
    all.push(bcast(rank, root, count, is_nonblocking));
    let index = random.below(all.len());
    all.swap_remove(index)
}

/// Messages around the ring.
fn start_messages(random: &mut Random, rank: Rank) -> InFlight {
    let Rank {
        rank: own, size, ..
    } = rank;
    let (left, right) = ((own + size - 1) % size, (own + 1) % size);
    let count = 1 + random.below(4000);
    let sent = values(own, count);
    let call = iexchange(rank, &[(right, &sent)], &[(left, count)]);
    InFlight::Messages(rank.start("iexchange", call), values(left, count))
}

/// The program of one process. `random` is the same on all of them, and `own` is not.
fn run(random: &mut Random, own: &mut Random, rank: Rank) {
    let mut in_flight = Vec::new();
    for _ in 0..15 {
        match random.below(3) {
            0 => pick(random, rank, false).run(rank),
            1 => in_flight.push(InFlight::Collective(pick(random, rank, true).start(rank))),
            _ => in_flight.push(start_messages(random, rank)),
        }
        while !in_flight.is_empty() && own.chance(40) {
            let index = own.below(in_flight.len());
            in_flight.swap_remove(index).wait(rank);
        }
    }
    while !in_flight.is_empty() {
        let index = own.below(in_flight.len());
        in_flight.swap_remove(index).wait(rank);
    }
}

/// `PROPTEST_CASES` says how many programs.
#[test]
fn random_programs_give_what_they_should() {
    let count = env::var("PROPTEST_CASES").map_or(40, |text| text.parse().unwrap());
    for seed in 0..count {
        let mut random = Random(seed);
        let lateness = Lateness {
            eager: *random.pick(&[0, 16, 4000]),
            looks: random.below(4),
        };
        let (size, piece_bytes) = (1 + random.below(3), *random.pick(&[0, 0, 400]));
        let world = World::in_pieces(size, lateness, piece_bytes);
        ops::set_check(random.chance(30));
        ops::set_pushing(random.chance(50));
        ops::set_count_limit(*random.pick(&[i32::MAX.into(), 300]), true);
        let steps = random.below(usize::MAX) as u64;
        world.run(|rank| {
            let own = steps.wrapping_add(1 + rank.rank as u64);
            run(&mut Random(steps), &mut Random(own), rank);
        });
    }
}
