//! Reductions (MPI-4.1 §6.9 to §6.11).

use std::ffi::c_int;
use std::ptr;

use super::reduction_pieces::ReductionPiece;
use crate::error::Result;
use crate::memory::{Access, Memory};
use crate::mpi::{Abi, RecvBuffer, SendBuffer};
use crate::ops::call::Call;
use crate::ops::call::counts::{Collective, Count, invoke};
use crate::ops::call::log_text::{items, items_and_root};
use crate::ops::call::operator::Operator;

/// The reductions with an operand and a result on every rank, which MPI declares alike.
fn reduction<A: Abi, M: Memory>(
    call: &Call<A, M>,
    functions: [&'static str; 2],
    details: impl Fn(i64) -> String,
    body: impl Fn(Collective<A>, &ReductionPiece<A>, A::Op) -> c_int,
) -> Result<()> {
    let [operand] = call.operands()?;
    let result = call.result_of_blocks(&operand, 1)?;
    let op = call.operator(operand.dtype)?;
    let (send, recv) = call.both_buffers(&operand, &result)?;
    for piece in call.reduction_pieces(send, recv.address(), &op) {
        let count = piece.count;
        call.collective(
            &piece.access,
            functions,
            count,
            || details(count.0),
            |mpi, _| body(mpi, &piece, op.handle),
        )?;
    }
    Ok(())
}

/// MPI-4.1 §6.9.6: the reduction over all ranks, on every rank.
pub fn allreduce<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let comm = call.communicator.handle::<A>();
    reduction(
        call,
        ["MPI_Allreduce", "MPI_Iallreduce"],
        |count| format!("with {count} items"),
        // SAFETY: both arrays have `count` elements, or are one and the operand is IN_PLACE.
        |mpi, piece, op| unsafe {
            invoke!(
                mpi.allreduce
                    / iallreduce(
                        piece.send,
                        piece.recv,
                        piece.count,
                        piece.datatype,
                        op,
                        comm,
                    )
            )
        },
    )
}

/// MPI-4.1 §6.11.2: the reduction over the ranks before this one. What the first one gets is
/// undefined.
pub fn exscan<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let comm = call.comm_in_order()?;
    reduction(
        call,
        ["MPI_Exscan", "MPI_Iexscan"],
        items,
        // SAFETY: both arrays have `count` elements, or are one and the operand is IN_PLACE.
        |mpi, piece, op| unsafe {
            invoke!(
                mpi.exscan
                    / iexscan(
                        piece.send,
                        piece.recv,
                        piece.count,
                        piece.datatype,
                        op,
                        comm,
                    )
            )
        },
    )
}

/// MPI-4.1 §6.11.1: the reduction over this rank and those before it.
pub fn scan<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let comm = call.comm_in_order()?;
    reduction(
        call,
        ["MPI_Scan", "MPI_Iscan"],
        items,
        // SAFETY: both arrays have `count` elements, or are one and the operand is IN_PLACE.
        |mpi, piece, op| unsafe {
            invoke!(
                mpi.scan
                    / iscan(
                        piece.send,
                        piece.recv,
                        piece.count,
                        piece.datatype,
                        op,
                        comm,
                    )
            )
        },
    )
}

/// MPI-4.1 §6.9.1: the reduction over all ranks, on root.
pub fn reduce<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [operand] = call.operands()?;
    let op = call.operator(operand.dtype)?;
    let result = call.only_at_root(root, || call.result_of_blocks(&operand, 1))?;
    let (send, recv) = match result {
        Some(result) => {
            let (send, recv) = call.both_buffers(&operand, &result)?;
            (send, recv.address())
        }
        None => (call.send_buffer(&operand)?, ptr::null_mut()),
    };
    call.reduction_pieces(send, recv, &op)
        .try_for_each(|piece| reduce_piece(call, &piece, &op, root))
}

/// One call of `MPI_Reduce`.
fn reduce_piece<A: Abi, M: Memory>(
    call: &Call<A, M>,
    piece: &ReductionPiece<A>,
    op: &Operator<A>,
    root: c_int,
) -> Result<()> {
    call.collective(
        &piece.access,
        ["MPI_Reduce", "MPI_Ireduce"],
        piece.count,
        || items_and_root(piece.count.0, root),
        // SAFETY: on root, both arrays have `count` elements, or are one and the operand is
        // IN_PLACE.
        |mpi, comm| unsafe {
            invoke!(
                mpi.reduce
                    / ireduce(
                        piece.send,
                        piece.recv,
                        piece.count,
                        piece.datatype,
                        op.handle,
                        root,
                        comm,
                    )
            )
        },
    )
}

/// MPI-4.1 §6.10.1: block i of the reduction over all ranks, on rank i.
pub fn reduce_scatter<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let result = call.result_of_block(Some(&operand), call.communicator.size)?;
    let op = call.operator(operand.dtype)?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    // MPI may hand the blocks of all ranks to an operator at once.
    let longest = if op.is_predefined {
        recv.count()
    } else {
        send.count()
    };
    if !call.reduces(longest, &op) {
        let block = recv.count();
        return reduce_each(call, send, recv, &op, |_| block);
    }
    let count = Count(recv.count());
    call.collective(
        &Access::WHOLE,
        ["MPI_Reduce_scatter_block", "MPI_Ireduce_scatter_block"],
        count,
        || items(count.0),
        // SAFETY: `send` has `count` elements for every rank, and `recv` for this one.
        |mpi, comm| unsafe {
            invoke!(
                mpi.reduce_scatter_block
                    / ireduce_scatter_block(
                        send.address::<A>(),
                        recv.address(),
                        count,
                        recv.datatype().handle::<A>(),
                        op.handle,
                        comm,
                    )
            )
        },
    )
}

/// Reduces and scatters by a reduction for each rank, of as many elements as `count_of` says.
pub fn reduce_each<A: Abi, M: Memory>(
    call: &Call<A, M>,
    send: SendBuffer,
    recv: RecvBuffer,
    op: &Operator<A>,
    count_of: impl Fn(c_int) -> i64,
) -> Result<()> {
    let mut first = 0;
    for root in 0..call.communicator.size {
        let block = send.part(first, count_of(root));
        let start = first as usize * send.datatype().size;
        let is_root = call.communicator.rank == root;
        let recv = if is_root {
            recv.address()
        } else {
            ptr::null_mut()
        };
        for mut piece in call.reduction_pieces(block, recv, op) {
            piece.access = piece.access.read_from(start);
            if !is_root {
                piece.access.written = 0..0;
            }
            reduce_piece(call, &piece, op, root)?;
        }
        first += block.count();
    }
    Ok(())
}
