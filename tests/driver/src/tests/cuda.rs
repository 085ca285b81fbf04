//! The behaviour that XLA's client relies on, and that makes it hard for it.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::cuda::*;

/// Memory of the device's, that XLA would allocate.
fn alloc(bytes: usize) -> usize {
    let mut address = 0;
    // SAFETY: there is room for the address.
    assert_eq!(unsafe { cuMemAlloc_v2(&raw mut address, bytes) }, 0);
    address
}

fn second_stream() -> *mut c_void {
    // SAFETY: there is room for the stream.
    let (code, stream) = pointer_from(|stream| unsafe { cuStreamCreate(stream, 1) });
    assert_eq!(code, 0);
    stream
}

#[test]
fn what_has_not_arrived_is_poison() {
    let turn = turn();
    let (device, host) = (alloc(8), block(8));
    write_later(device, &[3; 8], turn.stream, LATER);
    assert_eq!(cuMemcpyDtoHAsync_v2(host, device, 8, turn.stream), 0);
    assert_eq!(bytes(host, 8), [0xEF; 8]);
    assert_eq!(cuStreamSynchronize(turn.stream), 0);
    assert_eq!(bytes(host, 8), [3; 8]);
    // What is still to be copied up from there must stay.
    assert_eq!(cuMemcpyHtoDAsync_v2(device, host, 8, turn.stream), 0);
    assert_eq!(cuMemcpyDtoHAsync_v2(host, device, 8, turn.stream), 0);
    assert_eq!(cuStreamSynchronize(turn.stream), 0);
    assert_eq!(bytes(host, 8), [3; 8]);
    assert_eq!((cuMemFree_v2(device), cuMemFreeHost(host)), (0, 0));
    assert_eq!(count("violations"), 0);
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    let turn = turn();
    let other = second_stream();
    let (from, to, event) = (alloc(8), alloc(8), event());
    write_later(from, &[7; 8], turn.stream, LATER);
    assert_eq!(cuEventRecord(event, turn.stream), 0);
    assert_eq!(cuStreamWaitEvent(other, event, 0), 0);
    assert_eq!(cuMemcpyDtoDAsync_v2(to, from, 8, other), 0);
    assert_eq!(cuStreamQuery(other), 600);
    assert_eq!(cuStreamSynchronize(other), 0);
    assert_eq!(device_bytes(to, 8), [7; 8]);
    assert_eq!((cuMemFree_v2(from), cuMemFree_v2(to)), (0, 0));
    assert_eq!(
        (cuEventDestroy_v2(event), cuStreamDestroy_v2(other)),
        (0, 0)
    );
}

static CALLS: AtomicU32 = AtomicU32::new(0);
static CODE: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn note(event: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
    CODE.store(cuEventQuery(event).unsigned_abs(), Ordering::SeqCst);
}

#[test]
fn a_host_function_is_called_in_its_turn() {
    let turn = turn();
    let (device, event) = (alloc(1), event());
    write_later(device, &[1], turn.stream, LATER);
    // SAFETY: the function takes any event.
    let code = unsafe { cuLaunchHostFunc(turn.stream, Some(note), event) };
    assert_eq!(code, 0);
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    assert_eq!(cuStreamSynchronize(turn.stream), 0);
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);
    // It must not call the driver.
    assert_eq!(CODE.load(Ordering::SeqCst), 800);
    assert_eq!(count("violations"), 1);
    assert_eq!((cuMemFree_v2(device), cuEventDestroy_v2(event)), (0, 0));
}

#[test]
fn memory_of_a_pool_goes_in_stream_order() {
    let turn = turn();
    let mut address = 0;
    // SAFETY: there is room for the address.
    let code = unsafe { cuMemAllocAsync(&raw mut address, 64, turn.stream) };
    assert_eq!(code, 0);
    stand_in_set_open(0);
    let to = alloc(64);
    write_later(address, &[5; 64], turn.stream, LATER);
    assert_eq!(cuMemcpyDtoDAsync_v2(to, address, 64, turn.stream), 0);
    assert_eq!(cuMemFreeAsync(address, turn.stream), 0);
    // For whoever comes later, the memory is gone now.
    assert_eq!(cuMemcpyDtoDAsync_v2(to, address, 64, turn.stream), 1);
    assert_eq!(count("violations"), 1);
    assert_eq!(cuStreamSynchronize(turn.stream), 0);
    assert_eq!(device_bytes(to, 64), [5; 64]);
    assert_eq!(cuMemFree_v2(to), 0);
}

#[test]
fn addresses_and_memory_come_together() {
    const PAGE: usize = 4096;
    let turn = turn();
    let (mut handle, mut start) = (0, 0);
    // SAFETY: there is room for the handle and the address.
    unsafe {
        assert_eq!(cuMemCreate(&raw mut handle, PAGE, std::ptr::null(), 0), 0);
        assert_eq!(cuMemAddressReserve(&raw mut start, 2 * PAGE, 0, 0, 0), 0);
    }
    assert_eq!(cuMemMap(start + PAGE, PAGE, 0, handle, 0), 0);
    assert!(!readable(start) && !readable(start + PAGE));
    write(start + PAGE, &[9; 16]);
    assert_eq!(device_bytes(start + PAGE, 16), [9; 16]);
    write_later(start + PAGE, &[8; 16], turn.stream, LATER);
    assert_eq!(count("violations"), 0);
    // Nobody waits for the stream.
    assert_eq!(cuMemUnmap(start, 2 * PAGE), 0);
    assert_eq!(count("violations"), 1);
    assert_eq!(cuMemRelease(handle), 0);
    assert_eq!(cuMemRelease(handle), 1);
    assert_eq!(cuStreamSynchronize(turn.stream), 0);
    assert_eq!(cuMemAddressFree(start, 2 * PAGE), 0);
}

/// Two elements to a thread: their sum over the warp, a comparison that skips a store, and a table
/// of branch targets.
const KERNEL: &CStr = c".version 8.0
.target sm_90
.address_size 64
.visible .global .align 4 .b8 one[4] = {1, 0, 0, 0};
.visible .entry kernel(
	.param .u64 kernel_param_0,
	.param .u64 kernel_param_1
)
.reqntid 32, 1, 1
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<9>;
	ld.param.u64 	%rd1, [kernel_param_0];
	cvta.to.global.u64 	%rd2, %rd1;
	ld.param.u64 	%rd3, [kernel_param_1];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd4, %r1, 4;
	add.s64 	%rd5, %rd2, %rd4;
	ld.global.nc.b32 	%r2, [%rd5];
	add.rn.f32 	%r3, %r2, 0f3F800000;
	shfl.sync.down.b32 	%r4|%p1, %r3, 16, 31, -1;
	add.rn.f32 	%r5, %r3, %r4;
	setp.gt.u32 	%p2, %r1, 15;
	@%p2 bra 	$L__BB0_2;
	mov.u32 	%r6, 1;
$L_brx_0: .branchtargets
	$L__BB0_2,
	$L__BB0_1;
	brx.idx 	%r6, $L_brx_0;
$L__BB0_1:
	add.s64 	%rd6, %rd3, %rd4;
	st.global.b32 	[%rd6], %r5;
$L__BB0_2:
	ret;
}
";

#[test]
fn a_kernel_computes_when_its_turn_comes() {
    let turn = turn();
    let (from, to) = (alloc(128), alloc(64));
    // SAFETY: an image, and room for the handles.
    let module =
        pointer_from(|module| unsafe { cuModuleLoadData(module, KERNEL.as_ptr().cast()) }).1;
    // SAFETY: a C string, and room for the handle.
    let kernel =
        pointer_from(|kernel| unsafe { cuModuleGetFunction(kernel, module, c"kernel".as_ptr()) });
    assert_eq!(kernel.0, 0);
    let numbers: Vec<u8> = (0..32u8).flat_map(|n| f32::from(n).to_le_bytes()).collect();
    write_later(from, &numbers, turn.stream, LATER);
    let mut pointers = [from, to];
    let mut arguments = pointers.each_mut().map(|p| (&raw mut *p).cast::<c_void>());
    let launch = |stream| {
        let (list, none) = (arguments.as_mut_ptr(), null_mut());
        cuLaunchKernel(kernel.1, 1, 1, 1, 32, 1, 1, 0, stream, list, none)
    };
    let mut launch = launch;
    assert_eq!(launch(turn.stream), 0);
    assert_eq!(device_bytes(to, 4), [0xCD; 4]);
    assert_eq!(cuStreamSynchronize(turn.stream), 0);
    let expected: Vec<u8> = (0..16u8)
        .flat_map(|n| f32::from(2 * n + 18).to_le_bytes())
        .collect();
    assert_eq!(device_bytes(to, 64), expected);

    let (mut address, mut length) = (0, 0);
    // SAFETY: a C string, and room for the address and the length.
    let code =
        unsafe { cuModuleGetGlobal_v2(&raw mut address, &raw mut length, module, c"one".as_ptr()) };
    assert_eq!((code, length), (0, 4));
    assert_eq!(device_bytes(address, 4), [1, 0, 0, 0]);
    assert_eq!(cuModuleUnload(module), 0);

    // A kernel that reads where it has no business stops.
    assert_eq!((cuMemFree_v2(from), count("violations")), (0, 0));
    assert_eq!(launch(turn.stream), 0);
    assert_eq!(cuStreamSynchronize(turn.stream), 0);
    assert_eq!(count("violations"), 1);
    assert_eq!(cuMemFree_v2(to), 0);
}

#[test]
fn pointers_say_what_they_are() {
    let _turn = turn();
    let (device, host) = (alloc(8), block(8));
    let attribute = |attribute_code, address: usize| {
        let mut value = 0_u32;
        // SAFETY: there is room for the value, of these attributes.
        let code =
            unsafe { cuPointerGetAttribute((&raw mut value).cast(), attribute_code, address) };
        (code, value)
    };
    const MEMORY_TYPE: c_int = 2;
    assert_eq!(attribute(MEMORY_TYPE, device + 7), (0, 2));
    assert_eq!(attribute(MEMORY_TYPE, host as usize), (0, 1));
    assert_eq!(attribute(MEMORY_TYPE, device + 4096 * 16).0, 1);
    assert_eq!((cuMemFree_v2(device), cuMemFreeHost(host)), (0, 0));
}
