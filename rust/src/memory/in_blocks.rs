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
    in_flight: InFlight,
    /// The operand that was copied last, by its address and its bytes, and the index of its block.
    last_copy: Cell<Option<(*mut c_void, usize, usize)>>,
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

    /// The blocks, with the requests that use them.
    pub fn blocks(&self) -> &InFlight {
        &self.in_flight
    }

    /// Takes out the blocks, with the requests that use them.
    pub fn take_in_flight(&mut self) -> InFlight {
        self.last_copy.take();
        std::mem::take(&mut self.in_flight)
    }

    /// Copies an operand to a block of its own, whose index and address are returned.
    fn copy_to_block(&self, operand: &Buffer, bytes: usize) -> Result<(usize, *mut u8), Failure> {
        let mut block = Block::take(bytes);
        self.program.load(operand, block.part(0..bytes))?;
        let address = block.address(&(0..bytes));
        let index = self.in_flight.add_block(block);
        self.last_copy.set(Some((operand.address, bytes, index)));
        Ok((index, address))
    }

    fn add_result(&self, result: &ResultBuffer, bytes: usize, block: usize) {
        let arrival = Arrival::whole(result.into(), block, bytes);
        self.in_flight.add_arrival(arrival);
    }
}

impl<M: Memory> Memory for InBlocks<M> {
    const IS_ON_DEVICE: bool = M::IS_ON_DEVICE;

    fn read(&self, operand: &Buffer, bytes: usize) -> Result<*const c_void, Failure> {
        let (_, address) = self.copy_to_block(operand, bytes)?;
        Ok(address.cast())
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

    /// The result is in the block from which MPI reads the operand, if that was the last one to be copied.
    fn copy(&self, operand: &Buffer, result: &ResultBuffer, bytes: usize) -> Result<(), Failure> {
        let block = match self.last_copy.get() {
            Some((address, length, block)) if (address, length) == (operand.address, bytes) => {
                block
            }
            _ => self.copy_to_block(operand, bytes)?.0,
        };
        self.add_result(result, bytes, block);
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
