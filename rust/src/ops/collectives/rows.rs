//! Collective operations that deal out the rows of an array, as many to each rank as the call
//! says (MPI-4.1 §6.5 to §6.8 and §6.10.2).
//!
//! Where MPI can't count the elements, most of these become an `MPI_Alltoallw`. All ranks have to
//! call the same function (MPI-4.1 §6.1), so that has to follow from what all of them know: the
//! counts, and the length of a row. In `alltoallv` a rank knows its own counts only. It stays
//! `MPI_Alltoallv`, with a larger data type where needed: ranks may count in different ones, as
//! long as the elements in them are the same (MPI-4.1 §6.8), and in ints or not, as both forms are
//! bindings of one procedure (MPI-4.1 §19.2).

use std::ffi::{c_int, c_void};
use std::fmt::Arguments;
use std::ptr;

use super::reduction::reduce_each;
use crate::error::{Error, Result};
use crate::memory::{Access, Memory};
use crate::mpi::{Abi, Datatype};
use crate::ops::call::Call;
use crate::ops::call::counts::{Count, CountList, invoke};
use crate::ops::call::derived::TypedCount;
use crate::ops::call::log_text::{items, items_and_root};
use crate::recorder::Array;
use crate::xla::Buffer;

/// How many rows of an array each rank has, in rank order and without gaps.
struct Shares(Vec<i64>);

impl Shares {
    fn new<A: Abi, M: Memory>(call: &Call<A, M>, name: &str) -> Result<Self> {
        row_counts(call, name, call.communicator.size as usize, "ranks").map(Self)
    }

    /// The shares in an operand: counts that the program has computed.
    fn from_operand<A: Abi, M: Memory>(call: &Call<A, M>, counts: &Buffer) -> Result<Self> {
        let size = call.communicator.size as usize;
        checked_counts(
            format_args!("an operand"),
            call.counts(counts)?,
            size,
            "ranks",
        )
        .map(Self)
    }

    /// The rows of all ranks.
    fn total(&self) -> i64 {
        sum(&self.0)
    }

    /// The rows of the rank that calls.
    fn own<A: Abi, M>(&self, call: &Call<A, M>) -> i64 {
        self.0[call.communicator.rank as usize]
    }

    /// The largest count or displacement, in rows.
    fn largest(&self) -> i64 {
        let last_displacement = sum(&self.0[..self.0.len() - 1]);
        self.0.iter().fold(last_displacement, |n, m| n.max(*m))
    }
}

/// How many rows there are for each of so many ranks or neighbors.
pub fn row_counts<A: Abi, M: Memory>(
    call: &Call<A, M>,
    name: &str,
    size: usize,
    peers: &str,
) -> Result<Vec<i64>> {
    checked_counts(
        format_args!("attribute `{name}`"),
        call.ints(name)?,
        size,
        peers,
    )
}

fn checked_counts(
    origin: Arguments,
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

/// The rows of all.
pub fn sum(counts: &[i64]) -> i64 {
    counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

/// The shares as MPI takes them: counts and displacements.
struct Layout {
    counts: CountList,
    displacements: CountList,
    /// The largest of all.
    largest: Count,
}

impl Layout {
    /// The layout of rows that count as so many each.
    fn new(shares: &Shares, row: i64) -> Self {
        let mut next = 0i64;
        let displacements = shares.0.iter().map(|rows| {
            let first = next;
            next = next.saturating_add(*rows);
            first.saturating_mul(row)
        });
        Self {
            displacements: CountList::new(displacements),
            counts: CountList::new(shares.0.iter().map(|rows| rows.saturating_mul(row))),
            largest: Count(shares.largest().saturating_mul(row)),
        }
    }

    fn span(&self, rank: c_int) -> Span {
        Span {
            first: self.displacements.of(rank),
            count: self.counts.of(rank),
        }
    }
}

/// The part of an array that belongs to one rank: so many elements from one on.
#[derive(Clone, Copy)]
struct Span {
    first: i64,
    count: i64,
}

impl Span {
    fn whole(count: i64) -> Self {
        Self { first: 0, count }
    }

    /// Nothing, unless this is true.
    fn only_if(self, condition: bool) -> Self {
        if condition { self } else { Self::whole(0) }
    }
}

/// An array as `MPI_Alltoallw` takes it: one element of a data type for each rank, or none.
struct PerRankTypes<'c, A: Abi, M> {
    counts: Vec<c_int>,
    types: Vec<A::Datatype>,
    _owners: Vec<TypedCount<'c, A, M>>,
}

impl<'c, A: Abi, M> PerRankTypes<'c, A, M> {
    fn new(
        call: &'c Call<'c, A, M>,
        datatype: Datatype,
        span_of: impl Fn(c_int) -> Span,
    ) -> Result<Self> {
        let of_rank = |rank| match span_of(rank) {
            Span { count: 0, .. } => call.typed_count(0, datatype),
            Span { first, count } => call.typed_count_at(first, count, datatype),
        };
        let ranks = 0..call.communicator.size;
        let owners = ranks.map(of_rank).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            counts: owners.iter().map(|typed| typed.count.0 as c_int).collect(),
            types: owners.iter().map(|typed| typed.datatype).collect(),
            _owners: owners,
        })
    }
}

/// Does what `function` would if MPI could count the elements, by `MPI_Alltoallw`, of which it is
/// a special case (MPI-4.1 §6.8): what goes to a rank, or comes from it, has a data type of its
/// own, which also says where it is. All ranks must do this, or none.
#[cold]
fn alltoallw<A: Abi, M: Memory>(
    call: &Call<A, M>,
    [function, nonblocking]: [&'static str; 2],
    details: impl FnOnce() -> String,
    datatype: Datatype,
    (send, sent): (*const c_void, impl Fn(c_int) -> Span),
    (recv, received): (*mut c_void, impl Fn(c_int) -> Span),
) -> Result<()> {
    if call.is_nonblocking() {
        return Err(Error::invalid(format!(
            "{nonblocking} of more than {} elements is more than this MPI counts in one call",
            call.counting.limit
        )));
    }
    let sent = PerRankTypes::new(call, datatype, sent)?;
    let received = PerRankTypes::new(call, datatype, received)?;
    let displacements = vec![0; sent.counts.len()];
    call.mpi(
        function,
        details,
        // SAFETY: the lists have a member for each rank, and no type goes beyond its array.
        |mpi, comm| unsafe {
            (mpi.alltoallw)(
                send,
                sent.counts.as_ptr(),
                displacements.as_ptr(),
                sent.types.as_ptr(),
                recv,
                received.counts.as_ptr(),
                displacements.as_ptr(),
                received.types.as_ptr(),
                comm,
            )
        },
    )
}

/// The elements in a row of an array that must have so many rows.
pub fn row_of(array: &Buffer, rows: i64) -> Result<i64> {
    match array.dims.split_first() {
        Some((first, rest)) if *first == rows => Ok(rest
            .iter()
            .fold(1i64, |count, dim| count.saturating_mul(*dim))),
        _ => Err(Error::invalid(format!(
            "an array of shape {:?} has not the {rows} rows that the call says",
            array.dims
        ))),
    }
}

/// Checks that two arrays have rows of the same shape and type, and that the second one has as
/// many as it must.
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

/// The result of a call, which has so many rows as those of the operand.
pub fn result_of_rows<'a, A: Abi, M: Memory>(
    call: &Call<'a, A, M>,
    operand: &Buffer,
    row: i64,
    rows: i64,
) -> Result<Buffer<'a>> {
    let result = call.result(|| {
        Ok(Array {
            count: rows.saturating_mul(row),
            ..operand.into()
        })
    })?;
    if !call.is_nonblocking() {
        check_rows(operand, &result, rows)?;
    }
    Ok(result)
}

/// The elements in a row of two arrays that have room for so many rows, and may have more.
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
    all_gather(call, &operand, &result, row, &shares)
}

/// `allgatherv` with counts that the program has computed.
pub fn allgatherv_rows<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand, counts] = call.operands()?;
    let [result] = call.results()?;
    let shares = Shares::from_operand(call, &counts)?;
    let row = row_of_both((&operand, shares.own(call)), (&result, shares.total()))?;
    all_gather(call, &operand, &result, row, &shares)
}

fn all_gather<A: Abi, M: Memory>(
    call: &Call<A, M>,
    operand: &Buffer,
    result: &Buffer,
    row: i64,
    shares: &Shares,
) -> Result<()> {
    let (send, recv) = (call.send_buffer(operand)?, call.recv_buffer(result)?);
    let (sent, received) = (shares.own(call) * row, shares.total() * row);
    let layout = Layout::new(shares, row);
    let functions = ["MPI_Allgatherv", "MPI_Iallgatherv"];
    let details = || items(sent);
    if !call.counting.takes(layout.largest.0) {
        return alltoallw(
            call,
            functions,
            details,
            send.datatype(),
            (send.address::<A>(), |_| Span::whole(sent)),
            (recv.address(), |rank| layout.span(rank)),
        );
    }
    call.collective(
        &access(sent, received, send.datatype()),
        functions,
        layout.largest,
        details,
        // SAFETY: `send` has this rank's rows, and `recv` has room for those of all ranks.
        |mpi, comm| unsafe {
            invoke!(
                mpi.allgatherv
                    / iallgatherv(
                        send.address::<A>(),
                        Count(sent),
                        send.datatype().handle::<A>(),
                        recv.address(),
                        &layout.counts,
                        &layout.displacements,
                        recv.datatype().handle::<A>(),
                        comm,
                    )
            )
        },
    )?;
    call.keep(layout);
    Ok(())
}

/// The access of a call that reads and writes so many elements.
fn access(read: i64, written: i64, datatype: Datatype) -> Access {
    let bytes = |elements: i64| (elements as usize).saturating_mul(datatype.size);
    Access::first(bytes(read), bytes(written))
}

/// The shares as `MPI_Alltoallv` can count them, and what it counts: elements, or where these are
/// too many, as many rows at once as all shares are multiples of.
fn in_units<'c, A: Abi, M>(
    call: &'c Call<'c, A, M>,
    shares: &Shares,
    row: i64,
    datatype: Datatype,
) -> Result<(Layout, TypedCount<'c, A, M>)> {
    let layout = Layout::new(shares, row);
    if call.counting.takes(layout.largest.0) {
        return Ok((layout, call.typed_count(1, datatype)?));
    }
    let rows = shares.0.iter().fold(0, |rows, share| gcd(rows, *share));
    let layout = Layout::new(
        &Shares(shares.0.iter().map(|share| share / rows).collect()),
        1,
    );
    if !call.counting.takes(layout.largest.0) {
        return Err(Error::invalid(format!(
            "{} rows are more than this MPI takes in one call: {} times {rows}, the greatest \
             common divisor of all counts",
            shares.largest(),
            call.counting.limit,
        )));
    }
    Ok((layout, call.typed_count_at(0, rows * row, datatype)?))
}

/// The greatest common divisor.
fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// MPI-4.1 §6.8: some rows to each rank, and some from each.
pub fn alltoallv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let sent = Shares::new(call, "sendcounts")?;
    let received = Shares::new(call, "recvcounts")?;
    let [operand] = call.operands()?;
    let row = row_of(&operand, sent.total())?;
    let result = result_of_rows(call, &operand, row, received.total())?;
    all_to_all(call, (&operand, &sent), (&result, &received), row)
}

/// `alltoallv` with counts that the program has computed.
pub fn alltoallv_rows<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let [operand, sendcounts, recvcounts] = call.operands()?;
    let [result] = call.results()?;
    let sent = Shares::from_operand(call, &sendcounts)?;
    let received = Shares::from_operand(call, &recvcounts)?;
    let row = row_of_both((&operand, sent.total()), (&result, received.total()))?;
    all_to_all(call, (&operand, &sent), (&result, &received), row)
}

fn all_to_all<A: Abi, M: Memory>(
    call: &Call<A, M>,
    (operand, sent): (&Buffer, &Shares),
    (result, received): (&Buffer, &Shares),
    row: i64,
) -> Result<()> {
    let (send, recv) = (call.send_buffer(operand)?, call.recv_buffer(result)?);
    let (goes, comes) = (sent.total() * row, received.total() * row);
    let (sent, send_unit) = in_units(call, sent, row, send.datatype())?;
    let (received, recv_unit) = in_units(call, received, row, recv.datatype())?;
    call.collective(
        &access(goes, comes, send.datatype()),
        ["MPI_Alltoallv", "MPI_Ialltoallv"],
        sent.largest.max(received.largest),
        || format!("({goes} items sent, {comes} items received)"),
        // SAFETY: both arrays have the rows of all ranks.
        |mpi, comm| unsafe {
            invoke!(
                mpi.alltoallv
                    / ialltoallv(
                        send.address::<A>(),
                        &sent.counts,
                        &sent.displacements,
                        send_unit.datatype,
                        recv.address(),
                        &received.counts,
                        &received.displacements,
                        recv_unit.datatype,
                        comm,
                    )
            )
        },
    )?;
    call.keep((sent, received));
    Ok(())
}

/// MPI-4.1 §6.5: everyone's rows, in rank order, on root.
pub fn gatherv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (shares, root) = (Shares::new(call, "counts")?, call.int("root")?);
    let [operand] = call.operands()?;
    let row = row_of(&operand, shares.own(call))?;
    let result = call.only_at_root(root, || result_of_rows(call, &operand, row, shares.total()))?;
    let recv = result.as_ref().map(|result| call.recv_buffer(result));
    let recv = recv
        .transpose()?
        .map_or(ptr::null_mut(), |recv| recv.address());
    let send = call.send_buffer(&operand)?;
    let layout = Layout::new(&shares, row);
    let functions = ["MPI_Gatherv", "MPI_Igatherv"];
    let details = || items_and_root(send.count(), root);
    if !call.counting.takes(layout.largest.0) {
        let is_root = call.communicator.rank == root;
        return alltoallw(
            call,
            functions,
            details,
            send.datatype(),
            (send.address::<A>(), |rank| {
                Span::whole(send.count()).only_if(rank == root)
            }),
            (recv, |rank| layout.span(rank).only_if(is_root)),
        );
    }
    let datatype = send.datatype().handle::<A>();
    call.collective(
        &Access::WHOLE,
        functions,
        layout.largest,
        details,
        // SAFETY: `send` has this rank's rows, and on root `recv` has those of all ranks.
        |mpi, comm| unsafe {
            invoke!(
                mpi.gatherv
                    / igatherv(
                        send.address::<A>(),
                        Count(send.count()),
                        datatype,
                        recv,
                        &layout.counts,
                        &layout.displacements,
                        datatype,
                        root,
                        comm,
                    )
            )
        },
    )?;
    call.keep(layout);
    Ok(())
}

/// MPI-4.1 §6.10.2: some rows of the reduction over all ranks, on each rank.
pub fn reduce_scatterv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let shares = Shares::new(call, "counts")?;
    let [operand] = call.operands()?;
    let op = call.operator(operand.dtype)?;
    let row = row_of(&operand, shares.total())?;
    let result = result_of_rows(call, &operand, row, shares.own(call))?;
    let (send, recv) = (call.send_buffer(&operand)?, call.recv_buffer(&result)?);
    let counts = CountList::new(shares.0.iter().map(|rows| rows.saturating_mul(row)));
    // MPI may hand the rows of all ranks to an operator at once.
    let longest = if op.is_predefined {
        shares.0.iter().fold(0, |n, m| n.max(*m)) * row
    } else {
        send.count()
    };
    if !call.reduces(longest, &op) {
        return reduce_each(call, send, recv, &op, |rank| counts.of(rank));
    }
    // No rows may be at the operand's address, which MPICH takes for an overlap of the two.
    let mut nothing = 0u8;
    let address = match recv.count() {
        0 if !call.is_nonblocking() => (&raw mut nothing).cast(),
        _ => recv.address(),
    };
    call.collective(
        &Access::WHOLE,
        ["MPI_Reduce_scatter", "MPI_Ireduce_scatter"],
        Count(longest),
        || items(recv.count()),
        // SAFETY: `send` has the rows of all ranks, and `recv` those of this one.
        |mpi, comm| unsafe {
            invoke!(
                mpi.reduce_scatter
                    / ireduce_scatter(
                        send.address::<A>(),
                        address,
                        &counts,
                        recv.datatype().handle::<A>(),
                        op.handle,
                        comm,
                    )
            )
        },
    )?;
    call.keep(counts);
    Ok(())
}

/// MPI-4.1 §6.6: some rows of root's operand, on each rank. Only root has an operand.
pub fn scatterv<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (shares, root) = (Shares::new(call, "counts")?, call.int("root")?);
    let operand = call.operand_at_root(root)?;
    let (result, row) = scattered_rows(call, operand.as_ref(), &shares)?;
    let send = operand.as_ref().map(|operand| call.send_buffer(operand));
    let send = send
        .transpose()?
        .map_or(ptr::null(), |send| send.address::<A>());
    let recv = call.recv_buffer(&result)?;
    let layout = Layout::new(&shares, row);
    let functions = ["MPI_Scatterv", "MPI_Iscatterv"];
    let details = || items_and_root(recv.count(), root);
    if !call.counting.takes(layout.largest.0) {
        let is_root = call.communicator.rank == root;
        return alltoallw(
            call,
            functions,
            details,
            recv.datatype(),
            (send, |rank| layout.span(rank).only_if(is_root)),
            (recv.address(), |rank| {
                Span::whole(recv.count()).only_if(rank == root)
            }),
        );
    }
    let datatype = recv.datatype().handle::<A>();
    call.collective(
        &Access::WHOLE,
        functions,
        layout.largest,
        details,
        // SAFETY: `recv` has this rank's rows, and on root `send` has those of all ranks.
        |mpi, comm| unsafe {
            invoke!(
                mpi.scatterv
                    / iscatterv(
                        send,
                        &layout.counts,
                        &layout.displacements,
                        datatype,
                        recv.address(),
                        Count(recv.count()),
                        datatype,
                        root,
                        comm,
                    )
            )
        },
    )?;
    call.keep(layout);
    Ok(())
}

/// The rows that root scatters to this rank, and how many elements are in a row.
fn scattered_rows<'a, A: Abi, M: Memory>(
    call: &Call<'a, A, M>,
    operand: Option<&Buffer>,
    shares: &Shares,
) -> Result<(Buffer<'a>, i64)> {
    let own = shares.own(call);
    if !call.is_nonblocking() {
        let [result] = call.results()?;
        let row = row_of(&result, own)?;
        if let Some(operand) = operand {
            check_rows(&result, operand, shares.total())?;
        }
        return Ok((result, row));
    }
    if let Some(operand) = operand {
        let row = row_of(operand, shares.total())?;
        return Ok((result_of_rows(call, operand, row, own)?, row));
    }
    let result = call.result(|| call.array_to_come())?;
    // Without rows of its own, a rank does not know how long they are, which only root has to.
    let row = result.count.checked_div(own).unwrap_or(0);
    Ok((result, row))
}
