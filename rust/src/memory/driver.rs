//! The driver of the GPU, found at run time: NVIDIA's, or AMD's, which mirrors it.
//!
//! The core needs sixteen functions of a driver, under the names of both, and uses six more where the
//! driver has them. It declares them itself, as it does those of MPI. The bindings of the crate cudarc return a Rust enum, and what a newer
//! driver returns that the enum does not know is undefined behaviour; `tests/referee` compares the
//! signatures with them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use libloading::os::unix;

use crate::error::Failure;
use crate::mpi::RTLD_NOLOAD;

/// A context of the driver's, in which a thread works on a device.
pub type Context = *mut c_void;
/// A queue of the device's.
pub type Stream = *mut c_void;
/// A point in a stream.
pub type StreamEvent = *mut c_void;

/// The vendor of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA.
    Cuda,
    /// AMD. Not tried on hardware.
    Rocm,
}

impl Vendor {
    const ALL: [Self; 2] = [Self::Cuda, Self::Rocm];

    /// JAX's name of the platform.
    pub fn name(self) -> &'static str {
        ["cuda", "rocm"][self as usize]
    }

    /// The names of the library, the first of which is taken that there is.
    fn libraries(self) -> &'static [&'static str] {
        match self {
            Self::Cuda => &["libcuda.so.1"],
            Self::Rocm => &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"],
        }
    }
}

/// Declares the functions of the driver once, under both names. Those that are optional may be
/// missing in an old driver, or in AMD's.
macro_rules! driver_functions {
    (
        $(
            $(#[$doc:meta])*
            $field:ident = $cuda:ident, $hip:ident ( $($argument:ident : $type:ty),* $(,)? );
        )*
        @optional
        $(
            $(#[$other_doc:meta])*
            $other:ident = $other_cuda:ident, $other_hip:ident
                ( $($other_argument:ident : $other_type:ty),* $(,)? );
        )*
    ) => {
        struct DriverFunctions {
            $($field: unsafe extern "C" fn($($type),*) -> c_int,)*
            $($other: Option<unsafe extern "C" fn($($other_type),*) -> c_int>,)*
        }

        impl DriverFunctions {
            /// Finds every function in a library of this vendor's.
            fn load(library: &unix::Library, vendor: Vendor) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the function of that name has the signature declared below.
                    $($field: *unsafe {
                        let name = [stringify!($cuda), stringify!($hip)][vendor as usize];
                        library.get(name.as_bytes())?
                    },)*
                    // SAFETY: as above, if the library has it.
                    $($other: unsafe {
                        let name = [stringify!($other_cuda), stringify!($other_hip)];
                        library.get(name[vendor as usize].as_bytes()).ok().map(|symbol| *symbol)
                    },)*
                })
            }
        }

        #[cfg(test)]
        impl DriverFunctions {
            /// Functions that do nothing.
            fn idle() -> Self {
                Self {
                    $($field: {
                        unsafe extern "C" fn idle($(_: $type),*) -> c_int {
                            0
                        }
                        idle
                    },)*
                    $($other: None,)*
                }
            }
        }

        impl Driver {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// As the driver's documentation says of this function.
                pub unsafe fn $field(&self, $($argument: $type),*) -> Result<(), Failure> {
                    // SAFETY: the caller's promise.
                    let code = unsafe { (self.functions.$field)($($argument),*) };
                    self.outcome([stringify!($cuda), stringify!($hip)], code)
                }
            )*
            $(
                $(#[$other_doc])*
                ///
                /// # Safety
                /// As the driver's documentation says of this function.
                pub unsafe fn $other(&self, $($other_argument: $other_type),*) -> Result<(), Failure> {
                    let names = [stringify!($other_cuda), stringify!($other_hip)];
                    let Some(function) = self.functions.$other else {
                        return Err(self.missing(names));
                    };
                    // SAFETY: the caller's promise.
                    let code = unsafe { function($($other_argument),*) };
                    self.outcome(names, code)
                }
            )*
        }

        /// The names of all functions in CUDA, with the sizes of their arguments, for the referee.
        pub fn signatures() -> Vec<(&'static str, Vec<usize>)> {
            vec![
                $((stringify!($cuda), vec![$(size_of::<$type>()),*]),)*
                $((stringify!($other_cuda), vec![$(size_of::<$other_type>()),*]),)*
            ]
        }
    };
}

driver_functions! {
    /// Initialises the driver. Must be called before all others.
    init = cuInit, hipInit(flags: c_uint);
    device_count = cuDeviceGetCount, hipGetDeviceCount(count: *mut c_int);
    /// The context of the calling thread, null if it has none.
    current_context = cuCtxGetCurrent, hipCtxGetCurrent(context: *mut Context);
    set_current_context = cuCtxSetCurrent, hipCtxSetCurrent(context: Context);
    /// Allocates page-locked memory, which a device copies from and to by itself.
    host_alloc = cuMemHostAlloc, hipHostMalloc(
        address: *mut *mut c_void, bytes: usize, flags: c_uint,
    );
    host_free = cuMemFreeHost, hipHostFree(address: *mut c_void);
    /// Queues a copy from the device's memory on the stream.
    copy_down = cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync(
        host: *mut c_void, device: usize, bytes: usize, stream: Stream,
    );
    /// Queues a copy to the device's memory on the stream.
    copy_up = cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync(
        device: usize, host: *const c_void, bytes: usize, stream: Stream,
    );
    event_create = cuEventCreate, hipEventCreateWithFlags(event: *mut StreamEvent, flags: c_uint);
    /// Sets the event to the end of the work that the stream has been given until now.
    event_record = cuEventRecord, hipEventRecord(event: StreamEvent, stream: Stream);
    event_query = cuEventQuery, hipEventQuery(event: StreamEvent);
    event_synchronize = cuEventSynchronize, hipEventSynchronize(event: StreamEvent);
    event_destroy = cuEventDestroy_v2, hipEventDestroy(event: StreamEvent);
    stream_synchronize = cuStreamSynchronize, hipStreamSynchronize(stream: Stream);
    error_name = cuGetErrorName, hipDrvGetErrorName(code: c_int, text: *mut *const c_char);
    error_string = cuGetErrorString, hipDrvGetErrorString(code: c_int, text: *mut *const c_char);
    @optional
    device_get = cuDeviceGet, hipDeviceGet(device: *mut c_int, ordinal: c_int);
    /// Takes a share in the context of a device that all libraries of the process have in common.
    primary_context_retain = cuDevicePrimaryCtxRetain, hipDevicePrimaryCtxRetain(
        context: *mut Context, device: c_int,
    );
    /// AMD has none: its streams belong to devices.
    stream_context = cuStreamGetCtx, hipStreamGetCtx(stream: Stream, context: *mut Context);
    pointer_attribute = cuPointerGetAttribute, hipPointerGetAttribute(
        value: *mut c_void, attribute: c_int, pointer: usize,
    );
    /// Of the part that a process has, where a device is divided (MIG).
    device_uuid = cuDeviceGetUuid_v2, hipDeviceGetUuid(uuid: *mut [u8; 16], device: c_int);
    context_device = cuCtxGetDevice, hipCtxGetDevice(device: *mut c_int);
}

/// `CU_EVENT_DISABLE_TIMING`, `hipEventDisableTiming`.
pub const DISABLE_TIMING: c_uint = 2;

/// `CUDA_ERROR_NOT_SUPPORTED`, `hipErrorNotSupported`.
const NOT_SUPPORTED: c_int = 801;

/// A driver that was found, and has a device.
pub struct Driver {
    /// Its vendor.
    pub vendor: Vendor,
    /// Number of devices.
    pub devices: c_int,
    functions: DriverFunctions,
}

#[cfg(test)]
impl Driver {
    /// One without a device, whose page-locked memory is any memory.
    pub(super) fn idle() -> &'static Self {
        unsafe extern "C" fn host_alloc(
            address: *mut *mut c_void,
            bytes: usize,
            _: c_uint,
        ) -> c_int {
            // SAFETY: the caller lends room for the address.
            unsafe { *address = libc::malloc(bytes) };
            0
        }
        unsafe extern "C" fn host_free(address: *mut c_void) -> c_int {
            // SAFETY: it comes from `host_alloc`, and is freed once.
            unsafe { libc::free(address) };
            0
        }
        Box::leak(Box::new(Self {
            vendor: Vendor::Cuda,
            devices: 0,
            functions: DriverFunctions {
                host_alloc,
                host_free,
                ..DriverFunctions::idle()
            },
        }))
    }
}

impl Driver {
    /// The driver of this process. Looks for one at the first call, or says why there is none.
    pub fn get() -> Result<&'static Self, &'static str> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        DRIVER
            .get_or_init(Self::find)
            .as_ref()
            .map_err(|why| &**why)
    }

    fn find() -> Result<Self, String> {
        let mut reasons = Vec::new();
        for vendor in Vendor::ALL {
            match Self::open(vendor) {
                Ok(driver) => return Ok(driver),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons.join("; "))
    }

    fn open(vendor: Vendor) -> Result<Self, String> {
        let mut outcome = Err(String::new());
        for name in vendor.libraries() {
            // SAFETY: loading a driver runs its initialisers, as it does for JAX.
            let functions =
                unsafe { unix::Library::open(Some(name), unix::RTLD_LAZY) }.and_then(|library| {
                    let functions = DriverFunctions::load(&library, vendor)?;
                    // It stays, as its functions do.
                    std::mem::forget(library);
                    Ok(functions)
                });
            outcome = functions.map_err(|error| error.to_string());
            if outcome.is_ok() {
                break;
            }
        }
        let mut driver = Self {
            vendor,
            devices: 0,
            functions: outcome?,
        };
        let mut devices = 0;
        // SAFETY: the first call of all, and then one with room for the answer.
        unsafe {
            driver
                .init(0)
                .and_then(|()| driver.device_count(&raw mut devices))
        }
        .map_err(|failure| failure.to_string())?;
        driver.devices = devices;
        match devices {
            1.. => Ok(driver),
            _ => Err(format!("the {} driver has no device", vendor.name())),
        }
    }

    /// The outcome of a function that returned this code.
    fn outcome(&self, names: [&'static str; 2], code: c_int) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        Err(self.failure(names[self.vendor as usize], code))
    }

    #[cold]
    fn missing(&self, names: [&'static str; 2]) -> Failure {
        Failure {
            function: names[self.vendor as usize],
            code: NOT_SUPPORTED,
            text: "this driver has no such function".into(),
        }
    }

    /// The failure of a function with this error code.
    #[cold]
    fn failure(&self, function: &'static str, code: c_int) -> Failure {
        let text_of = |find: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = ptr::null();
            // SAFETY: the driver gives a text that stays, or an error and null.
            unsafe {
                (find(code, &raw mut text) == 0 && !text.is_null())
                    .then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        let name = text_of(self.functions.error_name);
        let text = text_of(self.functions.error_string);
        Failure {
            function: function.trim_end_matches("_v2"),
            code,
            text: match (name, text) {
                (Some(name), Some(text)) => format!("{name}: {text}"),
                (Some(text), None) | (None, Some(text)) => text,
                (None, None) => "unknown error".into(),
            },
        }
    }

    /// The context that is current on this thread.
    pub fn context(&self) -> Result<Context, Failure> {
        let mut context = ptr::null_mut();
        // SAFETY: there is room for the answer.
        unsafe { self.current_context(&raw mut context) }?;
        Ok(context)
    }

    /// The context that a stream is in: the calling thread's own, if the driver does not say.
    pub(super) fn context_of(&self, stream: Stream) -> Result<Context, Failure> {
        let mut context = ptr::null_mut();
        // SAFETY: XLA's own stream, and there is room for the answer.
        match unsafe { self.stream_context(stream, &raw mut context) } {
            Err(failure) if failure.code == NOT_SUPPORTED => self.context(),
            outcome => outcome.map(|()| context),
        }
    }

    /// Makes a context the calling thread's, until the guard is dropped.
    pub(super) fn enter(&'static self, context: Context) -> Result<InContext, Failure> {
        let before = self.context()?;
        if before != context {
            // SAFETY: it is a context that lives: a stream is in it, or the process has a share.
            unsafe { self.set_current_context(context) }?;
        }
        Ok(InContext {
            driver: self,
            before,
        })
    }
}

/// The calling thread's context, null if it has none, without initialising a driver: that would fix
/// which devices this process sees.
pub fn context_without_driver() -> Context {
    type GetCurrent = unsafe extern "C" fn(*mut Context) -> c_int;
    let mut context = ptr::null_mut();
    let [name] = Vendor::Cuda.libraries() else {
        return context;
    };
    // SAFETY: only a library that is loaded already is opened, so no initialiser runs.
    let library = unsafe { unix::Library::open(Some(name), unix::RTLD_LAZY | RTLD_NOLOAD) };
    if let Ok(library) = library {
        // SAFETY: the function has this signature, and there is room for the answer. Without a
        // driver that is initialised, it returns an error.
        unsafe {
            if let Ok(get_current) = library.get::<GetCurrent>(b"cuCtxGetCurrent") {
                get_current(&raw mut context);
            }
        }
    }
    context
}

/// A thread that works in another context for a while.
pub struct InContext {
    driver: &'static Driver,
    before: Context,
}

impl Drop for InContext {
    fn drop(&mut self) {
        // Not only what was set here: MPI may have set one, too (Open MPI's `check_addr` does).
        if self.driver.context().is_ok_and(|now| now != self.before) {
            // SAFETY: this context was current, and nobody else could destroy it meanwhile.
            // There is nothing to be done about an error.
            let _ = unsafe { self.driver.set_current_context(self.before) };
        }
    }
}
