//! Device memory: MPI works on it if it can, or on a copy in host memory.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use super::access::{Access, Memory};
use super::driver::{Driver, Stream};
use super::pool::{POOL, StagingBuffer};
use crate::error::Failure;
use crate::xla::Buffer;

/// Device memory that MPI can read and write.
pub struct Direct {
    driver: &'static Driver,
    stream: Stream,
    is_ready: Cell<bool>,
}

impl Direct {
    /// The memory of a call whose arrays are ready when the stream has come so far.
    pub fn new(driver: &'static Driver, stream: Stream) -> Self {
        Self {
            driver,
            stream,
            is_ready: Cell::new(true),
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
    fn read(&self, operand: &Buffer, bytes: usize) -> Result<*const c_void, Failure> {
        Ok(self.note(operand, bytes))
    }

    fn write(&self, result: &Buffer, bytes: usize) -> Result<*mut c_void, Failure> {
        Ok(self.note(result, bytes))
    }

    fn before(&self, _: &Access) -> Result<(), Failure> {
        if self.is_ready.replace(true) {
            return Ok(());
        }
        // SAFETY: XLA's own stream.
        unsafe { self.driver.stream_synchronize(self.stream) }
    }

    fn after(&self, _: &Access) -> Result<(), Failure> {
        Ok(())
    }
}

/// Device memory of which MPI gets a copy, in page-locked memory.
///
/// Copies are queued on XLA's own stream: those of operands come after the programs that make them,
/// and those of results before the programs that use them, with nothing to wait for.
pub struct Staged {
    driver: &'static Driver,
    stream: Stream,
    operand: Cell<Option<StagedArray>>,
    result: Cell<Option<StagedArray>>,
    /// The memory of the copies: one, or two.
    buffers: RefCell<Vec<StagingBuffer>>,
    /// How much of the operand was queued for copying, and how much of it has come.
    queued: Cell<usize>,
    arrived: Cell<usize>,
    /// Which of the operand's events comes with the last part queued.
    event: Cell<usize>,
    /// Whether any of the result was queued for copying.
    has_written: Cell<bool>,
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

impl Staged {
    /// The memory of a call whose arrays are ready when the stream has come so far.
    pub fn new(driver: &'static Driver, stream: Stream) -> Self {
        Self {
            driver,
            stream,
            operand: Cell::new(None),
            result: Cell::new(None),
            buffers: RefCell::default(),
            queued: Cell::new(0),
            arrived: Cell::new(0),
            event: Cell::new(0),
            has_written: Cell::new(false),
        }
    }

    /// An array, with memory for its copy. It has the other array's if both are one.
    fn stage(
        &self,
        array: &Buffer,
        bytes: usize,
        other: Option<StagedArray>,
    ) -> Result<StagedArray, Failure> {
        let device = array.address as usize;
        // An empty array may have any address.
        let is_other = |other: &StagedArray| other.device == device && other.bytes.min(bytes) > 0;
        if let Some(other) = other.filter(is_other) {
            return Ok(StagedArray { bytes, ..other });
        }
        let mut buffers = self.buffers.borrow_mut();
        let mut host = ptr::null_mut();
        if bytes > 0 {
            let buffer = POOL.take(self.driver, bytes)?;
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

    /// Queues the copying of the operand down, as far as `end`.
    fn queue(&self, operand: StagedArray, end: usize) -> Result<(), Failure> {
        let start = self.queued.get();
        if start >= end {
            return Ok(());
        }
        let event = 1 - self.event.get();
        // SAFETY: both arrays are so long, and the copy's memory stays locked until it is done.
        unsafe {
            self.driver.copy_down(
                operand.host.byte_add(start),
                operand.device + start,
                end - start,
                self.stream,
            )?;
            self.queued.set(end);
            let buffer = &self.buffers.borrow()[operand.buffer];
            self.driver
                .event_record(buffer.events[event], self.stream)?;
        }
        self.event.set(event);
        Ok(())
    }
}

impl Memory for Staged {
    fn read(&self, operand: &Buffer, bytes: usize) -> Result<*const c_void, Failure> {
        let array = self.stage(operand, bytes, self.result.get())?;
        self.operand.set(Some(array));
        Ok(array.host)
    }

    fn write(&self, result: &Buffer, bytes: usize) -> Result<*mut c_void, Failure> {
        let array = self.stage(result, bytes, self.operand.get())?;
        self.result.set(Some(array));
        Ok(array.host)
    }

    fn before(&self, access: &Access) -> Result<(), Failure> {
        let Some(operand) = self.operand.get() else {
            return Ok(());
        };
        let Range { start, end } = operand.clip(&access.read);
        if start >= end || end <= self.arrived.get() {
            return Ok(());
        }
        self.queue(operand, end)?;
        let event = self.buffers.borrow()[operand.buffer].events[self.event.get()];
        let queued = self.queued.get();
        // The next part comes down while MPI works on this one.
        self.queue(operand, access.read_next.min(operand.bytes))?;
        // SAFETY: the event was recorded behind this part.
        unsafe { self.driver.event_synchronize(event) }?;
        self.arrived.set(queued);
        Ok(())
    }

    fn after(&self, access: &Access) -> Result<(), Failure> {
        let Some(result) = self.result.get() else {
            return Ok(());
        };
        let Range { start, end } = result.clip(&access.written);
        if start >= end {
            return Ok(());
        }
        self.has_written.set(true);
        // SAFETY: both arrays are so long, and the copy's memory stays locked until it is done.
        unsafe {
            self.driver.copy_up(
                result.device + start,
                result.host.byte_add(start),
                end - start,
                self.stream,
            )
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let is_busy = self.has_written.get() || self.queued > self.arrived;
        let stream = is_busy.then_some(self.stream);
        for buffer in self.buffers.take() {
            POOL.give_back(buffer, stream);
        }
    }
}
