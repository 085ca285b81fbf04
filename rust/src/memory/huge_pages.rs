//! Huge pages for large arrays in host memory.
//!
//! NumPy requests huge pages for its large arrays, XLA does not. With pages of 4 KiB, each new page is a
//! trap into the kernel at the first write, and later the processor has more pages to look up: an operation
//! on 16 MiB takes up to a quarter longer.
//!
//! - Memory that a call is the first to write, such as its result, gets huge pages from the start
//!   (`MADV_HUGEPAGE`).
//! - Memory that XLA has written, such as the state of a loop, is moved into huge pages (`MADV_COLLAPSE`,
//!   Linux 6.1). Moving takes twice as long as copying, so only memory that calls use repeatedly is moved.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::lock;

/// Least bytes of an array that is worth huge pages. NumPy has the same limit.
const LARGE: usize = 4 << 20;

const HUGE_PAGE: usize = 2 << 20;

static IS_ENABLED: AtomicBool = AtomicBool::new(true);

/// Sets whether the kernel is asked for huge pages.
pub fn set_huge_pages(enable: bool) {
    IS_ENABLED.store(enable, Ordering::Relaxed);
}

/// Asks the kernel for huge pages for new memory, if that is large.
#[inline(always)]
pub(super) fn advise(address: *mut c_void, bytes: usize) {
    if bytes >= LARGE {
        ask(&huge_pages_in(address, bytes), MADV_HUGEPAGE);
    }
}

/// Notes that a call uses an array.
#[inline(always)]
pub fn see(address: *mut c_void, bytes: usize) {
    if bytes >= LARGE {
        see_large(address, bytes);
    }
}

/// Notes that a call writes an array, which may be new memory.
#[inline(always)]
pub fn see_result(address: *mut c_void, bytes: usize) {
    if bytes >= LARGE {
        advise(address, bytes);
        see_large(address, bytes);
    }
}

#[cold]
fn see_large(address: *mut c_void, bytes: usize) {
    let within = huge_pages_in(address, bytes);
    if lock(&SEEN).is_worth_moving(&within) {
        let around = huge_pages_around(address, bytes);
        ask(&within, MADV_COLLAPSE);
        // The kernel gives up at a page that is not wholly in one mapping, as those at the edges may be.
        let edges = [around.start..within.start, within.end..around.end];
        for pages in edges.into_iter().filter(is_in_memory) {
            ask(&pages, MADV_COLLAPSE);
        }
    }
}

/// Arrays that calls have used, by the huge pages in them. A new one replaces the oldest.
struct Seen {
    arrays: [(Range<usize>, u32); 64],
    oldest: usize,
}

static SEEN: Mutex<Seen> = Mutex::new(Seen::new());

impl Seen {
    const fn new() -> Self {
        Self {
            arrays: [const { (0..0, 0) }; 64],
            oldest: 0,
        }
    }

    /// Counts the uses of an array, and says whether to move it now: at the fourth use, which is the second
    /// call that works in place, and at each 64th use after that, as the allocator may have got new pages
    /// in between. A request for memory that has huge pages already takes a microsecond.
    fn is_worth_moving(&mut self, pages: &Range<usize>) -> bool {
        if let Some((_, times)) = self.arrays.iter_mut().find(|(seen, _)| seen == pages) {
            *times = times.wrapping_add(1);
            return *times % 64 == 4;
        }
        self.arrays[self.oldest] = (pages.clone(), 1);
        self.oldest = (self.oldest + 1) % self.arrays.len();
        false
    }
}

/// The addresses of the huge pages that lie within an array.
fn huge_pages_in(address: *mut c_void, bytes: usize) -> Range<usize> {
    let start = address.addr();
    start.next_multiple_of(HUGE_PAGE)..(start + bytes) / HUGE_PAGE * HUGE_PAGE
}

/// The addresses of all huge pages that an array is in, some of which it may share with its neighbors.
fn huge_pages_around(address: *mut c_void, bytes: usize) -> Range<usize> {
    let start = address.addr();
    start / HUGE_PAGE * HUGE_PAGE..(start + bytes).next_multiple_of(HUGE_PAGE)
}

#[cfg(target_os = "linux")]
const MADV_HUGEPAGE: c_int = libc::MADV_HUGEPAGE;
/// `linux/mman.h`. The C libraries that we support may be older than it.
#[cfg(target_os = "linux")]
const MADV_COLLAPSE: c_int = 25;

#[cfg(target_os = "linux")]
fn ask(pages: &Range<usize>, advice: c_int) {
    // Miri can't be advised.
    if !pages.is_empty() && !cfg!(miri) && IS_ENABLED.load(Ordering::Relaxed) {
        // SAFETY: the advice changes no content, and whether it is followed makes a difference to speed, and
        // to the memory that the array itself takes before it is written.
        unsafe { libc::madvise(pages.start as *mut c_void, pages.len(), advice) };
    }
}

/// Whether all pages of an edge have memory. Moving gives memory to those that have none, which the array's
/// neighbor may never write.
#[cfg(target_os = "linux")]
fn is_in_memory(pages: &Range<usize>) -> bool {
    const PAGES: usize = HUGE_PAGE / 4096; // or less, and larger ones
    let mut each = [1; PAGES];
    let start = pages.start as *mut c_void;
    // SAFETY: there is room for each page. An address that is not mapped is an error.
    pages.len() <= HUGE_PAGE
        && unsafe { libc::mincore(start, pages.len(), each.as_mut_ptr()) } == 0
        && each.iter().all(|page| page & 1 != 0)
}

/// Other systems can't be asked.
#[cfg(not(target_os = "linux"))]
const MADV_HUGEPAGE: c_int = 0;
#[cfg(not(target_os = "linux"))]
const MADV_COLLAPSE: c_int = 0;

#[cfg(not(target_os = "linux"))]
fn ask(_: &Range<usize>, _: c_int) {}

#[cfg(not(target_os = "linux"))]
fn is_in_memory(_: &Range<usize>) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn memory_that_comes_back_is_moved() {
        let mut arrays = Seen::new();
        let mut is_moved = || arrays.is_worth_moving(&(HUGE_PAGE..3 * HUGE_PAGE));
        let moved: Vec<_> = (1..=140).filter(|_| is_moved()).collect();
        assert_eq!(moved, [4, 68, 132]);
    }

    #[test]
    fn memory_that_is_not_seen_any_more_is_forgotten() {
        let mut arrays = Seen::new();
        let pages = |n: usize| n * HUGE_PAGE..(n + 1) * HUGE_PAGE;
        for _ in 0..5 {
            // One more than there is room for.
            assert!((1..=65).all(|n| !arrays.is_worth_moving(&pages(n))));
        }
        assert!(!arrays.is_worth_moving(&pages(65)));
        assert_eq!(
            (0..65)
                .filter(|_| arrays.is_worth_moving(&pages(65)))
                .count(),
            1
        );
    }

    #[test]
    fn arrays_have_pages_in_and_around_them() {
        let pages = |start: usize, bytes| huge_pages_in(start as *mut c_void, bytes);
        assert_eq!(pages(HUGE_PAGE, LARGE), HUGE_PAGE..3 * HUGE_PAGE);
        assert_eq!(pages(HUGE_PAGE + 64, LARGE), 2 * HUGE_PAGE..3 * HUGE_PAGE);
        assert!(pages(64, HUGE_PAGE).is_empty());
        let around = huge_pages_around((HUGE_PAGE - 64) as *mut c_void, LARGE);
        assert_eq!(around, 0..3 * HUGE_PAGE);
    }

    /// Number of bytes in huge pages, of all mappings that begin at these addresses.
    #[cfg(target_os = "linux")]
    fn bytes_in_huge_pages(addresses: &Range<usize>) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let (mut is_inside, mut kilobytes) = (false, 0);
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let (name, value) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            if let Some((start, _)) = name.split_once('-') {
                let start = usize::from_str_radix(start, 16);
                is_inside = start.is_ok_and(|start| addresses.contains(&start));
            } else if is_inside && name == "AnonHugePages:" {
                kilobytes += value.parse().unwrap_or(0);
            }
        }
        kilobytes << 10
    }

    #[cfg(target_os = "linux")]
    const PAGE: usize = 4096;

    /// A new mapping, whose pages nobody has touched.
    #[cfg(target_os = "linux")]
    fn mapped(bytes: usize) -> *mut c_void {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: it takes the place of no other mapping.
        let mapping = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(mapping, libc::MAP_FAILED);
        mapping
    }

    /// Fails if memory beside an array, which its owner has not written, takes any.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn neighbors_are_left_alone() {
        const HALF: usize = HUGE_PAGE / 2;
        let mapping = mapped(5 * HUGE_PAGE);
        let neighbor = huge_pages_in(mapping, 5 * HUGE_PAGE).start as *mut c_void;
        let array = neighbor.wrapping_byte_add(HALF);
        // SAFETY: within the mapping, which nobody else has.
        unsafe { array.cast::<u8>().write_bytes(7, 3 * HUGE_PAGE - HALF) };
        (0..4).for_each(|_| see_result(array, 3 * HUGE_PAGE - HALF));
        let mut pages = [0; HALF / PAGE];
        // SAFETY: there is a byte for each page, or for more.
        let code = unsafe { libc::mincore(neighbor, HALF, pages.as_mut_ptr()) };
        assert_eq!((code, pages), (0, [0; HALF / PAGE]));
        // SAFETY: mapped above, and not used after this.
        unsafe { libc::munmap(mapping, 5 * HUGE_PAGE) };
    }

    /// Fails if the pages are not moved, where the kernel can do that, or lose their content.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn an_array_of_small_pages_gets_huge_ones() {
        const BYTES: usize = 4 * HUGE_PAGE;
        let mapping = mapped(PAGE + BYTES);
        // The kernel has mappings begin at huge pages: without its first page, this one does not.
        let start = mapping.wrapping_byte_add(PAGE);
        // SAFETY: mapped above.
        unsafe { libc::munmap(mapping, PAGE) };
        // SAFETY: the mapping has that many bytes, and nobody else has it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), BYTES) };
        bytes
            .iter_mut()
            .enumerate()
            .for_each(|(n, byte)| *byte = (n / PAGE) as u8);
        let first = huge_pages_in(start, BYTES).start as *mut c_void;
        // SAFETY: the first of the pages in the mapping.
        unsafe { libc::madvise(first, HUGE_PAGE, MADV_COLLAPSE) };
        let moved = || bytes_in_huge_pages(&(start.addr()..start.addr() + BYTES));
        // Its result says nothing: QEMU ignores the advice, too.
        let can_move = moved() > 0;
        (0..4).for_each(|_| see_result(start, BYTES));
        if can_move {
            assert!(moved() >= 3 * HUGE_PAGE, "{} bytes in huge pages", moved());
        }
        assert!(
            bytes
                .iter()
                .enumerate()
                .all(|(n, byte)| *byte == (n / PAGE) as u8)
        );
        // SAFETY: mapped above, and not used after this.
        unsafe { libc::munmap(start, BYTES) };
    }
}
