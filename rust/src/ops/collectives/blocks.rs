//! Collective operations that move arrays whose blocks have one size (MPI-4.1 §6.3 to §6.8).

use std::ptr;

use crate::error::Result;
use crate::memory::{Access, Memory};
use crate::mpi::{Abi, RecvBuffer};
use crate::ops::call::Call;
use crate::ops::call::buffers::block_for_each;
use crate::ops::call::counts::{Collective, Count, invoke};
use crate::ops::call::log_text::{items, items_and_root};
use crate::ops::call::pieces::pieces;

/// MPI-4.1 §6.7: everyone's operand, in rank order, on every rank.
pub fn allgather<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let result = call.result_of_blocks(&operand, call.communicator.size)?;
    let recv = call.recv_buffer(&result)?;
    let send = call.send_block_of(&operand, call.communicator.rank)?;
    let block = call.typed_count(send.count(), send.datatype())?;
    call.collective(
        &Access::WHOLE,
        ["MPI_Allgather", "MPI_Iallgather"],
        block.count,
        || items(send.count()),
        // SAFETY: `send` has a block, and `recv` one for every rank.
        |mpi, comm| unsafe {
            invoke!(
                mpi.allgather
                    / iallgather(
                        send.address::<A>(),
                        block.count,
                        block.datatype,
                        recv.address(),
                        block.count,
                        block.datatype,
                        comm,
                    )
            )
        },
    )
}

/// MPI-4.1 §6.8: block i goes to rank i, block j comes from rank j.
pub fn alltoall<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let result = call.result_of_blocks(&operand, 1)?;
    let count = block_for_each(&operand, call.communicator.size)?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    let block = call.typed_count(count, send.datatype())?;
    call.collective(
        &Access::WHOLE,
        ["MPI_Alltoall", "MPI_Ialltoall"],
        block.count,
        || items(count),
        // SAFETY: both arrays have a block for every rank.
        |mpi, comm| unsafe {
            invoke!(
                mpi.alltoall
                    / ialltoall(
                        send.address::<A>(),
                        block.count,
                        block.datatype,
                        recv.address(),
                        block.count,
                        block.datatype,
                        comm,
                    )
            )
        },
    )
}

/// MPI-4.1 §6.3: no rank leaves before every rank has entered.
pub fn barrier<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let mpi = call.functions;
    call.collective(
        &Access::WHOLE,
        ["MPI_Barrier", "MPI_Ibarrier"],
        Count(0),
        String::new,
        // SAFETY: the registry holds valid communicators.
        |Collective { request, .. }, comm| unsafe {
            match request {
                None => (mpi.barrier)(comm),
                Some(request) => (mpi.ibarrier)(comm, request),
            }
        },
    )
}

/// MPI-4.1 §6.4: root's array on every rank. Root only reads, and has no result; elsewhere
/// the operand lends its memory to the result.
pub fn bcast<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [operand] = call.operands()?;
    let is_root = call.communicator.rank == root;
    let buffer = if call.is_nonblocking() {
        let result = call.result_of_blocks(&operand, 1)?;
        call.both_buffers(&operand, &result)?.1
    } else if is_root {
        let [] = call.results()?;
        let send = call.send_buffer(&operand)?;
        let address = send.address::<A>().cast_mut();
        // SAFETY: root's buffer is not written to.
        unsafe { RecvBuffer::new(address, send.count(), send.datatype()) }
    } else {
        let result = call.result_of_blocks(&operand, 1)?;
        call.recv_buffer(&result)?
    };
    let length = call.piece_length(buffer.datatype());
    for elements in pieces(buffer.count(), length) {
        let access = Access::both(&elements, length, buffer.datatype().size);
        let address = buffer.address().wrapping_byte_add(access.read.start);
        let count = elements.end - elements.start;
        let typed = call.typed_count(count, buffer.datatype())?;
        call.collective(
            &access,
            ["MPI_Bcast", "MPI_Ibcast"],
            typed.count,
            || items_and_root(count, root),
            // SAFETY: the array has so many elements there, and root's is not written to.
            |mpi, comm| unsafe {
                invoke!(mpi.bcast / ibcast(address, typed.count, typed.datatype, root, comm))
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
    let result = call.only_at_root(root, || call.result_of_blocks(&operand, size))?;
    let recv = result.as_ref().map(|result| call.recv_buffer(result));
    let recv = recv
        .transpose()?
        .map_or(ptr::null_mut(), |recv| recv.address());
    let send = call.send_buffer(&operand)?;
    let block = call.typed_count(send.count(), send.datatype())?;
    call.collective(
        &Access::WHOLE,
        ["MPI_Gather", "MPI_Igather"],
        block.count,
        || items_and_root(send.count(), root),
        // SAFETY: `send` has a block, and on root `recv` has one for every rank.
        |mpi, comm| unsafe {
            invoke!(
                mpi.gather
                    / igather(
                        send.address::<A>(),
                        block.count,
                        block.datatype,
                        recv,
                        block.count,
                        block.datatype,
                        root,
                        comm,
                    )
            )
        },
    )
}

/// MPI-4.1 §6.6: block i of root's operand, on rank i. Only root has an operand.
pub fn scatter<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let operand = call.operand_at_root(root)?;
    let result = call.result_of_block(operand.as_ref(), call.communicator.size)?;
    let send = operand.as_ref().map(|operand| call.send_buffer(operand));
    let send = send
        .transpose()?
        .map_or(ptr::null(), |send| send.address::<A>());
    let recv = call.recv_buffer(&result)?;
    let block = call.typed_count(recv.count(), recv.datatype())?;
    call.collective(
        &Access::WHOLE,
        ["MPI_Scatter", "MPI_Iscatter"],
        block.count,
        || items_and_root(recv.count(), root),
        // SAFETY: `recv` has a block, and on root `send` has one for every rank.
        |mpi, comm| unsafe {
            invoke!(
                mpi.scatter
                    / iscatter(
                        send,
                        block.count,
                        block.datatype,
                        recv.address(),
                        block.count,
                        block.datatype,
                        root,
                        comm,
                    )
            )
        },
    )
}
