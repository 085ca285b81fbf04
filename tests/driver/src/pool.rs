//! Pools: memory that is allocated and freed in the order of a stream.

use std::ffi::{c_int, c_void};

use crate::driver::give;
use crate::memory::new_device_memory;
use crate::state::{INVALID_HANDLE, INVALID_VALUE, Outcome, lock};
use crate::stream::{Command, stream};

/// The pool that a device has from the start: a handle like no other.
pub const DEFAULT: usize = 0xD0 << 48;

pub fn default_pool(pool: *mut *mut c_void, _of: c_int) -> Outcome {
    give(pool, DEFAULT as *mut c_void)
}

pub fn pool_create(pool: *mut *mut c_void, _properties: *const c_void) -> Outcome {
    let (handle, _) = lock().new_handle();
    give(pool, handle as *mut c_void)?;
    lock().pools.insert(handle);
    Ok(())
}

pub fn pool_destroy(pool: *mut c_void) -> Outcome {
    match lock().pools.remove(&(pool as usize)) {
        true => Ok(()),
        false => Err(INVALID_HANDLE),
    }
}

fn check(pool: *mut c_void) -> Outcome {
    let pool = pool as usize;
    match pool == DEFAULT || lock().pools.contains(&pool) {
        true => Ok(()),
        false => Err(INVALID_HANDLE),
    }
}

/// Nothing is held back, so there is nothing to trim.
pub fn pool_trim(pool: *mut c_void, _bytes: usize) -> Outcome {
    check(pool)
}

/// Attributes are about how memory is used again, which it never is here.
pub fn set_pool_attribute(pool: *mut c_void, _attribute: c_int, _value: *mut c_void) -> Outcome {
    check(pool)
}

/// CUDA's numbers of attributes: whether memory is used again, what is held back, how much there
/// is.
const REUSE_FIRST: c_int = 1;
const REUSE_LAST: c_int = 3;
const RELEASE_THRESHOLD: c_int = 4;
const RESERVED: c_int = 5;
const USED_HIGH: c_int = 8;

pub fn pool_attribute(pool: *mut c_void, attribute: c_int, value: *mut u64) -> Outcome {
    check(pool)?;
    match attribute {
        REUSE_FIRST..=REUSE_LAST => return give(value.cast::<c_int>(), 0),
        RELEASE_THRESHOLD => return give(value, 0),
        RESERVED..=USED_HIGH => {}
        _ => return Err(INVALID_VALUE),
    }
    let state = lock();
    let in_pool = |(address, _): &(&usize, _)| state.pooled.get(address) == Some(&(pool as usize));
    let bytes = state.allocations.iter().filter(in_pool);
    give(value, bytes.map(|(_, memory)| memory.bytes() as u64).sum())
}

pub fn pool_access(pool: *mut c_void, _map: *const c_void, _count: usize) -> Outcome {
    check(pool)
}

pub fn alloc_later(address: *mut usize, bytes: usize, on: *mut c_void) -> Outcome {
    alloc_later_from(address, bytes, DEFAULT as *mut c_void, on)
}

/// The memory is there at once, which no caller can tell from memory that comes later.
pub fn alloc_later_from(
    address: *mut usize,
    bytes: usize,
    pool: *mut c_void,
    on: *mut c_void,
) -> Outcome {
    check(pool)?;
    stream(&mut lock(), on)?;
    let memory = new_device_memory(bytes)?;
    lock().pooled.insert(memory, pool as usize);
    give(address, memory)
}

/// From now on the address is none, and when the stream has come so far, the memory is gone.
pub fn free_later(address: usize, on: *mut c_void) -> Outcome {
    let mut state = lock();
    stream(&mut state, on)?;
    let memory = state.allocations.remove(&address).ok_or(INVALID_VALUE)?;
    state.pooled.remove(&address);
    stream(&mut state, on)?.push(Command::new(move || drop(memory)));
    Ok(())
}
