//! Rows of which only the running program knows the number: its counts are arrays.
//!
//! Before any row is sent, the ranks tell each other how many there are. If some of them do not
//! fit, that is the same error on all ranks.

use std::ffi::{c_int, c_void};

use super::rows::sum;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::mpi::{Abi, PredefinedOp, REGISTRY};
use crate::ops::call::Call;
use crate::ops::call::log_text::items;
use crate::ops::check::{byte_type, number_type};
use crate::xla::Buffer;
use crate::xla::raw::{XLA_FFI_DataType_S32, XLA_FFI_DataType_S64};

/// How many counts an error shows.
const SHOWN: usize = 8;

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// The numbers in an operand.
    pub fn counts(&self, operand: &Buffer) -> Result<Vec<i64>> {
        let size = count_size(operand)?;
        let mut bytes = vec![0; operand.count as usize * size];
        self.in_memory(|memory| memory.load(operand, &mut bytes))?;
        let numbers = bytes
            .chunks_exact(size)
            .map(|bytes| match bytes.try_into() {
                Ok(short) => i32::from_ne_bytes(short).into(),
                Err(_) => bytes.try_into().map_or(0, i64::from_ne_bytes),
            });
        Ok(numbers.collect())
    }

    /// Writes the numbers of a result.
    fn write_counts(&self, result: &Buffer, counts: &[i64]) -> Result<()> {
        let size = count_size(result)?;
        if result.count != counts.len() as i64 {
            return Err(Error::invalid(format!(
                "an array of shape {:?} for {} counts",
                result.dims,
                counts.len()
            )));
        }
        let mut bytes = Vec::new();
        for count in counts {
            if size == size_of::<i32>() {
                let short = i32::try_from(*count).map_err(|_| {
                    Error::invalid(format!("{count} rows, which 32 bits can't count"))
                })?;
                bytes.extend(short.to_ne_bytes());
            } else {
                bytes.extend(count.to_ne_bytes());
            }
        }
        self.in_memory(|memory| memory.store(result, &bytes))
    }

    /// Makes it an error on all ranks if one of them complains: that of the first that does.
    fn refuse_together(&self, complaint: Option<String>) -> Result<()> {
        let (rank, size) = (self.communicator.rank, self.communicator.size);
        let own = i64::from(if complaint.is_some() { rank } else { size });
        let mut first = 0i64;
        let (int64, byte) = (number_type()?.handle::<A>(), byte_type()?.handle::<A>());
        let min = REGISTRY.operator::<A>(PredefinedOp::Min.number())?;
        self.mpi(
            "MPI_Allreduce",
            || "with 1 items".to_owned(),
            // SAFETY: each is a number.
            |mpi, comm| unsafe {
                (mpi.int.allreduce)(
                    (&raw const own).cast(),
                    (&raw mut first).cast(),
                    1,
                    int64,
                    min,
                    comm,
                )
            },
        )?;
        if first == i64::from(size) {
            return Ok(());
        }
        let mut text = complaint
            .filter(|_| first == i64::from(rank))
            .unwrap_or_default()
            .into_bytes();
        let mut length = text.len() as i64;
        let comm = self.communicator.handle::<A>();
        let broadcast = |address: *mut c_void, count: i64, datatype| {
            // SAFETY: so many elements are there.
            let code = unsafe {
                (self.functions.int.bcast)(address, count as c_int, datatype, first as c_int, comm)
            };
            self.check("MPI_Bcast", code)
        };
        broadcast((&raw mut length).cast(), 1, int64)?;
        text.resize(length as usize, 0);
        broadcast(text.as_mut_ptr().cast(), length, byte)?;
        Err(Error::invalid(String::from_utf8_lossy(&text)))
    }
}

/// The bytes of each count of an array.
fn count_size(array: &Buffer) -> Result<usize> {
    if array.dtype == XLA_FFI_DataType_S32 {
        return Ok(size_of::<i32>());
    }
    if array.dtype == XLA_FFI_DataType_S64 {
        return Ok(size_of::<i64>());
    }
    Err(Error::invalid(format!(
        "counts of XLA type {}, expected integers of 32 or 64 bits",
        array.dtype
    )))
}

/// The ranks that have counts, with these.
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
    let int64 = number_type()?.handle::<A>();
    call.mpi(
        "MPI_Alltoall",
        || items(1),
        // SAFETY: both lists have a number for each rank.
        |mpi, comm| unsafe {
            (mpi.int.alltoall)(
                sent.as_ptr().cast(),
                1,
                int64,
                received.as_mut_ptr().cast(),
                1,
                int64,
                comm,
            )
        },
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
    let int64 = number_type()?.handle::<A>();
    let length = statement.len() as c_int;
    call.mpi(
        "MPI_Allgather",
        || items(length.into()),
        // SAFETY: the list has room for what each rank states.
        |mpi, comm| unsafe {
            (mpi.int.allgather)(
                statement.as_ptr().cast(),
                length,
                int64,
                statements.as_mut_ptr().cast(),
                length,
                int64,
                comm,
            )
        },
    )?;
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
