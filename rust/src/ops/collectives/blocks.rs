//! Collective operations that move arrays whose blocks have one size (MPI-4.1 §6.3 to §6.8).

use crate::error::Result;
use crate::memory::{Access, Memory};
use crate::mpi::Abi;
use crate::ops::call::Call;
use crate::ops::call::buffers::{MpiBuffer, block_for_each, check_blocks};
use crate::ops::call::counts::invoke;
use crate::ops::call::log_text::{items, items_and_root};
use crate::ops::call::pieces::pieces;

/// MPI-4.1 §6.7: everyone's operand, in rank order, on every rank.
pub fn allgather<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    check_blocks(&result, &operand, call.communicator.size)?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    let block = call.typed_count(send.count, send.datatype)?;
    call.counted(
        "MPI_Allgather",
        block.count,
        || items(send.count),
        // SAFETY: `send` has a block, and `recv` one for every rank.
        |mpi, comm| unsafe {
            invoke!(mpi.allgather(
                send.address,
                block.count,
                block.datatype,
                recv.address,
                block.count,
                block.datatype,
                comm,
            ))
        },
    )
}

/// MPI-4.1 §6.8: block i goes to rank i, block j comes from rank j.
pub fn alltoall<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    check_blocks(&result, &operand, 1)?;
    let count = block_for_each(&operand, call.communicator.size)?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    let block = call.typed_count(count, send.datatype)?;
    call.counted(
        "MPI_Alltoall",
        block.count,
        || items(count),
        // SAFETY: both arrays have a block for every rank.
        |mpi, comm| unsafe {
            invoke!(mpi.alltoall(
                send.address,
                block.count,
                block.datatype,
                recv.address,
                block.count,
                block.datatype,
                comm,
            ))
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
    let buffer = if call.communicator.rank == root {
        let [] = call.results()?;
        let send = call.send_buffer(&operand)?;
        MpiBuffer {
            address: send.address.cast_mut(),
            count: send.count,
            datatype: send.datatype,
        }
    } else {
        let [result] = call.results()?;
        check_blocks(&result, &operand, 1)?;
        call.recv_buffer(&result)?
    };
    let length = call.communicator.piece_length(buffer.datatype.size);
    for elements in pieces(buffer.count, length) {
        let access = Access::both(&elements, length, buffer.datatype.size);
        let address = buffer.address.wrapping_byte_add(access.read.start);
        let count = elements.end - elements.start;
        let typed = call.typed_count(count, buffer.datatype)?;
        call.counted_with(
            &access,
            "MPI_Bcast",
            typed.count,
            || items_and_root(count, root),
            // SAFETY: the array has so many elements there, and root's is not written to.
            |mpi, comm| unsafe {
                invoke!(mpi.bcast(address, typed.count, typed.datatype, root, comm))
            },
        )?;
    }
    Ok(())
}

/// MPI-4.1 §6.5: everyone's operand, in rank order, on root.
pub fn gather<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [operand] = call.operands()?;
    let size = call.communicator.size;
    let recv = call.result_at_root(root, |result| check_blocks(result, &operand, size))?;
    let send = call.send_buffer(&operand)?;
    let block = call.typed_count(send.count, send.datatype)?;
    call.counted(
        "MPI_Gather",
        block.count,
        || items_and_root(send.count, root),
        // SAFETY: `send` has a block, and on root `recv` has one for every rank.
        |mpi, comm| unsafe {
            invoke!(mpi.gather(
                send.address,
                block.count,
                block.datatype,
                recv,
                block.count,
                block.datatype,
                root,
                comm,
            ))
        },
    )
}

/// MPI-4.1 §6.6: block i of root's operand, on rank i. Only root has an operand.
pub fn scatter<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [result] = call.results()?;
    let size = call.communicator.size;
    let send = call.operand_at_root(root, |operand| check_blocks(operand, &result, size))?;
    let recv = call.recv_buffer(&result)?;
    let block = call.typed_count(recv.count, recv.datatype)?;
    call.counted(
        "MPI_Scatter",
        block.count,
        || items_and_root(recv.count, root),
        // SAFETY: `recv` has a block, and on root `send` has one for every rank.
        |mpi, comm| unsafe {
            invoke!(mpi.scatter(
                send,
                block.count,
                block.datatype,
                recv.address,
                block.count,
                block.datatype,
                root,
                comm,
            ))
        },
    )
}
