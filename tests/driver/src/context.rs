//! The contexts of devices, and what the driver says of a stream or an address.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::control::{stand_in_alloc, stand_in_alloc_open};
use crate::driver::{context, devices, give};
use crate::state::{INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, Outcome, lock};
use crate::stream::stream;

/// How often the primary context of each device was retained, and not released.
static SHARES: Mutex<BTreeMap<c_int, usize>> = Mutex::new(BTreeMap::new());
/// The memory that no plain allocation is, by its first address and its end.
static KINDS: Mutex<BTreeMap<usize, (usize, Kind)>> = Mutex::new(BTreeMap::new());

fn locked<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_device(device: c_int) -> Outcome {
    match (0..devices()).contains(&device) {
        true => Ok(()),
        false => Err(INVALID_DEVICE),
    }
}

/// A device's handle is its number.
pub fn device_get(device: *mut c_int, ordinal: c_int) -> Outcome {
    check_device(ordinal)?;
    give(device, ordinal)
}

/// The primary context of a device has the device's number.
pub fn primary_retain(place: *mut *mut c_void, device: c_int) -> Outcome {
    check_device(device)?;
    let primary = context(device as usize).ok_or(INVALID_DEVICE)?;
    give(place, primary as *mut c_void)?;
    *locked(&SHARES).entry(device).or_default() += 1;
    Ok(())
}

pub fn primary_release(device: c_int) -> Outcome {
    check_device(device)?;
    let mut shares = locked(&SHARES);
    let count = shares.get_mut(&device).filter(|count| **count > 0);
    *count.ok_or(INVALID_CONTEXT)? -= 1;
    Ok(())
}

pub fn primary_state(device: c_int, flags: *mut c_uint, active: *mut c_int) -> Outcome {
    check_device(device)?;
    give(flags, 0)?;
    give(active, c_int::from(stand_in_shares(device) > 0))
}

/// How often the primary context of a device was retained, and not released.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_shares(device: c_int) -> usize {
    locked(&SHARES).get(&device).copied().unwrap_or(0)
}

pub fn stream_context(handle: *mut c_void, place: *mut *mut c_void) -> Outcome {
    let context = stream(&mut lock(), handle)?.context();
    give(place, context as *mut c_void)
}

/// Where device memory comes from.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// It belongs to a context.
    Plain,
    /// A stream-ordered pool's.
    Pool,
    /// Mapped by the virtual-memory functions.
    Mapped,
}

/// Device memory from elsewhere than the plain allocator: from a pool (1), or mapped (2). It faults
/// when the host touches it, unless it is open.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_alloc_kind(bytes: usize, kind: c_int, is_open: c_int) -> usize {
    let address = match is_open {
        0 => stand_in_alloc(bytes),
        _ => stand_in_alloc_open(bytes),
    };
    let kind = match kind {
        1 => Kind::Pool,
        2 => Kind::Mapped,
        _ => Kind::Plain,
    };
    // Also a plain one: there may have been another at the address.
    locked(&KINDS).insert(address, (address + bytes, kind));
    address
}

fn kind_of(address: usize) -> Option<Kind> {
    let state = lock();
    let (&start, allocation) = state.allocations.range(..=address).next_back()?;
    if address - start >= allocation.bytes().max(1) {
        return None;
    }
    let kinds = locked(&KINDS);
    let known = kinds.get(&start).filter(|(end, _)| address < *end);
    Some(known.map_or(Kind::Plain, |(_, kind)| *kind))
}

const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const IS_LEGACY_IPC_CAPABLE: c_int = 10;
const MEMPOOL_HANDLE: c_int = 17;
const DEVICE: c_uint = 2;

/// The handle of the only pool.
const POOL: usize = 0xB0 << 48;

pub fn pointer_attribute(value: *mut c_void, attribute: c_int, address: usize) -> Outcome {
    // What no allocation has is the host's, of which CUDA knows nothing.
    let kind = kind_of(address).ok_or(INVALID_VALUE)?;
    let is_plain = kind == Kind::Plain;
    let pointer = |handle: Option<usize>| {
        let handle = handle.map_or(null_mut(), |handle| handle as *mut c_void);
        give(value.cast::<*mut c_void>(), handle)
    };
    match attribute {
        CONTEXT => pointer(context(0).filter(|_| is_plain)),
        MEMORY_TYPE => give(value.cast(), DEVICE),
        // CUDA's is a bool.
        IS_LEGACY_IPC_CAPABLE => give(value.cast(), u8::from(is_plain)),
        MEMPOOL_HANDLE => pointer((kind == Kind::Pool).then_some(POOL)),
        _ => Err(INVALID_VALUE),
    }
}
