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

use std::ffi::c_int;
use std::iter;

use crate::error::Result;
use crate::memory::Memory;
use crate::mpi::calls::{Incoming, Mpi, Outgoing, Part, sum};
use crate::mpi::{Abi, Companion, Ends, Neighbor, REGISTRY, RecvBuffer, SendBuffer, SizedDatatype};
use crate::ops::call::Call;
use crate::ops::call::buffers::measure;
use crate::ops::call::log_text::items;
use crate::ops::check::{number_type, world_rank};
use crate::ops::collectives::rows::{result_of_rows, row_counts, row_of};
use crate::recorder::Array;
use crate::xla::{Buffer, ResultBuffer};

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

    /// Whether several edges join this process and another one.
    fn are_bundled(&self) -> bool {
        self.destinations.are_bundled() || self.sources.are_bundled()
    }
}

/// Blocks that lie one behind the other, from the number of elements in each.
fn in_a_row(counts: impl Iterator<Item = i64>) -> impl Iterator<Item = Part> {
    let mut next = 0i64;
    counts.map(move |count| {
        let first = next;
        next = next.saturating_add(count);
        Part { first, count }
    })
}

/// The messages in which blocks of an array are sent, but for those to no process.
fn outgoing<'b, A: Abi, M: Memory>(
    call: &Call<A, M>,
    peers: impl Iterator<Item = Neighbor>,
    send: SendBuffer<'b>,
    blocks: impl Iterator<Item = Part>,
) -> Result<Vec<Outgoing<'b, A>>> {
    let blocks = peers.zip(blocks).filter(|(peer, _)| peer.is_process());
    blocks
        .map(|(peer, Part { first, count })| call.outgoing(peer, send.part(first, count)))
        .collect()
}

/// The messages in which blocks are received, one behind the other, but for those from no process. `counts`
/// gives the number of elements in each block.
fn incoming<'b, A: Abi, M: Memory>(
    call: &Call<A, M>,
    peers: impl Iterator<Item = Neighbor>,
    mut recv: RecvBuffer<'b>,
    counts: impl Iterator<Item = i64>,
) -> Result<Vec<Incoming<'b, A>>> {
    let blocks = peers.zip(counts);
    let blocks = blocks.map(|(peer, count)| (peer, recv.take_front(count)));
    blocks
        .filter(|(peer, _)| peer.is_process())
        .map(|(peer, block)| call.incoming(peer, block))
        .collect()
}

/// Sends and receives the messages by which a function on neighbors is defined, under its name.
fn run_messages<A: Abi, M: Memory>(
    call: &Call<A, M>,
    [blocking, nonblocking]: [&'static str; 2],
    details: impl FnOnce() -> String,
    sent: &[Outgoing<A>],
    received: &[Incoming<A>],
) -> Result<()> {
    let mpi = call.mpi.on(&call.companion(Companion::Neighbors)?);
    check_messages(call, &mpi, sent, received)?;
    match call.memory.in_flight() {
        None => call.logged(blocking, details, || {
            let awaits = |index| call.recording.set_awaited_message(index);
            Ok(mpi.exchange(sent, received, awaits))
        }),
        Some(in_flight) => call.logged(nonblocking, details, || {
            Ok(in_flight.begin(&mpi, sent, received))
        }),
    }
}

/// The largest block, in bytes, that is packed with others between the same two processes. Blocks of twice
/// the size are as often slower as faster in a packed message.
const SMALL: usize = 1 << 10;

/// A call with blocks of one size: `count` elements each. In the operand, each begins `stride` elements
/// after the one before.
struct Blocks<'c, A: Abi, M: Memory> {
    call: &'c Call<'c, A, M>,
    edges: Edges,
    operand: Buffer<'c>,
    result: ResultBuffer<'c>,
    count: i64,
    stride: i64,
}

impl<A: Abi, M: Memory> Blocks<'_, A, M> {
    /// Makes the call: by a message for each block, or for each process.
    fn run(&self, functions: [&'static str; 2]) -> Result<()> {
        let (datatype, _) = measure(&self.operand)?;
        let block = datatype.bytes(self.count);
        // What neighbors tell each other before is about single blocks.
        let is_single =
            !self.edges.are_bundled() || self.call.checked.is_some() || self.call.is_nonblocking();
        if !is_single && (1..=SMALL).contains(&block) {
            return self.run_bundles(functions, datatype);
        }
        let send = self.call.send_buffer(&self.operand)?;
        let recv = self.call.recv_buffer(&self.result)?;
        let sent = (0..).map(|index| Part {
            first: index * self.stride,
            count: self.count,
        });
        let sent = outgoing(self.call, self.edges.destinations.each(), send, sent)?;
        let received = iter::repeat(self.count);
        let received = incoming(self.call, self.edges.sources.each(), recv, received)?;
        run_messages(self.call, functions, || items(self.count), &sent, &received)
    }

    /// Sends one packed message to each process, and receives one from each. They are packed in host memory,
    /// wherever the arrays are: a process on a CPU has to send the same messages as one on a GPU.
    fn run_bundles(&self, functions: [&'static str; 2], datatype: SizedDatatype) -> Result<()> {
        let call = self.call;
        let bytes = |count: i64| datatype.bytes(count);
        let (block, stride) = (bytes(self.count), bytes(self.stride));
        let places = |ends: &'static Ends| ends.bundles.iter().flat_map(|bundle| &bundle.places);

        let mut array = vec![0; bytes(self.operand.count)];
        call.in_memory(|memory| memory.load(&self.operand, &mut array))?;
        let mut sent = Vec::new();
        for block_index in places(self.edges.destinations) {
            sent.extend_from_slice(&array[block_index * stride..][..block]);
        }
        let mut received = vec![0; bytes(self.result.count)];
        let send = SendBuffer::of(&sent[..], datatype);
        let (peers, counts) = self.bundles(self.edges.destinations);
        let outgoing = outgoing(call, peers, send, in_a_row(counts))?;
        let recv = RecvBuffer::of(&mut received[..], datatype);
        let (peers, counts) = self.bundles(self.edges.sources);
        let incoming = incoming(call, peers, recv, counts)?;
        run_messages(call, functions, || items(self.count), &outgoing, &incoming)?;
        let mut array = vec![0; bytes(self.result.count)];
        for (block_index, bytes) in places(self.edges.sources).zip(received.chunks_exact(block)) {
            array[block_index * block..][..block].copy_from_slice(bytes);
        }
        call.in_memory(|memory| memory.store(&self.result, &array))
    }

    /// The processes of packed messages, and the number of elements in each message.
    fn bundles(
        &self,
        ends: &'static Ends,
    ) -> (
        impl Iterator<Item = Neighbor>,
        impl Iterator<Item = i64> + use<'_, A, M>,
    ) {
        let peers = ends.bundles.iter().map(|bundle| bundle.peer);
        let counts = ends.bundles.iter().map(|bundle| bundle.places.len() as i64);
        (peers, counts.map(|count| count * self.count))
    }
}

/// Compares the messages of neighbors with `MPI4JAX_CHECK`: it is an error on all ranks if one does not
/// fit.
fn check_messages<A: Abi, M: Memory>(
    call: &Call<A, M>,
    mpi: &Mpi<A>,
    sent: &[Outgoing<A>],
    received: &[Incoming<A>],
) -> Result<()> {
    let Some(record) = call.checked.as_deref() else {
        return Ok(());
    };
    let dtype = |array: Option<Array>| array.map_or(0, |array| array.dtype);
    // The result of a nonblocking call, which its record does not have, has the type of its operand.
    let expected = dtype(record.received.or(record.sent));
    let expected = received.iter().map(|message| Array {
        dtype: expected,
        count: message.buffer.count(),
    });
    let sent_dtype = dtype(record.sent).into();
    let labels_sent = sent
        .iter()
        .map(|message| [sent_dtype, message.buffer.count()]);
    let labels_sent: Vec<[i64; 2]> = labels_sent.collect();
    let mut labels = vec![[0; 2]; received.len()];
    let datatype = number_type()?;
    let outgoing = sent
        .iter()
        .zip(&labels_sent)
        .map(|(message, label)| call.outgoing(message.peer, SendBuffer::of(label, datatype)));
    let incoming = received
        .iter()
        .zip(&mut labels)
        .map(|(message, label)| call.incoming(message.peer, RecvBuffer::of(label, datatype)));
    let outgoing = outgoing.collect::<Result<Vec<_>>>()?;
    let incoming = incoming.collect::<Result<Vec<_>>>()?;
    let code = mpi.exchange(&outgoing, &incoming, |_| ());
    drop(incoming);
    call.check("MPI_Neighbor_alltoall", code)?;
    let own = world_rank(record, call.communicator.rank);
    let complaints = received.iter().zip(labels).zip(expected);
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
    let sent = iter::repeat_with(|| Part { first, count });
    let sent = outgoing(call, edges.destinations.each(), send, sent)?;
    let received = counts.iter().map(|rows| rows * row);
    let received = incoming(call, edges.sources.each(), recv, received)?;
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
    let sent = in_a_row(sent.iter().map(|rows| rows * row));
    let sent = outgoing(call, edges.destinations.each(), send, sent)?;
    let received = received.iter().map(|rows| rows * row);
    let received = incoming(call, edges.sources.each(), recv, received)?;
    run_messages(
        call,
        ["MPI_Neighbor_alltoallv", "MPI_Ineighbor_alltoallv"],
        || format!("({} items sent, {} items received)", counts.0, counts.1),
        &sent,
        &received,
    )
}
