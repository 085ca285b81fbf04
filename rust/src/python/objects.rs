//! The objects that the numbers in compiled programs stand for.

use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::binding::loaded;
use crate::mpi::{Communicator, Ends, Neighbor, Neighbors, REGISTRY, SizedDatatype};
use crate::recorder::{CommunicatorFacts, Identity};
use crate::{mpi, recorder};

/// Makes `comm_number` stand for the communicator with this handle. Arrays of more than `chunk` bytes
/// travel on it in pieces, unless that is 0.
#[pyfunction]
pub fn set_communicator(comm_number: usize, handle: usize, rank: i32, size: i32, chunk: usize) {
    // SAFETY: Python passes a handle of mpi4py's, and says when the communicator is freed.
    let communicator = unsafe { Communicator::new(handle, rank, size, chunk) };
    REGISTRY.set_communicator(comm_number, communicator);
}

/// Says which neighbors this process has in the topology of a communicator: the ranks and tags of
/// those that send to it, and of those that it sends to.
#[pyfunction]
pub fn set_neighbors(comm_number: usize, sources: Vec<(i32, i32)>, destinations: Vec<(i32, i32)>) {
    let ends = |edges: Vec<(i32, i32)>| {
        let edges = edges.into_iter();
        Ends::new(edges.map(|(rank, tag)| Neighbor { rank, tag }).collect())
    };
    let neighbors = Neighbors {
        sources: ends(sources),
        destinations: ends(destinations),
    };
    REGISTRY.set_neighbors(comm_number, neighbors);
}

/// Says what users call a communicator, and which ranks it has in `MPI_COMM_WORLD`.
#[pyfunction]
pub fn describe_communicator(comm_number: i64, handle: usize, name: String, members: Vec<i32>) {
    let lineage = loaded().and_then(|core| core.lineage_of(handle));
    let facts = CommunicatorFacts {
        name,
        group: Arc::new(members.into_iter().collect()),
        identity: match lineage {
            _ if comm_number == recorder::DEFAULT_COMMUNICATOR => Identity::Default,
            Some(lineage) if lineage.is_world() => Identity::World,
            Some(lineage) => Identity::Copy(lineage),
            None => Identity::Unknown,
        },
    };
    recorder::set_communicator_facts(comm_number, facts);
}

/// Makes calls on a communicator an error, and frees the communicators that were made of it.
///
/// MPI deletes the attributes of a communicator on all its ranks, so that all of them free the
/// reversed one, too. MPICH and Open MPI have nothing against that within the callback.
#[pyfunction]
pub fn free_communicator(comm_number: usize) {
    if let Some(core) = loaded() {
        core.free_communicator(comm_number);
    }
}

/// Counts the copies of `MPI_COMM_WORLD`, by its handle, and theirs, so that ranks know which copy
/// each other means. Refuses calls once MPI is about to be finalised, which it says by that of
/// `MPI_COMM_SELF`, and in processes that are forked from this one.
#[pyfunction]
pub fn follow(world: usize, comm_self: usize) {
    if let Some(core) = loaded() {
        core.follow(world, comm_self);
    }
}

/// Raises an error where MPI may not be called.
#[pyfunction]
pub fn check_available() -> PyResult<()> {
    mpi::check_available().map_err(|error| PyRuntimeError::new_err(error.message))
}

/// Says that others than mpi4jax may communicate on the default communicator.
#[pyfunction]
pub fn share_default() {
    recorder::share_default();
}

/// Says what the handle of `MPI_COMM_WORLD` is, by which all ranks are ended.
#[pyfunction]
pub fn set_world(comm: usize) {
    // SAFETY: Python passes mpi4py's handle.
    unsafe { mpi::set_world(comm) };
}

/// Makes `op_number` stand for the reduction operator with this handle.
#[pyfunction]
pub fn set_operator(op_number: usize, handle: usize) {
    // SAFETY: Python passes a handle of mpi4py's, and keeps the operator.
    unsafe { REGISTRY.set_operator(op_number, handle) };
}

/// Makes the MPI data type with this handle hold elements of XLA's type `dtype`, of `size` bytes each.
#[pyfunction]
pub fn set_datatype(dtype: usize, handle: usize, size: usize) {
    // SAFETY: Python passes a handle of mpi4py's, and the size of such elements.
    REGISTRY.set_datatype(dtype, unsafe { SizedDatatype::new(handle, size) });
}

/// Makes `status_number` stand for the `MPI_Status` at this address.
#[pyfunction]
pub fn set_status(status_number: usize, address: usize) {
    // SAFETY: Python keeps the status there, and gives it to the operation that it calls.
    unsafe { REGISTRY.set_status(status_number, address) };
}
