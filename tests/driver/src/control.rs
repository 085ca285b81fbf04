//! The functions for tests. What they are asked wrongly counts as a violation too.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::driver;
use crate::memory::{Allocation, Span, span};
use crate::pool;
use crate::state::{Failure, State, lock};
use crate::stream::{self, Command, stream};

/// The context with this index, null when there is none. Does not make it current.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_context(index: usize) -> *mut c_void {
    driver::context(index).unwrap_or(0) as *mut c_void
}

/// Device memory that faults when the host touches it; 0 without memory.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_alloc(bytes: usize) -> usize {
    alloc(bytes, libc::PROT_NONE)
}

/// Device memory that the host may touch, as a GPU-aware MPI does; 0 without memory.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_alloc_open(bytes: usize) -> usize {
    alloc(bytes, libc::PROT_READ | libc::PROT_WRITE)
}

fn alloc(bytes: usize, protection: c_int) -> usize {
    let Some(allocation) = Allocation::new(bytes, protection) else {
        return 0;
    };
    let address = allocation.address();
    lock().allocations.insert(address, Arc::new(allocation));
    address
}

/// Sets whether the host can touch the memory that a driver function allocates from now on.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_set_open(is_open: c_int) {
    lock().is_open = Some(is_open != 0);
}

/// Device memory from elsewhere than the plain allocator: from a pool (1), or mapped (2). It faults
/// when the host touches it, unless it is open.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_alloc_kind(bytes: usize, kind: c_int, is_open: c_int) -> usize {
    let address = match is_open {
        0 => stand_in_alloc(bytes),
        _ => stand_in_alloc_open(bytes),
    };
    let mut state = lock();
    match kind {
        1 => drop(state.pooled.insert(address, pool::DEFAULT)),
        2 => drop(state.mapped.insert(address)),
        _ => (),
    }
    address
}

/// Commands that use the memory still do, and then it is unmapped.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_free(address: usize) {
    let mut state = lock();
    if state.allocations.remove(&address).is_none() {
        state.violation(&format!(
            "{address:#x} was freed and is no device allocation"
        ));
    }
    state.pooled.remove(&address);
    state.mapped.remove(&address);
}

/// Writes at once, whatever the streams do. Returns 0, as a driver's `cuMemcpyHtoD`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_write(device: usize, host: *const c_void, bytes: usize) -> c_int {
    let to = span(&mut lock(), device, bytes);
    if let (Ok(to), true) = (to, bytes > 0) {
        // SAFETY: the caller gives `bytes` to read at `host`.
        unsafe { to.write(host.cast()) };
    }
    0
}

/// Reads at once, whatever the streams do. Returns 0, as a driver's `cuMemcpyDtoH`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_read(host: *mut c_void, device: usize, bytes: usize) -> c_int {
    let from = span(&mut lock(), device, bytes);
    if let (Ok(from), true) = (from, bytes > 0) {
        // SAFETY: the caller gives `bytes` to write at `host`.
        unsafe { from.read(host.cast()) };
    }
    0
}

/// A new stream of the context; null when it is none.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_stream(context: *mut c_void) -> *mut c_void {
    if !driver::is_context(context as usize) {
        lock().violation("a stream was made in no context");
        return null_mut();
    }
    stream::create(context as usize).unwrap_or(0) as *mut c_void
}

/// Waits for the stream's commands and ends its thread.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_free_stream(stream: *mut c_void) {
    stream::free(stream);
}

/// Like a kernel: takes the host's bytes now, and writes them when the stream gets there and
/// `delay_us` are over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_write_later(
    device: usize,
    host: *const c_void,
    bytes: usize,
    stream: *mut c_void,
    delay_us: u64,
) {
    let Ok(to) = span(&mut lock(), device, bytes) else {
        return;
    };
    let data = match bytes {
        0 => Vec::new(),
        // SAFETY: the caller gives `bytes` to read at `host`.
        _ => unsafe { slice::from_raw_parts(host.cast::<u8>(), bytes) }.to_vec(),
    };
    later(&mut lock(), stream, delay_us, move || {
        // SAFETY: `data` is as long as the span.
        unsafe { to.write(data.as_ptr()) };
    });
}

/// Like a kernel that uses a result: copies from device memory to device memory, in stream order.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_copy_later(
    to: usize,
    from: usize,
    bytes: usize,
    stream: *mut c_void,
    delay_us: u64,
) {
    let mut state = lock();
    let (Ok(to), Ok(from)) = (span(&mut state, to, bytes), span(&mut state, from, bytes)) else {
        return;
    };
    let copy = move |to: Span, from: Span| {
        // SAFETY: both spans have the same length.
        unsafe { to.write(from.pointer()) };
    };
    later(&mut state, stream, delay_us, move || copy(to, from));
}

fn later(state: &mut State, on: *mut c_void, delay_us: u64, work: impl FnOnce() + Send + 'static) {
    match stream(state, on) {
        Ok(stream) => stream.push(Command::new(work).after(Duration::from_micros(delay_us))),
        Err(_) => {
            state.violation("a command was given to a stream that is none");
        }
    }
}

/// Waits until all streams are idle.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_idle() {
    stream::idle();
}

/// The calls of a driver function, or "bytes_down", "bytes_up", "violations"; `u64::MAX` for
/// another name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_count(name: *const c_char) -> u64 {
    // SAFETY: the caller gives a C string.
    let name = unsafe { text(name) };
    let counts = &lock().counts;
    match name.to_bytes() {
        b"bytes_down" => counts.bytes_down,
        b"bytes_up" => counts.bytes_up,
        b"violations" => counts.violations,
        _ => driver::index(name).map_or(u64::MAX, |index| counts.calls[index]),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn stand_in_reset_counts() {
    lock().reset_counts();
}

/// The present "host_bytes", "host_blocks", "events" or "device_bytes", or the "peak_host_bytes" since
/// the last reset of the counts. `u64::MAX` for another name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_live(name: *const c_char) -> u64 {
    // SAFETY: the caller gives a C string.
    let name = unsafe { text(name) };
    let state = lock();
    match name.to_bytes() {
        b"host_bytes" => state.host_bytes(),
        b"host_blocks" => state.host_blocks.len() as u64,
        b"device_bytes" => state.device_bytes() as u64,
        b"events" => state.events.len() as u64,
        b"peak_host_bytes" => state.counts.peak_host_bytes,
        _ => u64::MAX,
    }
}

/// After `skip` more calls of this driver function, one does nothing and returns `code`.
/// `code` 0 cancels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_fail(name: *const c_char, code: c_int, skip: u64) {
    // SAFETY: the caller gives a C string.
    let name = unsafe { text(name) };
    let mut state = lock();
    match driver::index(name) {
        Some(index) => state.failures[index] = (code != 0).then_some(Failure { code, skip }),
        None => {
            state.violation(&format!("{name:?} is no function that could fail"));
        }
    }
}

/// # Safety
/// `name` must be a C string or null.
unsafe fn text<'a>(name: *const c_char) -> &'a CStr {
    match name.is_null() {
        true => c"",
        // SAFETY: a C string, as the caller promises.
        false => unsafe { CStr::from_ptr(name) },
    }
}
