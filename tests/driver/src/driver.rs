//! The driver's functions, each under its CUDA and its HIP name.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null;

use crate::context::{device_get, primary_release, primary_retain, primary_state, stream_context};
use crate::cuda;
use crate::memory::{copy_down, copy_up, host_alloc, host_free, pointer_attribute};
use crate::state::{INVALID_CONTEXT, INVALID_VALUE, NOT_INITIALIZED, NOT_PERMITTED, Outcome, lock};
use crate::stream::{
    event_create, event_destroy, event_query, event_record, event_synchronize, is_in_host_function,
    synchronize,
};

/// The state that a call requires.
#[derive(PartialEq, PartialOrd)]
pub enum Needs {
    Nothing,
    Init,
    Context,
}

/// Each line: the name in the tests, whether all arguments are checked (safe) or one is written to
/// on trust (unsafe), CUDA's symbol, and HIP's where the core needs it, arguments, what it needs,
/// what does it. `from` is the number of functions in other tables before this one.
macro_rules! driver_functions {
    (from $first:expr; $($name:ident: $safety:ident $cuda:ident $(, $hip:ident)?
       ($($arguments:tt)*) needs $needs:ident => $body:ident;)*) => {
        #[expect(non_camel_case_types, clippy::enum_variant_names, reason = "the names are CUDA's")]
        #[derive(Clone, Copy)]
        enum Function { $($name),* }

        impl Function {
            /// Where the function is in the counts and the failures.
            fn index(self) -> usize {
                $first + self as usize
            }
        }

        pub const NAMES: &[&std::ffi::CStr] = &[$(
            match std::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes()
            ) {
                Ok(name) => name,
                Err(_) => panic!(),
            }
        ),*];

        $(
            $crate::driver::driver_functions!(
                @each $safety [$cuda $($hip)?] ($($arguments)*) $name $needs $body
            );
        )*
    };
    (@each $safety:ident [$($symbol:ident)*] $arguments:tt $name:ident $needs:ident
       $body:ident) => {
        $($crate::driver::driver_functions!(@$safety $symbol $arguments $name $needs $body);)*
    };
    (@safe $symbol:ident ($($argument:ident: $type:ty),*) $name:ident $needs:ident $body:ident) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $symbol($($argument: $type),*) -> std::ffi::c_int {
            $crate::driver::call(
                Function::$name.index(), $crate::driver::Needs::$needs, || $body($($argument),*)
            )
        }
    };
    (@unsafe $symbol:ident ($($argument:ident: $type:ty),*) $name:ident $needs:ident $body:ident) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($argument: $type),*) -> std::ffi::c_int {
            $crate::driver::call(
                Function::$name.index(), $crate::driver::Needs::$needs, || $body($($argument),*)
            )
        }
    };
}
pub(crate) use driver_functions;

driver_functions! {
    from 0;
    cuInit: safe cuInit, hipInit(flags: c_uint) needs Nothing => init;
    cuDeviceGetCount: unsafe cuDeviceGetCount, hipGetDeviceCount(count: *mut c_int)
        needs Init => device_count;
    cuCtxGetCurrent: unsafe cuCtxGetCurrent, hipCtxGetCurrent(context: *mut *mut c_void)
        needs Init => get_current;
    cuCtxSetCurrent: safe cuCtxSetCurrent, hipCtxSetCurrent(context: *mut c_void)
        needs Init => set_current;
    cuMemHostAlloc: unsafe cuMemHostAlloc, hipHostMalloc(
        address: *mut *mut c_void, bytes: usize, flags: c_uint
    ) needs Context => host_alloc;
    cuMemFreeHost: safe cuMemFreeHost, hipHostFree(address: *mut c_void) needs Context => host_free;
    cuMemcpyDtoHAsync: safe cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync(
        host: *mut c_void, device: usize, bytes: usize, stream: *mut c_void
    ) needs Context => copy_down;
    cuMemcpyHtoDAsync: safe cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync(
        device: usize, host: *const c_void, bytes: usize, stream: *mut c_void
    ) needs Context => copy_up;
    cuEventCreate: unsafe cuEventCreate, hipEventCreateWithFlags(
        event: *mut *mut c_void, flags: c_uint
    ) needs Context => event_create;
    cuEventRecord: safe cuEventRecord, hipEventRecord(event: *mut c_void, stream: *mut c_void)
        needs Context => event_record;
    cuEventQuery: safe cuEventQuery, hipEventQuery(event: *mut c_void) needs Context => event_query;
    cuEventSynchronize: safe cuEventSynchronize, hipEventSynchronize(event: *mut c_void)
        needs Context => event_synchronize;
    cuEventDestroy: safe cuEventDestroy_v2, hipEventDestroy(event: *mut c_void)
        needs Context => event_destroy;
    cuStreamSynchronize: safe cuStreamSynchronize, hipStreamSynchronize(stream: *mut c_void)
        needs Context => synchronize;
    cuGetErrorName: unsafe cuGetErrorName, hipDrvGetErrorName(code: c_int, text: *mut *const c_char)
        needs Nothing => error_name;
    cuGetErrorString: unsafe cuGetErrorString, hipDrvGetErrorString(
        code: c_int, text: *mut *const c_char
    ) needs Nothing => error_string;
    cuDeviceGet: unsafe cuDeviceGet, hipDeviceGet(device: *mut c_int, ordinal: c_int)
        needs Init => device_get;
    cuDevicePrimaryCtxRetain: unsafe cuDevicePrimaryCtxRetain, hipDevicePrimaryCtxRetain(
        context: *mut *mut c_void, device: c_int
    ) needs Init => primary_retain;
    cuDevicePrimaryCtxRelease: safe cuDevicePrimaryCtxRelease_v2, hipDevicePrimaryCtxRelease(
        device: c_int
    ) needs Init => primary_release;
    cuDevicePrimaryCtxGetState: unsafe cuDevicePrimaryCtxGetState, hipDevicePrimaryCtxGetState(
        device: c_int, flags: *mut c_uint, active: *mut c_int
    ) needs Init => primary_state;
    // HIP has no such function, so the core must do without it there.
    cuStreamGetCtx: unsafe cuStreamGetCtx, hip_has_no_stream_context(
        stream: *mut c_void, context: *mut *mut c_void
    ) needs Init => stream_context;
    cuPointerGetAttribute: unsafe cuPointerGetAttribute, hipPointerGetAttribute(
        value: *mut c_void, attribute: c_int, address: usize
    ) needs Init => pointer_attribute;
}

pub const FUNCTIONS: usize = NAMES.len() + cuda::NAMES.len();

/// The index of a driver function in the counts and the failures.
pub fn index(name: &CStr) -> Option<usize> {
    let mut names = NAMES.iter().chain(cuda::NAMES);
    names.position(|known| *known == name)
}

/// Counts a call of the function with this index in the tables, and makes it unless it has to fail.
pub fn call(index: usize, needs: Needs, body: impl FnOnce() -> Outcome) -> c_int {
    let mut state = lock();
    state.counts.calls[index] += 1;
    match &mut state.failures[index] {
        Some(failure) if failure.skip > 0 => failure.skip -= 1,
        failure => {
            if let Some(failure) = failure.take() {
                return failure.code;
            }
        }
    }
    if is_in_host_function() {
        state.violation("a host function called the driver");
        return NOT_PERMITTED;
    }
    if needs >= Needs::Init && !state.initialized {
        return NOT_INITIALIZED;
    }
    if needs == Needs::Context && current_context() == 0 {
        return INVALID_CONTEXT;
    }
    drop(state);
    body().err().unwrap_or(0)
}

fn init(flags: c_uint) -> Outcome {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    match setting("STAND_IN_INIT", 0) {
        0 => {
            lock().initialized = true;
            Ok(())
        }
        code => Err(code),
    }
}

pub fn device_count(count: *mut c_int) -> Outcome {
    give(count, setting("STAND_IN_DEVICES", 1))
}

pub fn setting(name: &str, default: c_int) -> c_int {
    let value = std::env::var(name).ok();
    value
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(default)
}

/// A context's handle is its number and this, so that it is always the same.
const CONTEXTS: usize = 0xC0 << 48;
const HIGHEST_CONTEXT: usize = 0xFFFF;

/// The context with this index.
pub fn context(index: usize) -> Option<usize> {
    (index <= HIGHEST_CONTEXT).then_some(CONTEXTS + index * 16)
}

pub fn is_context(handle: usize) -> bool {
    handle
        .checked_sub(CONTEXTS)
        .is_some_and(|offset| context(offset / 16) == Some(handle))
}

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// This thread's context, 0 for none.
pub fn current_context() -> usize {
    CURRENT.get()
}

fn get_current(context: *mut *mut c_void) -> Outcome {
    give(context, current_context() as *mut c_void)
}

pub fn set_current(context: *mut c_void) -> Outcome {
    if !context.is_null() && !is_context(context as usize) {
        return Err(INVALID_CONTEXT);
    }
    CURRENT.set(context as usize);
    Ok(())
}

pub fn give<T>(target: *mut T, value: T) -> Outcome {
    if target.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the target is the caller's to be written.
    unsafe { *target = value };
    Ok(())
}

const ERRORS: &[(c_int, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (
        100,
        c"CUDA_ERROR_NO_DEVICE",
        c"no CUDA-capable device is detected",
    ),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (
        201,
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"invalid device context",
    ),
    (
        400,
        c"CUDA_ERROR_INVALID_HANDLE",
        c"invalid resource handle",
    ),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (
        700,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered",
    ),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
];

fn error_name(code: c_int, text: *mut *const c_char) -> Outcome {
    error_text(code, text, |(_, name, _)| name)
}

fn error_string(code: c_int, text: *mut *const c_char) -> Outcome {
    error_text(code, text, |(_, _, string)| string)
}

type Error = (c_int, &'static CStr, &'static CStr);

fn error_text(code: c_int, text: *mut *const c_char, part: fn(&Error) -> &'static CStr) -> Outcome {
    let error = ERRORS.iter().find(|error| error.0 == code);
    give(text, error.map_or(null(), |error| part(error).as_ptr()))?;
    error.map(drop).ok_or(INVALID_VALUE)
}
