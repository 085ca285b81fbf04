//! The MPI library that mpi4py has loaded into this process.

use libloading::os::unix;

/// A handle of the shared object through which MPI's functions are found.
pub struct Library(unix::Library);

/// `RTLD_NOLOAD` of glibc and musl: opens only libraries that are loaded.
#[cfg(target_os = "linux")]
pub const RTLD_NOLOAD: std::ffi::c_int = 0x4;
/// `RTLD_NOLOAD` of macOS.
#[cfg(target_os = "macos")]
pub const RTLD_NOLOAD: std::ffi::c_int = 0x10;

impl Library {
    /// Opens mpi4py's extension module at `path` once more. `dlsym` on this handle searches the
    /// module's dependencies, and so finds the functions of exactly the MPI that mpi4py calls.
    pub fn open(path: &str) -> Result<Self, String> {
        // SAFETY: the module is loaded already, so no initialiser runs.
        unsafe { unix::Library::open(Some(path), unix::RTLD_LAZY | RTLD_NOLOAD) }
            .map(Self)
            .map_err(|error| format!("{path} is not a loaded shared library ({error})"))
    }

    /// Finds the function called `name`.
    ///
    /// # Safety
    /// `F` is a function pointer type, and the function has that type.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, String> {
        // SAFETY: the caller's promise.
        unsafe { self.0.get::<F>(name.as_bytes()) }
            .map(|symbol| *symbol)
            .map_err(|_| format!("it has no function {name}"))
    }
}
