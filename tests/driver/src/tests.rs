//! What the tests of the core rely on. The state is one for the process, so they take turns.
//!
//! SAFETY: the pointers given are to blocks and arrays that are alive and long enough, or are
//! refused; memory of the host is read when its copies are done.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::control::*;
use crate::driver::*;

const LATER: u64 = 20_000;

/// A turn: a stream of the current context 0, and counts that are zero.
struct Turn {
    stream: *mut c_void,
    _turn: MutexGuard<'static, ()>,
}

fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    unsafe {
        assert_eq!(cuInit(0), 0);
        assert_eq!(cuCtxSetCurrent(stand_in_context(0)), 0);
        stand_in_reset_counts();
        Turn {
            stream: stand_in_stream(stand_in_context(0)),
            _turn: turn,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        unsafe { stand_in_free_stream(self.stream) }
    }
}

fn count(name: &str) -> u64 {
    unsafe { stand_in_count(CString::new(name).unwrap().as_ptr()) }
}

fn live(name: &str) -> u64 {
    unsafe { stand_in_live(CString::new(name).unwrap().as_ptr()) }
}

fn fail(name: &CStr, code: c_int, skip: u64) {
    unsafe { stand_in_fail(name.as_ptr(), code, skip) }
}

fn block(bytes: usize) -> *mut c_void {
    let mut address = null_mut();
    assert_eq!(unsafe { cuMemHostAlloc(&mut address, bytes, 0) }, 0);
    address
}

fn event() -> *mut c_void {
    let mut event = null_mut();
    assert_eq!(unsafe { cuEventCreate(&mut event, 2) }, 0);
    event
}

fn bytes(host: *mut c_void, length: usize) -> Vec<u8> {
    unsafe { std::slice::from_raw_parts(host.cast::<u8>(), length) }.to_vec()
}

fn device_bytes(device: usize, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    unsafe { stand_in_read(data.as_mut_ptr().cast(), device, length) };
    data
}

/// Whether the host can read a byte there: the kernel gives EFAULT where a read would fault.
fn readable(address: usize) -> bool {
    let mut ends = [0; 2];
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let written = libc::write(ends[1], address as *const c_void, 1);
        libc::close(ends[0]);
        libc::close(ends[1]);
        written == 1
    }
}

#[test]
fn device_memory_is_closed_to_the_host() {
    let _turn = turn();
    unsafe {
        let (closed, open) = (stand_in_alloc(100), stand_in_alloc_open(100));
        assert!(!readable(closed) && readable(open));
        assert_eq!(device_bytes(closed, 100), [0xCD; 100]);
        stand_in_write(closed + 10, [1u8, 2].as_ptr().cast(), 2);
        assert_eq!(device_bytes(closed + 9, 4), [0xCD, 1, 2, 0xCD]);
        stand_in_write(open, [7u8].as_ptr().cast(), 1);
        assert_eq!(*(open as *const u8), 7);
        let empty = [stand_in_alloc(0), stand_in_alloc(0)];
        assert!(empty[0] != 0 && empty[0] != empty[1]);
        assert_eq!(count("violations"), 0);
        device_bytes(closed + 99, 2);
        assert_eq!(count("violations"), 1);
        for address in [closed, open, empty[0], empty[1]] {
            stand_in_free(address);
        }
        assert!(!readable(open));
        assert_eq!(count("violations"), 1);
    }
}

#[test]
fn streams_run_late_and_in_order() {
    let turn = turn();
    let stream = turn.stream;
    unsafe {
        let (a, b, host) = (stand_in_alloc(64), stand_in_alloc(64), block(64));
        assert_eq!(bytes(host, 64), [0xAB; 64]);
        let started = Instant::now();
        stand_in_write_later(a, [5u8; 64].as_ptr().cast(), 64, stream, LATER);
        assert_eq!(cuMemcpyDtoHAsync_v2(host, a, 64, stream), 0);
        assert_eq!(cuMemcpyHtoDAsync_v2(b, host, 64, stream), 0);
        stand_in_copy_later(a + 32, b + 16, 32, stream, 0);
        assert_eq!(device_bytes(a, 64), [0xCD; 64]);
        assert!(started.elapsed() < Duration::from_micros(LATER));
        assert_eq!(cuStreamSynchronize(stream), 0);
        assert!(started.elapsed() >= Duration::from_micros(LATER));
        assert_eq!(bytes(host, 64), [5; 64]);
        assert_eq!(device_bytes(b, 64), [5; 64]);
        assert_eq!(device_bytes(a, 64), [5; 64]);
        assert_eq!((count("bytes_down"), count("bytes_up")), (64, 64));
        assert_eq!(count("cuMemcpyDtoHAsync"), 1);
        assert_eq!(cuStreamSynchronize(null_mut()), 400);
        assert_eq!(cuMemcpyDtoHAsync_v2(host, a, 64, null_mut()), 400);
        assert_eq!(cuMemFreeHost(host), 0);
        assert_eq!(cuMemFreeHost(host), 1);
        assert!(!readable(host as usize));
        stand_in_free(a);
        stand_in_free(b);
        assert_eq!(count("violations"), 0);
    }
}

#[test]
fn freed_device_memory_stays_for_its_commands() {
    let turn = turn();
    unsafe {
        let (device, host) = (stand_in_alloc(8), block(8));
        stand_in_write_later(device, [3u8; 8].as_ptr().cast(), 8, turn.stream, LATER);
        assert_eq!(hipMemcpyDtoHAsync(host, device, 8, turn.stream), 0);
        stand_in_free(device);
        stand_in_idle();
        assert_eq!(bytes(host, 8), [3; 8]);
        assert_eq!(hipHostFree(host), 0);
        assert_eq!(count("violations"), 0);
    }
}

#[test]
fn events_are_about_the_last_record() {
    let turn = turn();
    let stream = turn.stream;
    unsafe {
        let device = stand_in_alloc(1);
        let later = || stand_in_write_later(device, [1u8].as_ptr().cast(), 1, stream, LATER);
        let event = event();
        assert_eq!(live("events"), 1);
        assert_eq!((cuEventQuery(event), cuEventSynchronize(event)), (0, 0));
        assert_eq!(cuEventRecord(event, stream), 0);
        assert_eq!(cuEventSynchronize(event), 0);
        later();
        assert_eq!(cuEventQuery(event), 0);
        assert_eq!(cuEventRecord(event, stream), 0);
        assert_eq!(cuEventQuery(event), 600);
        assert_eq!(cuEventSynchronize(event), 0);
        assert_eq!(cuEventQuery(event), 0);
        assert_eq!(device_bytes(device, 1), [1]);

        later();
        assert_eq!(cuEventRecord(event, stream), 0);
        assert_eq!(hipEventDestroy(event), 0);
        assert_eq!(cuEventDestroy_v2(event), 400);
        assert_eq!(cuEventQuery(event), 400);
        assert_eq!(live("events"), 0);
        assert_eq!(count("cuEventDestroy"), 2);
        stand_in_free(device);
    }
}

#[test]
fn an_event_of_another_context_is_refused() {
    let turn = turn();
    unsafe {
        let event = event();
        let (zero, one) = (stand_in_context(0), stand_in_context(1));
        assert_ne!(zero, one);
        assert_eq!(zero, stand_in_context(0));
        let other = stand_in_stream(one);
        assert_eq!(cuEventRecord(event, other), 400);
        assert_eq!(cuEventRecord(event, turn.stream), 0);
        assert_eq!(cuCtxSetCurrent(one), 0);
        let host = block(1);
        assert_eq!(cuEventDestroy_v2(event), 0);
        assert_eq!(cuCtxSetCurrent(zero), 0);
        assert_eq!(cuMemFreeHost(host), 0);
        stand_in_free_stream(other);
        assert_eq!(cuStreamSynchronize(other), 400);
        assert_eq!(count("violations"), 0);
    }
}

#[test]
fn a_context_is_current_in_one_thread() {
    let _turn = turn();
    let code = thread::spawn(|| {
        let mut context = null_mut();
        unsafe {
            assert_eq!(hipCtxGetCurrent(&mut context), 0);
            assert_eq!(context, null_mut());
            assert_eq!(cuCtxSetCurrent(8 as *mut c_void), 201);
            cuEventCreate(&mut context, 0)
        }
    });
    assert_eq!(code.join().unwrap(), 201);
    let mut context = null_mut();
    unsafe {
        assert_eq!(cuCtxGetCurrent(&mut context), 0);
        assert_eq!(context, stand_in_context(0));
    }
}

#[test]
fn misuse_is_counted() {
    let turn = turn();
    let stream = turn.stream;
    unsafe {
        let (device, host) = (stand_in_alloc(64), block(64));
        let mut pageable = [0u8; 8];
        assert_eq!(
            cuMemcpyDtoHAsync_v2(pageable.as_mut_ptr().cast(), device, 8, stream),
            1
        );
        assert_eq!(pageable, [0; 8]);
        assert_eq!(count("violations"), 1);
        assert_eq!(cuMemcpyDtoHAsync_v2(host, device, 65, stream), 1);
        assert_eq!(count("violations"), 2);
        assert_eq!(cuMemcpyHtoDAsync_v2(device + 1, host, 64, stream), 1);
        assert_eq!(count("violations"), 3);
        assert_eq!(cuMemcpyHtoDAsync_v2(device + 1, host, 63, stream), 0);
        assert_eq!(count("violations"), 3);
        stand_in_idle();

        // Two that read the same bytes are fine, one that writes is not until they are done.
        let other = stand_in_stream(stand_in_context(0));
        stand_in_write_later(device, [9u8; 8].as_ptr().cast(), 8, stream, LATER);
        assert_eq!(cuMemcpyHtoDAsync_v2(device, host, 8, stream), 0);
        assert_eq!(cuMemcpyHtoDAsync_v2(device, host, 8, other), 0);
        assert_eq!(cuMemcpyDtoHAsync_v2(host.byte_add(8), device, 8, other), 0);
        assert_eq!(cuMemcpyDtoHAsync_v2(host.byte_add(7), device, 8, other), 1);
        assert_eq!(count("violations"), 4);
        stand_in_idle();
        assert_eq!(cuMemcpyDtoHAsync_v2(host.byte_add(7), device, 8, other), 0);
        stand_in_free_stream(other);
        assert_eq!(count("violations"), 4);

        // The free waits for the copy: if not, the copy's thread would fault.
        let started = Instant::now();
        stand_in_write_later(device, [9u8; 8].as_ptr().cast(), 8, stream, LATER);
        assert_eq!(cuMemcpyDtoHAsync_v2(host, device, 64, stream), 0);
        assert_eq!(cuMemFreeHost(host), 0);
        assert!(started.elapsed() >= Duration::from_micros(LATER));
        assert_eq!(count("violations"), 5);
        stand_in_free(device);
    }
}

#[test]
fn one_call_fails() {
    let _turn = turn();
    unsafe {
        fail(c"cuEventCreate", 700, 1);
        let first = event();
        let mut second = null_mut();
        assert_eq!(hipEventCreateWithFlags(&mut second, 0), 700);
        assert_eq!(second, null_mut());
        let second = event();
        assert_eq!(count("cuEventCreate"), 3);
        assert_eq!(live("events"), 2);
        fail(c"cuEventDestroy", 2, 0);
        fail(c"cuEventDestroy", 0, 0);
        assert_eq!(
            [first, second].map(|event| cuEventDestroy_v2(event)),
            [0, 0]
        );
        fail(c"cuEventDestroy_v2", 2, 0);
        assert_eq!(count("violations"), 1);
    }
}

#[test]
fn host_memory_is_counted() {
    let _turn = turn();
    unsafe {
        let (a, b) = (block(100), block(28));
        assert_eq!((live("host_bytes"), live("host_blocks")), (128, 2));
        assert_eq!(cuMemFreeHost(a), 0);
        assert_eq!((live("host_bytes"), live("peak_host_bytes")), (28, 128));
        stand_in_reset_counts();
        assert_eq!((live("peak_host_bytes"), count("cuMemHostAlloc")), (28, 0));
        assert_eq!(cuMemFreeHost(b), 0);
        let mut address = null_mut();
        assert_eq!(cuMemHostAlloc(&mut address, 1 << 60, 0), 2);
        assert_eq!(cuMemHostAlloc(&mut address, 0, 0), 1);
        assert_eq!((live("host_bytes"), live("events")), (0, 0));
        assert_eq!((count("unknown"), live("unknown")), (u64::MAX, u64::MAX));
    }
}

#[test]
fn errors_have_texts() {
    let mut text: *const c_char = null();
    unsafe {
        assert_eq!(cuGetErrorName(700, &mut text), 0);
        assert_eq!(CStr::from_ptr(text), c"CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(hipDrvGetErrorString(2, &mut text), 0);
        assert_eq!(CStr::from_ptr(text), c"out of memory");
        assert_eq!(cuGetErrorString(12345, &mut text), 1);
        assert_eq!(text, null());
    }
}

/// Handles are new each time, so that a stale one is found out.
#[test]
fn no_handle_comes_twice() {
    let _turn = turn();
    let handles: BTreeSet<_> = (0..10)
        .map(|_| {
            let event = event();
            assert_eq!(unsafe { cuEventDestroy_v2(event) }, 0);
            event as usize
        })
        .collect();
    assert_eq!(handles.len(), 10);
}

/// Without the lock around all state this crashes or loses bytes.
#[test]
fn threads_do_not_disturb_each_other() {
    let _turn = turn();
    let one = |number: usize| unsafe {
        assert_eq!(cuCtxSetCurrent(stand_in_context(number)), 0);
        let stream = stand_in_stream(stand_in_context(number));
        let (device, host, event) = (stand_in_alloc(4096), block(4096), event());
        for round in 0..50 {
            let data = [(number * 50 + round) as u8; 4096];
            stand_in_write_later(device, data.as_ptr().cast(), 4096, stream, 10);
            assert_eq!(cuMemcpyDtoHAsync_v2(host, device, 4096, stream), 0);
            assert_eq!(cuEventRecord(event, stream), 0);
            assert_eq!(cuEventSynchronize(event), 0);
            assert_eq!(bytes(host, 4096), data);
        }
        assert_eq!((cuMemFreeHost(host), cuEventDestroy_v2(event)), (0, 0));
        stand_in_free(device);
        stand_in_free_stream(stream);
    };
    thread::scope(|scope| {
        (0..4).for_each(|number| {
            scope.spawn(move || one(number));
        });
    });
    assert_eq!(count("cuMemcpyDtoHAsync"), 200);
    assert_eq!(count("violations"), 0);
}
