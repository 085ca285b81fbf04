//! The registry: the MPI objects behind the small numbers in compiled programs.
//!
//! A compiled program names a communicator, a reduction operator or a status by its number in
//! these tables, and a data type by XLA's code. So programs are the same on every rank and in
//! every run, and a call on a freed communicator is recognised.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::abi::Abi;
use super::growing_list::GrowingList;
use super::status::StatusPlace;
use super::types::Handle;
use crate::error::{Error, Result};

/// A communicator: its handle, the rank of this process, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Communicator {
    handle: usize,
    /// The rank of this process in the communicator.
    pub rank: c_int,
    /// The number of processes.
    pub size: c_int,
    /// The size of the pieces in which all processes send and receive arrays, or 0 for whole arrays.
    piece_bytes: usize,
}

impl Communicator {
    /// A communicator by mpi4py's number for its handle. Arrays of more than `piece_bytes` bytes
    /// travel in pieces, unless `piece_bytes` is 0.
    ///
    /// # Safety
    /// The handle is valid, with this rank and size, until the communicator is freed in the
    /// [`Registry`]. Safe code can't make up a communicator:
    ///
    /// ```compile_fail
    /// let communicator = _core::mpi::Communicator::new(0x440, 0, 2, 0);
    /// ```
    pub const unsafe fn new(handle: usize, rank: c_int, size: c_int, piece_bytes: usize) -> Self {
        Self {
            handle,
            rank,
            size,
            piece_bytes,
        }
    }

    /// Whether arrays travel in pieces.
    pub fn is_in_pieces(&self) -> bool {
        self.piece_bytes != 0
    }

    /// The number of elements in a piece, for elements of `size` bytes.
    pub fn piece_length(&self, size: usize) -> i64 {
        match self.piece_bytes {
            0 => i64::MAX,
            bytes => (bytes / size).max(1) as i64,
        }
    }

    /// The handle that MPI takes.
    pub fn handle<A: Abi>(&self) -> A::Comm {
        A::Comm::from_raw(self.handle)
    }

    /// mpi4py's number for the handle.
    pub const fn raw_handle(&self) -> usize {
        self.handle
    }
}

/// One end of an edge in a topology: the process there, and the tag of messages along the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbor {
    /// The rank of the process, or `MPI_PROC_NULL`.
    pub rank: c_int,
    /// The tag of the edge. Both ends use the same tag, and other edges between the two processes in
    /// this direction have other tags.
    pub tag: c_int,
}

impl Neighbor {
    /// Whether the neighbor is a process: `MPI_PROC_NULL` is negative in every ABI.
    pub const fn is_process(&self) -> bool {
        self.rank >= 0
    }
}

/// The neighbors of this process in the topology of a communicator (MPI-4.1 §8.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbors {
    /// The neighbors that send to this process.
    pub sources: Ends,
    /// The neighbors that this process sends to.
    pub destinations: Ends,
}

/// The far ends of all edges in one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    /// All far ends, in MPI's order.
    pub edges: Vec<Neighbor>,
    /// The edges, grouped by process.
    pub bundles: Vec<Bundle>,
}

/// The edges from or to one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// The process, and a tag that both ends use for the bundle: the edge's tag if there is one edge,
    /// or a tag that none of several edges has.
    pub peer: Neighbor,
    /// The indices of the edges, in an order that is the same on both ends.
    pub places: Vec<usize>,
}

impl Ends {
    /// The far ends, grouped into bundles.
    pub fn new(edges: Vec<Neighbor>) -> Self {
        let mut indices: Vec<usize> = (0..edges.len()).collect();
        indices.retain(|index| edges[*index].is_process());
        indices.sort_by_key(|index| (edges[*index].rank, edges[*index].tag));
        let with_one_rank = indices.chunk_by(|left, right| edges[*left].rank == edges[*right].rank);
        let bundle = |indices: &[usize]| {
            let mut peer = edges[indices[indices.len() - 1]];
            peer.tag += c_int::from(indices.len() > 1);
            Bundle {
                peer,
                places: indices.to_vec(),
            }
        };
        let bundles = with_one_rank.map(bundle).collect();
        Self { edges, bundles }
    }

    /// The number of edges.
    pub fn count(&self) -> usize {
        self.edges.len()
    }

    /// The far end of each edge.
    pub fn each(&self) -> impl Iterator<Item = Neighbor> {
        self.edges.iter().copied()
    }

    /// Whether several edges lead to one process.
    pub fn are_bundled(&self) -> bool {
        self.bundles.iter().any(|bundle| bundle.places.len() > 1)
    }
}

/// An MPI data type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizedDatatype {
    handle: usize,
    /// The size of an element in bytes.
    pub size: usize,
}

impl SizedDatatype {
    /// A data type by mpi4py's number for its handle.
    ///
    /// # Safety
    /// The handle is of a committed type that is never freed, whose elements have `size` bytes without
    /// gaps. Safe code can't make up a data type:
    ///
    /// ```compile_fail
    /// let datatype = _core::mpi::SizedDatatype::new(0xf32, 4);
    /// ```
    pub const unsafe fn new(handle: usize, size: usize) -> Self {
        Self { handle, size }
    }

    /// The size of `count` elements in bytes.
    pub const fn bytes(&self, count: i64) -> usize {
        count as usize * self.size
    }

    /// The handle that MPI takes.
    pub fn handle<A: Abi>(&self) -> A::Datatype {
        A::Datatype::from_raw(self.handle)
    }

    /// mpi4py's number for the handle.
    pub const fn raw_handle(&self) -> usize {
        self.handle
    }
}

/// A companion: a communicator that the core derives from a user's, with the same processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Companion {
    /// The communicator with ranks in reverse order.
    Reversed,
    /// The communicator for messages between neighbors.
    Neighbors,
    /// The communicator on which processes compare calls (`MPI4JAX_CHECK`).
    Check,
}

impl Companion {
    const COUNT: usize = Self::Check as usize + 1;
}

/// The slot of a communicator. A freed communicator keeps its slot.
#[derive(Default)]
struct CommunicatorSlot {
    communicator: OnceLock<Communicator>,
    neighbors: OnceLock<Neighbors>,
    /// The companions that were made so far.
    companions: [OnceLock<Communicator>; Companion::COUNT],
    is_freed: AtomicBool,
}

/// The objects that compiled programs refer to.
pub struct Registry {
    communicators: GrowingList<CommunicatorSlot>,
    operators: GrowingList<OnceLock<usize>>,
    datatypes: GrowingList<OnceLock<SizedDatatype>>,
    statuses: GrowingList<AtomicUsize>,
}

/// The registry of this process.
pub static REGISTRY: Registry = Registry::new();

#[cold]
fn freed_or_foreign(communicator: i64) -> Error {
    Error::precondition(format!(
        "communicator {communicator} was freed, or is not one of this process: a compiled \
         function can only be called while the communicator it was traced with exists"
    ))
}

/// Fills a slot, which must be empty: a number stands for the same object in all programs.
fn set_once<T>(slot: &OnceLock<T>, value: T) {
    assert!(slot.set(value).is_ok(), "an index was given out twice");
}

/// The value at an index, if set.
fn value_at<T: Copy>(list: &GrowingList<OnceLock<T>>, index: i64) -> Option<T> {
    list.get(index)?.get().copied()
}

impl Registry {
    const fn new() -> Self {
        Self {
            communicators: GrowingList::new(),
            operators: GrowingList::new(),
            datatypes: GrowingList::new(),
            statuses: GrowingList::new(),
        }
    }

    /// Gives a number to a communicator. Panics if the number is taken.
    pub fn set_communicator(&self, comm_number: usize, communicator: Communicator) {
        let slot = self.communicators.get_or_grow(comm_number);
        set_once(&slot.communicator, communicator);
    }

    /// Sets the neighbors of a communicator. Panics if they are set already.
    pub fn set_neighbors(&self, comm_number: usize, neighbors: Neighbors) {
        let slot = self.communicators.get_or_grow(comm_number);
        set_once(&slot.neighbors, neighbors);
    }

    /// The neighbors of this process in the topology of a communicator.
    pub fn neighbors(&self, comm_number: i64) -> Result<&Neighbors> {
        let slot = self.communicator_slot(comm_number)?;
        slot.neighbors.get().ok_or_else(|| {
            Error::precondition(format!("communicator {comm_number} has no topology"))
        })
    }

    /// Marks a communicator as freed, and returns its companions for the caller to free. The number is
    /// not used again.
    pub fn free_communicator<A: Abi>(&self, comm_number: usize) -> Vec<A::Comm> {
        let slot = self.communicators.get_or_grow(comm_number);
        if slot.is_freed.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        let companions = slot.companions.iter().filter_map(OnceLock::get);
        companions.map(Communicator::handle::<A>).collect()
    }

    /// The slot for a communicator's companion.
    pub fn companion(
        &self,
        comm_number: i64,
        companion: Companion,
    ) -> Result<&OnceLock<Communicator>> {
        let slot = self.communicator_slot(comm_number)?;
        Ok(&slot.companions[companion as usize])
    }

    /// Gives a number to an operator. Panics if the number is taken.
    ///
    /// # Safety
    /// The handle is of an operator that is never freed. If the number belongs to a
    /// [`PredefinedOp`](super::operators::PredefinedOp), the handle is of that operator.
    pub unsafe fn set_operator(&self, op_number: usize, handle: usize) {
        set_once(self.operators.get_or_grow(op_number), handle);
    }

    /// Sets the MPI data type for elements of XLA's type `dtype`.
    pub fn set_datatype(&self, dtype: usize, datatype: SizedDatatype) {
        set_once(self.datatypes.get_or_grow(dtype), datatype);
    }

    /// Sets the address of the status with this number. A later call may change the address.
    ///
    /// # Safety
    /// The status is there whenever an operation with this number runs, and has no other user then.
    pub unsafe fn set_status(&self, status_number: usize, address: usize) {
        let slot = self.statuses.get_or_grow(status_number);
        slot.store(address, Ordering::Release);
    }

    /// The communicator with this number, unless it was freed.
    pub fn communicator(&self, comm_number: i64) -> Result<Communicator> {
        let slot = self.communicator_slot(comm_number)?;
        let communicator = slot.communicator.get().copied();
        communicator.ok_or_else(|| freed_or_foreign(comm_number))
    }

    fn communicator_slot(&self, comm_number: i64) -> Result<&CommunicatorSlot> {
        self.communicators
            .get(comm_number)
            .filter(|slot| !slot.is_freed.load(Ordering::Acquire))
            .ok_or_else(|| freed_or_foreign(comm_number))
    }

    /// The handle of the operator with this number.
    pub fn operator<A: Abi>(&self, op_number: i64) -> Result<A::Op> {
        self.raw_operator(op_number).map(A::Op::from_raw)
    }

    /// mpi4py's number for the handle of the operator with this number.
    pub fn raw_operator(&self, op_number: i64) -> Result<usize> {
        let handle = value_at(&self.operators, op_number);
        handle.ok_or_else(|| {
            Error::precondition(format!("reduction operator {op_number} is unknown"))
        })
    }

    /// The MPI data type for XLA's type `dtype`.
    pub fn datatype(&self, dtype: i32) -> Result<SizedDatatype> {
        value_at(&self.datatypes, dtype.into())
            .ok_or_else(|| Error::invalid(format!("no MPI data type for XLA's data type {dtype}")))
    }

    /// The status with this number; a negative one stands for `MPI_STATUS_IGNORE`.
    pub fn status<A: Abi>(&self, status_number: i64) -> Result<StatusPlace<'static, A>> {
        if status_number < 0 {
            return Ok(StatusPlace::ignored());
        }
        let address = self
            .statuses
            .get(status_number)
            .map(|slot| slot.load(Ordering::Acquire))
            .filter(|address| *address != 0)
            .ok_or_else(|| Error::precondition(format!("status {status_number} is unknown")))?;
        // SAFETY: the caller of `set_status` vouches for the address while an operation runs.
        Ok(unsafe { StatusPlace::at(address as *mut A::Status) })
    }
}
