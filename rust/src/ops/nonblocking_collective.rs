//! Nonblocking collective operations (MPI-4.1 §6.12).

use std::ffi::{c_int, c_void};

use super::buffers::measure;
use super::call::Call;
use super::counts::{Count, Form, invoke};
use super::flight::Arrival;
use super::in_flight::depart;
use super::log_text::{items, items_and_root};
use crate::error::{Error, Result};
use crate::memory::{Memory, Room};
use crate::mpi::{Abi, Handle};
use crate::recorder::Array;

/// Begins a collective operation whose operand and result are in a block. `body` gets their
/// addresses.
fn begin_collective<A: Abi, M: Memory>(
    call: &Call<A, M>,
    function: &'static str,
    details: impl FnOnce() -> String,
    largest: i64,
    arrays: Arrays,
    body: impl FnOnce(Form<A>, *mut c_void, *mut c_void, A::Comm, *mut A::Request) -> c_int,
) -> Result<()> {
    if !call.counting.takes(largest) {
        return Err(Error::invalid(format!(
            "{function} of {largest} elements is more than this MPI counts in one call"
        )));
    }
    let [operand] = call.operands()?;
    let (datatype, size) = measure(&operand)?;
    let mut room = Room::default();
    let whole = room.add(size * arrays.blocks);
    // Where the operand is a part of the result, it is there already.
    let operand_at = match arrays.operand_block {
        Some(block) => whole.start + block * size..whole.start + (block + 1) * size,
        None => room.add(size),
    };
    let mut flight = call.new_flight(&room)?;
    call.load(&operand, &mut flight.block, operand_at.clone())?;
    let send = flight.block.address(operand_at.start).cast();
    let recv = flight.block.address(whole.start).cast();
    let mut request = A::Request::from_raw(0);
    let form = call.counting.form(Count(largest));
    call.mpi(function, details, |_, comm| {
        body(form, send, recv, comm, &raw mut request)
    })?;
    flight.has_begun::<A>(vec![request], Vec::new());
    flight.arrivals.push(Arrival {
        bytes: whole,
        array: Array {
            dtype: operand.dtype,
            count: operand.count * arrays.blocks as i64,
        },
        pieces: 0..1,
        datatype,
        length: i64::MAX,
        label: None,
    });
    depart(call, flight)
}

/// The arrays of a collective operation.
struct Arrays {
    /// How many times the operand the result is.
    blocks: usize,
    /// The place of the operand in the result, if it has one there.
    operand_block: Option<usize>,
}

const IN_PLACE: Arrays = Arrays {
    blocks: 1,
    operand_block: Some(0),
};

/// MPI-4.1 §6.12.8: begins a reduction over all ranks, on every rank.
pub fn iallreduce<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let op = call.operator(operand.dtype)?;
    let (datatype, _) = measure(&operand)?;
    let (datatype, count) = (datatype.handle::<A>(), Count(operand.count));
    begin_collective(
        call,
        "MPI_Iallreduce",
        || format!("with {} items", operand.count),
        operand.count,
        IN_PLACE,
        // SAFETY: the block has `count` elements there until all is done.
        |mpi, _, recv, comm, request| unsafe {
            let in_place = A::IN_PLACE as *const c_void;
            invoke!(mpi.iallreduce(in_place, recv, count, datatype, op.handle, comm, request))
        },
    )
}

/// MPI-4.1 §6.12.2: begins to bring root's array to every rank.
pub fn ibcast<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [operand] = call.operands()?;
    let (datatype, _) = measure(&operand)?;
    let (datatype, count) = (datatype.handle::<A>(), Count(operand.count));
    begin_collective(
        call,
        "MPI_Ibcast",
        || items_and_root(operand.count, root),
        operand.count,
        IN_PLACE,
        // SAFETY: the block has `count` elements there until all is done.
        |mpi, _, recv, comm, request| unsafe {
            invoke!(mpi.ibcast(recv, count, datatype, root, comm, request))
        },
    )
}

/// MPI-4.1 §6.12.5: begins to bring everyone's operand, in rank order, to every rank.
pub fn iallgather<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let (datatype, _) = measure(&operand)?;
    let (datatype, count) = (datatype.handle::<A>(), Count(operand.count));
    let communicator = &call.communicator;
    let arrays = Arrays {
        blocks: communicator.size as usize,
        operand_block: Some(communicator.rank as usize),
    };
    begin_collective(
        call,
        "MPI_Iallgather",
        || items(operand.count),
        operand.count,
        arrays,
        // SAFETY: the block has `count` elements for every rank there until all is done.
        |mpi, _, recv, comm, request| unsafe {
            let in_place = A::IN_PLACE as *const c_void;
            invoke!(mpi.iallgather(
                in_place, count, datatype, recv, count, datatype, comm, request
            ))
        },
    )
}

/// MPI-4.1 §6.12.6: begins to bring block i to rank i, and block j from rank j.
pub fn ialltoall<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let size = call.communicator.size;
    if operand.dims.first() != Some(&i64::from(size)) {
        return Err(Error::invalid(format!(
            "an array of shape {:?} can't be sent to {size} ranks: its first axis must have \
             size {size}",
            operand.dims
        )));
    }
    let (datatype, _) = measure(&operand)?;
    let block = operand.count / i64::from(size);
    let (datatype, count) = (datatype.handle::<A>(), Count(block));
    let arrays = Arrays {
        blocks: 1,
        operand_block: None,
    };
    begin_collective(
        call,
        "MPI_Ialltoall",
        || items(block),
        block,
        arrays,
        // SAFETY: the block has `count` elements for every rank in both places until all is done.
        |mpi, send, recv, comm, request| unsafe {
            invoke!(mpi.ialltoall(
                send.cast_const(),
                count,
                datatype,
                recv,
                count,
                datatype,
                comm,
                request
            ))
        },
    )
}
