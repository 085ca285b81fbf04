//! Device memory, page-locked host memory, and the copies between the two.

use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::ptr::{self, null_mut};
use std::sync::Arc;

use crate::state::{INVALID_VALUE, Locked, OUT_OF_MEMORY, Outcome, State, lock, wait_while};
use crate::stream::{Command, HostAccess, stream};

const NEW_DEVICE_MEMORY: u8 = 0xCD;
const NEW_HOST_MEMORY: u8 = 0xAB;

/// Device memory: a file in memory that is mapped twice.
pub struct Allocation {
    bytes: usize,
    /// The view that the caller has the address of.
    address: usize,
    /// The view through which this driver reads and writes.
    hidden: usize,
}

impl Allocation {
    /// `protection` is what the host may do with the memory.
    pub fn new(bytes: usize, protection: c_int) -> Option<Self> {
        let length = libc::off_t::try_from(mapped(bytes)).ok()?;
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"device memory".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return None;
        }
        // SAFETY: `file` is open and nobody else's.
        let resized = unsafe { libc::ftruncate(file, length) } == 0;
        let view = |protection| match resized {
            true => map(bytes, protection, libc::MAP_SHARED, file),
            false => None,
        };
        let hidden = view(libc::PROT_READ | libc::PROT_WRITE);
        let address = view(protection);
        // SAFETY: `file` is open, and the views stay without it.
        unsafe { libc::close(file) };
        let (Some(hidden), Some(address)) = (hidden, address) else {
            [hidden, address]
                .into_iter()
                .flatten()
                .for_each(|view| unmap(view, bytes));
            return None;
        };
        // SAFETY: the view was just mapped, for at least `bytes`.
        unsafe { ptr::write_bytes(hidden as *mut u8, NEW_DEVICE_MEMORY, bytes) };
        Some(Self {
            bytes,
            address,
            hidden,
        })
    }

    pub fn address(&self) -> usize {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        unmap(self.address, self.bytes);
        unmap(self.hidden, self.bytes);
    }
}

/// A part of an allocation, which it keeps mapped.
pub struct Span {
    allocation: Arc<Allocation>,
    offset: usize,
    bytes: usize,
}

impl Span {
    pub fn pointer(&self) -> *mut u8 {
        (self.allocation.hidden + self.offset) as *mut u8
    }

    /// # Safety
    /// `host` must be readable for the span's bytes.
    pub unsafe fn write(&self, host: *const u8) {
        // SAFETY: the span is within its allocation, `host` as the caller promises.
        unsafe { ptr::copy(host, self.pointer(), self.bytes) }
    }

    /// # Safety
    /// `host` must be writable for the span's bytes.
    pub unsafe fn read(&self, host: *mut u8) {
        // SAFETY: the span is within its allocation, `host` as the caller promises.
        unsafe { ptr::copy(self.pointer(), host, self.bytes) }
    }
}

/// The device memory at `address`; an error when no allocation has all of it.
pub fn span(state: &mut State, address: usize, bytes: usize) -> Result<Span, c_int> {
    if let Some((&start, allocation)) = state.allocations.range(..=address).next_back() {
        let offset = address - start;
        if offset <= allocation.bytes && bytes <= allocation.bytes - offset {
            let allocation = Arc::clone(allocation);
            return Ok(Span {
                allocation,
                offset,
                bytes,
            });
        }
    }
    Err(state.violation(&format!(
        "{bytes} bytes at {address:#x} are not within a device allocation"
    )))
}

pub fn host_alloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) -> Outcome {
    if address.is_null() || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let block = map(bytes, libc::PROT_READ | libc::PROT_WRITE, private, -1).ok_or(OUT_OF_MEMORY)?;
    // SAFETY: the block was just mapped, and `address` is the caller's to be written.
    unsafe {
        ptr::write_bytes(block as *mut u8, NEW_HOST_MEMORY, bytes);
        *address = block as *mut c_void;
    }
    let mut state = lock();
    state.host_blocks.insert(block, bytes);
    state.counts.peak_host_bytes = state.counts.peak_host_bytes.max(state.host_bytes());
    Ok(())
}

/// Waits for the copies that use the block, as CUDA does; but who relies on it is slow.
pub fn host_free(address: *mut c_void) -> Outcome {
    let mut state = lock();
    let start = address as usize;
    let bytes = state.host_blocks.remove(&start).ok_or(INVALID_VALUE)?;
    let block = start..start + bytes;
    let in_use = |state: &State| state.copies().any(|(_, copy)| copy.overlaps(&block));
    if in_use(&state) {
        state.violation(&format!(
            "a host block at {start:#x} was freed before its copies ended"
        ));
        state = wait_while(state, in_use);
    }
    drop(state);
    unmap(start, bytes);
    Ok(())
}

pub fn copy_down(host: *mut c_void, device: usize, bytes: usize, on: *mut c_void) -> Outcome {
    let mut state = lock();
    state.counts.bytes_down = state.counts.bytes_down.saturating_add(bytes as u64);
    copy(state, host as usize, device, bytes, on, true)
}

pub fn copy_up(device: usize, host: *const c_void, bytes: usize, on: *mut c_void) -> Outcome {
    let mut state = lock();
    state.counts.bytes_up = state.counts.bytes_up.saturating_add(bytes as u64);
    copy(state, host as usize, device, bytes, on, false)
}

fn copy(
    mut state: Locked,
    host: usize,
    device: usize,
    bytes: usize,
    on: *mut c_void,
    writes: bool,
) -> Outcome {
    stream(&mut state, on)?;
    if bytes == 0 {
        return Ok(());
    }
    let block = state.host_blocks.range(..=host).next_back();
    if !block
        .is_some_and(|(start, length)| host - start <= *length && bytes <= length - (host - start))
    {
        return Err(state.violation(&format!(
            "{bytes} bytes at {host:#x} are not within page-locked memory"
        )));
    }
    let device = span(&mut state, device, bytes)?;
    let access = HostAccess {
        range: host..host + bytes,
        writes,
    };
    let unordered = state.copies().any(|(other, copy)| {
        other != on as usize && copy.overlaps(&access.range) && (writes || copy.writes)
    });
    if unordered {
        return Err(state.violation(&format!(
            "copies on two streams use the same host memory at {host:#x}, and nothing orders them"
        )));
    }
    let work = move || {
        // SAFETY: the host bytes are within a block, which is not unmapped before this is done.
        unsafe {
            match writes {
                true => device.read(host as *mut u8),
                false => device.write(host as *const u8),
            }
        }
    };
    stream(&mut state, on)?.push(Command::new(work).uses(access));
    Ok(())
}

impl State {
    /// The copies that are not finished, each with its stream.
    fn copies(&self) -> impl Iterator<Item = (usize, &HostAccess)> {
        self.streams
            .iter()
            .flat_map(|(&stream, queue)| queue.copies().map(move |copy| (stream, copy)))
    }
}

impl HostAccess {
    fn overlaps(&self, other: &Range<usize>) -> bool {
        self.range.start < other.end && other.start < self.range.end
    }
}

/// No mapping is empty, so an allocation of zero bytes has an address too.
fn mapped(bytes: usize) -> usize {
    bytes.max(1)
}

fn map(bytes: usize, protection: c_int, flags: c_int, file: c_int) -> Option<usize> {
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let view = unsafe { libc::mmap(null_mut(), mapped(bytes), protection, flags, file, 0) };
    (view != libc::MAP_FAILED).then_some(view as usize)
}

fn unmap(view: usize, bytes: usize) {
    // SAFETY: the view came from `map` with these bytes, and its owner gives it up.
    unsafe { libc::munmap(view as *mut c_void, mapped(bytes)) };
}
