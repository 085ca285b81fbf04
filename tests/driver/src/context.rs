//! Devices, contexts, and the addresses of functions.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use crate::driver::{self, current_context, device_count, give, set_current, setting};
use crate::state::{INVALID_DEVICE, INVALID_VALUE, NOT_FOUND, Outcome, lock, wait_while};
use crate::stream::stream;

/// CUDA 12.8, which is recent enough for XLA to consider CUDA graphs.
const VERSION: c_int = 12080;

pub fn driver_version(version: *mut c_int) -> Outcome {
    give(version, VERSION)
}

/// A name may stand for a later version of a function, which has a suffix.
const SUFFIXES: [&str; 3] = ["_v3", "_v2", ""];

pub fn proc_address(
    name: *const c_char,
    address: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
) -> Outcome {
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller gives a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let function = SUFFIXES
        .iter()
        .map(|suffix| symbol(&format!("{name}{suffix}")))
        .find(|function| !function.is_null());
    give(address, function.unwrap_or(null_mut()))?;
    function.map(drop).ok_or(NOT_FOUND)
}

/// The address of a function of this library, null if it has none of that name.
fn symbol(name: &str) -> *mut c_void {
    let Ok(name) = CString::new(name) else {
        return null_mut();
    };
    // SAFETY: both are C strings. The library is loaded, so that nothing is loaded now.
    unsafe {
        let library = libc::dlopen(
            c"libcuda.so.1".as_ptr(),
            libc::RTLD_LAZY | libc::RTLD_NOLOAD,
        );
        match library.is_null() {
            true => null_mut(),
            false => libc::dlsym(library, name.as_ptr()),
        }
    }
}

const SYMBOL_FOUND: c_int = 0;
const SYMBOL_NOT_FOUND: c_int = 1;

pub fn proc_address_with_status(
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Outcome {
    let outcome = proc_address(name, address, version, flags);
    if !status.is_null() {
        let code = if outcome.is_ok() {
            SYMBOL_FOUND
        } else {
            SYMBOL_NOT_FOUND
        };
        give(status, code)?;
    }
    outcome
}

fn devices() -> c_int {
    let mut count = 0;
    // It can't fail, as there is room for the count.
    let _ = device_count(&raw mut count);
    count
}

fn check(device: c_int) -> Outcome {
    match (0..devices()).contains(&device) {
        true => Ok(()),
        false => Err(INVALID_DEVICE),
    }
}

pub fn device_get(to: *mut c_int, ordinal: c_int) -> Outcome {
    check(ordinal)?;
    give(to, ordinal)
}

/// Those of an H100 that are not 0, by CUDA's numbers of attributes.
const ATTRIBUTES: &[(c_int, c_int)] = &[
    (1, 1024),          // threads per block
    (2, 1024),          // its x
    (3, 1024),          // its y
    (4, 64),            // its z
    (5, 2_147_483_647), // x of the grid
    (6, 65_535),        // its y
    (7, 65_535),        // its z
    (8, 49_152),        // shared memory per block
    (9, 65_536),        // constant memory
    (10, 32),           // threads in a warp
    (12, 65_536),       // registers per block
    (13, 1_980_000),    // kHz
    (16, 132),          // multiprocessors
    (19, 1),            // maps host memory
    (31, 1),            // kernels side by side
    (36, 2_619_000),    // kHz of the memory
    (37, 5120),         // bits of its bus
    (38, 52_428_800),   // bytes of the cache
    (39, 2048),         // threads per multiprocessor
    (40, 3),            // engines for copies
    (41, 1),            // addresses are unified
    (75, 9),            // compute capability
    (76, 0),            // its minor number
    (78, 1),            // streams have priorities
    (81, 233_472),      // shared memory per multiprocessor
    (82, 65_536),       // registers per multiprocessor
    (83, 1),            // managed memory
    (97, 232_448),      // shared memory per block, if asked for
    (102, 1),           // virtual memory
    (106, 32),          // blocks per multiprocessor
    (115, 1),           // pools
];

pub fn device_attribute(value: *mut c_int, attribute: c_int, of: c_int) -> Outcome {
    check(of)?;
    let known = ATTRIBUTES
        .iter()
        .find(|(attribute_code, _)| *attribute_code == attribute);
    give(value, known.map_or(0, |(_, value)| *value))
}

pub fn device_name(text: *mut c_char, length: c_int, of: c_int) -> Outcome {
    check(of)?;
    give_text(text, length, "Stand-in for a GPU")
}

/// Of a bus that no machine has, so that nothing is read about it from the system.
pub fn device_bus(text: *mut c_char, length: c_int, of: c_int) -> Outcome {
    check(of)?;
    give_text(text, length, &format!("ffff:{of:02x}:00.0"))
}

pub fn give_text(to: *mut c_char, length: c_int, text: &str) -> Outcome {
    let room = usize::try_from(length).unwrap_or(0);
    if to.is_null() || room <= text.len() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller has room for more bytes than the text has.
    unsafe {
        text.as_ptr().copy_to_nonoverlapping(to.cast(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

pub fn device_uuid(uuid: *mut [u8; 16], of: c_int) -> Outcome {
    check(of)?;
    give(uuid, [of as u8 + 1; 16])
}

/// The bytes of a device's memory.
pub fn total_memory() -> usize {
    let megabytes = setting("STAND_IN_MEMORY", 1024);
    usize::try_from(megabytes).unwrap_or(0) << 20
}

pub fn device_memory(bytes: *mut usize, of: c_int) -> Outcome {
    check(of)?;
    give(bytes, total_memory())
}

pub fn memory_info(unused: *mut usize, total: *mut usize) -> Outcome {
    give(total, total_memory())?;
    give(unused, total_memory().saturating_sub(lock().device_bytes()))
}

pub fn can_access_peer(can: *mut c_int, from: c_int, to: c_int) -> Outcome {
    check(from)?;
    check(to)?;
    give(can, 0)
}

/// A device's primary context is the one with its number.
fn primary(of: c_int) -> Result<usize, c_int> {
    check(of)?;
    let index = usize::try_from(of).map_err(|_| INVALID_DEVICE)?;
    driver::context(index).ok_or(INVALID_DEVICE)
}

pub fn primary_retain(context: *mut *mut c_void, of: c_int) -> Outcome {
    let handle = primary(of)?;
    give(context, handle as *mut c_void)?;
    *lock().retained.entry(of).or_default() += 1;
    Ok(())
}

pub fn primary_release(of: c_int) -> Outcome {
    check(of)?;
    match lock().retained.get_mut(&of) {
        Some(count) if *count > 0 => {
            *count -= 1;
            Ok(())
        }
        _ => Err(crate::state::INVALID_CONTEXT),
    }
}

pub fn primary_flags(of: c_int, _flags: c_uint) -> Outcome {
    check(of)
}

pub fn primary_state(of: c_int, flags: *mut c_uint, active: *mut c_int) -> Outcome {
    check(of)?;
    give(flags, 0)?;
    let is_active = lock().retained.get(&of).is_some_and(|count| *count > 0);
    give(active, is_active.into())
}

/// How often the primary context of a device was retained, and not released.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_shares(of: c_int) -> usize {
    let count = lock().retained.get(&of).copied();
    count.map_or(0, |count| count as usize)
}

pub fn stream_context(handle: *mut c_void, context: *mut *mut c_void) -> Outcome {
    let of_stream = stream(&mut lock(), handle)?.context();
    give(context, of_stream as *mut c_void)
}

thread_local! {
    /// The contexts below this thread's current one.
    static BELOW: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

pub fn push_current(context: *mut c_void) -> Outcome {
    let below = current_context();
    set_current(context)?;
    BELOW.with_borrow_mut(|contexts| contexts.push(below));
    Ok(())
}

pub fn pop_current(context: *mut *mut c_void) -> Outcome {
    let popped = current_context();
    let below = BELOW.with_borrow_mut(Vec::pop).unwrap_or(0);
    set_current(below as *mut c_void)?;
    match context.is_null() {
        true => Ok(()),
        false => give(context, popped as *mut c_void),
    }
}

/// The device of a context: the one with its number, or the first, where contexts are made up.
pub fn device_of(context: usize) -> c_int {
    let is_primary = |device: &c_int| primary(*device) == Ok(context);
    (0..devices()).find(is_primary).unwrap_or(0)
}

pub fn context_device(to: *mut c_int) -> Outcome {
    give(to, device_of(current_context()))
}

pub fn context_synchronize() -> Outcome {
    let context = current_context();
    drop(wait_while(lock(), |state| {
        let mut streams = state.streams.values();
        streams.any(|stream| stream.is_of(context) && stream.is_busy())
    }));
    Ok(())
}

pub fn priority_range(least: *mut c_int, greatest: *mut c_int) -> Outcome {
    give(least, 0)?;
    give(greatest, -5)
}
