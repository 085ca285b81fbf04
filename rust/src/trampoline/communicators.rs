//! The communicators that JAX's collectives make.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use super::records::{Facts, JaxOperation, OnCommunicator};
use crate::diagnosis::Ranks;
use crate::log;
use crate::mpi::GrowingList;
use crate::recorder::{self, CommunicatorFacts, Group, Identity, Recording};

/// The number of the first one in the recorder. Python gives smaller ones to those of users.
const FIRST_NUMBER: usize = 1 << 16;

/// Every MPI takes tags up to this one (`MPI_TAG_UB`, MPI-4.1 §9.1.2).
const LARGEST_TAG: u64 = 32767;

/// A communicator that XLA has asked for.
struct Made {
    rank: c_int,
    size: usize,
    group: Arc<Group>,
    /// MPI's handle, or why there is none, once it is known.
    handle: OnceLock<Result<usize, String>>,
    /// The communicator on which calls are compared (`MPI4JAX_CHECK`), once there is one.
    companion: OnceLock<usize>,
    /// What did not fit in the last call that was refused.
    report: Mutex<Option<String>>,
    /// Held during collective calls. XLA runs programs of several Python threads at once, but MPI
    /// takes one such call on a communicator after another (MPI-4.1 §6.1).
    collective: Mutex<()>,
}

/// All of them, in the order in which this process made them. The first one is JAX's world.
pub struct Communicators {
    made: GrowingList<OnceLock<Made>>,
    count: AtomicUsize,
    /// The ranks of JAX's processes in `MPI_COMM_WORLD`.
    world: Vec<c_int>,
    /// The rank of this process in JAX's world.
    rank: c_int,
    tags: Mutex<BTreeSet<c_int>>,
    tag_is_free: Condvar,
}

fn number(place: usize) -> i64 {
    (FIRST_NUMBER + place) as i64
}

impl Communicators {
    /// JAX's world, by its members in `MPI_COMM_WORLD`, and the rank of this process among them.
    pub fn new(handle: usize, world: Vec<c_int>, rank: c_int) -> Self {
        let members: Vec<c_int> = (0..).take(world.len()).collect();
        let communicators = Self {
            made: GrowingList::new(),
            count: AtomicUsize::new(0),
            world,
            rank,
            tags: Mutex::default(),
            tag_is_free: Condvar::new(),
        };
        let place = communicators.add(rank, &members);
        communicators.set_handle(place, Ok(handle));
        communicators
    }

    /// The rank of this process in JAX's world.
    pub fn own_rank(&self) -> c_int {
        self.rank
    }

    /// Gives a communicator a place. Its members are ranks in JAX's world, and `rank` is that of this
    /// process among them.
    pub fn add(&self, rank: c_int, members: &[c_int]) -> usize {
        let world_rank = |rank: &c_int| self.world.get(*rank as usize).copied().unwrap_or(-1);
        let group: Arc<Group> = Arc::new(members.iter().map(world_rank).collect());
        let place = self.count.fetch_add(1, Ordering::Relaxed);
        let earlier = (0..place).filter_map(|place| self.get(place));
        let alike = earlier.filter(|made| made.group == group).count();
        let ranks: Ranks = group.iter().collect();
        let name = match place {
            0 => "JAX's world".to_owned(),
            _ if members.len() == self.world.len() => "JAX's communicator of all ranks".to_owned(),
            _ => format!("JAX's communicator of {ranks}"),
        };
        let made = Made {
            rank,
            size: members.len(),
            group: Arc::clone(&group),
            handle: OnceLock::new(),
            companion: OnceLock::new(),
            report: Mutex::default(),
            collective: Mutex::new(()),
        };
        let _ = self.made.get_or_grow(place).set(made);
        let facts = CommunicatorFacts {
            name,
            group,
            identity: Identity::Jax(alike),
        };
        recorder::set_communicator_facts(number(place), facts);
        place
    }

    fn get(&self, place: usize) -> Option<&Made> {
        self.made.get(place as i64)?.get()
    }

    /// Gives a communicator MPI's handle, or says why it has none.
    pub fn set_handle(&self, place: usize, handle: Result<usize, String>) {
        if let Some(made) = self.get(place) {
            let _ = made.handle.set(handle);
        }
    }

    /// MPI's handle, or why there is none.
    pub fn handle(&self, place: usize) -> Result<usize, String> {
        let handle = self.get(place).and_then(|made| made.handle.get());
        handle
            .cloned()
            .unwrap_or_else(|| Err("a communicator that was not made".to_owned()))
    }

    /// Where calls on a communicator are compared.
    pub fn companion(&self, place: usize) -> Option<&OnceLock<usize>> {
        self.get(place).map(|made| &made.companion)
    }

    /// Keeps what did not fit in a call on a communicator.
    pub fn set_report(&self, place: usize, report: String) {
        if let Some(made) = self.get(place) {
            *made.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        }
    }

    /// What did not fit in a call on a communicator.
    pub fn report(&self, place: usize) -> Option<String> {
        let report = self.get(place)?.report.lock();
        report.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The rank of this process in one, and how many processes that has.
    pub fn rank_and_size(&self, place: usize) -> (c_int, usize) {
        self.get(place)
            .map_or((0, 0), |made| (made.rank, made.size))
    }

    /// TrampolineAbi `body` with a tag for a communicator that is being made: the same on all its members.
    /// Communicators that threads make at the same time have different ones (MPI-4.1 §7.4.2).
    pub fn with_tag<T>(&self, place: usize, body: impl FnOnce(c_int) -> T) -> T {
        let hash = self.get(place).map_or(0, |made| made.group.hash());
        let tag = (hash % (LARGEST_TAG + 1)) as c_int;
        let lock = || self.tags.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tags = self
            .tag_is_free
            .wait_while(lock(), |tags| tags.contains(&tag))
            .unwrap_or_else(PoisonError::into_inner);
        tags.insert(tag);
        drop(tags);
        let outcome = body(tag);
        lock().remove(&tag);
        self.tag_is_free.notify_all();
        outcome
    }

    /// Has the collective calls of other threads on a communicator wait.
    pub fn lock(&self, place: usize) -> Option<MutexGuard<'_, ()>> {
        let made = self.get(place)?;
        Some(
            made.collective
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Records that a call begins.
    pub fn record(
        &self,
        operation: &'static JaxOperation,
        place: usize,
        facts: &Facts,
    ) -> Recording {
        let number = number(place);
        recorder::begin(&operation.recorded, &OnCommunicator(facts, number), number)
    }

    /// Prints the first debug line of a call, if there are some.
    pub fn log(
        &self,
        operation: &JaxOperation,
        place: usize,
        facts: &Facts,
    ) -> Option<log::LoggedCall> {
        log::is_enabled().then(|| {
            let name = recorder::communicator_name(number(place));
            let details = format!("{} on {name}", facts.in_words());
            log::LoggedCall::begin(self.rank, operation.function, details.trim_start())
        })
    }
}
