//! A stand-in for a CUDA-aware MPI, for tests on machines without a GPU. Preloaded (`LD_PRELOAD`),
//! it stands between mpi4py, or the core, and the real MPI, which knows nothing of devices.
//!
//! It says that it is CUDA-aware, and copies device memory of the stand-in driver to the host and back
//! around the real MPI's functions. But it does so only where Open MPI's CUDA component would work:
//! if a context was current when MPI was initialised (open-mpi/ompi#11084, #11831, #13354), the same
//! one is current now (#13836), and the memory is of a kind that it knows (#12781, #12835). Where it
//! would not, the address goes on to the real MPI, which takes it for the host's and crashes on it.
//!
//! `AWARE_MPI_VERSION` is the text that `MPI_Get_library_version` gives, `AWARE_MPI_KINDS` the kinds
//! of memory that are known besides the plain one ("pool", "mapped"). With `AWARE_MPI_SAYS` it says on
//! stderr whether there was a context when it was initialised.

mod driver;
mod functions;
mod real;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// Looks a function up here before mpi4py's module, where the core asks for it.
///
/// # Safety
/// As of `dlsym`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller gives a C string.
    let wanted = unsafe { CStr::from_ptr(name) };
    match functions::own(wanted) {
        // Of this library's own lookups, `RTLD_NEXT` and `RTLD_DEFAULT` are none.
        Some(function) if !handle.is_null() && handle != libc::RTLD_NEXT => function,
        // SAFETY: the caller's promise.
        _ => unsafe { real::dlsym(handle, name) },
    }
}

/// The context that was current when MPI was initialised, null if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn aware_mpi_start_context() -> *mut c_void {
    driver::start_context()
}

/// How many arrays were copied from devices, or to them.
#[unsafe(no_mangle)]
pub extern "C" fn aware_mpi_copies() -> usize {
    driver::copies()
}

/// How many calls of `MPI_Test` were made.
#[unsafe(no_mangle)]
pub extern "C" fn aware_mpi_tests() -> usize {
    functions::tests()
}

/// How many of them were made by threads with no context, or another one than that at
/// the start.
#[unsafe(no_mangle)]
pub extern "C" fn aware_mpi_strange_tests() -> usize {
    functions::strange_tests()
}

/// Reads a number that a real function gives.
fn number_from(function: impl FnOnce(*mut c_int) -> c_int) -> usize {
    let mut value: c_int = 0;
    let code = function(ptr::from_mut(&mut value));
    assert_eq!(code, 0, "the real MPI failed");
    value.try_into().unwrap_or(0)
}
