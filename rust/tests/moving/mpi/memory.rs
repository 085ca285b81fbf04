//! The memory that MPI may touch: who frees it, or gives it to another request, is found out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicUsize};

/// A piece of memory, and the request that may touch it. Free where that is 0.
struct Entry {
    request: AtomicI32,
    start: AtomicUsize,
    end: AtomicUsize,
}

const ENTRIES: usize = 4096;
static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        request: AtomicI32::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; ENTRIES];
/// No entry from this index on is in use.
static END: AtomicUsize = AtomicUsize::new(0);
/// How often memory was freed that MPI may touch, and the last request that may.
static FREED: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);

/// Says that a request may touch these bytes until [`release`] is called. All callers hold the lock of
/// the MPI.
pub fn lend(request: i32, ranges: impl IntoIterator<Item = Range<usize>>) {
    let mut free = (0..ENTRIES).filter(|index| TABLE[*index].request.load(SeqCst) == 0);
    for range in ranges {
        let index = free.next().expect("the table has room for all requests");
        TABLE[index].start.store(range.start, SeqCst);
        TABLE[index].end.store(range.end, SeqCst);
        TABLE[index].request.store(request, SeqCst);
        END.fetch_max(index + 1, SeqCst);
    }
}

/// Says that a request touches nothing any more.
pub fn release(request: i32) {
    for entry in &TABLE[..END.load(SeqCst)] {
        if entry.request.load(SeqCst) == request {
            entry.request.store(0, SeqCst);
        }
    }
}

/// A request that may touch some of these bytes.
pub fn user_of(range: &Range<usize>) -> Option<i32> {
    TABLE[..END.load(SeqCst)].iter().find_map(|entry| {
        let request = entry.request.load(SeqCst);
        let is_within =
            entry.start.load(SeqCst) < range.end && range.start < entry.end.load(SeqCst);
        (request != 0 && is_within).then_some(request)
    })
}

/// How often memory was freed since this was asked last that MPI may touch, and a request that may.
pub fn freed_too_early() -> (usize, i32) {
    (FREED.swap(0, SeqCst), LAST.load(SeqCst))
}

/// The system's memory. A test uses it as its global allocator to find out who frees memory that MPI
/// may touch.
pub struct Watched;

// SAFETY: memory is the system's.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        let address = start as usize;
        if let Some(request) = user_of(&(address..address + layout.size())) {
            FREED.fetch_add(1, SeqCst);
            LAST.store(request, SeqCst);
            // It is not, so that MPI touches nothing that is another's, and the test can say so.
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}
