//! Collective operations between the neighbors in a topology (MPI-4.1 §8.6).
//!
//! Each block is a message, with the tag of its edge, on a communicator that has no others. That is
//! what `MPI_Neighbor_alltoall` is defined to do (MPI-4.1 §8.6), and takes no longer. As an edge has
//! the same tag on both ends,
//!
//! - two neighbors that are one process are told apart in every MPI. MPICH 4.0 mixes up several
//!   edges between the same two processes in a graph, and several periodic axes of one process
//!   (<https://github.com/pmodels/mpich/pull/7945>), and older versions of both MPICH and Open MPI
//!   one such axis (<https://github.com/mpi-forum/mpi-issues/issues/153>);
//! - the same edges can be taken backwards, which transposes an operation without a second graph.
//!
//! What a neighbor that is no process would have sent is not written. The program around the call
//! does that.

use std::ffi::c_int;

use super::buffers::{RecvBuffer, check_blocks};
use super::call::Call;
use super::check::{number_type, world_rank};
use super::log_text::items;
use super::messages::{Message, exchange_messages};
use super::vector::{check_rows, row_counts, row_of, sum};
use crate::error::Result;
use crate::memory::Memory;
use crate::mpi::{Abi, Companion, Neighbor, REGISTRY};
use crate::recorder::Array;

/// The ends of the edges that a call follows, in the order of its blocks.
struct Edges {
    destinations: &'static [Neighbor],
    sources: &'static [Neighbor],
}

impl Edges {
    fn forward<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<Self> {
        let neighbors = REGISTRY.neighbors(call.comm_number)?;
        Ok(Self {
            destinations: &neighbors.destinations,
            sources: &neighbors.sources,
        })
    }

    /// The same, or with the attribute `backwards` these the other way.
    fn new<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<Self> {
        let edges = Self::forward(call)?;
        if call.int("backwards")? == 0 {
            return Ok(edges);
        }
        Ok(Self {
            destinations: edges.sources,
            sources: edges.destinations,
        })
    }
}

/// A part of an array: so many elements from one on.
struct Block {
    first: i64,
    count: i64,
}

/// Blocks of so many elements, one behind the other.
fn in_a_row(counts: impl Iterator<Item = i64>) -> impl Iterator<Item = Block> {
    let mut next = 0i64;
    counts.map(move |count| {
        let first = next;
        next = next.saturating_add(count);
        Block { first, count }
    })
}

/// The messages of some blocks, but for those of no process.
fn messages<'c, A: Abi, M: Memory>(
    call: &'c Call<'c, A, M>,
    neighbors: &[Neighbor],
    buffer: RecvBuffer,
    blocks: impl Iterator<Item = Block>,
) -> Result<Vec<Message<'c, A, M>>> {
    let blocks = neighbors.iter().zip(blocks);
    blocks
        .filter(|(neighbor, _)| neighbor.rank != A::PROC_NULL)
        .map(|(neighbor, Block { first, count })| {
            let start = first as usize * buffer.datatype.size;
            let address = buffer.address.wrapping_byte_add(start);
            Message::new(call, *neighbor, address, count, buffer.datatype)
        })
        .collect()
}

/// Does what `function` is defined to do.
fn exchange<'c, A: Abi, M: Memory>(
    call: &'c Call<'c, A, M>,
    function: &'static str,
    details: impl FnOnce() -> String,
    sent: &[Message<'c, A, M>],
    received: &[Message<'c, A, M>],
) -> Result<()> {
    let comm = call.companion(Companion::Neighbors)?;
    check_messages(call, comm, sent, received)?;
    call.mpi(function, details, |_, _| {
        // SAFETY: the messages are blocks of the operand and of the result.
        unsafe { exchange_messages(call, comm, sent, received) }
    })
}

/// With `MPI4JAX_CHECK`, has neighbors tell each other what they are about to send: an error on all
/// ranks if it is not what is expected.
fn check_messages<A: Abi, M: Memory>(
    call: &Call<A, M>,
    comm: A::Comm,
    sent: &[Message<A, M>],
    received: &[Message<A, M>],
) -> Result<()> {
    let Some(record) = call.checked.as_deref() else {
        return Ok(());
    };
    let labels = |messages: &[Message<A, M>], array: Option<Array>| -> Vec<Array> {
        let dtype = array.map_or(0, |array| array.dtype);
        let label = |message: &Message<A, M>| Array {
            dtype,
            count: message.count,
        };
        messages.iter().map(label).collect()
    };
    let expected = labels(received, record.received);
    let told = labels(sent, record.sent).into_iter();
    let told: Vec<[i64; 2]> = told
        .map(|label| [label.dtype.into(), label.count])
        .collect();
    let mut coming = vec![[0; 2]; received.len()];
    let datatype = number_type()?;
    let of_labels = |messages: &[Message<A, M>], labels: *mut [i64; 2]| {
        let labels = messages.iter().enumerate().map(|(index, message)| {
            let label = labels.wrapping_add(index);
            Message::new(call, message.peer, label.cast(), 2, datatype)
        });
        labels.collect::<Result<Vec<_>>>()
    };
    let labels_sent = of_labels(sent, told.as_ptr().cast_mut())?;
    let labels_received = of_labels(received, coming.as_mut_ptr())?;
    // SAFETY: there is a label for each message.
    let code = unsafe { exchange_messages(call, comm, &labels_sent, &labels_received) };
    call.check("MPI_Neighbor_alltoall", code)?;
    let own = world_rank(record, call.communicator.rank);
    let complaints = received.iter().zip(coming).zip(expected);
    let complaints = complaints.filter_map(|((message, [dtype, count]), expected)| {
        let dtype = dtype as i32;
        let found = Array { dtype, count };
        let rank = world_rank(record, message.peer.rank);
        let text = format!("rank {rank} sends {found} to rank {own}, which expects {expected}.");
        (found != expected).then_some(text)
    });
    call.refuse_if_any(record, complaints.collect())
}

/// MPI-4.1 §8.6.1: the operand to every neighbor, and theirs from them.
pub fn neighbor_allgather<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let edges = Edges::forward(call)?;
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    check_blocks(&result, &operand, edges.sources.len() as c_int)?;
    let counts = vec![operand.count; edges.sources.len()];
    gather(call, "MPI_Neighbor_allgather", &edges, &counts)
}

/// MPI-4.1 §8.6.1: this rank's rows to every neighbor, and theirs from them.
pub fn neighbor_allgatherv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let edges = Edges::forward(call)?;
    let mut counts = row_counts(call, "counts", edges.sources.len(), "neighbors")?;
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    let row = row_of(&operand, operand.dims.first().copied().unwrap_or(0))?;
    check_rows(&operand, &result, sum(&counts))?;
    counts.iter_mut().for_each(|count| *count *= row);
    gather(call, "MPI_Neighbor_allgatherv", &edges, &counts)
}

/// The operand to every neighbor, and so many elements from each, for which there is room.
fn gather<A: Abi, M: Memory>(
    call: &Call<A, M>,
    function: &'static str,
    edges: &Edges,
    counts: &[i64],
) -> Result<()> {
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    let (first, count) = (0, send.count);
    let all_of_it = edges.destinations.iter().map(|_| Block { first, count });
    let blocks = in_a_row(counts.iter().copied());
    let sent = messages(call, edges.destinations, send.cast_mut(), all_of_it)?;
    let received = messages(call, edges.sources, recv, blocks)?;
    exchange(call, function, || items(count), &sent, &received)
}

/// MPI-4.1 §8.6.2: block i to neighbor i, block j from neighbor j.
pub fn neighbor_alltoall<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let edges = Edges::new(call)?;
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    let block = row_of(&operand, edges.destinations.len() as i64)?;
    check_rows(&operand, &result, edges.sources.len() as i64)?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    let blocks = || in_a_row(std::iter::repeat(block));
    let sent = messages(call, edges.destinations, send.cast_mut(), blocks())?;
    let received = messages(call, edges.sources, recv, blocks())?;
    exchange(
        call,
        "MPI_Neighbor_alltoall",
        || items(block),
        &sent,
        &received,
    )
}

/// MPI-4.1 §8.6.2: some rows to each neighbor, and some from each.
pub fn neighbor_alltoallv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let edges = Edges::new(call)?;
    let sent = row_counts(call, "sendcounts", edges.destinations.len(), "neighbors")?;
    let received = row_counts(call, "recvcounts", edges.sources.len(), "neighbors")?;
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    let row = row_of(&operand, sum(&sent))?;
    check_rows(&operand, &result, sum(&received))?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    let sent = in_a_row(sent.iter().map(|rows| rows * row));
    let sent = messages(call, edges.destinations, send.cast_mut(), sent)?;
    let received = in_a_row(received.iter().map(|rows| rows * row));
    let received = messages(call, edges.sources, recv, received)?;
    exchange(
        call,
        "MPI_Neighbor_alltoallv",
        || format!("({} items sent, {} items received)", send.count, recv.count),
        &sent,
        &received,
    )
}
