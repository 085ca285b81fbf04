//! Reductions (MPI-4.1 §6.9 to §6.11).

use std::ffi::c_int;

use crate::error::Result;
use crate::memory::{Access, Memory};
use crate::mpi::calls::{Mpi, Operator};
use crate::mpi::{Abi, RecvBuffer, SendBuffer};
use crate::ops::call::Call;
use crate::ops::call::buffers::RootedResult;
use crate::ops::call::log_text::{items, items_and_root};
use crate::ops::call::pieces::pieces;

/// A piece of a reduction: the buffers of one call of MPI.
struct ReductionPiece<'b> {
    send: SendBuffer<'b>,
    /// The receive buffer, or `None` where MPI ignores it.
    recv: Option<RecvBuffer<'b>>,
    access: Access,
}

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// The pieces of a reduction of `send` into `recv`, one for each call of MPI: all of it, or several
    /// where the communicator says so, or MPI can't count so far.
    fn reduction_pieces<'b>(
        &self,
        send: SendBuffer<'b>,
        mut recv: Option<RecvBuffer<'b>>,
        op: &Operator<A>,
    ) -> impl Iterator<Item = ReductionPiece<'b>> + use<'b, A, M> {
        let mut length = self.piece_length(send.datatype());
        if !self.mpi.reduces(send.count().min(length), op) {
            length = self.mpi.count_limit();
        }
        pieces(send.count(), length).map(move |elements| {
            let count = elements.end - elements.start;
            ReductionPiece {
                send: send.part(elements.start, count),
                recv: recv.as_mut().map(|recv| recv.take_front(count)),
                access: Access::both(&elements, length, send.datatype().size),
            }
        })
    }
}

/// A reduction with an operand and a result on every rank, on a communicator of `$mpi`.
macro_rules! reduction {
    ($call:ident, $mpi:expr, $function:ident, $details:expr) => {{
        let mpi: &Mpi<A> = $mpi;
        let [operand] = $call.operands()?;
        let result = $call.result_of_blocks(&operand, 1)?;
        let op = $call.operator(operand.dtype)?;
        let (send, recv) = $call.both_buffers(&operand, &result)?;
        for piece in $call.reduction_pieces(send, Some(recv), &op) {
            let ReductionPiece { send, recv, access } = piece;
            let Some(recv) = recv else { continue };
            let count = send.count();
            $call
                .collective_on(mpi, &access, || $details(count))
                .$function(send, recv, &op)?;
        }
        Ok(())
    }};
}

/// MPI-4.1 §6.9.6: the reduction over all ranks, on every rank.
pub fn allreduce<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let details = |count| format!("with {count} items");
    reduction!(call, &call.mpi, allreduce, details)
}

/// MPI-4.1 §6.11.2: the reduction over the ranks before this one. The result of rank 0 is
/// undefined.
pub fn exscan<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    reduction!(call, &call.mpi_in_order()?, exscan, items)
}

/// MPI-4.1 §6.11.1: the reduction over this rank and those before it.
pub fn scan<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    reduction!(call, &call.mpi_in_order()?, scan, items)
}

/// MPI-4.1 §6.9.1: the reduction over all ranks, on root. A result elsewhere is the operand.
pub fn reduce<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [operand] = call.operands()?;
    let op = call.operator(operand.dtype)?;
    let result = call.result_of_root(root, || call.result_of_blocks(&operand, 1))?;
    let (send, recv) = match &result {
        RootedResult::OfRoot(result) => {
            let (send, recv) = call.both_buffers(&operand, result)?;
            (send, Some(recv))
        }
        RootedResult::Elsewhere(result) => {
            call.forward(&operand, result)?;
            (call.send_buffer(&operand)?, None)
        }
        RootedResult::None => (call.send_buffer(&operand)?, None),
    };
    call.reduction_pieces(send, recv, &op)
        .try_for_each(|piece| reduce_piece(call, piece, &op, root))
}

/// One call of `MPI_Reduce`.
fn reduce_piece<A: Abi, M: Memory>(
    call: &Call<A, M>,
    ReductionPiece { send, recv, access }: ReductionPiece,
    op: &Operator<A>,
    root: c_int,
) -> Result<()> {
    call.collective(&access, || items_and_root(send.count(), root))
        .reduce(send, recv, op, root)
}

/// MPI-4.1 §6.10.1: block i of the reduction over all ranks, on rank i.
pub fn reduce_scatter<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let result = call.result_of_block(Some(&operand), call.communicator.size)?;
    let op = call.operator(operand.dtype)?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    let count = recv.count();
    // MPI may hand the blocks of all ranks to an operator at once.
    let longest = if op.is_predefined {
        count
    } else {
        send.count()
    };
    if !call.mpi.reduces(longest, &op) {
        return reduce_each(call, send, recv, &op, |_| count);
    }
    call.collective(&Access::WHOLE, || items(count))
        .reduce_scatter_block(send, recv, &op)
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
    let mut recv = Some(recv);
    for root in 0..call.communicator.size {
        let block = send.part(first, count_of(root));
        let start = first as usize * send.datatype().size;
        let is_root = call.communicator.rank == root;
        let recv = recv.take_if(|_| is_root);
        for mut piece in call.reduction_pieces(block, recv, op) {
            piece.access = piece.access.read_from(start);
            if !is_root {
                piece.access.written = 0..0;
            }
            reduce_piece(call, piece, op, root)?;
        }
        first += block.count();
    }
    Ok(())
}
