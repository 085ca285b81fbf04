//! Page-locked memory, which is slow to get and is therefore kept.

use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;

use super::block::size_class;
use super::driver::{Context, DISABLE_TIMING, Driver, Stream, StreamEvent};
use crate::error::Failure;
use crate::lock::lock;

/// Page-locked memory for the copy of an array, with what tells when copies from and to it end.
pub struct StagingBuffer {
    driver: &'static Driver,
    context: Context,
    pub address: *mut c_void,
    bytes: usize,
    pub events: [StreamEvent; 2],
    /// The one of the events that comes when the buffer is free again, if that is not now.
    free_at: Option<StreamEvent>,
}

// SAFETY: contexts, memory and events of a driver may be used by any thread.
unsafe impl Send for StagingBuffer {}

impl StagingBuffer {
    fn new(driver: &'static Driver, context: Context, bytes: usize) -> Result<Self, Failure> {
        let mut buffer = Self {
            driver,
            context,
            address: ptr::null_mut(),
            bytes,
            events: [ptr::null_mut(); 2],
            free_at: None,
        };
        // SAFETY: there is room for the answers. What was made before an error goes with the
        // buffer.
        unsafe {
            driver.host_alloc(&raw mut buffer.address, bytes, 0)?;
            for event in &mut buffer.events {
                driver.event_create(event, DISABLE_TIMING)?;
            }
        }
        Ok(buffer)
    }

    /// Whether it is known that no copy from or to the buffer is under way.
    fn is_free(&self) -> bool {
        // SAFETY: the event is one of the buffer's.
        let has_come = |event| unsafe { self.driver.event_query(event) }.is_ok();
        self.free_at.is_none_or(has_come)
    }

    /// Waits until no copy from or to the buffer is under way.
    fn wait(&self) {
        if let Some(event) = self.free_at {
            // SAFETY: the event is one of the buffer's. An error means that no copy is under way.
            let _ = unsafe { self.driver.event_synchronize(event) };
        }
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        let current = self.driver.context().unwrap_or(self.context);
        // SAFETY: the buffer and its events were made in this context, and are freed once. There is
        // nothing to be done about an error: the device is broken, or the process at its end.
        unsafe {
            if current != self.context {
                let _ = self.driver.set_current_context(self.context);
            }
            self.wait();
            for event in self.events.into_iter().filter(|event| !event.is_null()) {
                let _ = self.driver.event_destroy(event);
            }
            if !self.address.is_null() {
                let _ = self.driver.host_free(self.address);
            }
            if current != self.context {
                let _ = self.driver.set_current_context(current);
            }
        }
    }
}

/// The unused buffers, and how many bytes there are in all.
struct Stock {
    idle: Vec<StagingBuffer>,
    bytes: usize,
    limit: usize,
}

/// Staging buffers for all threads.
///
/// Nothing that may wait for a stream is done with the lock, such as freeing: the stream may be waiting
/// for a call that needs a buffer itself.
pub struct Pool(Mutex<Stock>);

/// The pool of this process.
pub static POOL: Pool = Pool(Mutex::new(Stock {
    idle: Vec::new(),
    bytes: 0,
    limit: 1 << 30,
}));

/// The bytes of the smallest buffer.
const SMALLEST: usize = 64 << 10;

impl Pool {
    /// Sets the largest number of bytes that are locked, but for a call that needs more by itself.
    pub fn set_limit(&self, bytes: usize) {
        lock(&self.0).limit = bytes;
    }

    /// Takes a buffer of at least `bytes` bytes, for copies by streams of the current context.
    pub fn take(&self, driver: &'static Driver, bytes: usize) -> Result<StagingBuffer, Failure> {
        let context = driver.context()?;
        let size = size_class(bytes.max(SMALLEST));
        let (choice, superfluous) = lock(&self.0).choose(context, size);
        drop(superfluous);
        match choice {
            Choice::Free(buffer) => Ok(buffer),
            Choice::Busy(buffer) => {
                buffer.wait();
                Ok(buffer)
            }
            Choice::New => self.make(driver, context, size),
        }
    }

    /// A new buffer, for which there is room in the limit.
    fn make(
        &self,
        driver: &'static Driver,
        context: Context,
        size: usize,
    ) -> Result<StagingBuffer, Failure> {
        let make = || StagingBuffer::new(driver, context, size);
        let outcome = match make() {
            Err(_) if self.clear() => make(),
            outcome => outcome,
        };
        if outcome.is_err() {
            lock(&self.0).bytes -= size;
        }
        outcome
    }

    /// Takes a buffer back. The next one that needs it waits until `stream` is done with it.
    pub fn release(&self, mut buffer: StagingBuffer, stream: Option<Stream>) {
        buffer.free_at = stream.map(|_| buffer.events[0]);
        if let Some(stream) = stream {
            // SAFETY: the stream is of the buffer's context.
            let outcome = unsafe { buffer.driver.event_record(buffer.events[0], stream) };
            if outcome.is_err() {
                // SAFETY: the stream is of the buffer's context. If this fails, too, it does no more
                // copies.
                let _ = unsafe { buffer.driver.stream_synchronize(stream) };
                buffer.free_at = None;
            }
        }
        lock(&self.0).idle.push(buffer);
    }

    /// Frees all unused buffers. Gives whether there were any.
    pub fn clear(&self) -> bool {
        let unused = lock(&self.0).shrink(usize::MAX);
        !unused.is_empty()
    }
}

/// The buffer that a call gets: an unused one, one that copies are still to be made from or to, or a new
/// one, which counts already.
enum Choice {
    Free(StagingBuffer),
    Busy(StagingBuffer),
    New,
}

impl Stock {
    /// Chooses the buffer for a call, and takes out those that are to be freed before.
    fn choose(&mut self, context: Context, size: usize) -> (Choice, Vec<StagingBuffer>) {
        // What went beyond the limit was for one call.
        let mut superfluous = self.shrink(0);
        if let Some(buffer) = self.take(context, size, StagingBuffer::is_free) {
            return (Choice::Free(buffer), superfluous);
        }
        if !self.has_room_for(size) {
            // One that will be free is better than a new one.
            if let Some(buffer) = self.take(context, size, |_| true) {
                return (Choice::Busy(buffer), superfluous);
            }
            superfluous.extend(self.shrink(size));
        }
        self.bytes += size;
        (Choice::New, superfluous)
    }

    /// Takes out a buffer of this context and size that fits. A larger one is for larger arrays: a
    /// call with two arrays could find no room for the other one.
    fn take(
        &mut self,
        context: Context,
        size: usize,
        fits: impl Fn(&StagingBuffer) -> bool,
    ) -> Option<StagingBuffer> {
        let is_usable = |buffer: &StagingBuffer| {
            buffer.context == context && buffer.bytes == size && fits(buffer)
        };
        let index = self.idle.iter().position(is_usable)?;
        Some(self.idle.swap_remove(index))
    }

    fn has_room_for(&self, more: usize) -> bool {
        self.bytes.saturating_add(more) <= self.limit
    }

    /// Takes out unused buffers to be freed, until `more` bytes fit within the limit or none is left. Those
    /// that are busy come last.
    fn shrink(&mut self, more: usize) -> Vec<StagingBuffer> {
        let mut superfluous = Vec::new();
        while !self.has_room_for(more) && !self.idle.is_empty() {
            let index = self
                .idle
                .iter()
                .position(StagingBuffer::is_free)
                .unwrap_or(0);
            let buffer = self.idle.swap_remove(index);
            self.bytes -= buffer.bytes;
            superfluous.push(buffer);
        }
        superfluous
    }
}
