//! The behaviour that tests of the core rely on. The state is one for the process, so they take turns.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

mod cuda;

use crate::context::*;
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
    assert_eq!(cuInit(0), 0);
    assert_eq!(cuCtxSetCurrent(stand_in_context(0)), 0);
    stand_in_reset_counts();
    Turn {
        stream: stand_in_stream(stand_in_context(0)),
        _turn: turn,
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        stand_in_free_stream(self.stream);
    }
}

fn count(name: &str) -> u64 {
    let name = CString::new(name).unwrap();
    // SAFETY: a C string.
    unsafe { stand_in_count(name.as_ptr()) }
}

fn live(name: &str) -> u64 {
    let name = CString::new(name).unwrap();
    // SAFETY: a C string.
    unsafe { stand_in_live(name.as_ptr()) }
}

fn fail(name: &CStr, code: c_int, skip: u64) {
    // SAFETY: a C string.
    unsafe { stand_in_fail(name.as_ptr(), code, skip) }
}

/// Calls a function that gives a pointer. Returns its code, and the pointer or null.
fn pointer_from<T>(function: impl FnOnce(*mut *mut T) -> c_int) -> (c_int, *mut T) {
    let mut pointer = null_mut();
    (function(&raw mut pointer), pointer)
}

fn host_alloc(bytes: usize) -> (c_int, *mut c_void) {
    // SAFETY: there is room for the address.
    pointer_from(|address| unsafe { cuMemHostAlloc(address, bytes, 0) })
}

fn block(bytes: usize) -> *mut c_void {
    let (code, address) = host_alloc(bytes);
    assert_eq!(code, 0);
    address
}

fn event() -> *mut c_void {
    // SAFETY: there is room for the event.
    let (code, event) = pointer_from(|event| unsafe { cuEventCreate(event, 2) });
    assert_eq!(code, 0);
    event
}

/// The bytes in memory that the host can read.
fn bytes(host: *mut c_void, length: usize) -> Vec<u8> {
    // SAFETY: tests ask for what they have allocated, when nothing writes there.
    unsafe { std::slice::from_raw_parts(host.cast::<u8>(), length) }.to_vec()
}

fn device_bytes(device: usize, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    // SAFETY: there is room for `length` bytes.
    unsafe { stand_in_read(data.as_mut_ptr().cast(), device, length) };
    data
}

fn write(device: usize, data: &[u8]) {
    // SAFETY: `data` has `data.len()` bytes.
    unsafe { stand_in_write(device, data.as_ptr().cast(), data.len()) };
}

fn write_later(device: usize, data: &[u8], stream: *mut c_void, delay: u64) {
    // SAFETY: `data` has `data.len()` bytes, of which a copy is made.
    unsafe { stand_in_write_later(device, data.as_ptr().cast(), data.len(), stream, delay) }
}

/// Whether the host can read a byte there: the kernel gives EFAULT where a read would fault.
fn readable(address: usize) -> bool {
    let mut ends = [0; 2];
    // SAFETY: there is room for both ends; the kernel checks the address itself.
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
    let (closed, open) = (stand_in_alloc(100), stand_in_alloc_open(100));
    assert!(!readable(closed) && readable(open));
    assert_eq!(device_bytes(closed, 100), [0xCD; 100]);
    write(closed + 10, &[1, 2]);
    assert_eq!(device_bytes(closed + 9, 4), [0xCD, 1, 2, 0xCD]);
    write(open, &[7]);
    assert_eq!(bytes(open as *mut c_void, 1), [7]);
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

#[test]
fn streams_run_late_and_in_order() {
    let turn = turn();
    let stream = turn.stream;
    let (a, b, host) = (stand_in_alloc(64), stand_in_alloc(64), block(64));
    assert_eq!(bytes(host, 64), [0xAB; 64]);
    let started = Instant::now();
    write_later(a, &[5; 64], stream, LATER);
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

#[test]
fn freed_device_memory_stays_for_its_commands() {
    let turn = turn();
    let (device, host) = (stand_in_alloc(8), block(8));
    write_later(device, &[3; 8], turn.stream, LATER);
    assert_eq!(hipMemcpyDtoHAsync(host, device, 8, turn.stream), 0);
    stand_in_free(device);
    stand_in_idle();
    assert_eq!(bytes(host, 8), [3; 8]);
    assert_eq!(hipHostFree(host), 0);
    assert_eq!(count("violations"), 0);
}

#[test]
fn events_are_about_the_last_record() {
    let turn = turn();
    let stream = turn.stream;
    let device = stand_in_alloc(1);
    let later = || write_later(device, &[1], stream, LATER);
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

#[test]
fn an_event_of_another_context_is_refused() {
    let turn = turn();
    let event = event();
    let (first, second) = (stand_in_context(0), stand_in_context(1));
    assert_ne!(first, second);
    assert_eq!(first, stand_in_context(0));
    let other = stand_in_stream(second);
    assert_eq!(cuEventRecord(event, other), 400);
    assert_eq!(cuEventRecord(event, turn.stream), 0);
    assert_eq!(cuCtxSetCurrent(second), 0);
    let host = block(1);
    assert_eq!(cuEventDestroy_v2(event), 0);
    assert_eq!(cuCtxSetCurrent(first), 0);
    assert_eq!(cuMemFreeHost(host), 0);
    stand_in_free_stream(other);
    assert_eq!(cuStreamSynchronize(other), 400);
    assert_eq!(count("violations"), 0);
}

#[test]
fn a_context_is_current_in_one_thread() {
    let _turn = turn();
    let code = thread::spawn(|| {
        // SAFETY: there is room for the context.
        let current = pointer_from(|context| unsafe { hipCtxGetCurrent(context) });
        assert_eq!(current, (0, null_mut()));
        assert_eq!(cuCtxSetCurrent(8 as *mut c_void), 201);
        // SAFETY: there is room for the event.
        pointer_from(|event| unsafe { cuEventCreate(event, 0) }).0
    });
    assert_eq!(code.join().unwrap(), 201);
    // SAFETY: there is room for the context.
    let current = pointer_from(|context| unsafe { cuCtxGetCurrent(context) });
    assert_eq!(current, (0, stand_in_context(0)));
}

#[test]
fn misuse_is_counted() {
    let turn = turn();
    let stream = turn.stream;
    let (device, host) = (stand_in_alloc(64), block(64));
    let mut pageable = [0u8; 8];
    let address = pageable.as_mut_ptr().cast();
    assert_eq!(cuMemcpyDtoHAsync_v2(address, device, 8, stream), 1);
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
    let from = |bytes| host.wrapping_byte_add(bytes);
    write_later(device, &[9; 8], stream, LATER);
    assert_eq!(cuMemcpyHtoDAsync_v2(device, host, 8, stream), 0);
    assert_eq!(cuMemcpyHtoDAsync_v2(device, host, 8, other), 0);
    assert_eq!(cuMemcpyDtoHAsync_v2(from(8), device, 8, other), 0);
    assert_eq!(cuMemcpyDtoHAsync_v2(from(7), device, 8, other), 1);
    assert_eq!(count("violations"), 4);
    stand_in_idle();
    assert_eq!(cuMemcpyDtoHAsync_v2(from(7), device, 8, other), 0);
    stand_in_free_stream(other);
    assert_eq!(count("violations"), 4);

    // The free waits for the copy: if not, the copy's thread would fault.
    let started = Instant::now();
    write_later(device, &[9; 8], stream, LATER);
    assert_eq!(cuMemcpyDtoHAsync_v2(host, device, 64, stream), 0);
    assert_eq!(cuMemFreeHost(host), 0);
    assert!(started.elapsed() >= Duration::from_micros(LATER));
    assert_eq!(count("violations"), 5);
    stand_in_free(device);
}

#[test]
fn one_call_fails() {
    let _turn = turn();
    fail(c"cuEventCreate", 700, 1);
    let first = event();
    // SAFETY: there is room for the event.
    let second = pointer_from(|event| unsafe { hipEventCreateWithFlags(event, 0) });
    assert_eq!(second, (700, null_mut()));
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

#[test]
fn host_memory_is_counted() {
    let _turn = turn();
    let (a, b) = (block(100), block(28));
    assert_eq!((live("host_bytes"), live("host_blocks")), (128, 2));
    assert_eq!(cuMemFreeHost(a), 0);
    assert_eq!((live("host_bytes"), live("peak_host_bytes")), (28, 128));
    stand_in_reset_counts();
    assert_eq!((live("peak_host_bytes"), count("cuMemHostAlloc")), (28, 0));
    assert_eq!(cuMemFreeHost(b), 0);
    assert_eq!(host_alloc(1 << 60).0, 2);
    assert_eq!(host_alloc(0).0, 1);
    assert_eq!((live("host_bytes"), live("events")), (0, 0));
    assert_eq!((count("unknown"), live("unknown")), (u64::MAX, u64::MAX));
}

#[test]
fn errors_have_texts() {
    type Function = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
    let text_of = |function: Function, code| {
        let mut text = c"never written".as_ptr();
        // SAFETY: there is room for the address, which is null or a C string's that stays.
        unsafe {
            let outcome = function(code, &raw mut text);
            (outcome, (!text.is_null()).then(|| CStr::from_ptr(text)))
        }
    };
    let name = c"CUDA_ERROR_ILLEGAL_ADDRESS";
    assert_eq!(text_of(cuGetErrorName, 700), (0, Some(name)));
    assert_eq!(
        text_of(hipDrvGetErrorString, 2),
        (0, Some(c"out of memory"))
    );
    assert_eq!(text_of(cuGetErrorString, 12345), (1, None));
}

/// Handles are new each time, so that a stale one is found out.
#[test]
fn no_handle_comes_twice() {
    let _turn = turn();
    let handles: BTreeSet<_> = (0..10)
        .map(|_| {
            let event = event();
            assert_eq!(cuEventDestroy_v2(event), 0);
            event as usize
        })
        .collect();
    assert_eq!(handles.len(), 10);
}

/// Without the lock around all state this crashes or loses bytes.
#[test]
fn threads_do_not_disturb_each_other() {
    let _turn = turn();
    let work = |index: usize| {
        assert_eq!(cuCtxSetCurrent(stand_in_context(index)), 0);
        let stream = stand_in_stream(stand_in_context(index));
        let (device, host, event) = (stand_in_alloc(4096), block(4096), event());
        for round in 0..50 {
            let data = [(index * 50 + round) as u8; 4096];
            write_later(device, &data, stream, 10);
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
        (0..4).for_each(|index| {
            scope.spawn(move || work(index));
        });
    });
    assert_eq!(count("cuMemcpyDtoHAsync"), 200);
    assert_eq!(count("violations"), 0);
}

#[test]
fn contexts_of_devices_are_shared() {
    let _turn = turn();
    let mut device = -1;
    // SAFETY: there is room for the answers.
    unsafe {
        assert_eq!(cuDeviceGet(&raw mut device, 1), 101);
        assert_eq!(cuDeviceGet(&raw mut device, 0), 0);
        let before = stand_in_shares(device);
        let (code, primary) = pointer_from(|context| cuDevicePrimaryCtxRetain(context, device));
        assert_eq!((code, primary), (0, stand_in_context(0)));
        let (mut flags, mut active) = (7, 7);
        assert_eq!(
            cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active),
            0
        );
        assert_eq!((flags, active), (0, 1));
        assert_eq!(stand_in_shares(device), before + 1);
    }
    assert_eq!(cuDevicePrimaryCtxRelease_v2(device), 0);
    assert_eq!(cuDevicePrimaryCtxRelease_v2(9), 101);
}

#[test]
fn a_stream_knows_its_context() {
    let turn = turn();
    // SAFETY: there is room for the answer.
    let outcome = pointer_from(|context| unsafe { cuStreamGetCtx(turn.stream, context) });
    assert_eq!(outcome, (0, stand_in_context(0)));
}

/// The context and the pool of an address, as numbers, and whether old handles for other processes
/// can be had.
fn attributes(address: usize) -> [(c_int, usize); 3] {
    [1, 17, 10].map(|attribute| {
        let mut value = 0_usize;
        // SAFETY: there is room for the answer.
        let code =
            unsafe { cuPointerGetAttribute((&raw mut value).cast(), attribute, address + 3) };
        (code, value)
    })
}

#[test]
fn memory_is_of_three_kinds() {
    let _turn = turn();
    let of_kind = |kind| stand_in_alloc_kind(10, kind, 0);
    let (plain, pool, mapped) = (of_kind(0), of_kind(1), of_kind(2));
    let context = stand_in_context(0) as usize;
    assert_eq!(attributes(plain), [(0, context), (0, 0), (0, 1)]);
    let [none, handle, legacy] = attributes(pool);
    assert_eq!((none, handle.0, legacy), ((0, 0), 0, (0, 0)));
    assert_ne!(handle.1, 0);
    assert_eq!(attributes(mapped), [(0, 0), (0, 0), (0, 0)]);
    for address in [plain, pool, mapped] {
        stand_in_free(address);
    }
    assert_eq!(attributes(plain).map(|(code, _)| code), [1, 1, 1]);
}
