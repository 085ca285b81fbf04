//! The CUDA component of an MPI: devices of the stand-in driver, as seen from there.

use std::env;
use std::ffi::{CStr, c_int, c_void};
use std::io::{self, Write};
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::real;

const DRIVER: &CStr = c"libcuda.so.1";

static START: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static COPIES: AtomicUsize = AtomicUsize::new(0);

/// A function of the driver's, if a driver is loaded.
fn function<F: Copy>(name: &CStr) -> Option<F> {
    let address = real::find_in(DRIVER, name);
    // SAFETY: callers name the function's type.
    (!address.is_null()).then(|| unsafe { transmute_copy(&address) })
}

/// A function of the stand-in's, which its tests don't count as a call of the core's, or that of
/// a real driver.
fn either<F: Copy>(of_stand_in: &CStr, of_driver: &CStr) -> Option<F> {
    function(of_stand_in).or_else(|| function(of_driver))
}

/// The calling thread's context, null if it has none.
pub fn context() -> *mut c_void {
    let mut context = null_mut();
    let get = function::<unsafe extern "C" fn(*mut *mut c_void) -> c_int>(c"cuCtxGetCurrent");
    if let Some(get) = get {
        // SAFETY: there is room for the answer.
        unsafe { get(&raw mut context) };
    }
    context
}

/// Notes the context when MPI is initialised, and says whether there is one if that is wanted.
pub fn start() {
    let context = context();
    START.store(context, Ordering::Relaxed);
    if env::var_os("AWARE_MPI_SAYS").is_some() {
        let with = if context.is_null() { "without" } else { "with" };
        let _ = writeln!(io::stderr(), "aware MPI: it starts {with} a context");
    }
}

pub fn start_context() -> *mut c_void {
    START.load(Ordering::Relaxed)
}

pub fn copies() -> usize {
    COPIES.load(Ordering::Relaxed)
}

const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const DEVICE: usize = 2;
const MEMPOOL_HANDLE: c_int = 17;

/// An attribute of an address that is a pointer or shorter, if the driver knows the address.
fn attribute(address: usize, attribute: c_int) -> Option<*mut c_void> {
    type Get = unsafe extern "C" fn(*mut c_void, c_int, usize) -> c_int;
    let mut value = null_mut::<c_void>();
    let get = function::<Get>(c"cuPointerGetAttribute")?;
    // SAFETY: there is room for the answer.
    let code = unsafe { get((&raw mut value).cast(), attribute, address) };
    (code == 0).then_some(value)
}

/// Whether an address is taken for a device's.
pub fn is_known(address: usize) -> bool {
    let start = start_context();
    if start.is_null() || start != context() {
        return false;
    }
    let is_device = attribute(address, MEMORY_TYPE).is_some_and(|kind| kind as usize == DEVICE);
    let Some(of_memory) = attribute(address, CONTEXT).filter(|_| is_device) else {
        return false;
    };
    if !of_memory.is_null() {
        return true;
    }
    let is_pool = attribute(address, MEMPOOL_HANDLE).is_some_and(|pool| !pool.is_null());
    let kind = if is_pool { "pool" } else { "mapped" };
    env::var("AWARE_MPI_KINDS").is_ok_and(|kinds| kinds.split(',').any(|known| known == kind))
}

/// Copies device memory to the host.
pub fn read(address: usize, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    type Read = unsafe extern "C" fn(*mut c_void, usize, usize) -> c_int;
    let read: Option<Read> = either(c"stand_in_read", c"cuMemcpyDtoH_v2");
    if let Some(read) = read {
        // SAFETY: there is room for `bytes` bytes.
        let code = unsafe { read(data.as_mut_ptr().cast(), address, bytes) };
        assert_eq!(code, 0, "cuMemcpyDtoH");
    }
    COPIES.fetch_add(1, Ordering::Relaxed);
    data
}

/// Copies to device memory.
pub fn write(address: usize, data: &[u8]) {
    type Write = unsafe extern "C" fn(usize, *const c_void, usize) -> c_int;
    let write: Option<Write> = either(c"stand_in_write", c"cuMemcpyHtoD_v2");
    if let Some(write) = write {
        // SAFETY: `data` has `data.len()` bytes.
        let code = unsafe { write(address, data.as_ptr().cast(), data.len()) };
        assert_eq!(code, 0, "cuMemcpyHtoD");
    }
    COPIES.fetch_add(1, Ordering::Relaxed);
}
