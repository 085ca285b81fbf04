//! Directory in the key-value space of PMIx, which Open MPI and its launchers use.
//!
//! Other processes can get a value at any time after a process has committed it: their server asks the
//! server of that process (PMIx 4.1 §7.1). Slurm has no MPI name service with PMIx, only this space. The
//! declarations are copied from `pmix_common.h`, which has not changed them since PMIx 2.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use super::directory::{Closed, Directory};
use crate::mpi::{Library, call_in_background};

/// `pmix_proc_t`.
#[repr(C)]
struct Proc {
    nspace: [u8; 256],
    rank: u32,
}

/// `pmix_value_t`: the number of a type, and a union whose largest member has three words.
#[repr(C)]
struct Value {
    kind: u16,
    data: [usize; 3],
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [u8; 512],
    flags: u32,
    value: Value,
}

/// `PMIX_STRING` and `PMIX_INT`.
const STRING: u16 = 3;
const INT: u16 = 6;
/// `PMIX_GLOBAL`: for the processes of all machines.
const GLOBAL: u8 = 3;
/// `PMIX_TIMEOUT`, in seconds: without it, `PMIx_Get` waits until the process has committed the key.
const TIMEOUT: &[u8] = b"pmix.timeout";
const PATIENCE: usize = 1;

const KEY: &CStr = c"mpi4jax";

type Put = unsafe extern "C" fn(scope: u8, key: *const c_char, value: *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Get = unsafe extern "C" fn(
    process: *const Proc,
    key: *const c_char,
    info: *const Info,
    count: usize,
    value: *mut *mut Value,
) -> c_int;
type Initialized = unsafe extern "C" fn() -> c_int;

/// Functions of the PMIx library that the MPI of this process has initialised.
pub struct Pmix {
    nspace: CString,
    put: Put,
    commit: Commit,
    get: Get,
}

impl Pmix {
    /// Finds PMIx, if it is loaded and initialised and a launcher has given this process a name space.
    pub fn find() -> Option<Self> {
        let nspace = CString::new(env::var("PMIX_NAMESPACE").ok()?).ok()?;
        let library = loaded_library()?;
        // SAFETY: these are the signatures of `pmix.h`.
        unsafe {
            let initialized: Initialized = library.function("PMIx_Initialized").ok()?;
            let pmix = Self {
                nspace,
                put: library.function("PMIx_Put").ok()?,
                commit: library.function("PMIx_Commit").ok()?,
                get: library.function("PMIx_Get").ok()?,
            };
            (initialized() != 0 && pmix.nspace.as_bytes().len() < 256).then_some(pmix)
        }
    }
}

#[cfg(target_os = "linux")]
fn loaded_library() -> Option<Library> {
    let path = crate::loaded::find(|library| {
        let name = library.path.file_name()?.to_str()?;
        let is_pmix = name.starts_with("libpmix.so");
        is_pmix.then(|| library.path.to_str().map(str::to_owned))?
    });
    Library::open(&path?).ok()
}

#[cfg(not(target_os = "linux"))]
fn loaded_library() -> Option<Library> {
    None
}

impl Directory for Pmix {
    fn publish(&self, text: &str) -> Result<(), String> {
        let text = CString::new(text).unwrap_or_default();
        let mut value = Value {
            kind: STRING,
            data: [text.as_ptr().addr(), 0, 0],
        };
        text.as_ptr().expose_provenance();
        // SAFETY: PMIx copies the value and its text.
        let put = || unsafe {
            let code = (self.put)(GLOBAL, KEY.as_ptr(), &raw mut value);
            if code == 0 { (self.commit)() } else { code }
        };
        match call_in_background(put) {
            Some(0) => Ok(()),
            Some(code) => Err(format!("PMIx_Put has failed with error {code}")),
            None => Err("MPI was finalised".to_owned()),
        }
    }

    fn look_up(&self, rank: i32) -> Result<Option<String>, Closed> {
        let mut process = Proc {
            nspace: [0; 256],
            rank: rank as u32,
        };
        let nspace = self.nspace.as_bytes();
        process.nspace[..nspace.len()].copy_from_slice(nspace);
        let mut timeout = Info {
            key: [0; 512],
            flags: 0,
            value: Value {
                kind: INT,
                data: [PATIENCE, 0, 0],
            },
        };
        timeout.key[..TIMEOUT.len()].copy_from_slice(TIMEOUT);
        let mut value: *mut Value = ptr::null_mut();
        let get = || {
            // SAFETY: PMIx reads the process, the key and one entry, and writes the address of a value.
            let code = unsafe {
                (self.get)(
                    &raw const process,
                    KEY.as_ptr(),
                    &raw const timeout,
                    1,
                    &raw mut value,
                )
            };
            // SAFETY: `malloc` has allocated the value and, if it is a string, its text; nothing else uses it.
            (code == 0 && !value.is_null()).then(|| unsafe { take_text(value) })?
        };
        call_in_background(get).ok_or(Closed)
    }
}

/// Frees a value, and returns its text if it is a string.
///
/// # Safety
/// PMIx has allocated the value, and no other code uses it.
unsafe fn take_text(value: *mut Value) -> Option<String> {
    // SAFETY: the caller's promise.
    unsafe {
        let Value { kind, data } = value.read();
        let text = (kind == STRING).then(|| {
            let text = ptr::with_exposed_provenance_mut::<c_char>(data[0]);
            let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
            libc::free(text.cast::<c_void>());
            copy
        });
        libc::free(value.cast::<c_void>());
        text
    }
}
