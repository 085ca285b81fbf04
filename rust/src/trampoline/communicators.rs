//! The communicators that JAX's collectives make.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use super::records::{CallArguments, JaxOperation, OnCommunicator};
use crate::diagnosis::Ranks;
use crate::lock::lock;
use crate::log;
use crate::mpi::{Communicator, GrowingList};
use crate::recorder::{self, CommunicatorFacts, Group, Identity, Recording};

/// The number of the first one in the recorder. Python gives smaller ones to those of users.
const FIRST_NUMBER: usize = 1 << 16;

/// Every MPI takes tags up to this one (`MPI_TAG_UB`, MPI-4.1 §9.1.2).
const LARGEST_TAG: u64 = 32767;

/// A communicator that XLA has asked for.
struct JaxCommunicator {
    rank: c_int,
    size: usize,
    group: Arc<Group>,
    /// MPI's handle, or why there is none, once it is known.
    handle: OnceLock<Result<usize, String>>,
    /// The communicator on which calls are compared (`MPI4JAX_CHECK`), once there is one.
    companion: OnceLock<Communicator>,
    /// The report of the last call that was refused.
    report: Mutex<Option<String>>,
    /// Held during collective calls. XLA runs programs of several Python threads at once, but MPI
    /// takes one such call on a communicator after another (MPI-4.1 §6.1).
    collective: Mutex<()>,
}

/// All communicators of JAX's, in the order in which this process made them. The first one is JAX's
/// world.
pub struct Communicators {
    all: GrowingList<OnceLock<JaxCommunicator>>,
    count: AtomicUsize,
    /// The ranks of JAX's processes in `MPI_COMM_WORLD`.
    world: Vec<c_int>,
    /// The rank of this process in JAX's world.
    rank: c_int,
    tags: Mutex<BTreeSet<c_int>>,
    tag_is_free: Condvar,
}

/// The number of a communicator in the recorder.
fn comm_number(index: usize) -> i64 {
    (FIRST_NUMBER + index) as i64
}

impl Communicators {
    /// JAX's world, by its members in `MPI_COMM_WORLD`, and the rank of this process among them.
    pub fn new(handle: usize, world: Vec<c_int>, rank: c_int) -> Self {
        let members: Vec<c_int> = (0..).take(world.len()).collect();
        let communicators = Self {
            all: GrowingList::new(),
            count: AtomicUsize::new(0),
            world,
            rank,
            tags: Mutex::default(),
            tag_is_free: Condvar::new(),
        };
        let index = communicators.add(rank, &members);
        communicators.set_handle(index, Ok(handle));
        communicators
    }

    /// The rank of this process in JAX's world.
    pub fn own_rank(&self) -> c_int {
        self.rank
    }

    /// Adds a communicator, and gives its index. Its members are ranks in JAX's world, and `rank`
    /// is that of this process among them.
    pub fn add(&self, rank: c_int, members: &[c_int]) -> usize {
        let world_rank = |rank: &c_int| self.world.get(*rank as usize).copied().unwrap_or(-1);
        let group: Arc<Group> = Arc::new(members.iter().map(world_rank).collect());
        let index = self.count.fetch_add(1, Ordering::Relaxed);
        let earlier = (0..index).filter_map(|index| self.get(index));
        let alike = earlier.filter(|other| other.group == group).count();
        let ranks: Ranks = group.iter().collect();
        let name = match index {
            0 => "JAX's world".to_owned(),
            _ if members.len() == self.world.len() => "JAX's communicator of all ranks".to_owned(),
            _ => format!("JAX's communicator of {ranks}"),
        };
        let communicator = JaxCommunicator {
            rank,
            size: members.len(),
            group: Arc::clone(&group),
            handle: OnceLock::new(),
            companion: OnceLock::new(),
            report: Mutex::default(),
            collective: Mutex::new(()),
        };
        let _ = self.all.get_or_grow(index).set(communicator);
        let arguments = CommunicatorFacts {
            name,
            group,
            identity: Identity::Jax(alike),
        };
        recorder::set_communicator_facts(comm_number(index), arguments);
        index
    }

    fn get(&self, index: usize) -> Option<&JaxCommunicator> {
        self.all.get(index as i64)?.get()
    }

    /// Gives a communicator MPI's handle, or says why it has none.
    pub fn set_handle(&self, index: usize, handle: Result<usize, String>) {
        if let Some(communicator) = self.get(index) {
            let _ = communicator.handle.set(handle);
        }
    }

    /// MPI's handle, or why there is none.
    pub fn handle(&self, index: usize) -> Result<usize, String> {
        let handle = self
            .get(index)
            .and_then(|communicator| communicator.handle.get());
        handle
            .cloned()
            .unwrap_or_else(|| Err("a communicator that was not made".to_owned()))
    }

    /// Where calls on a communicator are compared.
    pub fn companion(&self, index: usize) -> Option<&OnceLock<Communicator>> {
        self.get(index).map(|communicator| &communicator.companion)
    }

    /// Keeps the report of a call on a communicator that was refused.
    pub fn set_report(&self, index: usize, report: String) {
        if let Some(communicator) = self.get(index) {
            *lock(&communicator.report) = Some(report);
        }
    }

    /// The report of the last call on a communicator that was refused.
    pub fn report(&self, index: usize) -> Option<String> {
        lock(&self.get(index)?.report).clone()
    }

    /// The rank of this process in one, and how many processes that has.
    pub fn rank_and_size(&self, index: usize) -> (c_int, usize) {
        self.get(index).map_or((0, 0), |communicator| {
            (communicator.rank, communicator.size)
        })
    }

    /// Calls `body` with a tag for a communicator that is being made: the same on all its members.
    /// Communicators that threads make at the same time have different ones (MPI-4.1 §7.4.2).
    pub fn with_tag<T>(&self, index: usize, body: impl FnOnce(c_int) -> T) -> T {
        let hash = self
            .get(index)
            .map_or(0, |communicator| communicator.group.hash());
        let tag = (hash % (LARGEST_TAG + 1)) as c_int;
        let mut tags = self
            .tag_is_free
            .wait_while(lock(&self.tags), |tags| tags.contains(&tag))
            .unwrap_or_else(PoisonError::into_inner);
        tags.insert(tag);
        drop(tags);
        let outcome = body(tag);
        lock(&self.tags).remove(&tag);
        self.tag_is_free.notify_all();
        outcome
    }

    /// Has the collective calls of other threads on a communicator wait.
    pub fn lock(&self, index: usize) -> Option<MutexGuard<'_, ()>> {
        Some(lock(&self.get(index)?.collective))
    }

    /// Records that a call begins.
    pub fn record(
        &self,
        operation: &'static JaxOperation,
        index: usize,
        arguments: &CallArguments,
    ) -> Recording {
        let comm_number = comm_number(index);
        recorder::begin(
            &operation.recorded,
            &OnCommunicator(arguments, comm_number),
            comm_number,
        )
    }

    /// Prints the first debug line of a call, if there are some.
    pub fn log(
        &self,
        operation: &JaxOperation,
        index: usize,
        arguments: &CallArguments,
    ) -> Option<log::LoggedCall> {
        log::is_enabled().then(|| {
            let name = recorder::communicator_name(comm_number(index));
            let details = format!("{} on {name}", arguments.in_words());
            log::LoggedCall::begin(self.rank, operation.function, details.trim_start())
        })
    }
}
