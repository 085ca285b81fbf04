//! The real MPI, and the real `dlsym`.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::sync::OnceLock;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Versions of glibc's `dlsym`, by system.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];

/// # Safety
/// As of `dlsym`.
pub unsafe fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    static REAL: OnceLock<Dlsym> = OnceLock::new();
    let real = REAL.get_or_init(|| {
        let addresses = VERSIONS.map(|version| {
            // SAFETY: both are C strings.
            unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) }
        });
        let address = addresses.into_iter().find(|address| !address.is_null());
        // SAFETY: this is its signature.
        unsafe { transmute_copy(&address.expect("glibc has a dlsym")) }
    });
    // SAFETY: the caller's promise.
    unsafe { real(handle, name) }
}

/// The names of MPI's library: MPICH's, Open MPI's, and the standard ABI's.
const LIBRARIES: [&CStr; 3] = [c"libmpi.so.12", c"libmpi.so.40", c"libmpi_abi.so.0"];

fn library() -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let open = |name: &CStr| {
            // SAFETY: what is loaded already is opened once more.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) as usize }
        };
        let handles = LIBRARIES.map(open);
        let handle = handles.into_iter().find(|handle| *handle != 0);
        handle.expect("mpi4py has loaded an MPI")
    }) as *mut c_void
}

/// A function of the real MPI, null if it has none of this name.
pub fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a library that stays, and a C string.
    unsafe { dlsym(library(), name.as_ptr()) }
}

/// A function of another library that is loaded already, null if it has none of this name.
pub fn find_in(library: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: what is loaded already is opened once more, and stays.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return null_mut();
        }
        dlsym(handle, name.as_ptr())
    }
}
