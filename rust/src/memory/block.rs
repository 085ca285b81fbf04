//! Host memory of the core's own, for messages in flight.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Mutex;

use super::huge_pages;
use crate::lock::lock;

/// A block of memory that begins at a cache line. It goes back to the unused ones when it is dropped.
pub struct Block(ManuallyDrop<SystemMemory>);

/// The alignment of an array: a cache line, as for XLA's arrays.
const ALIGNMENT: usize = 64;
/// The bytes of the smallest block.
const SMALLEST: usize = 4 << 10;
/// Largest number of bytes of unused blocks that are kept. The system may have the pages of any others.
const MAX_IDLE: usize = 256 << 20;
/// Least bytes of a block that is a mapping of its own: such a mapping has pages when they are touched, and
/// nobody fills them with zeros before that. The system has room for some 65 000 mappings.
const MAPPED: usize = 256 << 10;

/// Memory of the system's, which gets it back when this is dropped.
struct SystemMemory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is nobody else's.
unsafe impl Send for SystemMemory {}

impl SystemMemory {
    /// Memory of zeros.
    fn new(bytes: usize) -> Self {
        let start = match bytes >= MAPPED {
            true => map(bytes),
            // SAFETY: a block has some bytes.
            false => unsafe { alloc_zeroed(Self::layout(bytes)) },
        };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(Self::layout(bytes))
        };
        huge_pages::advise(start.as_ptr().cast(), bytes);
        Self { start, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, ALIGNMENT).unwrap_or_else(|_| {
            handle_alloc_error(Layout::new::<usize>()) // more than there are addresses
        })
    }

    fn address(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }

    /// Lets the system take the pages when it needs some, and give zeros in their place. Gives whether it
    /// can do that.
    #[cfg(target_os = "linux")]
    fn release(&self) -> bool {
        // SAFETY: the mapping is this memory's, whose content nobody reads any more.
        let is_released = || unsafe { libc::madvise(self.address(), self.bytes, libc::MADV_FREE) };
        // Miri can't be advised.
        self.bytes >= MAPPED && !cfg!(miri) && is_released() == 0
    }

    #[cfg(not(target_os = "linux"))]
    fn release(&self) -> bool {
        false
    }
}

impl Drop for SystemMemory {
    fn drop(&mut self) {
        // SAFETY: mapped or allocated like this, and freed once.
        unsafe {
            match self.bytes >= MAPPED {
                true => drop(libc::munmap(self.address(), self.bytes)),
                false => dealloc(self.start.as_ptr(), Self::layout(self.bytes)),
            }
        }
    }
}

/// A new mapping, or null.
fn map(bytes: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
    // SAFETY: it takes the place of no other mapping.
    match unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) } {
        libc::MAP_FAILED => ptr::null_mut(),
        start => start.cast(),
    }
}

/// The memory of unused blocks.
struct Idle {
    kept: Vec<SystemMemory>,
    /// Number of bytes that are kept.
    bytes: usize,
    /// Beyond those, what the system may take, the oldest first.
    released: Vec<SystemMemory>,
}

static IDLE: Mutex<Idle> = Mutex::new(Idle {
    kept: Vec::new(),
    bytes: 0,
    released: Vec::new(),
});

impl Idle {
    fn take(&mut self, bytes: usize) -> Option<SystemMemory> {
        let position = |memories: &[SystemMemory]| memories.iter().rposition(|m| m.bytes == bytes);
        if let Some(index) = position(&self.kept) {
            self.bytes -= bytes;
            return Some(self.kept.swap_remove(index));
        }
        position(&self.released).map(|index| self.released.remove(index))
    }

    /// Keeps memory, or gives it back if that is too much.
    fn keep(&mut self, memory: SystemMemory) -> Option<SystemMemory> {
        if self.bytes + memory.bytes > MAX_IDLE {
            return Some(memory);
        }
        self.bytes += memory.bytes;
        self.kept.push(memory);
        None
    }

    /// Takes out released memory, as much as is needed of another size, so that what there is in all is no
    /// more than there was.
    fn shrink(&mut self, bytes: usize) -> Vec<SystemMemory> {
        let mut total = 0;
        let is_needed = |memory: &&SystemMemory| {
            let is_needed = total < bytes;
            total += memory.bytes;
            is_needed
        };
        let count = self.released.iter().take_while(is_needed).count();
        self.released.drain(..count).collect()
    }
}

/// Rounds `bytes` up to a size for memory that is used again: one of four between a power of two and the
/// next.
pub fn size_class(bytes: usize) -> usize {
    bytes.next_multiple_of(bytes.next_power_of_two() / 8)
}

impl Block {
    /// A block with room for `bytes` bytes, of any content.
    pub fn take(bytes: usize) -> Self {
        let bytes = size_class(bytes.max(SMALLEST));
        let unused = lock(&IDLE).take(bytes);
        Self(ManuallyDrop::new(unused.unwrap_or_else(|| {
            drop(lock(&IDLE).shrink(bytes));
            SystemMemory::new(bytes)
        })))
    }

    /// Whether `bytes` bytes from an address on are in the block.
    pub fn has(&self, address: *const u8, bytes: usize) -> bool {
        let start = self.0.start.addr().get();
        let end = start + self.0.bytes;
        (start..=end).contains(&address.addr()) && bytes <= end - address.addr()
    }

    /// The address of some of the bytes, for MPI to use as long as the block is there. Unlike that of a
    /// reference, it is still good after the next [`part`](Self::part).
    pub fn address(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.0.bytes);
        self.0.start.as_ptr().wrapping_add(range.start)
    }

    /// Some of the bytes.
    pub fn part(&mut self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: within the block, all of which has been written, or is zeros of the system's.
        unsafe { slice::from_raw_parts_mut(self.address(&range), range.len()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the block is gone after this.
        let memory = unsafe { ManuallyDrop::take(&mut self.0) };
        let superfluous = lock(&IDLE).keep(memory);
        if let Some(memory) = superfluous.filter(SystemMemory::release) {
            lock(&IDLE).released.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_begins_at_a_cache_line() {
        let mut block = Block::take(100);
        assert_eq!(block.part(0..0).as_ptr() as usize % ALIGNMENT, 0);
        block.part(92..100).fill(7);
        assert_eq!(block.part(92..100), [7; 8]);
    }

    /// Fails under Miri if a reference ends the address that MPI has.
    #[test]
    fn an_address_is_good_after_references() {
        let mut block = Block::take(2);
        let address = block.address(&(0..2));
        block.part(0..2).copy_from_slice(&[3, 4]);
        // SAFETY: the block has two bytes.
        unsafe { address.write(address.add(1).read() + 5) };
        assert_eq!(block.part(0..2), [9, 4]);
    }

    #[test]
    fn a_block_is_used_again() {
        const BYTES: usize = 3 << 20; // no other test has such a block
        let address = Block::take(BYTES).part(0..0).as_ptr() as usize;
        assert_eq!(Block::take(BYTES).part(0..0).as_ptr() as usize, address);
    }

    #[test]
    fn not_too_much_is_kept() {
        drop(Block::take(MAX_IDLE / 2 + 1));
        drop([MAX_IDLE / 2, MAX_IDLE / 2 + 1].map(Block::take));
        assert!(lock(&IDLE).bytes <= MAX_IDLE);
    }

    /// Number of pages of a block that are in memory.
    #[cfg(target_os = "linux")]
    fn resident_pages(block: &mut Block) -> usize {
        let mut pages = vec![0_u8; block.0.bytes / 4096];
        // SAFETY: there is a byte for each page of the mapping: pages have 4 KiB at least.
        let code = unsafe { libc::mincore(block.0.address(), block.0.bytes, pages.as_mut_ptr()) };
        assert_eq!(code, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }

    /// Fails if somebody writes zeros into a new block, whose pages have some.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn pages_of_a_new_block_are_not_touched() {
        const BYTES: usize = 48 << 20; // no other test has such a block
        let mut block = Block::take(BYTES);
        assert_eq!(resident_pages(&mut block), 0);
        block.part(0..BYTES)[BYTES / 2] = 7;
        assert!(resident_pages(&mut block) > 0);
    }

    /// Fails if the pages of large blocks are made anew each time. The system may take some in between.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_block_beyond_what_is_kept_has_its_pages_again() {
        const BYTES: usize = MAX_IDLE + (64 << 20);
        let mut block = Block::take(BYTES);
        block.part(0..BYTES).fill(7);
        let pages = resident_pages(&mut block);
        drop(block);
        assert!(resident_pages(&mut Block::take(BYTES)) > pages / 2);
        // They make room for blocks of another size.
        drop(Block::take(2 * BYTES));
        let idle = lock(&IDLE);
        let sizes = idle.released.iter().map(|memory| memory.bytes);
        let large: Vec<_> = sizes.filter(|size| *size >= BYTES).collect();
        assert_eq!(large, [2 * BYTES]);
    }

    #[test]
    #[should_panic(expected = "range.end <= self.0.bytes")]
    fn nobody_gets_more_than_there_is() {
        Block::take(1).part(0..SMALLEST + 1);
    }
}
