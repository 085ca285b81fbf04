//! Collective operations (MPI-4.1 §6).

use std::ffi::{c_int, c_void};
use std::ptr;

use super::call::{Call, check_blocks};
use crate::memory::Memory;
use crate::mpi::Abi;
use crate::xla::{Buffer, Error, Result};

/// The elements that each rank sends or receives, in the words of the log.
fn items(count: c_int) -> String {
    format!("({count} items)")
}

fn items_and_root(count: c_int, root: c_int) -> String {
    format!("({count} items, root={root})")
}

/// MPI-4.1 §6.7: everyone's operand, in rank order, on every rank.
pub fn allgather<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    check_blocks(&result, &operand, call.communicator.size)?;
    let (send, recv) = (call.source(&operand)?, call.target(&result)?);
    call.mpi(
        "MPI_Allgather",
        || items(send.count),
        // SAFETY: `recv` holds `send.count` elements for every rank.
        |mpi, comm| unsafe {
            (mpi.allgather)(
                send.address,
                send.count,
                send.datatype,
                recv.address,
                send.count,
                recv.datatype,
                comm,
            )
        },
    )
}

/// MPI-4.1 §6.9.6: the reduction over all ranks, on every rank.
pub fn allreduce<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let op = call.operator()?;
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    let (send, recv) = call.source_and_target(&operand, &result)?;
    call.mpi(
        "MPI_Allreduce",
        || format!("with {} items", send.count),
        // SAFETY: both arrays have `count` elements, or are one and the operand is IN_PLACE.
        |mpi, comm| unsafe {
            (mpi.allreduce)(
                send.address,
                recv.address,
                send.count,
                send.datatype,
                op,
                comm,
            )
        },
    )
}

/// MPI-4.1 §6.8: block i goes to rank i, block j comes from rank j.
pub fn alltoall<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    check_blocks(&result, &operand, 1)?;
    let size = call.communicator.size;
    if operand.dims.first() != Some(&i64::from(size)) {
        return Err(Error::invalid(format!(
            "an array of shape {:?} can't be sent to {size} ranks: its first axis must have \
             size {size}",
            operand.dims
        )));
    }
    let (send, recv) = (call.source(&operand)?, call.target(&result)?);
    let block = send.count / size;
    call.mpi(
        "MPI_Alltoall",
        || items(block),
        // SAFETY: both arrays have `size` blocks of `block` elements.
        |mpi, comm| unsafe {
            (mpi.alltoall)(
                send.address,
                block,
                send.datatype,
                recv.address,
                block,
                recv.datatype,
                comm,
            )
        },
    )
}

/// MPI-4.1 §6.3: no rank leaves before every rank has entered.
pub fn barrier<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    call.mpi(
        "MPI_Barrier",
        String::new,
        // SAFETY: the registry holds valid communicators.
        |mpi, comm| unsafe { (mpi.barrier)(comm) },
    )
}

/// MPI-4.1 §6.4: root's array on every rank. Root only reads, and has no result; elsewhere
/// the operand lends its memory to the result.
pub fn bcast<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [operand] = call.operands()?;
    let (address, data) = if call.communicator.rank == root {
        let [] = call.results()?;
        let source = call.source(&operand)?;
        (source.address.cast_mut(), (source.count, source.datatype))
    } else {
        let [result] = call.results()?;
        check_blocks(&result, &operand, 1)?;
        let target = call.target(&result)?;
        (target.address, (target.count, target.datatype))
    };
    let (count, datatype) = data;
    call.mpi(
        "MPI_Bcast",
        || items_and_root(count, root),
        // SAFETY: the array has `count` elements, and root's is not written to.
        |mpi, comm| unsafe { (mpi.bcast)(address, count, datatype, root, comm) },
    )
}

/// The result that only root has, or null where MPI does not look at it (MPI-4.1 §6.5,
/// "significant only at root").
fn at_root<A: Abi, M: Memory>(
    call: &Call<A, M>,
    root: c_int,
    operand: &Buffer,
    blocks: c_int,
) -> Result<*mut c_void> {
    if call.communicator.rank != root {
        let [] = call.results()?;
        return Ok(ptr::null_mut());
    }
    let [result] = call.results()?;
    check_blocks(&result, operand, blocks)?;
    Ok(call.target(&result)?.address)
}

/// MPI-4.1 §6.5: everyone's operand, in rank order, on root.
pub fn gather<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [operand] = call.operands()?;
    let recv = at_root(call, root, &operand, call.communicator.size)?;
    let send = call.source(&operand)?;
    call.mpi(
        "MPI_Gather",
        || items_and_root(send.count, root),
        // SAFETY: on root, `recv` has `send.count` elements for every rank.
        |mpi, comm| unsafe {
            (mpi.gather)(
                send.address,
                send.count,
                send.datatype,
                recv,
                send.count,
                send.datatype,
                root,
                comm,
            )
        },
    )
}

/// MPI-4.1 §6.9.1: the reduction over all ranks, on root.
pub fn reduce<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (op, root) = (call.operator()?, call.int("root")?);
    let [operand] = call.operands()?;
    let recv = at_root(call, root, &operand, 1)?;
    let mut send = call.source(&operand)?;
    // Elsewhere `recv` is null, and so may be the address of an empty operand.
    if call.communicator.rank == root && send.address == recv {
        send.address = A::IN_PLACE as *const c_void;
    }
    call.mpi(
        "MPI_Reduce",
        || items_and_root(send.count, root),
        // SAFETY: on root, both arrays have `count` elements, or are one and the operand is
        // IN_PLACE.
        |mpi, comm| unsafe {
            (mpi.reduce)(
                send.address,
                recv,
                send.count,
                send.datatype,
                op,
                root,
                comm,
            )
        },
    )
}

/// MPI-4.1 §6.11.1: the reduction over this rank and those before it.
pub fn scan<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let op = call.operator()?;
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    let (send, recv) = call.source_and_target(&operand, &result)?;
    call.mpi(
        "MPI_Scan",
        || items(send.count),
        // SAFETY: both arrays have `count` elements, or are one and the operand is IN_PLACE.
        |mpi, comm| unsafe {
            (mpi.scan)(
                send.address,
                recv.address,
                send.count,
                send.datatype,
                op,
                comm,
            )
        },
    )
}

/// MPI-4.1 §6.6: block i of root's operand, on rank i. Only root has an operand.
pub fn scatter<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [result] = call.results()?;
    let send = if call.communicator.rank == root {
        let [operand] = call.operands()?;
        check_blocks(&operand, &result, call.communicator.size)?;
        call.source(&operand)?.address
    } else {
        let [] = call.operands()?;
        ptr::null()
    };
    let recv = call.target(&result)?;
    call.mpi(
        "MPI_Scatter",
        || items_and_root(recv.count, root),
        // SAFETY: on root, `send` has `recv.count` elements for every rank.
        |mpi, comm| unsafe {
            (mpi.scatter)(
                send,
                recv.count,
                recv.datatype,
                recv.address,
                recv.count,
                recv.datatype,
                root,
                comm,
            )
        },
    )
}
