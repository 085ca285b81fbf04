//! Device memory, page-locked host memory, and the copies between the two.

use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::ptr::{self, null_mut};
use std::sync::Arc;

use crate::context::{device_of, total_memory};
use crate::copies;
use crate::driver::{current_context, give, setting};
use crate::state::{
    INVALID_VALUE, Locked, NOT_SUPPORTED, OUT_OF_MEMORY, Outcome, State, lock, wait_while,
};
use crate::stream::{Command, HostAccess, stream};

const NEW_DEVICE_MEMORY: u8 = 0xCD;
const NEW_HOST_MEMORY: u8 = 0xAB;
/// Largest number of bytes that a kernel reads at once. It may read the last ones behind an array.
const LONGEST_LOAD: usize = 16;
/// Fills page-locked memory from the time a copy to it is queued until it arrives.
const NOT_ARRIVED: u8 = 0xEF;

/// Memory of the device, with the view through which this driver reads and writes.
pub struct Physical {
    pub bytes: usize,
    hidden: usize,
}

impl Physical {
    pub fn new(bytes: usize) -> Option<Self> {
        let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let hidden = map(bytes, libc::PROT_READ | libc::PROT_WRITE, shared)?;
        // SAFETY: the view was just mapped, for at least `bytes`.
        unsafe { ptr::write_bytes(hidden as *mut u8, NEW_DEVICE_MEMORY, bytes) };
        Some(Self { bytes, hidden })
    }

    /// Maps a part once more: at `to` if that is not 0, else where there is room.
    fn view(&self, offset: usize, bytes: usize, to: usize, protection: c_int) -> Option<usize> {
        let fixed = if to == 0 { 0 } else { libc::MREMAP_FIXED };
        let flags = libc::MREMAP_MAYMOVE | fixed;
        let part = (self.hidden + offset) as *mut c_void;
        let (to, length) = (to as *mut c_void, mapped(bytes));
        // SAFETY: a shared mapping is mapped again when its old size is 0. What is at `to` is the
        // caller's to be replaced.
        let view = unsafe { libc::mremap(part, 0, length, flags, to) };
        if view == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the view is new, and nobody uses it.
        let outcome = unsafe { libc::mprotect(view, length, protection) };
        if outcome != 0 {
            unmap(view as usize, bytes);
            return None;
        }
        Some(view as usize)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        unmap(self.hidden, self.bytes);
    }
}

/// Device memory that has an address.
pub struct Allocation {
    physical: Arc<Physical>,
    offset: usize,
    bytes: usize,
    /// The view that the caller has the address of.
    address: usize,
    /// Whether the addresses stay reserved when the memory goes.
    is_reserved: bool,
}

impl Allocation {
    /// `protection` is what the host may do with the memory.
    pub fn new(bytes: usize, protection: c_int) -> Option<Self> {
        let physical = Physical::new(bytes)?;
        let address = physical.view(0, bytes, 0, protection)?;
        Some(Self {
            physical: Arc::new(physical),
            offset: 0,
            bytes,
            address,
            is_reserved: false,
        })
    }

    /// A part of some memory at addresses that are reserved.
    pub fn at(
        state: &State,
        address: usize,
        physical: Arc<Physical>,
        offset: usize,
        bytes: usize,
    ) -> Option<Self> {
        physical.view(offset, bytes, address, protection(state))?;
        Some(Self {
            physical,
            offset,
            bytes,
            address,
            is_reserved: true,
        })
    }

    pub fn address(&self) -> usize {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_reserved(&self) -> bool {
        self.is_reserved
    }

    pub fn is_of(&self, physical: &Arc<Physical>) -> bool {
        Arc::ptr_eq(&self.physical, physical)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        match self.is_reserved {
            true => close(self.address, self.bytes),
            false => unmap(self.address, self.bytes),
        }
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
        (self.allocation.physical.hidden + self.allocation.offset + self.offset) as *mut u8
    }

    /// Where this driver has some of the bytes, by their address; None if they are not in here.
    pub fn at(&self, address: usize, bytes: usize) -> Option<*mut u8> {
        let start = self.allocation.address + self.offset;
        let offset = address.checked_sub(start)?;
        let is_within = offset <= self.bytes && bytes <= self.bytes - offset;
        is_within.then(|| self.pointer().wrapping_add(offset))
    }

    /// Repeats a pattern, whose length divides the span's.
    pub fn fill(&self, pattern: &[u8]) {
        for start in (0..self.bytes).step_by(pattern.len()) {
            // SAFETY: the span is within its allocation, and has room for one more pattern.
            unsafe {
                self.pointer()
                    .add(start)
                    .copy_from(pattern.as_ptr(), pattern.len());
            }
        }
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
    let block = map(bytes, libc::PROT_READ | libc::PROT_WRITE, private).ok_or(OUT_OF_MEMORY)?;
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
    if !state.is_page_locked(host, bytes) {
        return copies::copy_pageable(state, host, device, bytes, on, writes);
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
    if writes && !state.copies().any(|(_, copy)| copy.overlaps(&access.range)) {
        // SAFETY: the host bytes are page-locked, and no copy uses them.
        unsafe { ptr::write_bytes(host as *mut u8, NOT_ARRIVED, bytes) };
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
    fn is_page_locked(&self, host: usize, bytes: usize) -> bool {
        [&self.host_blocks, &self.registered].iter().any(|blocks| {
            let block = blocks.range(..=host).next_back();
            block.is_some_and(|(start, length)| {
                host - start <= *length && bytes <= length - (host - start)
            })
        })
    }

    /// The copies that are not finished, each with its stream.
    fn copies(&self) -> impl Iterator<Item = (usize, &HostAccess)> {
        self.streams
            .iter()
            .flat_map(|(&stream, queue)| queue.copies().map(move |copy| (stream, copy)))
    }
}

pub fn alloc(address: *mut usize, bytes: usize) -> Outcome {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    give(address, new_device_memory(bytes)?)
}

/// The host's access to device memory: none, unless it is open.
fn protection(state: &State) -> c_int {
    match state
        .is_open
        .unwrap_or_else(|| setting("STAND_IN_OPEN", 0) != 0)
    {
        true => libc::PROT_READ | libc::PROT_WRITE,
        false => libc::PROT_NONE,
    }
}

/// Device memory; an error when the device is full.
pub fn new_device_memory(bytes: usize) -> Result<usize, c_int> {
    let bytes = bytes.next_multiple_of(LONGEST_LOAD);
    let mut state = lock();
    if total_memory().saturating_sub(state.device_bytes()) < bytes {
        return Err(OUT_OF_MEMORY);
    }
    let allocation = Allocation::new(bytes, protection(&state)).ok_or(OUT_OF_MEMORY)?;
    let address = allocation.address();
    state.allocations.insert(address, Arc::new(allocation));
    Ok(address)
}

/// Memory that both the host and the device use has no stand-in.
pub fn alloc_managed(_address: *mut usize, _bytes: usize, _flags: c_uint) -> Outcome {
    Err(NOT_SUPPORTED)
}

/// Waits for the commands that use the memory, as CUDA does.
pub fn free(address: usize) -> Outcome {
    if address == 0 {
        return Ok(());
    }
    let mut state = lock();
    let allocation = state.allocations.get(&address);
    if allocation.is_none_or(|allocation| allocation.is_reserved) {
        return Err(INVALID_VALUE);
    }
    let allocation = state.allocations.remove(&address).ok_or(INVALID_VALUE)?;
    drop(wait_while(state, |_| Arc::strong_count(&allocation) > 1));
    Ok(())
}

/// The allocation that an address is in.
pub fn around(state: &State, address: usize) -> Option<(usize, &Arc<Allocation>)> {
    let (start, allocation) = state.allocations.range(..=address).next_back()?;
    (address - start < allocation.bytes.max(1)).then_some((*start, allocation))
}

/// All of the allocation that an address is in.
pub fn whole(state: &State, address: usize) -> Option<Span> {
    let (_, allocation) = around(state, address)?;
    Some(Span {
        allocation: Arc::clone(allocation),
        offset: 0,
        bytes: allocation.bytes,
    })
}

pub fn is_on_device(state: &State, address: usize) -> bool {
    around(state, address).is_some()
}

pub fn address_range(start: *mut usize, bytes: *mut usize, address: usize) -> Outcome {
    let state = lock();
    let (begin, allocation) = around(&state, address).ok_or(INVALID_VALUE)?;
    if !start.is_null() {
        give(start, begin)?;
    }
    match bytes.is_null() {
        true => Ok(()),
        false => give(bytes, allocation.bytes),
    }
}

/// CUDA's numbers of what can be asked about an address.
const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const DEVICE_POINTER: c_int = 3;
const HOST_POINTER: c_int = 4;
const SYNC_MEMOPS: c_int = 6;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const IS_LEGACY_IPC_CAPABLE: c_int = 10;
const POOL: c_int = 17;

const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

pub fn pointer_attribute(value: *mut c_void, attribute: c_int, address: usize) -> Outcome {
    let state = lock();
    let is_on_device = around(&state, address).is_some();
    if !is_on_device && !state.is_page_locked(address, 1) {
        return Err(INVALID_VALUE);
    }
    let (pool, is_mapped) = around(&state, address).map_or((None, false), |(start, memory)| {
        let is_mapped = memory.is_reserved() || state.mapped.contains(&start);
        (state.pooled.get(&start).copied(), is_mapped)
    });
    let context = current_context();
    let has_context = pool.is_none() && !is_mapped;
    match attribute {
        // Memory of a pool belongs to no context, nor does memory that was mapped.
        CONTEXT if !has_context => give(value.cast(), 0_usize),
        CONTEXT => give(value.cast(), context),
        MEMORY_TYPE => give(value.cast(), if is_on_device { DEVICE } else { HOST }),
        DEVICE_POINTER => give(value.cast(), address),
        HOST_POINTER if !is_on_device => give(value.cast(), address),
        SYNC_MEMOPS | IS_MANAGED => give(value.cast(), 0 as c_uint),
        DEVICE_ORDINAL => give(value.cast(), device_of(context)),
        // CUDA's is a bool.
        IS_LEGACY_IPC_CAPABLE => give(value.cast(), u8::from(is_on_device && has_context)),
        POOL => give(value.cast(), pool.unwrap_or(0)),
        _ => Err(INVALID_VALUE),
    }
}

/// Page-locks memory of the caller's.
pub fn register(address: *mut c_void, bytes: usize, _flags: c_uint) -> Outcome {
    if address.is_null() || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    lock().registered.insert(address as usize, bytes);
    Ok(())
}

pub fn unregister(address: *mut c_void) -> Outcome {
    let registered = lock().registered.remove(&(address as usize));
    registered.map(drop).ok_or(INVALID_VALUE)
}

/// Addresses are the same for both.
pub fn host_pointer(device: *mut usize, address: *mut c_void, _flags: c_uint) -> Outcome {
    match lock().is_page_locked(address as usize, 1) {
        true => give(device, address as usize),
        false => Err(INVALID_VALUE),
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

fn map(bytes: usize, protection: c_int, flags: c_int) -> Option<usize> {
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let view = unsafe { libc::mmap(null_mut(), mapped(bytes), protection, flags, -1, 0) };
    (view != libc::MAP_FAILED).then_some(view as usize)
}

/// Reserves addresses, behind which there is nothing.
pub fn reserve(bytes: usize) -> Option<usize> {
    map(
        bytes,
        libc::PROT_NONE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    )
}

/// Takes away what is behind reserved addresses.
fn close(address: usize, bytes: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let view = address as *mut c_void;
    // SAFETY: the addresses are reserved, and their owner gives up what is behind them.
    unsafe { libc::mmap(view, mapped(bytes), libc::PROT_NONE, flags, -1, 0) };
}

pub fn unmap(view: usize, bytes: usize) {
    // SAFETY: the view came from `map` with these bytes, and its owner gives it up.
    unsafe { libc::munmap(view as *mut c_void, mapped(bytes)) };
}
