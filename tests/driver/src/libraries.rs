//! The little that XLA asks of NVIDIA's other libraries before any kernel runs: this library is
//! all of them, under more names.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::context::give_text;
use crate::copies::copy_any;
use crate::driver::{device_count, give};
use crate::module::kernel_of;
use crate::stream::synchronize;

/// The version of the runtime that the plugins for CUDA 12 have been built with, or a later one.
const RUNTIME: c_int = 12080;

fn code(outcome: Result<(), c_int>) -> c_int {
    outcome.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaRuntimeGetVersion(version: *mut c_int) -> c_int {
    code(give(version, RUNTIME))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDeviceCount(count: *mut c_int) -> c_int {
    code(device_count(count))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorString(_code: c_int) -> *const c_char {
    c"an error of the stand-in".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorName(_code: c_int) -> *const c_char {
    c"cudaError".as_ptr()
}

/// The kernels that are part of the plugin are known by the addresses of their stubs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetFuncBySymbol(
    function: *mut *mut c_void,
    symbol: *const c_void,
) -> c_int {
    code(give(function, kernel_of(symbol as usize) as *mut c_void))
}

#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinary(_binary: *mut c_void) -> *mut *mut c_void {
    null_mut()
}

/// Declares functions that have nothing to do.
macro_rules! without_effect {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> c_int {
            0
        }
    )*};
}

without_effect! {
    __cudaRegisterFatBinaryEnd(_binary: *mut c_void);
    __cudaUnregisterFatBinary(_binary: *mut c_void);
    __cudaRegisterFunction(
        _binary: *mut c_void, _stub: *mut c_void, _name: *mut c_void, _device_name: *mut c_void,
        _limit: c_int, _thread: *mut c_void, _block: *mut c_void, _block_size: *mut c_void,
        _grid: *mut c_void, _warp: *mut c_void
    );
    __cudaRegisterVar(
        _binary: *mut c_void, _variable: *mut c_void, _name: *mut c_void,
        _device_name: *mut c_void, _is_extern: c_int, _bytes: usize, _is_constant: c_int,
        _is_global: c_int
    );
}

/// `NVML_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: c_int = 3;

without_effect! {
    nvmlInit_v2();
    nvmlShutdown();
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(_code: c_int) -> *const c_char {
    c"an error of the stand-in".as_ptr()
}

/// XLA then does without what it would ask about the buses.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    _bus: *const c_char,
    _device: *mut *mut c_void,
) -> c_int {
    NOT_SUPPORTED
}

/// Of a driver for the runtime above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(text: *mut c_char, length: c_int) -> c_int {
    code(give_text(text, length, "570.00"))
}

without_effect! {
    cudnnDestroy(_handle: *mut c_void);
    cudnnSetStream(_handle: *mut c_void, _stream: *mut c_void);
    cublasDestroy_v2(_handle: *mut c_void);
    cublasSetStream_v2(_handle: *mut c_void, _stream: *mut c_void);
}

/// A handle that nothing is done with.
const HANDLE: *mut c_void = 0x10 as *mut c_void;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreate(handle: *mut *mut c_void) -> c_int {
    code(give(handle, HANDLE))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasCreate_v2(handle: *mut *mut c_void) -> c_int {
    code(give(handle, HANDLE))
}

/// The major and minor version and the patch level, by the property's number.
const CUDNN: [c_int; 3] = [9, 20, 0];

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetProperty(property: c_int, value: *mut c_int) -> c_int {
    let version_part = usize::try_from(property)
        .ok()
        .and_then(|index| CUDNN.get(index));
    code(give(value, version_part.copied().unwrap_or(0)))
}

/// Of Python callbacks, which copy like this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpyAsync(
    to: usize,
    from: usize,
    bytes: usize,
    _kind: c_int,
    stream: *mut c_void,
) -> c_int {
    code(copy_any(to, from, bytes, stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamSynchronize(stream: *mut c_void) -> c_int {
    code(synchronize(stream))
}
