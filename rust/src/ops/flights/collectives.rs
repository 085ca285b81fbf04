//! Nonblocking collective operations (MPI-4.1 §6.12).

use std::ffi::{c_int, c_void};

use super::start_and_wait::depart;
use super::table::Arrival;
use crate::error::{Error, Result};
use crate::memory::{Memory, Room};
use crate::mpi::{Abi, Handle, Types};
use crate::ops::call::Call;
use crate::ops::call::buffers::{block_for_each, measure};
use crate::ops::call::counts::{Count, Form, invoke};
use crate::ops::call::log_text::{items, items_and_root};
use crate::recorder::Array;
use crate::xla::Buffer;

/// The arrays of a collective operation.
struct Arrays {
    /// How many elements one call of MPI counts: those of a block, where it has several.
    count: i64,
    /// How many times the operand the result is.
    blocks: usize,
    /// The place of the operand in the result, if it has one there.
    operand_block: Option<usize>,
}

impl Arrays {
    /// One array, in which the result replaces the operand.
    fn in_place(operand: &Buffer) -> Self {
        Self {
            count: operand.count,
            blocks: 1,
            operand_block: Some(0),
        }
    }
}

/// What MPI gets: arrays that stay where they are until all is done.
struct Given<A: Types> {
    send: *const c_void,
    recv: *mut c_void,
    count: Count,
    datatype: A::Datatype,
    comm: A::Comm,
    request: *mut A::Request,
}

/// Begins a collective operation on copies of its arrays.
fn begin_collective<A: Abi, M: Memory>(
    call: &Call<A, M>,
    function: &'static str,
    details: impl FnOnce() -> String,
    operand: &Buffer,
    arrays: Arrays,
    body: impl FnOnce(Form<A>, Given<A>) -> c_int,
) -> Result<()> {
    if !call.counting.takes(arrays.count) {
        return Err(Error::invalid(format!(
            "{function} of {} elements is more than this MPI counts in one call",
            arrays.count
        )));
    }
    let (datatype, size) = measure(operand)?;
    let mut room = Room::default();
    let whole = room.add(size * arrays.blocks);
    // Where the operand is a part of the result, it is there already.
    let operand_at = match arrays.operand_block {
        Some(block) => whole.start + block * size..whole.start + (block + 1) * size,
        None => room.add(size),
    };
    let mut flight = call.new_flight(&room)?;
    call.load(operand, &mut flight.block, operand_at.clone())?;
    let send = flight.block.address(operand_at.start).cast_const().cast();
    let recv = flight.block.address(whole.start).cast();
    let count = Count(arrays.count);
    let mut request = A::Request::from_raw(0);
    call.mpi(function, details, |_, comm| {
        let given = Given {
            send,
            recv,
            count,
            datatype: datatype.handle::<A>(),
            comm,
            request: &raw mut request,
        };
        body(call.counting.form(count), given)
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

/// MPI-4.1 §6.12.8: begins a reduction over all ranks, on every rank.
pub fn iallreduce<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let op = call.operator(operand.dtype)?;
    begin_collective(
        call,
        "MPI_Iallreduce",
        || format!("with {} items", operand.count),
        &operand,
        Arrays::in_place(&operand),
        // SAFETY: there are so many elements.
        |mpi, x| unsafe {
            let in_place = A::IN_PLACE as *const c_void;
            invoke!(mpi.iallreduce(
                in_place, x.recv, x.count, x.datatype, op.handle, x.comm, x.request
            ))
        },
    )
}

/// MPI-4.1 §6.12.2: begins to bring root's array to every rank.
pub fn ibcast<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let root = call.int("root")?;
    let [operand] = call.operands()?;
    begin_collective(
        call,
        "MPI_Ibcast",
        || items_and_root(operand.count, root),
        &operand,
        Arrays::in_place(&operand),
        // SAFETY: there are so many elements.
        |mpi, x| unsafe {
            invoke!(mpi.ibcast(x.recv, x.count, x.datatype, root, x.comm, x.request))
        },
    )
}

/// MPI-4.1 §6.12.5: begins to bring everyone's operand, in rank order, to every rank.
pub fn iallgather<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let communicator = &call.communicator;
    let arrays = Arrays {
        count: operand.count,
        blocks: communicator.size as usize,
        operand_block: Some(communicator.rank as usize),
    };
    begin_collective(
        call,
        "MPI_Iallgather",
        || items(operand.count),
        &operand,
        arrays,
        // SAFETY: there are so many elements for every rank.
        |mpi, x| unsafe {
            let in_place = A::IN_PLACE as *const c_void;
            invoke!(mpi.iallgather(
                in_place, x.count, x.datatype, x.recv, x.count, x.datatype, x.comm, x.request
            ))
        },
    )
}

/// MPI-4.1 §6.12.6: begins to bring block i to rank i, and block j from rank j.
pub fn ialltoall<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand] = call.operands()?;
    let count = block_for_each(&operand, call.communicator.size)?;
    let arrays = Arrays {
        count,
        blocks: 1,
        operand_block: None,
    };
    begin_collective(
        call,
        "MPI_Ialltoall",
        || items(count),
        &operand,
        arrays,
        // SAFETY: there are so many elements for every rank, in both places.
        |mpi, x| unsafe {
            invoke!(mpi.ialltoall(
                x.send, x.count, x.datatype, x.recv, x.count, x.datatype, x.comm, x.request
            ))
        },
    )
}
