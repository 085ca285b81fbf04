//! The copies that only XLA makes: at once, from and to memory that is not page-locked, within
//! the device, or between addresses of either kind.

use std::ffi::{c_int, c_void};

use crate::driver::setting;
use crate::memory::{Span, copy_down, copy_up, is_on_device, span};
use crate::state::{Locked, Outcome, lock};
use crate::stream::{Command, stream, synchronize};

/// Copies like CUDA where host memory is not page-locked: what goes up is read now, and what comes
/// down is there when this returns. The core must not rely on it, so it has to be allowed.
pub fn copy_pageable(
    mut state: Locked,
    host: usize,
    device: usize,
    bytes: usize,
    on: *mut c_void,
    writes: bool,
) -> Outcome {
    if setting("STAND_IN_PAGEABLE", 0) == 0 {
        return Err(state.violation(&format!(
            "{bytes} bytes at {host:#x} are not within page-locked memory"
        )));
    }
    let device = span(&mut state, device, bytes)?;
    let queue = stream(&mut state, on)?;
    if writes {
        queue.push(Command::new(move || {
            // SAFETY: the caller gives `bytes` to write at `host`, and has them back afterwards.
            unsafe { device.read(host as *mut u8) };
        }));
        drop(state);
        return synchronize(on);
    }
    let mut data = vec![0; bytes];
    // SAFETY: the caller gives `bytes` to read at `host`.
    unsafe { data.as_mut_ptr().copy_from(host as *const u8, bytes) };
    // SAFETY: the data are as long as the span.
    queue.push(Command::new(move || unsafe { device.write(data.as_ptr()) }));
    Ok(())
}

pub fn copy_up_at_once(to: usize, from: *const c_void, bytes: usize) -> Outcome {
    let to = span(&mut lock(), to, bytes)?;
    // SAFETY: the caller gives `bytes` bytes to read.
    unsafe { to.write(from.cast()) };
    Ok(())
}

pub fn copy_down_at_once(to: *mut c_void, from: usize, bytes: usize) -> Outcome {
    let from = span(&mut lock(), from, bytes)?;
    // SAFETY: the caller gives `bytes` bytes to write.
    unsafe { from.read(to.cast()) };
    Ok(())
}

pub fn copy_between_at_once(to: usize, from: usize, bytes: usize) -> Outcome {
    let (to, from) = both(to, from, bytes)?;
    // SAFETY: both spans have the same length.
    unsafe { to.write(from.pointer()) };
    Ok(())
}

pub fn copy_between(to: usize, from: usize, bytes: usize, on: *mut c_void) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    let (to, from) = both(to, from, bytes)?;
    let mut state = lock();
    // SAFETY: both spans have the same length.
    let copy = move |to: Span, from: Span| unsafe { to.write(from.pointer()) };
    stream(&mut state, on)?.push(Command::new(move || copy(to, from)));
    Ok(())
}

fn both(to: usize, from: usize, bytes: usize) -> Result<(Span, Span), c_int> {
    let mut state = lock();
    Ok((span(&mut state, to, bytes)?, span(&mut state, from, bytes)?))
}

/// Whether each of two addresses is one of the device's.
fn are_on_device(to: usize, from: usize) -> (bool, bool) {
    let state = lock();
    (is_on_device(&state, to), is_on_device(&state, from))
}

pub fn copy_any(to: usize, from: usize, bytes: usize, on: *mut c_void) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    match are_on_device(to, from) {
        (true, true) => copy_between(to, from, bytes, on),
        (true, false) => copy_up(to, from as *const c_void, bytes, on),
        (false, true) => copy_down(to as *mut c_void, from, bytes, on),
        (false, false) => Err(not_on_device(to, from)),
    }
}

pub fn copy_any_at_once(to: usize, from: usize, bytes: usize) -> Outcome {
    match are_on_device(to, from) {
        (true, true) => copy_between_at_once(to, from, bytes),
        (true, false) => copy_up_at_once(to, from as *const c_void, bytes),
        (false, true) => copy_down_at_once(to as *mut c_void, from, bytes),
        (false, false) => Err(not_on_device(to, from)),
    }
}

fn not_on_device(to: usize, from: usize) -> c_int {
    lock().violation(&format!(
        "neither {to:#x} nor {from:#x} is in device memory"
    ))
}

pub fn fill_1(to: usize, value: u8, count: usize, on: *mut c_void) -> Outcome {
    fill(to, vec![value], count, on)
}

pub fn fill_4(to: usize, value: u32, count: usize, on: *mut c_void) -> Outcome {
    fill(to, value.to_ne_bytes().to_vec(), count, on)
}

fn fill(to: usize, pattern: Vec<u8>, count: usize, on: *mut c_void) -> Outcome {
    if count == 0 {
        return Ok(());
    }
    let mut state = lock();
    let to = span(&mut state, to, pattern.len() * count)?;
    stream(&mut state, on)?.push(Command::new(move || to.fill(&pattern)));
    Ok(())
}

pub fn fill_1_at_once(to: usize, value: u8, count: usize) -> Outcome {
    span(&mut lock(), to, count)?.fill(&[value]);
    Ok(())
}

pub fn fill_4_at_once(to: usize, value: u32, count: usize) -> Outcome {
    span(&mut lock(), to, 4 * count)?.fill(&value.to_ne_bytes());
    Ok(())
}
