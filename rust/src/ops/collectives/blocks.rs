//! Collective operations that move arrays whose blocks have one size (MPI-4.1 §6.3 to §6.8).

use std::ffi::c_int;

use crate::error::Result;
use crate::memory::{Access, Memory};
use crate::mpi::calls::BcastBuffer;
use crate::mpi::{Abi, SizedDatatype};
use crate::ops::call::Call;
use crate::ops::call::buffers::{block_for_each, check_blocks};
use crate::ops::call::log_text::{items, items_and_root};
use crate::ops::call::pieces::pieces;

/// MPI-4.1 §6.7: everyone's operand, in rank order, on every rank.
pub fn allgather<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let result = call.result_of_blocks(&operand, call.communicator.size)?;
    let recv = call.recv_buffer(&result)?;
    let start = call.communicator.rank as usize * operand.bytes();
    let send = call.send_buffer_within(&operand, &recv, start)?;
    call.collective(&Access::WHOLE, || items(send.count()))
        .allgather(send, recv)
}

/// MPI-4.1 §6.8: block i goes to rank i, block j comes from rank j.
pub fn alltoall<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let result = call.result_of_blocks(&operand, 1)?;
    let count = block_for_each(&operand, call.communicator.size)?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    call.collective(&Access::WHOLE, || items(count))
        .alltoall(send, recv, count)
}

/// MPI-4.1 §6.3: no rank leaves before every rank has entered.
pub fn barrier<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    call.collective(&Access::WHOLE, String::new).barrier()
}

/// MPI-4.1 §6.4: root's array on every rank. Root only reads, and its result, if there is one, is its
/// operand; elsewhere the operand lends its memory to the result.
pub fn bcast<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [operand] = call.operands()?;
    if call.communicator.rank == root {
        let result = call.optional_result()?;
        if let Some(result) = &result {
            check_blocks(result, &operand, 1)?;
        }
        let send = call.send_buffer(&operand)?;
        let part = |first, count| BcastBuffer::Send(send.part(first, count));
        bcast_pieces(call, send.count(), send.datatype(), root, part)?;
        return result.map_or(Ok(()), |result| call.forward(&operand, &result));
    }
    let result = call.result_of_blocks(&operand, 1)?;
    let mut recv = call.recv_buffer(&result)?;
    let (count, datatype) = (recv.count(), recv.datatype());
    let part = |_, count| BcastBuffer::Recv(recv.take_front(count));
    bcast_pieces(call, count, datatype, root, part)
}

fn bcast_pieces<'b, A: Abi, M: Memory>(
    call: &Call<A, M>,
    count: i64,
    datatype: SizedDatatype,
    root: c_int,
    mut part: impl FnMut(i64, i64) -> BcastBuffer<'b>,
) -> Result<()> {
    let length = call.piece_length(datatype);
    for elements in pieces(count, length) {
        let access = Access::both(&elements, length, datatype.size);
        let count = elements.end - elements.start;
        call.collective(&access, || items_and_root(count, root))
            .bcast(part(elements.start, count), root)?;
    }
    Ok(())
}

/// MPI-4.1 §6.5: everyone's operand, in rank order, on root. A result elsewhere is zeros.
pub fn gather<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [operand] = call.operands()?;
    let size = call.communicator.size;
    let result = call.result_of_root(root, || call.result_of_blocks(&operand, size))?;
    let recv = call.recv_buffer_of_root(&result)?;
    let send = call.send_buffer(&operand)?;
    call.collective(&Access::WHOLE, || items_and_root(send.count(), root))
        .gather(send, recv, root)
}

/// MPI-4.1 §6.6: block i of root's operand, on rank i. That of others is not read.
pub fn scatter<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let operand = call.operand_of_root(root)?;
    let result = call.result_of_block(operand.as_ref(), call.communicator.size)?;
    let send = call.send_buffer_of_root(root, operand.as_ref())?;
    let recv = call.recv_buffer(&result)?;
    let count = recv.count();
    call.collective(&Access::WHOLE, || items_and_root(count, root))
        .scatter(send, recv, root)
}
