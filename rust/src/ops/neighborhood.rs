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

use std::ffi::{c_int, c_void};

use super::buffers::check_blocks;
use super::call::Call;
use super::check::{number_type, world_rank};
use super::counts::{Counting, invoke};
use super::derived::TypedCount;
use super::log_text::items;
use super::vector::{check_rows, row_counts, row_of, sum};
use crate::error::Result;
use crate::memory::Memory;
use crate::mpi::{Abi, Companion, Datatype, Functions, Handle, Neighbor, REGISTRY};
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

/// A message to a neighbor, or from one.
struct Message<'c, A: Abi, M> {
    neighbor: Neighbor,
    /// Where it begins in the array, in bytes.
    start: usize,
    /// How many elements it has.
    count: i64,
    elements: TypedCount<'c, A, M>,
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
    datatype: Datatype,
    blocks: impl Iterator<Item = Block>,
) -> Result<Vec<Message<'c, A, M>>> {
    let blocks = neighbors.iter().zip(blocks);
    blocks
        .filter(|(neighbor, _)| neighbor.rank != A::PROC_NULL)
        .map(|(neighbor, Block { first, count })| {
            Ok(Message {
                neighbor: *neighbor,
                start: first as usize * datatype.size,
                count,
                elements: call.typed_count(count, datatype)?,
            })
        })
        .collect()
}

/// Messages that are under way.
struct Requests<'f, A: Abi> {
    functions: &'f Functions<A>,
    receives: Vec<A::Request>,
    sends: Vec<A::Request>,
}

impl<A: Abi> Requests<'_, A> {
    /// Waits for all messages, and gives the first error code.
    fn wait(self) -> c_int {
        let mut first = 0;
        for mut request in self.receives.into_iter().chain(self.sends) {
            let ignore = A::STATUS_IGNORE as *mut A::Status;
            // SAFETY: MPI gave the request, and gets it back once.
            let code = unsafe { (self.functions.wait)(&raw mut request, ignore) };
            first = if first == 0 { code } else { first };
        }
        first
    }

    /// Sees to it that MPI writes nothing any more when not all messages could be begun. What the
    /// others then wait for does not come: there is no way on from an error (MPI-4.1 §9.3).
    #[cold]
    fn withdraw(mut self) {
        for request in &mut self.receives {
            // SAFETY: MPI gave the request, and has not got it back.
            unsafe { (self.functions.cancel)(request) };
        }
        self.sends.clear();
        self.wait();
    }
}

/// Begins messages, up to the first error code.
fn begin<'c, A: Abi, M>(
    messages: &[Message<'c, A, M>],
    body: impl Fn(&Message<'c, A, M>, &mut A::Request) -> c_int,
    requests: &mut Vec<A::Request>,
) -> std::result::Result<(), c_int> {
    for message in messages {
        let mut request = A::Request::from_raw(0);
        match body(message, &mut request) {
            0 => requests.push(request),
            code => return Err(code),
        }
    }
    Ok(())
}

/// Begins all messages and waits for them. Gives the first error code.
fn exchange_messages<A: Abi, M>(
    functions: &Functions<A>,
    counting: &Counting<A>,
    comm: A::Comm,
    (send, sent): (*const c_void, &[Message<A, M>]),
    (recv, received): (*mut c_void, &[Message<A, M>]),
) -> c_int {
    let mut requests = Requests {
        functions,
        receives: Vec::with_capacity(received.len()),
        sends: Vec::with_capacity(sent.len()),
    };
    let receive = |message: &Message<A, M>, request: &mut A::Request| {
        let form = counting.form(message.elements.count);
        // SAFETY: the array has room for the block there, until the request is done.
        unsafe {
            invoke!(form.irecv(
                recv.wrapping_byte_add(message.start),
                message.elements.count,
                message.elements.datatype,
                message.neighbor.rank,
                message.neighbor.tag,
                comm,
                request,
            ))
        }
    };
    let send = |message: &Message<A, M>, request: &mut A::Request| {
        let form = counting.form(message.elements.count);
        // SAFETY: the array has the block there, until the request is done.
        unsafe {
            invoke!(form.isend(
                send.wrapping_byte_add(message.start),
                message.elements.count,
                message.elements.datatype,
                message.neighbor.rank,
                message.neighbor.tag,
                comm,
                request,
            ))
        }
    };
    let begun = begin(received, receive, &mut requests.receives);
    if let Err(code) = begun.and_then(|()| begin(sent, send, &mut requests.sends)) {
        requests.withdraw();
        return code;
    }
    requests.wait()
}

/// Does what `function` is defined to do.
fn exchange<'c, A: Abi, M: Memory>(
    call: &'c Call<'c, A, M>,
    function: &'static str,
    details: impl FnOnce() -> String,
    (send, sent): (*const c_void, Vec<Message<'c, A, M>>),
    (recv, received): (*mut c_void, Vec<Message<'c, A, M>>),
) -> Result<()> {
    let comm = call.companion(Companion::Neighbors)?;
    check_messages(call, comm, &sent, &received)?;
    call.mpi(function, details, |functions, _| {
        let (sent, received) = ((send, &sent[..]), (recv, &received[..]));
        exchange_messages(functions, &call.counting, comm, sent, received)
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
    let of_labels = |messages: &[Message<A, M>]| {
        let labels = messages.iter().enumerate().map(|(index, message)| {
            Ok(Message {
                neighbor: message.neighbor,
                start: index * size_of::<[i64; 2]>(),
                count: 2,
                elements: call.typed_count(2, datatype)?,
            })
        });
        labels.collect::<Result<Vec<_>>>()
    };
    let code = exchange_messages(
        call.functions,
        &call.counting,
        comm,
        (told.as_ptr().cast(), &of_labels(sent)?),
        (coming.as_mut_ptr().cast(), &of_labels(received)?),
    );
    call.check("MPI_Neighbor_alltoall", code)?;
    let own = world_rank(record, call.communicator.rank);
    let complaints = received.iter().zip(coming).zip(expected);
    let complaints = complaints.filter_map(|((message, [dtype, count]), expected)| {
        let dtype = dtype as i32;
        let found = Array { dtype, count };
        let rank = world_rank(record, message.neighbor.rank);
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
    let sent = messages(call, edges.destinations, send.datatype, all_of_it)?;
    let received = messages(call, edges.sources, recv.datatype, blocks)?;
    exchange(
        call,
        function,
        || items(count),
        (send.address, sent),
        (recv.address, received),
    )
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
    let sent = messages(call, edges.destinations, send.datatype, blocks())?;
    let received = messages(call, edges.sources, recv.datatype, blocks())?;
    exchange(
        call,
        "MPI_Neighbor_alltoall",
        || items(block),
        (send.address, sent),
        (recv.address, received),
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
    let sent = messages(call, edges.destinations, send.datatype, sent)?;
    let received = in_a_row(received.iter().map(|rows| rows * row));
    let received = messages(call, edges.sources, recv.datatype, received)?;
    exchange(
        call,
        "MPI_Neighbor_alltoallv",
        || format!("({} items sent, {} items received)", send.count, recv.count),
        (send.address, sent),
        (recv.address, received),
    )
}
