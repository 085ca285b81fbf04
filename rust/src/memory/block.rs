//! Host memory of the core's own, for messages in flight.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Mutex;

use super::host::ask_for_huge_pages;
use crate::lock::lock;

/// Memory that begins at a cache line. It goes back to the others when it is dropped.
pub struct Block {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is the block's own.
unsafe impl Send for Block {}

/// Where an array begins: at a cache line, as XLA's arrays do.
const ALIGNMENT: usize = 64;
/// The bytes of the smallest block.
const SMALLEST: usize = 4 << 10;
/// How many bytes of unused blocks are kept in all.
const MOST_IDLE: usize = 256 << 20;

struct Idle {
    blocks: Vec<Block>,
    bytes: usize,
}

static IDLE: Mutex<Idle> = Mutex::new(Idle {
    blocks: Vec::new(),
    bytes: 0,
});

/// A size for memory that is used again, of at least so many bytes: one of four between a power of two
/// and the next.
pub fn size_class(bytes: usize) -> usize {
    bytes.next_multiple_of(bytes.next_power_of_two() / 8)
}

impl Block {
    /// A block with room for so many bytes, of any content.
    pub fn take(bytes: usize) -> Self {
        let bytes = size_class(bytes.max(SMALLEST));
        let mut idle = lock(&IDLE);
        let mut sizes = idle.blocks.iter().map(|block| block.bytes);
        if let Some(index) = sizes.rposition(|size| size == bytes) {
            idle.bytes -= bytes;
            return idle.blocks.swap_remove(index);
        }
        drop(idle);
        Self::new(bytes)
    }

    fn new(bytes: usize) -> Self {
        let layout = Self::layout(bytes);
        // SAFETY: a block has some bytes.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        ask_for_huge_pages(start.as_ptr().cast(), bytes);
        Self { start, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, ALIGNMENT).unwrap_or_else(|_| {
            handle_alloc_error(Layout::new::<usize>()) // more than there are addresses
        })
    }

    /// The address of a byte.
    pub fn address(&mut self, byte: usize) -> *mut u8 {
        assert!(byte <= self.bytes);
        // SAFETY: within the block, or right behind it.
        unsafe { self.start.as_ptr().add(byte) }
    }

    /// Some of the bytes.
    pub fn part(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.bytes);
        // SAFETY: within the block, all of which has been written.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut idle = lock(&IDLE);
        if idle.bytes + self.bytes <= MOST_IDLE {
            idle.bytes += self.bytes;
            idle.blocks.push(Self { ..*self });
            return;
        }
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.bytes)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_begins_at_a_cache_line() {
        let mut block = Block::take(100);
        assert_eq!(block.address(0) as usize % ALIGNMENT, 0);
        block.part(92..100).fill(7);
        assert_eq!(block.part(92..100), [7; 8]);
    }

    #[test]
    fn a_block_is_used_again() {
        const BYTES: usize = 3 << 20; // no other test has such a block
        let address = Block::take(BYTES).address(0) as usize;
        assert_eq!(Block::take(BYTES).address(0) as usize, address);
    }

    #[test]
    fn not_too_much_is_kept() {
        drop(Block::take(MOST_IDLE + 1));
        assert!(lock(&IDLE).bytes <= MOST_IDLE);
    }

    #[test]
    #[should_panic(expected = "range.end <= self.bytes")]
    fn nobody_gets_more_than_there_is() {
        Block::take(1).part(0..SMALLEST + 1);
    }
}
