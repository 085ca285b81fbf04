//! Collective operations on arrays with a row count for each rank (MPI-4.1 §6.5 to §6.8 and §6.10.2).

use std::fmt::Display;

use super::reduction::reduce_each;
use crate::error::{Error, Result};
use crate::memory::{Access, Memory};
use crate::mpi::calls::{Layout, sum};
use crate::mpi::{Abi, RecvBuffer, SizedDatatype};
use crate::ops::call::Call;
use crate::ops::call::log_text::{items, items_and_root};
use crate::xla::{Buffer, ResultBuffer, count_of};

/// The row counts of all ranks. Their rows lie in rank order, without gaps.
struct Shares(Vec<i64>);

impl Shares {
    fn new<A: Abi, M: Memory>(call: &Call<A, M>, name: &str) -> Result<Self> {
        row_counts(call, name, call.communicator.size as usize, "ranks").map(Self)
    }

    /// The row counts in an operand, which the program has computed.
    fn from_operand<A: Abi, M: Memory>(call: &Call<A, M>, counts: &Buffer) -> Result<Self> {
        let size = call.communicator.size as usize;
        checked_counts("an operand", call.counts(counts)?, size, "ranks").map(Self)
    }

    /// The row count of all ranks together.
    fn total(&self) -> i64 {
        sum(&self.0)
    }

    /// The row count of this rank.
    fn own<A: Abi, M>(&self, call: &Call<A, M>) -> i64 {
        self.0[call.communicator.rank as usize]
    }

    /// The layout of rows with `row` elements each.
    fn layout(self, row: i64) -> Layout {
        Layout::new(self.0, row)
    }
}

/// The row counts in an attribute, one for each of `size` ranks or neighbors.
pub fn row_counts<A: Abi, M: Memory>(
    call: &Call<A, M>,
    name: &str,
    size: usize,
    peers: &str,
) -> Result<Vec<i64>> {
    let origin = format_args!("attribute `{name}`");
    checked_counts(origin, call.ints(name)?.into_owned(), size, peers)
}

fn checked_counts(
    origin: impl Display,
    counts: Vec<i64>,
    size: usize,
    peers: &str,
) -> Result<Vec<i64>> {
    if counts.len() == size && counts.iter().all(|count| *count >= 0) {
        return Ok(counts);
    }
    Err(Error::invalid(format!(
        "{origin} is {counts:?}, expected a number of rows for each of {size} {peers}"
    )))
}

/// The number of elements in a row of an array, which must have `rows` rows.
pub fn row_of(array: &Buffer, rows: i64) -> Result<i64> {
    match array.dims.split_first() {
        Some((first, rest)) if *first == rows => Ok(count_of(rest)),
        _ => Err(Error::invalid(format!(
            "an array of shape {:?} has not the {rows} rows that the call says",
            array.dims
        ))),
    }
}

/// Checks that two arrays have rows of the same shape and type, and that the second one has `rows` rows.
fn check_rows(array: &Buffer, other: &Buffer, rows: i64) -> Result<()> {
    row_of(other, rows)?;
    if array.dtype == other.dtype && array.dims.get(1..) == other.dims.get(1..) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "arrays do not match: rows of {:?} of XLA type {} are not those of {:?} of XLA type {}",
        array.dims, array.dtype, other.dims, other.dtype
    )))
}

/// The result of a call: `rows` rows of `row` elements each, of the shape and type of the operand's rows.
pub fn result_of_rows<'a, A: Abi, M: Memory>(
    call: &Call<'a, A, M>,
    operand: &Buffer,
    row: i64,
    rows: i64,
) -> Result<ResultBuffer<'a>> {
    let [result] = call.results()?;
    let count = rows.saturating_mul(row);
    // One that is nowhere yet has no shape.
    let fits = (result.dtype, result.count) == (operand.dtype, count);
    if !(call.is_nonblocking() && fits) {
        check_rows(operand, &result, rows)?;
    }
    Ok(result)
}

/// The number of elements in a row of two arrays, which have room for the rows sent and received, or for
/// more.
fn row_of_both((operand, sent): (&Buffer, i64), (result, received): (&Buffer, i64)) -> Result<i64> {
    let with_room = |array: &Buffer, rows: i64| array.dims.first().map_or(rows, |n| rows.max(*n));
    check_rows(operand, result, with_room(result, received))?;
    row_of(operand, with_room(operand, sent))
}

/// MPI-4.1 §6.7: everyone's rows, in rank order, on every rank.
pub fn allgatherv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let shares = Shares::new(call, "counts")?;
    let [operand] = call.operands()?;
    let row = row_of(&operand, shares.own(call))?;
    let result = result_of_rows(call, &operand, row, shares.total())?;
    all_gather(call, &operand, &result, row, shares)
}

/// `allgatherv` with counts that the program has computed.
pub fn allgatherv_rows<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand, counts] = call.operands()?;
    let [result] = call.results()?;
    let shares = Shares::from_operand(call, &counts)?;
    let row = row_of_both((&operand, shares.own(call)), (&result, shares.total()))?;
    all_gather(call, &operand, &result, row, shares)
}

fn all_gather<A: Abi, M: Memory>(
    call: &Call<A, M>,
    operand: &Buffer,
    result: &ResultBuffer,
    row: i64,
    shares: Shares,
) -> Result<()> {
    let (send, recv) = (call.send_buffer(operand)?, call.recv_buffer(result)?);
    let (sent, layout) = (shares.own(call) * row, shares.layout(row));
    let access = access(sent, layout.total(), send.datatype());
    call.collective(&access, || items(sent))
        .allgatherv(send, recv, &layout)
}

/// The access of a call that reads `read` elements and writes `written`.
fn access(read: i64, written: i64, datatype: SizedDatatype) -> Access {
    let bytes = |elements: i64| (elements as usize).saturating_mul(datatype.size);
    Access::first(bytes(read), bytes(written))
}

/// MPI-4.1 §6.8: some rows to each rank, and some from each.
pub fn alltoallv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let sent = Shares::new(call, "sendcounts")?;
    let received = Shares::new(call, "recvcounts")?;
    let [operand] = call.operands()?;
    let row = row_of(&operand, sent.total())?;
    let result = result_of_rows(call, &operand, row, received.total())?;
    all_to_all(call, (&operand, sent), (&result, received), row)
}

/// `alltoallv` with counts that the program has computed.
pub fn alltoallv_rows<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand, sendcounts, recvcounts] = call.operands()?;
    let [result] = call.results()?;
    let sent = Shares::from_operand(call, &sendcounts)?;
    let received = Shares::from_operand(call, &recvcounts)?;
    let row = row_of_both((&operand, sent.total()), (&result, received.total()))?;
    all_to_all(call, (&operand, sent), (&result, received), row)
}

fn all_to_all<A: Abi, M: Memory>(
    call: &Call<A, M>,
    (operand, sent): (&Buffer, Shares),
    (result, received): (&ResultBuffer, Shares),
    row: i64,
) -> Result<()> {
    let (send, recv) = (call.send_buffer(operand)?, call.recv_buffer(result)?);
    let (sent, received) = (sent.layout(row), received.layout(row));
    let (goes, comes) = (sent.total(), received.total());
    let access = access(goes, comes, send.datatype());
    let details = || format!("({goes} items sent, {comes} items received)");
    call.collective(&access, details)
        .alltoallv((send, sent), (recv, received))
}

/// MPI-4.1 §6.5: everyone's rows, in rank order, on root. A result elsewhere is zeros.
pub fn gatherv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (shares, root) = (Shares::new(call, "counts")?, call.int("root")?);
    let [operand] = call.operands()?;
    let row = row_of(&operand, shares.own(call))?;
    let result = || result_of_rows(call, &operand, row, shares.total());
    let result = call.result_of_root(root, result)?;
    let recv = call.recv_buffer_of_root(&result)?;
    let send = call.send_buffer(&operand)?;
    call.collective(&Access::WHOLE, || items_and_root(send.count(), root))
        .gatherv(send, recv, &shares.layout(row), root)
}

/// MPI-4.1 §6.10.2: some rows of the reduction over all ranks, on each rank.
pub fn reduce_scatterv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let shares = Shares::new(call, "counts")?;
    let [operand] = call.operands()?;
    let op = call.operator(operand.dtype)?;
    let row = row_of(&operand, shares.total())?;
    let result = result_of_rows(call, &operand, row, shares.own(call))?;
    let (send, mut recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    let counts = shares.0.iter().map(|rows| rows.saturating_mul(row));
    let counts: Vec<i64> = counts.collect();
    // MPI may hand the rows of all ranks to an operator at once, and Open MPI 5.0 adds their counts up in
    // an int.
    if !call.mpi.reduces(send.count(), &op) {
        return reduce_each(call, send, recv, &op, |rank| counts[rank as usize]);
    }
    // No rows may be at the operand's address, which MPICH takes for an overlap of the two.
    let mut nothing = [0u8; 16];
    if recv.count() == 0 && send.begins_where(&recv) {
        recv = RecvBuffer::of(&mut nothing, recv.datatype()).part(0, 0);
    }
    let count = recv.count();
    call.collective(&Access::WHOLE, || items(count))
        .reduce_scatter(send, recv, counts, &op)
}

/// MPI-4.1 §6.6: some rows of root's operand, on each rank. That of others is not read.
pub fn scatterv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (shares, root) = (Shares::new(call, "counts")?, call.int("root")?);
    let operand = call.operand_of_root(root)?;
    let (result, row) = scattered_rows(call, operand.as_ref(), &shares)?;
    let send = call.send_buffer_of_root(root, operand.as_ref())?;
    let recv = call.recv_buffer(&result)?;
    let count = recv.count();
    call.collective(&Access::WHOLE, || items_and_root(count, root))
        .scatterv(send, recv, &shares.layout(row), root)
}

/// The result of a scatter of rows, and the number of elements in a row.
fn scattered_rows<'a, A: Abi, M: Memory>(
    call: &Call<'a, A, M>,
    operand: Option<&Buffer>,
    shares: &Shares,
) -> Result<(ResultBuffer<'a>, i64)> {
    let own = shares.own(call);
    let [result] = call.results()?;
    if !call.is_nonblocking() {
        let row = row_of(&result, own)?;
        if let Some(operand) = operand {
            check_rows(&result, operand, shares.total())?;
        }
        return Ok((result, row));
    }
    let row = match operand {
        Some(operand) => row_of(operand, shares.total())?,
        // Without rows of its own, a rank does not know how long they are, which only root has to.
        None => result.count.checked_div(own).unwrap_or(0),
    };
    Ok((result, row))
}
