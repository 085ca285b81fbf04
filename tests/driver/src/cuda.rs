//! The functions that only XLA calls, under CUDA's names alone.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::context::{
    can_access_peer, context_device, context_synchronize, device_attribute, device_bus,
    device_memory, device_name, device_uuid, driver_version, memory_info, pop_current,
    primary_flags, priority_range, proc_address, proc_address_with_status, push_current,
};
use crate::copies::{
    copy_any, copy_any_at_once, copy_between, copy_between_at_once, copy_down_at_once,
    copy_up_at_once, fill_1, fill_1_at_once, fill_4, fill_4_at_once,
};
use crate::driver::{self, driver_functions};
use crate::memory::{
    address_range, alloc, alloc_managed, free, host_pointer, register, unregister,
};
use crate::module::{
    function_attribute, function_name, launch, launch_with, load, load_with_options,
    module_function, module_global, occupancy, occupancy_with_flags, set_function, unload,
};
use crate::pool::{
    alloc_later, alloc_later_from, default_pool, free_later, pool_access, pool_attribute,
    pool_create, pool_destroy, pool_trim, set_pool_attribute,
};
use crate::stream::{
    HostFunction, capture_status, elapsed, host_function, stream_create,
    stream_create_with_priority, stream_destroy, stream_query, wait_event,
};
use crate::virtual_memory::{
    address_free, address_reserve, create, granularity, map, release, retain, set_access, unmap,
};

type Out<T> = *mut T;

driver_functions! {
    from driver::NAMES.len();

    cuDriverGetVersion: unsafe cuDriverGetVersion(version: Out<c_int>)
        needs Nothing => driver_version;
    cuGetProcAddress: unsafe cuGetProcAddress(
        name: *const c_char, address: Out<*mut c_void>, version: c_int, flags: u64
    ) needs Nothing => proc_address;
    cuGetProcAddress_v2: unsafe cuGetProcAddress_v2(
        name: *const c_char, address: Out<*mut c_void>, version: c_int, flags: u64,
        status: Out<c_int>
    ) needs Nothing => proc_address_with_status;

    cuDeviceGetAttribute: unsafe cuDeviceGetAttribute(
        value: Out<c_int>, attribute: c_int, of: c_int
    ) needs Init => device_attribute;
    cuDeviceGetName: unsafe cuDeviceGetName(text: Out<c_char>, length: c_int, of: c_int)
        needs Init => device_name;
    cuDeviceGetPCIBusId: unsafe cuDeviceGetPCIBusId(text: Out<c_char>, length: c_int, of: c_int)
        needs Init => device_bus;
    cuDeviceGetUuid: unsafe cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, of: c_int)
        needs Init => device_uuid;
    cuDeviceTotalMem: unsafe cuDeviceTotalMem_v2(bytes: Out<usize>, of: c_int)
        needs Init => device_memory;
    cuDeviceCanAccessPeer: unsafe cuDeviceCanAccessPeer(can: Out<c_int>, from: c_int, to: c_int)
        needs Init => can_access_peer;

    cuDevicePrimaryCtxSetFlags: safe cuDevicePrimaryCtxSetFlags_v2(of: c_int, flags: c_uint)
        needs Init => primary_flags;
    cuCtxPushCurrent: safe cuCtxPushCurrent_v2(context: *mut c_void) needs Init => push_current;
    cuCtxPopCurrent: unsafe cuCtxPopCurrent_v2(context: Out<*mut c_void>) needs Init => pop_current;
    cuCtxGetDevice: unsafe cuCtxGetDevice(to: Out<c_int>) needs Context => context_device;
    cuCtxSynchronize: safe cuCtxSynchronize() needs Context => context_synchronize;
    cuCtxGetStreamPriorityRange: unsafe cuCtxGetStreamPriorityRange(
        least: Out<c_int>, greatest: Out<c_int>
    ) needs Context => priority_range;

    cuMemAlloc: unsafe cuMemAlloc_v2(address: Out<usize>, bytes: usize) needs Context => alloc;
    cuMemAllocManaged: unsafe cuMemAllocManaged(address: Out<usize>, bytes: usize, flags: c_uint)
        needs Context => alloc_managed;
    cuMemFree: safe cuMemFree_v2(address: usize) needs Context => free;
    cuMemGetInfo: unsafe cuMemGetInfo_v2(unused: Out<usize>, total: Out<usize>)
        needs Context => memory_info;
    cuMemGetAddressRange: unsafe cuMemGetAddressRange_v2(
        start: Out<usize>, bytes: Out<usize>, address: usize
    ) needs Context => address_range;
    cuMemHostRegister: safe cuMemHostRegister_v2(
        address: *mut c_void, bytes: usize, flags: c_uint
    ) needs Context => register;
    cuMemHostUnregister: safe cuMemHostUnregister(address: *mut c_void)
        needs Context => unregister;
    cuMemHostGetDevicePointer: unsafe cuMemHostGetDevicePointer_v2(
        device: Out<usize>, address: *mut c_void, flags: c_uint
    ) needs Context => host_pointer;

    cuMemcpyHtoD: unsafe cuMemcpyHtoD_v2(to: usize, from: *const c_void, bytes: usize)
        needs Context => copy_up_at_once;
    cuMemcpyDtoH: unsafe cuMemcpyDtoH_v2(to: *mut c_void, from: usize, bytes: usize)
        needs Context => copy_down_at_once;
    cuMemcpyDtoD: safe cuMemcpyDtoD_v2(to: usize, from: usize, bytes: usize)
        needs Context => copy_between_at_once;
    cuMemcpy: unsafe cuMemcpy(to: usize, from: usize, bytes: usize)
        needs Context => copy_any_at_once;
    cuMemcpyDtoDAsync: safe cuMemcpyDtoDAsync_v2(
        to: usize, from: usize, bytes: usize, stream: *mut c_void
    ) needs Context => copy_between;
    cuMemcpyAsync: unsafe cuMemcpyAsync(to: usize, from: usize, bytes: usize, stream: *mut c_void)
        needs Context => copy_any;
    cuMemsetD8: safe cuMemsetD8_v2(to: usize, value: u8, count: usize)
        needs Context => fill_1_at_once;
    cuMemsetD32: safe cuMemsetD32_v2(to: usize, value: u32, count: usize)
        needs Context => fill_4_at_once;
    cuMemsetD8Async: safe cuMemsetD8Async(
        to: usize, value: u8, count: usize, stream: *mut c_void
    ) needs Context => fill_1;
    cuMemsetD32Async: safe cuMemsetD32Async(
        to: usize, value: u32, count: usize, stream: *mut c_void
    ) needs Context => fill_4;

    cuMemGetAllocationGranularity: unsafe cuMemGetAllocationGranularity(
        bytes: Out<usize>, properties: *const c_void, option: c_int
    ) needs Init => granularity;
    cuMemCreate: unsafe cuMemCreate(
        handle: Out<usize>, bytes: usize, properties: *const c_void, flags: u64
    ) needs Init => create;
    cuMemRetainAllocationHandle: unsafe cuMemRetainAllocationHandle(
        handle: Out<usize>, address: usize
    ) needs Init => retain;
    cuMemRelease: safe cuMemRelease(handle: usize) needs Init => release;
    cuMemAddressReserve: unsafe cuMemAddressReserve(
        address: Out<usize>, bytes: usize, alignment: usize, at: usize, flags: u64
    ) needs Init => address_reserve;
    cuMemAddressFree: safe cuMemAddressFree(address: usize, bytes: usize)
        needs Init => address_free;
    cuMemMap: safe cuMemMap(address: usize, bytes: usize, offset: usize, handle: usize, flags: u64)
        needs Init => map;
    cuMemUnmap: safe cuMemUnmap(address: usize, bytes: usize) needs Init => unmap;
    cuMemSetAccess: safe cuMemSetAccess(
        address: usize, bytes: usize, access: *const c_void, count: usize
    ) needs Init => set_access;

    cuDeviceGetDefaultMemPool: unsafe cuDeviceGetDefaultMemPool(pool: Out<*mut c_void>, of: c_int)
        needs Init => default_pool;
    cuMemPoolCreate: unsafe cuMemPoolCreate(pool: Out<*mut c_void>, properties: *const c_void)
        needs Init => pool_create;
    cuMemPoolDestroy: safe cuMemPoolDestroy(pool: *mut c_void) needs Init => pool_destroy;
    cuMemPoolTrimTo: safe cuMemPoolTrimTo(pool: *mut c_void, bytes: usize) needs Init => pool_trim;
    cuMemPoolSetAttribute: unsafe cuMemPoolSetAttribute(
        pool: *mut c_void, attribute: c_int, value: *mut c_void
    ) needs Init => set_pool_attribute;
    cuMemPoolGetAttribute: unsafe cuMemPoolGetAttribute(
        pool: *mut c_void, attribute: c_int, value: Out<u64>
    ) needs Init => pool_attribute;
    cuMemPoolSetAccess: safe cuMemPoolSetAccess(
        pool: *mut c_void, map: *const c_void, count: usize
    ) needs Init => pool_access;
    cuMemAllocAsync: unsafe cuMemAllocAsync(
        address: Out<usize>, bytes: usize, stream: *mut c_void
    ) needs Context => alloc_later;
    cuMemAllocFromPoolAsync: unsafe cuMemAllocFromPoolAsync(
        address: Out<usize>, bytes: usize, pool: *mut c_void, stream: *mut c_void
    ) needs Context => alloc_later_from;
    cuMemFreeAsync: safe cuMemFreeAsync(address: usize, stream: *mut c_void)
        needs Init => free_later;

    cuStreamCreate: unsafe cuStreamCreate(stream: Out<*mut c_void>, flags: c_uint)
        needs Context => stream_create;
    cuStreamCreateWithPriority: unsafe cuStreamCreateWithPriority(
        stream: Out<*mut c_void>, flags: c_uint, priority: c_int
    ) needs Context => stream_create_with_priority;
    cuStreamDestroy: safe cuStreamDestroy_v2(stream: *mut c_void)
        needs Context => stream_destroy;
    cuStreamQuery: safe cuStreamQuery(stream: *mut c_void) needs Context => stream_query;
    cuStreamIsCapturing: unsafe cuStreamIsCapturing(stream: *mut c_void, status: Out<c_int>)
        needs Context => capture_status;
    cuStreamWaitEvent: safe cuStreamWaitEvent(
        stream: *mut c_void, event: *mut c_void, flags: c_uint
    ) needs Context => wait_event;
    // Of the stream's context: XLA calls it in threads that have none.
    cuLaunchHostFunc: unsafe cuLaunchHostFunc(
        stream: *mut c_void, function: HostFunction, argument: *mut c_void
    ) needs Init => host_function;
    cuEventElapsedTime: unsafe cuEventElapsedTime(
        milliseconds: Out<f32>, start: *mut c_void, end: *mut c_void
    ) needs Context => elapsed;

    cuModuleLoadData: unsafe cuModuleLoadData(module: Out<*mut c_void>, image: *const c_void)
        needs Context => load;
    cuModuleLoadFatBinary: unsafe cuModuleLoadFatBinary(
        module: Out<*mut c_void>, image: *const c_void
    ) needs Context => load;
    cuModuleLoadDataEx: unsafe cuModuleLoadDataEx(
        module: Out<*mut c_void>, image: *const c_void, count: c_uint, options: *mut c_int,
        values: *mut *mut c_void
    ) needs Context => load_with_options;
    cuModuleUnload: safe cuModuleUnload(module: *mut c_void) needs Context => unload;
    cuModuleGetFunction: unsafe cuModuleGetFunction(
        function: Out<*mut c_void>, module: *mut c_void, name: *const c_char
    ) needs Context => module_function;
    cuModuleGetGlobal: unsafe cuModuleGetGlobal_v2(
        address: Out<usize>, bytes: Out<usize>, module: *mut c_void, name: *const c_char
    ) needs Context => module_global;
    cuFuncGetAttribute: unsafe cuFuncGetAttribute(
        value: Out<c_int>, attribute: c_int, function: *mut c_void
    ) needs Context => function_attribute;
    cuFuncGetName: unsafe cuFuncGetName(name: Out<*const c_char>, function: *mut c_void)
        needs Context => function_name;
    cuFuncSetAttribute: safe cuFuncSetAttribute(
        function: *mut c_void, attribute: c_int, value: c_int
    ) needs Context => set_function;
    cuOccupancyMaxActiveBlocksPerMultiprocessor: unsafe cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, function: *mut c_void, size: c_int, shared: usize
    ) needs Context => occupancy;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags: unsafe
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            blocks: Out<c_int>, function: *mut c_void, size: c_int, shared: usize, flags: c_uint
        ) needs Context => occupancy_with_flags;
    cuLaunchKernel: safe cuLaunchKernel(
        function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: *mut c_void,
        arguments: *mut *mut c_void, extra: *mut *mut c_void
    ) needs Context => launch;
    cuLaunchKernelEx: unsafe cuLaunchKernelEx(
        settings: *const c_void, function: *mut c_void, arguments: *mut *mut c_void,
        extra: *mut *mut c_void
    ) needs Context => launch_with;
}
