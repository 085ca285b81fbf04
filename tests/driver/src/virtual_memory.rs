//! Memory without an address, addresses without memory, and how the two come together.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::context::total_memory;
use crate::driver::give;
use crate::memory::{Allocation, Physical, around, reserve, unmap as unmap_addresses};
use crate::state::{INVALID_VALUE, OUT_OF_MEMORY, Outcome, lock};

/// A page: with the 2 MiB of a real device, each array would need as much.
const GRANULARITY: usize = 4096;

pub fn granularity(bytes: *mut usize, _properties: *const c_void, _option: c_int) -> Outcome {
    give(bytes, GRANULARITY)
}

fn is_whole(bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULARITY)
}

/// Handles for other processes may be asked for; the function that gives them is not there.
pub fn create(
    handle: *mut usize,
    bytes: usize,
    _properties: *const c_void,
    _flags: u64,
) -> Outcome {
    if !is_whole(bytes) {
        return Err(INVALID_VALUE);
    }
    if total_memory().saturating_sub(lock().device_bytes()) < bytes {
        return Err(OUT_OF_MEMORY);
    }
    let physical = Physical::new(bytes).ok_or(OUT_OF_MEMORY)?;
    let mut state = lock();
    let (new, _) = state.new_handle();
    give(handle, new)?;
    state.physical.insert(new, (Arc::new(physical), 1));
    Ok(())
}

pub fn retain(handle: *mut usize, address: usize) -> Outcome {
    let mut state = lock();
    let (_, allocation) = around(&state, address).ok_or(INVALID_VALUE)?;
    let allocation = Arc::clone(allocation);
    let mut memories = state.physical.iter_mut();
    let (known, memory) = memories
        .find(|(_, memory)| allocation.is_of(&memory.0))
        .ok_or(INVALID_VALUE)?;
    give(handle, *known)?;
    memory.1 += 1;
    Ok(())
}

/// Releases a handle; mapped memory stays until it is unmapped.
pub fn release(handle: usize) -> Outcome {
    let mut state = lock();
    let (_, references) = state.physical.get_mut(&handle).ok_or(INVALID_VALUE)?;
    *references -= 1;
    if *references == 0 {
        state.physical.remove(&handle);
    }
    Ok(())
}

pub fn address_reserve(
    address: *mut usize,
    bytes: usize,
    _alignment: usize,
    _at: usize,
    _flags: u64,
) -> Outcome {
    if !is_whole(bytes) {
        return Err(INVALID_VALUE);
    }
    let start = reserve(bytes).ok_or(OUT_OF_MEMORY)?;
    give(address, start)?;
    lock().reserved.insert(start, bytes);
    Ok(())
}

pub fn address_free(address: usize, bytes: usize) -> Outcome {
    let mut state = lock();
    if state.reserved.get(&address) != Some(&bytes) {
        return Err(INVALID_VALUE);
    }
    if state
        .allocations
        .range(address..address + bytes)
        .next()
        .is_some()
    {
        return Err(state.violation(&format!("addresses from {address:#x} on were freed mapped")));
    }
    state.reserved.remove(&address);
    unmap_addresses(address, bytes);
    Ok(())
}

pub fn map(address: usize, bytes: usize, offset: usize, handle: usize, _flags: u64) -> Outcome {
    let mut state = lock();
    let reserved = state.reserved.range(..=address).next_back();
    let is_reserved = reserved.is_some_and(|(start, length)| address + bytes <= start + length);
    let is_free = state
        .allocations
        .range(address..address + bytes)
        .next()
        .is_none();
    let (physical, _) = state.physical.get(&handle).ok_or(INVALID_VALUE)?;
    if !is_whole(bytes) || !is_reserved || !is_free || offset + bytes > physical.bytes {
        return Err(INVALID_VALUE);
    }
    let physical = Arc::clone(physical);
    let allocation = Allocation::at(&state, address, physical, offset, bytes);
    let allocation = allocation.ok_or(OUT_OF_MEMORY)?;
    state.allocations.insert(address, Arc::new(allocation));
    Ok(())
}

/// Takes the memory away at once, unlike `cuMemFree`: the caller has to wait for the streams.
pub fn unmap(address: usize, bytes: usize) -> Outcome {
    let mut state = lock();
    let range = address..address + bytes;
    let mapped: Vec<usize> = state
        .allocations
        .range(range)
        .map(|(start, _)| *start)
        .collect();
    if mapped.is_empty() {
        return Err(INVALID_VALUE);
    }
    for start in mapped {
        let allocation = state.allocations.remove(&start);
        if allocation.is_some_and(|allocation| Arc::strong_count(&allocation) > 1) {
            state.violation(&format!(
                "memory at {start:#x} was unmapped before its commands ended"
            ));
        }
    }
    Ok(())
}

/// A device has all access from the start.
pub fn set_access(address: usize, _bytes: usize, _access: *const c_void, _count: usize) -> Outcome {
    around(&lock(), address).map(drop).ok_or(INVALID_VALUE)
}
