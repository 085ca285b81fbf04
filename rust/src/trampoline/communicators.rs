//! The communicators that JAX's collectives make.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use super::records::{CallArguments, JaxOperation, OnCommunicator};
use crate::diagnosis::Ranks;
use crate::lock::lock;
use crate::log;
use crate::mpi::{Communicator, GrowingList};
use crate::recorder::{self, CommunicatorFacts, Group, Identity, Recording};

/// The number of the first communicator of jaxlib's in the recorder. Users' communicators have smaller ones.
const FIRST_NUMBER: usize = 1 << 16;

/// Every MPI takes tags up to this one (`MPI_TAG_UB`, MPI-4.1 §9.1.2).
const LARGEST_TAG: u64 = 32767;

/// A communicator that XLA has asked for.
pub struct JaxCommunicator {
    /// Its position among those that this process has made.
    pub index: usize,
    /// The rank of this process in it.
    pub rank: c_int,
    /// Number of processes.
    pub size: c_int,
    group: Arc<Group>,
    /// MPI's handle, or the reason why there is none, once that is known.
    pub handle: OnceLock<Result<usize, String>>,
    /// The communicator on which calls are compared (`MPI4JAX_CHECK`), once there is one.
    pub companion: OnceLock<Communicator>,
    /// The report of the last call that was refused.
    pub report: Mutex<Option<String>>,
    /// Held during collective calls. XLA runs programs of several Python threads at once, but MPI
    /// takes one such call on a communicator after another (MPI-4.1 §6.1).
    pub collective: Mutex<()>,
}

impl JaxCommunicator {
    /// Its number in the recorder.
    fn comm_number(&self) -> i64 {
        (FIRST_NUMBER + self.index) as i64
    }

    /// Records that a call begins.
    pub fn record(&self, operation: &'static JaxOperation, arguments: &CallArguments) -> Recording {
        let comm_number = self.comm_number();
        let call = OnCommunicator(arguments, comm_number);
        recorder::begin(&operation.recorded, &call, comm_number)
    }
}

/// All communicators of JAX's, in the order in which this process made them. The first one is JAX's
/// world.
pub struct Communicators {
    all: GrowingList<OnceLock<JaxCommunicator>>,
    count: AtomicUsize,
    /// The ranks of JAX's processes in `MPI_COMM_WORLD`.
    world: Vec<c_int>,
    /// The rank of this process in JAX's world.
    pub own_rank: c_int,
    tags: Mutex<BTreeSet<c_int>>,
    tag_is_free: Condvar,
}

impl Communicators {
    /// JAX's world, by its members in `MPI_COMM_WORLD`, and the rank of this process among them.
    pub fn new(handle: usize, world: Vec<c_int>, own_rank: c_int) -> Self {
        let members: Vec<c_int> = (0..).take(world.len()).collect();
        let communicators = Self {
            all: GrowingList::new(),
            count: AtomicUsize::new(0),
            world,
            own_rank,
            tags: Mutex::default(),
            tag_is_free: Condvar::new(),
        };
        let _ = communicators.add(own_rank, &members).handle.set(Ok(handle));
        communicators
    }

    /// Adds a communicator of `members`, which are ranks in JAX's world. `rank` is the rank of this process
    /// on it.
    pub fn add(&self, rank: c_int, members: &[c_int]) -> &JaxCommunicator {
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
        let slot = self.all.get_or_grow(index);
        let communicator = slot.get_or_init(|| JaxCommunicator {
            index,
            rank,
            size: members.len() as c_int,
            group: Arc::clone(&group),
            handle: OnceLock::new(),
            companion: OnceLock::new(),
            report: Mutex::default(),
            collective: Mutex::new(()),
        });
        let facts = CommunicatorFacts {
            name,
            group,
            identity: Identity::Jax(alike),
        };
        recorder::set_communicator_facts(communicator.comm_number(), facts);
        communicator
    }

    /// The communicator with an index.
    pub fn get(&self, index: usize) -> Option<&JaxCommunicator> {
        self.all.get(index as i64)?.get()
    }

    /// Calls `body` with a tag for a communicator that is being made: the same on all its members.
    /// Communicators that threads make at the same time have different ones (MPI-4.1 §7.4.2).
    pub fn with_tag<T>(&self, new: &JaxCommunicator, body: impl FnOnce(c_int) -> T) -> T {
        let tag = (new.group.hash() % (LARGEST_TAG + 1)) as c_int;
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

    /// Prints the first debug line of a call, if there are some.
    pub fn log(
        &self,
        operation: &JaxOperation,
        communicator: &JaxCommunicator,
        arguments: &CallArguments,
    ) -> Option<log::LoggedCall> {
        log::is_enabled().then(|| {
            let name = recorder::communicator_name(communicator.comm_number());
            let details = format!("{} on {name}", arguments.describe());
            log::LoggedCall::begin(self.own_rank, operation.function, details.trim_start())
        })
    }
}
