//! Collective operations between the neighbors in a topology (MPI-4.1 §8.6).
//!
//! Each block is a message, with the tag of its edge, on a communicator that has no others, which is
//! what `MPI_Neighbor_alltoall` is defined to do (MPI-4.1 §8.6). Where all blocks have one size, and a
//! small one, those between the same two processes travel in one message. As an edge has the same tag
//! on both ends,
//!
//! - two neighbors that are one process are told apart in every MPI. MPICH 4.0 mixes up several
//!   edges between the same two processes in a graph, and several periodic axes of one process
//!   (<https://github.com/pmodels/mpich/pull/7945>), and older versions of both MPICH and Open MPI
//!   one such axis (<https://github.com/mpi-forum/mpi-issues/issues/153>);
//! - the same edges can be taken backwards, which transposes an operation without a second graph.
//!
//! The block of a neighbor that is `MPI_PROC_NULL` is left as it is. The program around the call writes
//! it.

use std::ffi::{c_int, c_void};
use std::iter;

use crate::error::Result;
use crate::memory::Memory;
use crate::mpi::calls::Mpi;
use crate::mpi::{Abi, Companion, Datatype, Ends, Neighbor, REGISTRY};
use crate::ops::call::Call;
use crate::ops::call::buffers::measure;
use crate::ops::call::log_text::items;
use crate::ops::call::requests::{MessageBuffer, exchange_messages};
use crate::ops::check::{number_type, world_rank};
use crate::ops::collectives::rows::{result_of_rows, row_counts, row_of, sum};
use crate::recorder::Array;
use crate::xla::Buffer;

/// The ends of the edges that a call follows, in the order of its blocks.
struct Edges {
    destinations: &'static Ends,
    sources: &'static Ends,
}

impl Edges {
    fn forward<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<Self> {
        let neighbors = REGISTRY.neighbors(call.comm_number)?;
        Ok(Self {
            destinations: &neighbors.destinations,
            sources: &neighbors.sources,
        })
    }

    /// The edges that a call follows: with the attribute `backwards` from their ends to their begins.
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

    /// Whether several of them are between this process and another one.
    fn are_bundled(&self) -> bool {
        self.destinations.are_bundled() || self.sources.are_bundled()
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

/// The messages of some parts of an array, but for those of no process.
fn messages<'c, A: Abi, M: Memory>(
    call: &'c Call<'c, A, M>,
    peers: impl Iterator<Item = Neighbor>,
    (address, datatype): (*mut c_void, Datatype),
    blocks: impl Iterator<Item = Block>,
) -> Result<Vec<MessageBuffer<A>>> {
    let blocks = peers.zip(blocks);
    blocks
        .filter(|(peer, _)| peer.is_process())
        .map(|(peer, Block { first, count })| {
            let address = address.wrapping_byte_add(first as usize * datatype.size);
            MessageBuffer::new(call, peer, address, count, datatype)
        })
        .collect()
}

/// Does what `function` is defined to do.
fn run_messages<'c, A: Abi, M: Memory>(
    call: &'c Call<'c, A, M>,
    [blocking, nonblocking]: [&'static str; 2],
    details: impl FnOnce() -> String,
    sent: &[MessageBuffer<A>],
    received: &[MessageBuffer<A>],
) -> Result<()> {
    let mpi = call.mpi.on(&call.companion(Companion::Neighbors)?);
    check_messages(call, &mpi, sent, received)?;
    let Some(departure) = &call.departure else {
        return call.mpi(blocking, details, |_, _| {
            // SAFETY: the messages are blocks of the operand and of the result, or of copies of them.
            unsafe { exchange_messages(call, &mpi, sent, received) }
        });
    };
    call.mpi(nonblocking, details, |_, _| {
        // SAFETY: the messages are parts of its blocks.
        unsafe { departure.borrow_mut().begin(&mpi, sent, received) }
    })
}

/// Blocks of at most so many bytes travel together if they are between the same two processes. From
/// about twice that on, packing them is slower as often as it is faster.
const SMALL: usize = 1 << 10;

/// A call with blocks of one size: so many elements each. In the operand, one begins `stride` elements
/// after the other.
struct Blocks<'c, A: Abi, M: Memory> {
    call: &'c Call<'c, A, M>,
    edges: Edges,
    operand: Buffer<'c>,
    result: Buffer<'c>,
    count: i64,
    stride: i64,
}

impl<A: Abi, M: Memory> Blocks<'_, A, M> {
    /// Does what `function` is defined to do.
    fn run(&self, functions: [&'static str; 2]) -> Result<()> {
        let (datatype, _) = measure(&self.operand)?;
        let block = self.count as usize * datatype.size;
        // What neighbors tell each other before is about single blocks.
        let is_single =
            !self.edges.are_bundled() || self.call.checked.is_some() || self.call.is_nonblocking();
        if !is_single && (1..=SMALL).contains(&block) {
            return self.run_bundles(functions, datatype);
        }
        let send = self.call.send_buffer(&self.operand)?;
        let recv = self.call.recv_buffer(&self.result)?;
        let send = (send.address::<A>().cast_mut(), send.datatype());
        let recv = (recv.address(), recv.datatype());
        let sent = (0..).map(|index| Block {
            first: index * self.stride,
            count: self.count,
        });
        let received = in_a_row(iter::repeat(self.count));
        let sent = messages(self.call, self.edges.destinations.each(), send, sent)?;
        let received = messages(self.call, self.edges.sources.each(), recv, received)?;
        run_messages(self.call, functions, || items(self.count), &sent, &received)
    }

    /// Sends one packed message to each process, and receives one from each. They are packed in host memory,
    /// wherever the arrays are: a process on a CPU has to send the same messages as one on a GPU.
    fn run_bundles(&self, functions: [&'static str; 2], datatype: Datatype) -> Result<()> {
        let call = self.call;
        let bytes = |count: i64| count as usize * datatype.size;
        let (block, stride) = (bytes(self.count), bytes(self.stride));
        let places = |ends: &'static Ends| ends.bundles.iter().flat_map(|bundle| &bundle.places);

        let mut array = vec![0; bytes(self.operand.count)];
        call.in_memory(|memory| memory.load(&self.operand, &mut array))?;
        let mut sent = Vec::new();
        for block_index in places(self.edges.destinations) {
            sent.extend_from_slice(&array[block_index * stride..][..block]);
        }
        let mut received = vec![0; bytes(self.result.count)];
        let send = self.in_bundles(self.edges.destinations, &mut sent, datatype)?;
        let recv = self.in_bundles(self.edges.sources, &mut received, datatype)?;
        run_messages(call, functions, || items(self.count), &send, &recv)?;
        let mut array = vec![0; bytes(self.result.count)];
        for (block_index, bytes) in places(self.edges.sources).zip(received.chunks_exact(block)) {
            array[block_index * block..][..block].copy_from_slice(bytes);
        }
        call.in_memory(|memory| memory.store(&self.result, &array))
    }

    /// The messages of packed blocks: one for each process.
    fn in_bundles(
        &self,
        ends: &Ends,
        packed: &mut [u8],
        datatype: Datatype,
    ) -> Result<Vec<MessageBuffer<A>>> {
        let packed = (packed.as_mut_ptr().cast(), datatype);
        let peers = ends.bundles.iter().map(|bundle| bundle.peer);
        let counts = ends.bundles.iter().map(|bundle| bundle.places.len() as i64);
        let blocks = in_a_row(counts.map(|count| count * self.count));
        messages(self.call, peers, packed, blocks)
    }
}

/// With `MPI4JAX_CHECK`, has neighbors tell each other what they are about to send: an error on all
/// ranks if it is not what is expected.
fn check_messages<A: Abi, M: Memory>(
    call: &Call<A, M>,
    mpi: &Mpi<A>,
    sent: &[MessageBuffer<A>],
    received: &[MessageBuffer<A>],
) -> Result<()> {
    let Some(record) = call.checked.as_deref() else {
        return Ok(());
    };
    let labels = |messages: &[MessageBuffer<A>], array: Option<Array>| -> Vec<Array> {
        let dtype = array.map_or(0, |array| array.dtype);
        let label = |message: &MessageBuffer<A>| Array {
            dtype,
            count: message.count,
        };
        messages.iter().map(label).collect()
    };
    // The result of a nonblocking call, which its record does not have, has the type of its operand.
    let expected = labels(received, record.received.or(record.sent));
    let told = labels(sent, record.sent).into_iter();
    let told: Vec<[i64; 2]> = told
        .map(|label| [label.dtype.into(), label.count])
        .collect();
    let mut coming = vec![[0; 2]; received.len()];
    let datatype = number_type()?;
    let of_labels = |messages: &[MessageBuffer<A>], labels: *mut [i64; 2]| {
        let labels = messages.iter().enumerate().map(|(index, message)| {
            let label = labels.wrapping_add(index);
            MessageBuffer::new(call, message.peer, label.cast(), 2, datatype)
        });
        labels.collect::<Result<Vec<_>>>()
    };
    let labels_sent = of_labels(sent, told.as_ptr().cast_mut())?;
    let labels_received = of_labels(received, coming.as_mut_ptr())?;
    // SAFETY: there is a label for each message.
    let code = unsafe { exchange_messages(call, mpi, &labels_sent, &labels_received) };
    call.check("MPI_Neighbor_alltoall", code)?;
    let own = world_rank(record, call.communicator.rank);
    let complaints = received.iter().zip(coming).zip(expected);
    let complaints = complaints.filter_map(|((message, [dtype, count]), expected)| {
        let dtype = dtype as i32;
        let coming = Array { dtype, count };
        let rank = world_rank(record, message.peer.rank);
        let text = format!("rank {rank} sends {coming} to rank {own}, which expects {expected}.");
        (coming != expected).then_some(text)
    });
    call.refuse_if_any(record, complaints.collect())
}

/// MPI-4.1 §8.6.1: the operand to every neighbor, and theirs from them.
pub fn neighbor_allgather<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let edges = Edges::forward(call)?;
    let [operand] = call.operands()?;
    let result = call.result_of_blocks(&operand, edges.sources.count() as c_int)?;
    let blocks = Blocks {
        call,
        edges,
        count: operand.count,
        stride: 0,
        operand,
        result,
    };
    blocks.run(["MPI_Neighbor_allgather", "MPI_Ineighbor_allgather"])
}

/// MPI-4.1 §8.6.1: this rank's rows to every neighbor, and theirs from them.
pub fn neighbor_allgatherv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let edges = Edges::forward(call)?;
    let counts = row_counts(call, "counts", edges.sources.count(), "neighbors")?;
    let [operand] = call.operands()?;
    let row = row_of(&operand, operand.dims.first().copied().unwrap_or(0))?;
    let result = result_of_rows(call, &operand, row, sum(&counts))?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    let (first, count) = (0, send.count());
    let send = (send.address::<A>().cast_mut(), send.datatype());
    let recv = (recv.address(), recv.datatype());
    let sent = iter::repeat_with(|| Block { first, count });
    let sent = messages(call, edges.destinations.each(), send, sent)?;
    let received = in_a_row(counts.iter().map(|rows| rows * row));
    let received = messages(call, edges.sources.each(), recv, received)?;
    let details = || items(count);
    let functions = ["MPI_Neighbor_allgatherv", "MPI_Ineighbor_allgatherv"];
    run_messages(call, functions, details, &sent, &received)
}

/// MPI-4.1 §8.6.2: block i to neighbor i, block j from neighbor j.
pub fn neighbor_alltoall<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let edges = Edges::new(call)?;
    let [operand] = call.operands()?;
    let count = row_of(&operand, edges.destinations.count() as i64)?;
    let result = result_of_rows(call, &operand, count, edges.sources.count() as i64)?;
    let blocks = Blocks {
        call,
        edges,
        operand,
        result,
        count,
        stride: count,
    };
    blocks.run(["MPI_Neighbor_alltoall", "MPI_Ineighbor_alltoall"])
}

/// MPI-4.1 §8.6.2: some rows to each neighbor, and some from each.
pub fn neighbor_alltoallv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let edges = Edges::new(call)?;
    let sent = row_counts(call, "sendcounts", edges.destinations.count(), "neighbors")?;
    let received = row_counts(call, "recvcounts", edges.sources.count(), "neighbors")?;
    let [operand] = call.operands()?;
    let row = row_of(&operand, sum(&sent))?;
    let result = result_of_rows(call, &operand, row, sum(&received))?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    let counts = (send.count(), recv.count());
    let send = (send.address::<A>().cast_mut(), send.datatype());
    let recv = (recv.address(), recv.datatype());
    let sent = in_a_row(sent.iter().map(|rows| rows * row));
    let sent = messages(call, edges.destinations.each(), send, sent)?;
    let received = in_a_row(received.iter().map(|rows| rows * row));
    let received = messages(call, edges.sources.each(), recv, received)?;
    run_messages(
        call,
        ["MPI_Neighbor_alltoallv", "MPI_Ineighbor_alltoallv"],
        || format!("({} items sent, {} items received)", counts.0, counts.1),
        &sent,
        &received,
    )
}
