//! The interface between the arrays of a call and MPI: [`Memory`] and [`Access`].

use std::ffi::c_void;
use std::ops::Range;

use super::block::Block;
use super::in_flight::InFlight;
use crate::error::Failure;
use crate::xla::{Buffer, ResultBuffer};

/// The memory that the arrays of one call are in.
pub trait Memory {
    /// Whether the memory is a device's, so that a call may have to wait for the device.
    const IS_ON_DEVICE: bool;
    /// Whether MPI gets the addresses of a device's memory, and crashes if it can't use them.
    const IS_DIRECT: bool = false;

    /// The address at which MPI finds the operand, from [`before`](Self::before) on.
    fn read(&self, operand: &Buffer, bytes: usize) -> Result<*const c_void, Failure>;

    /// The address at which MPI finds an operand that may be a part of the result written last, `start` bytes
    /// from its begin.
    #[inline(always)]
    fn read_within(
        &self,
        operand: &Buffer,
        bytes: usize,
        _start: usize,
    ) -> Result<*const c_void, Failure> {
        self.read(operand, bytes)
    }

    /// The address at which MPI puts the result, until [`after`](Self::after). It is the operand's
    /// if both are one array.
    fn write(&self, result: &ResultBuffer, bytes: usize) -> Result<*mut c_void, Failure>;

    /// Waits until a call of MPI may begin.
    fn before(&self, access: &Access) -> Result<(), Failure>;

    /// Moves the bytes that a call of MPI wrote to the results.
    fn after(&self, access: &Access) -> Result<(), Failure>;

    /// Copies the first `into.len()` bytes of an operand that the call itself reads.
    fn load(&self, operand: &Buffer, into: &mut [u8]) -> Result<(), Failure>;

    /// Copies bytes that the call itself writes to the first `from.len()` bytes of a result.
    fn store(&self, result: &ResultBuffer, from: &[u8]) -> Result<(), Failure>;

    /// Copies the first `bytes` bytes of an operand to a result, which may be in the same place.
    fn copy(&self, operand: &Buffer, result: &ResultBuffer, bytes: usize) -> Result<(), Failure> {
        if bytes == 0 || operand.address == result.address {
            return Ok(());
        }
        let mut block = Block::take(bytes);
        let part = block.part(0..bytes);
        self.load(operand, part)?;
        self.store(result, part)
    }

    /// Fills the first `bytes` bytes of a result with zeros.
    fn clear(&self, result: &ResultBuffer, bytes: usize) -> Result<(), Failure> {
        self.store(result, &vec![0; bytes])
    }

    /// The blocks and the requests that a nonblocking call leaves to the call that waits, or `None` in a
    /// blocking call.
    #[inline(always)]
    fn in_flight(&self) -> Option<&InFlight> {
        None
    }
}

/// The bytes that one call of MPI reads and writes.
#[derive(Debug, Clone)]
pub struct Access {
    /// Bytes of the operand.
    pub read: Range<usize>,
    /// The end of the bytes that the call after this one reads.
    pub read_next: usize,
    /// Bytes of the result.
    pub written: Range<usize>,
}

impl Access {
    /// All of both arrays, in a call that is the only one.
    pub const WHOLE: Self = Self {
        read: 0..usize::MAX,
        read_next: 0,
        written: 0..usize::MAX,
    };

    /// These elements of both arrays, of `size` bytes each, in a row of calls for `length` each.
    pub fn both(elements: &Range<i64>, length: i64, size: usize) -> Self {
        let bytes = |count: i64| (count as usize).saturating_mul(size);
        let read = bytes(elements.start)..bytes(elements.end);
        Self {
            read_next: bytes(elements.end.saturating_add(length)),
            written: read.clone(),
            read,
        }
    }

    /// The first `read` bytes of the operand and `written` of the result, in a call that is the only one.
    pub fn first(read: usize, written: usize) -> Self {
        Self {
            read: 0..read,
            read_next: 0,
            written: 0..written,
        }
    }

    /// The access to an operand that begins `start` bytes further on.
    pub fn read_from(mut self, start: usize) -> Self {
        self.read = self.read.start + start..self.read.end + start;
        self.read_next = self.read_next.saturating_add(start);
        self
    }
}
