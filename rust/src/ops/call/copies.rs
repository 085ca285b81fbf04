//! Nonblocking calls: what MPI may read and write until the operation is completed.
//!
//! A handler has XLA's arrays only while it runs. So a call that starts an operation gives MPI copies
//! of its operands, and room for its results, in blocks of the core's own. The function of an
//! operation is the same for both of its forms: the buffers that it asks for are in such blocks if
//! the call is nonblocking, and the results are those that `wait` gives.

use std::ffi::c_int;

use super::Call;
use super::buffers::measure;
use super::in_flight::{Arrival, InFlight};
use crate::error::{Error, Result};
use crate::memory::{Block, Memory};
use crate::mpi::{Abi, RecvBuffer, SendBuffer, SizedDatatype};
use crate::recorder::Array;
use crate::xla::raw::XLA_FFI_DataType;
use crate::xla::{Buffer, ResultBuffer};

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// Whether the call starts an operation, and another one waits for it.
    #[inline(always)]
    pub fn is_nonblocking(&self) -> bool {
        self.departure.is_some()
    }

    /// Copies an operand to a block of its own.
    #[cold]
    pub(super) fn copy_operand<'c>(
        &self,
        operand: &Buffer,
        departure: &'c InFlight,
    ) -> Result<SendBuffer<'c>> {
        let (datatype, bytes) = measure(operand)?;
        let mut block = Block::take(bytes);
        self.in_memory(|memory| memory.load(operand, block.part(0..bytes)))?;
        Ok(departure.add_send(block, operand.count, datatype))
    }

    /// Makes room for a result.
    #[cold]
    pub(super) fn room_for<'c>(
        &self,
        result: &ResultBuffer,
        departure: &'c InFlight,
    ) -> Result<RecvBuffer<'c>> {
        let (datatype, bytes) = measure(result)?;
        let (block, recv) = departure.add_recv(Block::take(bytes), result.count, datatype);
        departure.add_arrival(Arrival::whole(result.into(), datatype, block, bytes));
        Ok(recv)
    }

    /// Copies an operand to where it is a part of the last result, `start` bytes from the begin of
    /// that. MPI takes `MPI_IN_PLACE` for its address then.
    #[cold]
    pub fn copy_into_result(&self, operand: &Buffer, start: usize) -> Result<SendBuffer<'_>> {
        let (datatype, bytes) = measure(operand)?;
        let load = |block: &mut Block| {
            let part = block.part(start..start + bytes);
            self.in_memory(|memory| memory.load(operand, part))
        };
        let departure = self.departure.as_deref();
        departure
            .and_then(|departure| departure.with_last_block(load))
            .transpose()?;
        Ok(SendBuffer::in_place(operand.count, datatype))
    }

    /// An operand that has a block in the last result, where a nonblocking call has it sent from.
    #[inline(always)]
    pub fn send_block_of(&self, operand: &Buffer, rank: c_int) -> Result<SendBuffer<'_>> {
        if !self.is_nonblocking() {
            return self.send_buffer(operand);
        }
        let (_, bytes) = measure(operand)?;
        self.copy_into_result(operand, rank as usize * bytes)
    }

    /// Number of elements of a call of MPI. A nonblocking operation is not one of pieces: nothing is
    /// copied while these are under way.
    #[inline(always)]
    pub fn piece_length(&self, datatype: SizedDatatype) -> i64 {
        if self.is_nonblocking() {
            return i64::MAX;
        }
        self.communicator.piece_length(datatype.size)
    }

    /// The array that a nonblocking call receives, where no operand tells what it is.
    #[cold]
    pub fn array_to_come(&self) -> Result<Array> {
        match self.ints("arrays")?[..] {
            [dtype, count] => Ok(Array {
                dtype: dtype as XLA_FFI_DataType,
                count,
            }),
            _ => Err(Error::invalid(
                "attribute `arrays` is not the type and the size of one array",
            )),
        }
    }
}
