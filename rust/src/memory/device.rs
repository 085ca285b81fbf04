//! Device memory: MPI works on it if it can, or on a copy in host memory.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::slice;

use super::access::{Access, Memory};
use super::driver::{Driver, InContext, Stream};
use super::pool::{POOL, StagingBuffer};
use crate::error::Failure;
use crate::xla::{Buffer, ResultBuffer};

/// The stream on which a device gets the arrays of a call ready, and uses the results.
#[derive(Clone, Copy)]
struct DeviceQueue {
    driver: &'static Driver,
    stream: Stream,
}

impl DeviceQueue {
    /// Copies an array down, and waits until it is there.
    fn load(self, array: &Buffer, into: &mut [u8]) -> Result<(), Failure> {
        let Self { driver, stream } = self;
        assert!(into.len() <= array.bytes());
        let buffer = POOL.take(driver, into.len())?;
        // SAFETY: the buffer and the array have that many bytes.
        let outcome = unsafe {
            driver
                .copy_down(buffer.address, array.address as usize, into.len(), stream)
                .and_then(|()| driver.stream_synchronize(stream))
        };
        if outcome.is_ok() {
            // SAFETY: that many bytes have come.
            let bytes = unsafe { slice::from_raw_parts(buffer.address.cast(), into.len()) };
            into.copy_from_slice(bytes);
        }
        POOL.release(buffer, Some(stream));
        outcome
    }

    /// Queues the copying of bytes up to an array.
    fn store(self, array: &ResultBuffer, from: &[u8]) -> Result<(), Failure> {
        let Self { driver, stream } = self;
        assert!(from.len() <= array.bytes());
        let buffer = POOL.take(driver, from.len())?;
        // SAFETY: the buffer and the array have that many bytes, and the buffer is given back for the
        // time after the copy.
        let outcome = unsafe {
            ptr::copy_nonoverlapping(from.as_ptr(), buffer.address.cast(), from.len());
            driver.copy_up(array.address as usize, buffer.address, from.len(), stream)
        };
        POOL.release(buffer, Some(stream));
        outcome
    }
}

/// Device memory that MPI can read and write.
pub struct Direct {
    queue: DeviceQueue,
    is_ready: Cell<bool>,
    /// The stream's context is current until the call is over.
    _in_context: InContext,
}

impl Direct {
    /// The memory of a call whose arrays are ready when the stream has come so far, in the stream's
    /// context.
    pub fn new(driver: &'static Driver, stream: Stream, in_context: InContext) -> Self {
        Self {
            queue: DeviceQueue { driver, stream },
            is_ready: Cell::new(true),
            _in_context: in_context,
        }
    }

    /// Notes that the stream may still be writing to an array, or reading what was there before.
    fn note(&self, array: &Buffer, bytes: usize) -> *mut c_void {
        if bytes > 0 {
            self.is_ready.set(false);
        }
        array.address
    }
}

impl Memory for Direct {
    const IS_ON_DEVICE: bool = true;
    const IS_DIRECT: bool = true;

    fn read(&self, operand: &Buffer, bytes: usize) -> Result<*const c_void, Failure> {
        Ok(self.note(operand, bytes))
    }

    fn write(&self, result: &ResultBuffer, bytes: usize) -> Result<*mut c_void, Failure> {
        Ok(self.note(result, bytes))
    }

    fn before(&self, _: &Access) -> Result<(), Failure> {
        if self.is_ready.replace(true) {
            return Ok(());
        }
        let DeviceQueue { driver, stream } = self.queue;
        // SAFETY: XLA's own stream.
        unsafe { driver.stream_synchronize(stream) }
    }

    fn after(&self, _: &Access) -> Result<(), Failure> {
        Ok(())
    }

    fn load(&self, operand: &Buffer, into: &mut [u8]) -> Result<(), Failure> {
        self.queue.load(operand, into)
    }

    fn store(&self, result: &ResultBuffer, from: &[u8]) -> Result<(), Failure> {
        self.queue.store(result, from)
    }
}

/// Device memory of which MPI gets a copy, in page-locked memory.
///
/// Copies are queued on XLA's own stream: those of operands come after the programs that make them,
/// and those of results before the programs that use them, with nothing to wait for.
pub struct Staged {
    queue: DeviceQueue,
    operands: RefCell<Vec<StagedOperand>>,
    results: RefCell<Vec<StagedArray>>,
    /// The memory of the copies.
    buffers: RefCell<Vec<StagingBuffer>>,
    /// Whether any of the result was queued for copying.
    has_written: Cell<bool>,
    /// Whether results overlap operands, so that each array has a copy of its own and all of the
    /// operands come down first.
    has_overlaps: bool,
}

/// An array, and its copy.
#[derive(Clone, Copy)]
struct StagedArray {
    device: usize,
    host: *mut c_void,
    bytes: usize,
    /// The position of the staging buffer that the copy is in.
    buffer: usize,
}

impl StagedArray {
    /// The part of a range that is within the array.
    fn clip(&self, range: &Range<usize>) -> Range<usize> {
        range.start.min(self.bytes)..range.end.min(self.bytes)
    }
}

/// An operand, and how far it has come down.
struct StagedOperand {
    array: StagedArray,
    /// How much of it was queued for copying, and how much of it has come.
    queued: usize,
    arrived: usize,
    /// Index of the event of the part that was queued last.
    event: usize,
}

impl StagedOperand {
    fn new(array: StagedArray) -> Self {
        Self {
            array,
            queued: 0,
            arrived: 0,
            event: 0,
        }
    }
}

impl Staged {
    /// The memory of a call whose arrays are ready when the stream has come so far.
    pub fn new(driver: &'static Driver, stream: Stream, has_overlaps: bool) -> Self {
        Self {
            queue: DeviceQueue { driver, stream },
            has_overlaps,
            operands: RefCell::default(),
            results: RefCell::default(),
            buffers: RefCell::default(),
            has_written: Cell::new(false),
        }
    }

    /// An array, with memory for its copy. It has that of one of the others if both are one: an array that
    /// begins where another one does may be longer.
    fn stage(
        &self,
        array: &Buffer,
        bytes: usize,
        mut others: impl Iterator<Item = StagedArray>,
    ) -> Result<StagedArray, Failure> {
        let device = array.address as usize;
        // An empty array may have any address.
        let is_other = |other: &StagedArray| (other.device, other.bytes) == (device, bytes);
        if let Some(other) = others
            .find(is_other)
            .filter(|_| bytes > 0 && !self.has_overlaps)
        {
            return Ok(other);
        }
        let mut buffers = self.buffers.borrow_mut();
        let mut host = ptr::null_mut();
        if bytes > 0 {
            let buffer = POOL.take(self.queue.driver, bytes)?;
            host = buffer.address;
            buffers.push(buffer);
        }
        Ok(StagedArray {
            device,
            host,
            bytes,
            buffer: buffers.len().saturating_sub(1),
        })
    }

    /// Queues the copying of an operand down, as far as `end`.
    fn queue(&self, operand: &mut StagedOperand, end: usize) -> Result<(), Failure> {
        let (start, array) = (operand.queued, operand.array);
        if start >= end {
            return Ok(());
        }
        let event = 1 - operand.event;
        let DeviceQueue { driver, stream } = self.queue;
        // SAFETY: both arrays are so long, and the copy's memory stays locked until it is done.
        unsafe {
            let host = array.host.byte_add(start);
            driver.copy_down(host, array.device + start, end - start, stream)?;
            operand.queued = end;
            let buffer = &self.buffers.borrow()[array.buffer];
            driver.event_record(buffer.events[event], stream)?;
        }
        operand.event = event;
        Ok(())
    }

    /// Waits until this part of an operand has come down.
    fn fetch(&self, operand: &mut StagedOperand, access: &Access) -> Result<(), Failure> {
        let array = operand.array;
        let Range { start, end } = array.clip(&access.read);
        if start >= end || end <= operand.arrived {
            return Ok(());
        }
        self.queue(operand, end)?;
        let event = self.buffers.borrow()[array.buffer].events[operand.event];
        let queued = operand.queued;
        // The next part comes down while MPI works on this one.
        self.queue(operand, access.read_next.min(array.bytes))?;
        // SAFETY: the event was recorded behind this part.
        unsafe { self.queue.driver.event_synchronize(event) }?;
        operand.arrived = queued;
        Ok(())
    }
}

impl Memory for Staged {
    const IS_ON_DEVICE: bool = true;

    fn read(&self, operand: &Buffer, bytes: usize) -> Result<*const c_void, Failure> {
        let array = self.stage(operand, bytes, self.results.borrow().iter().copied())?;
        self.operands.borrow_mut().push(StagedOperand::new(array));
        Ok(array.host)
    }

    fn write(&self, result: &ResultBuffer, bytes: usize) -> Result<*mut c_void, Failure> {
        let operands = self.operands.borrow();
        let array = self.stage(result, bytes, operands.iter().map(|operand| operand.array))?;
        drop(operands);
        if self.has_overlaps {
            // As in one array: what MPI leaves as it is, stays.
            self.operands.borrow_mut().push(StagedOperand::new(array));
        }
        self.results.borrow_mut().push(array);
        Ok(array.host)
    }

    fn before(&self, access: &Access) -> Result<(), Failure> {
        let access = match self.has_overlaps {
            true => &Access::WHOLE,
            false => access,
        };
        let mut operands = self.operands.borrow_mut();
        operands
            .iter_mut()
            .try_for_each(|operand| self.fetch(operand, access))
    }

    fn after(&self, access: &Access) -> Result<(), Failure> {
        let DeviceQueue { driver, stream } = self.queue;
        for result in self.results.borrow().iter() {
            let Range { start, end } = result.clip(&access.written);
            if start >= end {
                continue;
            }
            self.has_written.set(true);
            // SAFETY: both arrays are so long, and the copy's memory stays locked until it is done.
            unsafe {
                let host = result.host.byte_add(start);
                driver.copy_up(result.device + start, host, end - start, stream)?;
            }
        }
        Ok(())
    }

    fn load(&self, operand: &Buffer, into: &mut [u8]) -> Result<(), Failure> {
        self.queue.load(operand, into)
    }

    fn store(&self, result: &ResultBuffer, from: &[u8]) -> Result<(), Failure> {
        self.queue.store(result, from)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let is_coming = |operand: &StagedOperand| operand.queued > operand.arrived;
        let is_busy = self.has_written.get() || self.operands.get_mut().iter().any(is_coming);
        let stream = is_busy.then_some(self.queue.stream);
        for buffer in self.buffers.take() {
            POOL.release(buffer, stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xla::BufferFacts;

    /// Fails if an array gets a copy that is as long as another one at its address.
    #[test]
    fn arrays_at_one_address_share_a_copy_if_they_are_one() {
        const OPERAND: usize = 64 << 10;
        const RESULT: usize = 4 * OPERAND;
        let staged = Staged::new(Driver::idle(), ptr::null_mut(), false);
        let facts = BufferFacts {
            address: ptr::without_provenance_mut(0x1000),
            dtype: 0,
            dims: &[],
            count: 0,
        };
        // SAFETY: there is no element.
        let array = unsafe { ResultBuffer::lent(facts) };
        let operand = staged.read(&array, OPERAND).unwrap();
        assert_eq!(staged.write(&array, OPERAND).unwrap().cast_const(), operand);
        let result = staged.write(&array, RESULT).unwrap();
        assert_ne!(result.cast_const(), operand);
        drop(staged);
        POOL.clear();
    }
}
