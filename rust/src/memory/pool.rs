//! Page-locked memory, which is slow to get and is therefore kept.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::driver::{Context, DISABLE_TIMING, Driver, Event, Stream};
use crate::error::Failure;

/// A block of page-locked memory, with what tells when copies from and to it are done.
pub struct Block {
    driver: &'static Driver,
    context: Context,
    pub address: *mut c_void,
    bytes: usize,
    pub events: [Event; 2],
    /// The one of the events that comes when the block is free again, if that is not now.
    free_at: Option<Event>,
}

// SAFETY: contexts, memory and events of a driver may be used by any thread.
unsafe impl Send for Block {}

impl Block {
    fn new(driver: &'static Driver, context: Context, bytes: usize) -> Result<Self, Failure> {
        let mut block = Self {
            driver,
            context,
            address: ptr::null_mut(),
            bytes,
            events: [ptr::null_mut(); 2],
            free_at: None,
        };
        // SAFETY: there is room for the answers. What was made before an error goes with the
        // block.
        unsafe {
            driver.host_alloc(&mut block.address, bytes, 0)?;
            for event in &mut block.events {
                driver.event_create(event, DISABLE_TIMING)?;
            }
        }
        Ok(block)
    }

    /// Whether it is known that no copy from or to the block is under way.
    fn is_free(&self) -> bool {
        // SAFETY: the event is one of the block's.
        let has_come = |event| unsafe { self.driver.event_query(event) }.is_ok();
        self.free_at.is_none_or(has_come)
    }

    fn wait(&self) {
        if let Some(event) = self.free_at {
            // SAFETY: the event is one of the block's. An error means that no copy is under way.
            let _ = unsafe { self.driver.event_synchronize(event) };
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let current = self.driver.context().unwrap_or(self.context);
        // SAFETY: the block and its events were made in this context, and are freed once. There is
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

/// The blocks that nobody uses, and how many bytes there are in all.
struct State {
    idle: Vec<Block>,
    bytes: usize,
    limit: usize,
}

/// Blocks for all threads.
pub struct Pool(Mutex<State>);

/// The pool of this process.
pub static POOL: Pool = Pool(Mutex::new(State {
    idle: Vec::new(),
    bytes: 0,
    limit: 1 << 30,
}));

/// The bytes of the smallest block.
const SMALLEST: usize = 64 << 10;

/// The bytes of the block for an array, one of four sizes between a power of two and the next.
fn block_size(bytes: usize) -> usize {
    let bytes = bytes.max(SMALLEST);
    bytes.next_multiple_of(bytes.next_power_of_two() / 8)
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes may be locked in all, but for a call that needs more by itself.
    pub fn set_limit(&self, bytes: usize) {
        self.state().limit = bytes;
    }

    /// A block of at least so many bytes, for copies by streams of the current context.
    pub fn take(&self, driver: &'static Driver, bytes: usize) -> Result<Block, Failure> {
        let context = driver.context()?;
        let mut state = self.state();
        let size = block_size(bytes);
        // What went beyond the limit was for one call.
        state.shrink(0);
        if let Some(block) = state.take(context, size, Block::is_free) {
            return Ok(block);
        }
        if !state.has_room_for(size) {
            // One that will be free is better than a new one.
            if let Some(block) = state.take(context, size, |_| true) {
                block.wait();
                return Ok(block);
            }
            state.shrink(size);
        }
        let block = match Block::new(driver, context, size) {
            Err(_) if state.shrink(usize::MAX) => Block::new(driver, context, size)?,
            outcome => outcome?,
        };
        state.bytes += size;
        Ok(block)
    }

    /// Takes a block back. What `stream` is still to do with it is waited for by who needs it.
    pub fn give_back(&self, mut block: Block, stream: Option<Stream>) {
        block.free_at = stream.map(|_| block.events[0]);
        if let Some(stream) = stream {
            // SAFETY: the stream is of the block's context.
            let recorded = unsafe { block.driver.event_record(block.events[0], stream) };
            if recorded.is_err() {
                // SAFETY: as above. If this fails, too, the stream does no more copies.
                let _ = unsafe { block.driver.stream_synchronize(stream) };
                block.free_at = None;
            }
        }
        self.state().idle.push(block);
    }

    /// Frees all blocks that nobody uses.
    pub fn clear(&self) {
        self.state().shrink(usize::MAX);
    }
}

impl State {
    /// Takes out a block of this context and size that fits. A larger one is for larger arrays: a
    /// call with two arrays could find no room for the other one.
    fn take(
        &mut self,
        context: Context,
        size: usize,
        fits: impl Fn(&Block) -> bool,
    ) -> Option<Block> {
        let found = |block: &Block| block.context == context && block.bytes == size && fits(block);
        let index = self.idle.iter().position(found)?;
        Some(self.idle.swap_remove(index))
    }

    fn has_room_for(&self, more: usize) -> bool {
        self.bytes.saturating_add(more) <= self.limit
    }

    /// Frees blocks until so many bytes more are within the limit. Says whether it freed any.
    fn shrink(&mut self, more: usize) -> bool {
        let before = self.idle.len();
        while !self.has_room_for(more) && !self.idle.is_empty() {
            // The next one is waited for if none is free.
            let index = self.idle.iter().position(Block::is_free).unwrap_or(0);
            self.bytes -= self.idle.swap_remove(index).bytes;
        }
        self.idle.len() < before
    }
}
