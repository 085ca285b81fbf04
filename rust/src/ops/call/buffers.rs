//! The send and receive buffers of a call, and its results.

use std::ffi::c_int;
use std::ptr;

use super::Call;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::mpi::{Abi, REGISTRY, RecvBuffer, SendBuffer, SizedDatatype};
use crate::recorder::Array;
use crate::xla::{Buffer, ResultBuffer};

impl<'a, A: Abi, M: Memory> Call<'a, A, M> {
    /// The send buffer of an operand.
    #[inline(always)]
    pub fn send_buffer(&self, operand: &Buffer) -> Result<SendBuffer<'_>> {
        let (datatype, bytes) = measure(operand)?;
        let address = self.in_memory(|memory| memory.read(operand, bytes))?;
        // SAFETY: the memory has the operand there until the end of the call.
        Ok(unsafe { SendBuffer::new(address, operand.count, datatype) })
    }

    /// The send buffer of an operand that may be a part of a receive buffer, from byte `start` on:
    /// `MPI_IN_PLACE` then (MPI-4.1 §6.2).
    #[inline(always)]
    pub fn send_buffer_within(
        &self,
        operand: &Buffer,
        recv: &RecvBuffer,
        start: usize,
    ) -> Result<SendBuffer<'_>> {
        let (datatype, bytes) = measure(operand)?;
        let address = self.in_memory(|memory| memory.read_within(operand, bytes, start))?;
        if ptr::eq(address, recv.address().wrapping_byte_add(start)) {
            return Ok(SendBuffer::in_place(operand.count, datatype));
        }
        // SAFETY: the memory has the operand there until the end of the call.
        Ok(unsafe { SendBuffer::new(address, operand.count, datatype) })
    }

    /// The receive buffer of a result.
    #[inline(always)]
    pub fn recv_buffer(&self, result: &ResultBuffer) -> Result<RecvBuffer<'_>> {
        let (datatype, bytes) = measure(result)?;
        let address = self.in_memory(|memory| memory.write(result, bytes))?;
        // SAFETY: the memory has room for the result there until the end of the call.
        Ok(unsafe { RecvBuffer::new(address, result.count, datatype) })
    }

    /// The result, with `blocks` times the elements of the operand.
    #[inline(always)]
    pub fn result_of_blocks(&self, operand: &Buffer, blocks: c_int) -> Result<ResultBuffer<'a>> {
        let [result] = self.results()?;
        check_blocks(&result, operand, blocks)?;
        Ok(result)
    }

    /// The result, with the elements of one of the operand's `blocks` blocks. Without an operand, its size is
    /// not checked.
    pub fn result_of_block(
        &self,
        operand: Option<&Buffer>,
        blocks: c_int,
    ) -> Result<ResultBuffer<'a>> {
        let [result] = self.results()?;
        if let Some(operand) = operand {
            check_blocks(operand, &result, blocks)?;
        }
        Ok(result)
    }

    /// The result of root (MPI-4.1 §6.5, "significant only at root"). A program that is equal on all ranks
    /// has a result on the others, too, of which MPI does not know.
    pub fn result_of_root(
        &self,
        root: c_int,
        result: impl FnOnce() -> Result<ResultBuffer<'a>>,
    ) -> Result<RootedResult<'a>> {
        if self.communicator.rank == root {
            return Ok(RootedResult::OfRoot(result()?));
        }
        if self.optional_result()?.is_none() {
            return Ok(RootedResult::None);
        }
        Ok(RootedResult::Elsewhere(result()?))
    }

    /// The operand: on root always, and elsewhere if the program has one, which MPI ignores.
    pub fn operand_of_root(&self, root: c_int) -> Result<Option<Buffer<'a>>> {
        if self.communicator.rank == root {
            let [operand] = self.operands()?;
            return Ok(Some(operand));
        }
        self.optional_operand()
    }

    /// The send buffer of root's operand, if this rank is root.
    pub fn send_buffer_of_root(
        &self,
        root: c_int,
        operand: Option<&Buffer>,
    ) -> Result<Option<SendBuffer<'_>>> {
        let operand = operand.filter(|_| self.communicator.rank == root);
        operand.map(|operand| self.send_buffer(operand)).transpose()
    }

    /// The receive buffer of root's result, if this rank is root. A result elsewhere is filled with zeros.
    pub fn recv_buffer_of_root(&self, result: &RootedResult) -> Result<Option<RecvBuffer<'_>>> {
        match result {
            RootedResult::OfRoot(result) => self.recv_buffer(result).map(Some),
            RootedResult::Elsewhere(result) => self.store_zeros(result).map(|()| None),
            RootedResult::None => Ok(None),
        }
    }

    /// Copies an operand to a result of as many bytes.
    pub fn forward(&self, operand: &Buffer, result: &ResultBuffer) -> Result<()> {
        let (_, bytes) = measure(operand)?;
        self.in_memory(|memory| memory.copy(operand, result, bytes))
    }

    /// Fills a result with zeros.
    pub fn store_zeros(&self, result: &ResultBuffer) -> Result<()> {
        let (_, bytes) = measure(result)?;
        self.in_memory(|memory| memory.clear(result, bytes))
    }

    /// The buffers of an operand and a result of one shape.
    #[inline(always)]
    pub fn both_buffers(
        &self,
        operand: &Buffer,
        result: &ResultBuffer,
    ) -> Result<(SendBuffer<'_>, RecvBuffer<'_>)> {
        let recv = self.recv_buffer(result)?;
        Ok((self.send_buffer_within(operand, &recv, 0)?, recv))
    }
}

impl From<&ResultBuffer<'_>> for Array {
    fn from(result: &ResultBuffer) -> Self {
        let array: &Buffer = result;
        array.into()
    }
}

/// The result of a rooted operation on this rank.
pub enum RootedResult<'a> {
    /// This rank is root.
    OfRoot(ResultBuffer<'a>),
    /// Another rank is root, and the program has a result here all the same.
    Elsewhere(ResultBuffer<'a>),
    /// There is no result here.
    None,
}

/// The data type of an array, and its size in bytes.
#[inline(always)]
pub fn measure(array: &Buffer) -> Result<(SizedDatatype, usize)> {
    let datatype = REGISTRY.datatype(array.dtype)?;
    match usize::try_from(array.count).map(|count| count.checked_mul(datatype.size)) {
        Ok(Some(bytes)) => Ok((datatype, bytes)),
        _ => Err(Error::invalid(format!(
            "an array of shape {:?} does not fit into memory",
            array.dims
        ))),
    }
}

/// The number of elements in a block, where the first axis of the array has a block for each rank.
pub fn block_for_each(array: &Buffer, size: c_int) -> Result<i64> {
    if array.dims.first() == Some(&i64::from(size)) {
        return Ok(array.count / i64::from(size));
    }
    Err(Error::invalid(format!(
        "an array of shape {:?} can't be sent to {size} ranks: its first axis must have size \
         {size}",
        array.dims
    )))
}

/// Checks that `whole` has `blocks` times the elements of `block`, so that MPI does not write past the end of
/// a result.
pub fn check_blocks(whole: &Buffer, block: &Buffer, blocks: c_int) -> Result<()> {
    if whole.dtype == block.dtype && whole.count == block.count.saturating_mul(i64::from(blocks)) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "arrays do not match: {:?} of XLA type {} is not {blocks} times {:?} of XLA type {}",
        whole.dims, whole.dtype, block.dims, block.dtype
    )))
}
