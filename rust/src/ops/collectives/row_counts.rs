//! Rows of which only the running program knows the number: its counts are arrays.
//!
//! Before any row is sent, the ranks tell each other how many there are. If some of them do not
//! fit, that is the same error on all ranks.

use std::ffi::c_int;

use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result};
use crate::memory::{Access, Memory};
use crate::mpi::calls::{BcastBuffer, Mpi, sum};
use crate::mpi::{Abi, PredefinedOp, RecvBuffer, SendBuffer};
use crate::ops::call::Call;
use crate::ops::call::log_text::items;
use crate::ops::check::{byte_type, number_type};
use crate::xla::{Buffer, ResultBuffer, raw};

/// Number of counts that an error shows.
const SHOWN: usize = 8;

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// The numbers in an operand.
    pub fn counts(&self, operand: &Buffer) -> Result<Vec<i64>> {
        if is_long(operand)? {
            return self.elements::<i64>(operand);
        }
        let shorts = self.elements::<i32>(operand)?;
        Ok(shorts.into_iter().map(i64::from).collect())
    }

    /// The elements of an operand.
    fn elements<T>(&self, operand: &Buffer) -> Result<Vec<T>>
    where
        T: Clone + Default + FromBytes + IntoBytes,
    {
        let mut elements = vec![T::default(); operand.count as usize];
        self.in_memory(|memory| memory.load(operand, elements.as_mut_bytes()))?;
        Ok(elements)
    }

    /// Writes the numbers of a result.
    fn write_counts(&self, result: &ResultBuffer, counts: &[i64]) -> Result<()> {
        let is_long = is_long(result)?;
        if result.count != counts.len() as i64 {
            return Err(Error::invalid(format!(
                "an array of shape {:?} for {} counts",
                result.dims,
                counts.len()
            )));
        }
        if is_long {
            return self.in_memory(|memory| memory.store(result, counts.as_bytes()));
        }
        let to_short = |count: &i64| {
            i32::try_from(*count)
                .map_err(|_| Error::invalid(format!("{count} rows, which 32 bits can't count")))
        };
        let shorts = counts.iter().map(to_short).collect::<Result<Vec<_>>>()?;
        self.in_memory(|memory| memory.store(result, shorts.as_bytes()))
    }

    /// Fails on all ranks if one of them has a complaint, with the complaint of the lowest such rank.
    fn refuse_together(&self, complaint: Option<String>) -> Result<()> {
        let (rank, size) = (self.communicator.rank, self.communicator.size);
        let own = [i64::from(if complaint.is_some() { rank } else { size })];
        let mut first = [0i64];
        let (int64, byte) = (number_type()?, byte_type()?);
        let min = Mpi::operator(PredefinedOp::Min.number())?;
        let recv = RecvBuffer::of(&mut first, int64);
        self.blocking(&Access::WHOLE, || "with 1 items".to_owned())
            .allreduce(SendBuffer::of(&own, int64), recv, &min)?;
        let [first] = first;
        if first == i64::from(size) {
            return Ok(());
        }
        let mut text = complaint
            .filter(|_| first == i64::from(rank))
            .unwrap_or_default()
            .into_bytes();
        let mut length = [text.len() as i64];
        let broadcast = |buffer: RecvBuffer| {
            let buffer = BcastBuffer::Recv(buffer);
            self.unlogged().bcast(buffer, first as c_int)
        };
        broadcast(RecvBuffer::of(&mut length, int64))?;
        text.resize(length[0] as usize, 0);
        broadcast(RecvBuffer::of(&mut text[..], byte))?;
        Err(Error::invalid(String::from_utf8_lossy(&text)))
    }
}

/// Whether the counts in an array have 64 bits, and not 32.
fn is_long(array: &Buffer) -> Result<bool> {
    match array.dtype {
        raw::XLA_FFI_DataType_S32 => Ok(false),
        raw::XLA_FFI_DataType_S64 => Ok(true),
        dtype => Err(Error::invalid(format!(
            "counts of XLA type {dtype}, expected integers of 32 or 64 bits"
        ))),
    }
}

/// The counts other than 0 and their ranks, in words.
fn listed(counts: &[i64], preposition: &str) -> String {
    let mut ranks = counts.iter().enumerate().filter(|(_, count)| **count != 0);
    let mut words = Vec::new();
    for (rank, count) in ranks.by_ref().take(SHOWN) {
        words.push(format!("{count} {preposition} rank {rank}"));
    }
    match ranks.count() {
        0 => {}
        more => words.push(format!("others {preposition} {more} more ranks")),
    }
    words.join(", ")
}

/// More rows come to a rank than it has room for.
fn lacks_room(rank: c_int, capacity: i64, counts: &[i64]) -> String {
    let (comes, listed) = (sum(counts), listed(counts, "from"));
    format!("rank {rank} has room for {capacity} rows (`capacity`), and gets {comes}: {listed}")
}

/// Tells every rank how many rows of the operand go there, and finds out how many come from each.
pub fn alltoallv_counts<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (rows, capacity) = (call.number("rows")?, call.number("capacity")?);
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    let sent = call.counts(&operand)?;
    let (rank, size) = (call.communicator.rank, call.communicator.size);
    if sent.len() != size as usize {
        return Err(Error::invalid(format!(
            "{} counts for {size} ranks",
            sent.len()
        )));
    }
    let mut received = vec![0i64; sent.len()];
    let int64 = number_type()?;
    let recv = RecvBuffer::of(&mut received[..], int64);
    call.blocking(&Access::WHOLE, || items(1)).alltoall(
        SendBuffer::of(&sent[..], int64),
        recv,
        1,
    )?;
    let (goes, comes) = (sum(&sent), sum(&received));
    let complaint = if sent.iter().any(|count| *count < 0) {
        Some(format!(
            "rank {rank} has a negative number of rows in `sendcounts`: {}",
            listed(&sent, "for")
        ))
    } else if goes > rows {
        Some(format!(
            "rank {rank} has {goes} rows in `sendcounts`, and {rows} in `x`: {}",
            listed(&sent, "for")
        ))
    } else if comes > capacity {
        Some(lacks_room(rank, capacity, &received))
    } else {
        None
    };
    let complaint = complaint.map(|text| format!("alltoallv: {text}. Nothing was sent"));
    call.refuse_together(complaint)?;
    call.write_counts(&result, &received)
}

/// Finds out how many rows each rank has.
pub fn allgatherv_counts<A: Abi, M: Memory>(call: &Call<A, M>) -> Result<()> {
    let (rows, capacity) = (call.number("rows")?, call.number("capacity")?);
    let [operand] = call.operands()?;
    let [result] = call.results()?;
    let [own] = call.counts(&operand)?[..] else {
        return Err(Error::invalid(format!(
            "{} counts of one rank",
            operand.count
        )));
    };
    let statement = [own, rows, capacity];
    let mut statements = vec![[0i64; 3]; call.communicator.size as usize];
    let int64 = number_type()?;
    let send = SendBuffer::of(&statement, int64);
    let recv = RecvBuffer::of(&mut statements[..], int64);
    call.blocking(&Access::WHOLE, || items(send.count()))
        .allgather(send, recv)?;
    let counts: Vec<i64> = statements.iter().map(|[count, ..]| *count).collect();
    let comes = sum(&counts);
    // All ranks know all of it, and come to the same.
    for (rank, [count, rows, capacity]) in statements.iter().enumerate() {
        let complaint = if *count < 0 {
            format!("rank {rank} has a negative number of rows in `counts`: {count}")
        } else if count > rows {
            format!("rank {rank} has {count} rows in `counts`, and {rows} in `x`")
        } else if comes > *capacity {
            lacks_room(rank as c_int, *capacity, &counts)
        } else {
            continue;
        };
        return Err(Error::invalid(format!(
            "allgatherv: {complaint}. Nothing was sent"
        )));
    }
    call.write_counts(&result, &counts)
}
