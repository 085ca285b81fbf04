//! The communicators that JAX's collectives make.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::records::{Facts, OnCommunicator, Operation};
use crate::log;
use crate::mpi::GrowingList;
use crate::recorder::{self, CommunicatorFacts, Identity, Recording};

/// The number of the first one in the recorder. Python gives smaller ones to those of users.
const FIRST_NUMBER: usize = 1 << 16;

struct Made {
    handle: usize,
    size: usize,
}

/// All of them, in the order in which they were made: the same on all processes, as all of them make
/// each. The first one is JAX's world.
pub struct Communicators {
    made: GrowingList<OnceLock<Made>>,
    count: AtomicUsize,
    /// The rank of this process in JAX's world, and in `MPI_COMM_WORLD`.
    rank: c_int,
    world_rank: c_int,
}

fn number(place: usize) -> i64 {
    (FIRST_NUMBER + place) as i64
}

impl Communicators {
    /// JAX's world, by its members in `MPI_COMM_WORLD`, of which this process is one.
    pub fn new(world: usize, members: Vec<c_int>, rank: c_int) -> Self {
        let own = usize::try_from(rank).ok();
        let own = own.and_then(|rank| members.get(rank).copied());
        let communicators = Self {
            made: GrowingList::new(),
            count: AtomicUsize::new(0),
            rank,
            world_rank: own.unwrap_or(rank),
        };
        communicators.add(world, members);
        communicators
    }

    /// The rank of this process in `MPI_COMM_WORLD`.
    pub fn world_rank(&self) -> c_int {
        self.world_rank
    }

    /// Gives a communicator a place. Its members are ranks in `MPI_COMM_WORLD`.
    pub fn add(&self, handle: usize, members: Vec<c_int>) -> usize {
        let place = self.count.fetch_add(1, Ordering::Relaxed);
        let size = members.len();
        let _ = self.made.get_or_grow(place).set(Made { handle, size });
        let name = match place {
            0 => "JAX's world".to_owned(),
            _ => format!("JAX's communicator {place}"),
        };
        let facts = CommunicatorFacts {
            name,
            group: Arc::new(members.into_iter().collect()),
            identity: Identity::Jax(place),
        };
        recorder::set_communicator_facts(number(place), facts);
        place
    }

    fn get(&self, place: usize) -> Option<&Made> {
        self.made.get(place as i64)?.get()
    }

    /// mpi4py's number for a handle.
    pub fn raw_handle(&self, place: usize) -> Option<usize> {
        self.get(place).map(|made| made.handle)
    }

    /// How many processes one has.
    pub fn size(&self, place: usize) -> usize {
        self.get(place).map_or(0, |made| made.size)
    }

    /// Records that a call begins.
    pub fn record(&self, operation: &'static Operation, place: usize, facts: &Facts) -> Recording {
        let number = number(place);
        recorder::begin(&operation.recorded, &OnCommunicator(facts, number), number)
    }

    /// Prints the first debug line of a call, if there are some.
    pub fn log(&self, operation: &Operation, place: usize, facts: &Facts) -> Option<log::Entry> {
        log::is_enabled().then(|| {
            let name = recorder::communicator_name(number(place));
            let details = format!("{} on {name}", facts.in_words());
            log::Entry::begin(self.rank, operation.function, details.trim_start())
        })
    }
}
