//! Point-to-point operations (MPI-4.1 §3).

use super::call::{Call, check_blocks};
use super::counts::invoke;
use crate::memory::Memory;
use crate::mpi::Abi;
use crate::xla::Result;

/// MPI-4.1 §3.2.4: blocks until a message is there.
pub fn recv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (source, tag, status) = (call.int("source")?, call.int("tag")?, call.status()?);
    let [result] = call.results()?;
    let recv = call.target(&result)?;
    let block = call.block(recv.count, recv.datatype)?;
    call.counted(
        "MPI_Recv",
        block.count,
        || format!("<- {source} (tag {tag}, {} items)", recv.count),
        // SAFETY: the result is the block; `status` is the address of one, or
        // MPI_STATUS_IGNORE.
        |mpi, comm| unsafe {
            invoke!(mpi.recv(
                recv.address,
                block.count,
                block.datatype,
                source,
                tag,
                comm,
                status,
            ))
        },
    )
}

/// MPI-4.1 §3.2.1: blocks until the operand may be overwritten.
pub fn send<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (dest, tag) = (call.int("dest")?, call.int("tag")?);
    let [operand] = call.operands()?;
    let send = call.source(&operand)?;
    let block = call.block(send.count, send.datatype)?;
    call.counted(
        "MPI_Send",
        block.count,
        || format!("-> {dest} (tag {tag}, {} items)", send.count),
        // SAFETY: the operand is the block.
        |mpi, comm| unsafe {
            invoke!(mpi.send(send.address, block.count, block.datatype, dest, tag, comm))
        },
    )
}

/// MPI-4.1 §3.11: sends to one rank while it receives from another.
pub fn sendrecv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (dest, send_tag) = (call.int("dest")?, call.int("sendtag")?);
    let (source, recv_tag) = (call.int("source")?, call.int("recvtag")?);
    let status = call.status()?;
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    let (send, recv) = (call.source(&operand)?, call.target(&result)?);
    // The two buffers of MPI_Sendrecv must be disjoint.
    let replace = recv.count > 0 && send.address == recv.address.cast_const();
    if replace {
        check_blocks(&result, &operand, 1)?;
    }
    let details = || {
        format!(
            "<- {source} (tag {recv_tag}, {} items) / -> {dest} (tag {send_tag}, {} items)",
            recv.count, send.count
        )
    };
    let sent = call.block(send.count, send.datatype)?;
    let received = call.block(recv.count, recv.datatype)?;
    let largest = sent.count.max(received.count);
    call.counted("MPI_Sendrecv", largest, details, |mpi, comm| {
        if replace {
            // SAFETY: operand and result are one array, of equal shape and type.
            unsafe {
                invoke!(mpi.sendrecv_replace(
                    recv.address,
                    received.count,
                    received.datatype,
                    dest,
                    send_tag,
                    source,
                    recv_tag,
                    comm,
                    status,
                ))
            }
        } else {
            // SAFETY: each array is its block; `status` is the address of one, or
            // MPI_STATUS_IGNORE.
            unsafe {
                invoke!(mpi.sendrecv(
                    send.address,
                    sent.count,
                    sent.datatype,
                    dest,
                    send_tag,
                    recv.address,
                    received.count,
                    received.datatype,
                    source,
                    recv_tag,
                    comm,
                    status,
                ))
            }
        }
    })
}
