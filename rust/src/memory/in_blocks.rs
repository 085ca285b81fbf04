//! Memory of a nonblocking call, whose operation outlives the call.
//!
//! A handler has XLA's arrays only while it runs. So MPI reads copies of the operands and writes the results
//! in blocks of the core's own, and the call that waits copies the results out of these.

use std::cell::Cell;
use std::ffi::c_void;

use super::access::{Access, Memory};
use super::block::Block;
use super::in_flight::{Arrival, InFlight};
use crate::error::Failure;
use crate::xla::{Buffer, ResultBuffer};

/// Memory of a call that starts an operation: a read of an operand copies it to a block, and a write of a
/// result makes room in one. `load` and `store` are about the arrays of the program, such as the ticket.
pub struct InBlocks<M> {
    program: M,
    /// The blocks, with the requests that use them.
    pub in_flight: InFlight,
    /// The last copy of an operand.
    last_copy: Cell<Option<OperandCopy>>,
}

/// The copy of an operand in a block.
#[derive(Clone, Copy)]
struct OperandCopy {
    operand: *mut c_void,
    bytes: usize,
    /// The index of the block, and its address.
    block: usize,
    address: *mut u8,
}

impl<M: Memory> InBlocks<M> {
    /// The memory for a call with arrays in the memory `program`.
    pub fn new(program: M) -> Self {
        Self {
            program,
            in_flight: InFlight::default(),
            last_copy: Cell::new(None),
        }
    }

    /// Takes out the blocks, with the requests that use them.
    pub fn take_in_flight(&mut self) -> InFlight {
        self.last_copy.take();
        std::mem::take(&mut self.in_flight)
    }

    /// The copy of an operand in a block of its own. MPI and the result may read the same copy.
    fn copied(&self, operand: &Buffer, bytes: usize) -> Result<OperandCopy, Failure> {
        let is_it = |copy: &OperandCopy| (copy.operand, copy.bytes) == (operand.address, bytes);
        if let Some(copy) = self.last_copy.get().filter(is_it) {
            return Ok(copy);
        }
        let mut block = Block::take(bytes);
        self.program.load(operand, block.part(0..bytes))?;
        let copy = OperandCopy {
            operand: operand.address,
            bytes,
            address: block.address(&(0..bytes)),
            block: self.in_flight.add_block(block),
        };
        self.last_copy.set(Some(copy));
        Ok(copy)
    }

    fn add_result(&self, result: &ResultBuffer, bytes: usize, block: usize) {
        let arrival = Arrival::whole(result.into(), block, bytes);
        self.in_flight.add_arrival(arrival);
    }
}

impl<M: Memory> Memory for InBlocks<M> {
    const IS_ON_DEVICE: bool = M::IS_ON_DEVICE;

    fn read(&self, operand: &Buffer, bytes: usize) -> Result<*const c_void, Failure> {
        Ok(self.copied(operand, bytes)?.address.cast())
    }

    fn read_within(
        &self,
        operand: &Buffer,
        bytes: usize,
        start: usize,
    ) -> Result<*const c_void, Failure> {
        let range = start..start + bytes;
        let copy = self.in_flight.with_last_block(|block| {
            self.program.load(operand, block.part(range.clone()))?;
            Ok(block.address(&range).cast_const().cast())
        });
        copy.unwrap_or_else(|| self.read(operand, bytes))
    }

    fn write(&self, result: &ResultBuffer, bytes: usize) -> Result<*mut c_void, Failure> {
        let block = Block::take(bytes);
        let address = block.address(&(0..bytes));
        self.add_result(result, bytes, self.in_flight.add_block(block));
        Ok(address.cast())
    }

    fn before(&self, _: &Access) -> Result<(), Failure> {
        Ok(())
    }

    fn after(&self, _: &Access) -> Result<(), Failure> {
        Ok(())
    }

    fn load(&self, operand: &Buffer, into: &mut [u8]) -> Result<(), Failure> {
        self.program.load(operand, into)
    }

    fn store(&self, result: &ResultBuffer, from: &[u8]) -> Result<(), Failure> {
        self.program.store(result, from)
    }

    fn copy(&self, operand: &Buffer, result: &ResultBuffer, bytes: usize) -> Result<(), Failure> {
        let copy = self.copied(operand, bytes)?;
        self.add_result(result, bytes, copy.block);
        Ok(())
    }

    fn clear(&self, result: &ResultBuffer, bytes: usize) -> Result<(), Failure> {
        let mut block = Block::take(bytes);
        block.part(0..bytes).fill(0);
        self.add_result(result, bytes, self.in_flight.add_block(block));
        Ok(())
    }

    fn in_flight(&self) -> Option<&InFlight> {
        Some(&self.in_flight)
    }
}
