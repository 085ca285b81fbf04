//! Initialization, inquiries and memory (MPI-3.1 §8).

use std::ffi::{c_char, c_int};
use std::fs;
use std::io::{self, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{self, ThreadId};
use std::time::Instant;

use super::attributes;
use super::errors::{ARG, Error, NO_MEM, Result};
use super::handles::{COMM_SELF, COMM_WORLD, state};
use super::memory::Out;

/// Whether MPI was initialized and finalized, and by which thread.
#[derive(Default)]
pub struct Environment {
    is_initialized: bool,
    is_finalized: bool,
    main: Option<ThreadId>,
    /// The bytes and the address of the buffer for `MPI_Bsend`.
    pub attached: Option<(usize, c_int)>,
}

/// Whether functions may be called.
pub fn is_running() -> bool {
    let state = state();
    state.environment.is_initialized && !state.environment.is_finalized
}

/// Writes a line to stderr, and ends the process.
pub fn exit(code: c_int, text: &str) -> ! {
    let _ = writeln!(
        io::stderr(),
        "Abort({code}) on node 0 (rank 0 in a world of one process): {text}"
    );
    unsafe extern "C" {
        fn _exit(code: c_int) -> !;
    }
    // Functions that run at exit would wait for threads, or crash beside them.
    // SAFETY: it is C's.
    unsafe { _exit(code) }
}

static TAG_UB: AtomicI32 = AtomicI32::new(0x3fff_ffff);
static HOST: AtomicI32 = AtomicI32::new(-1);
static IO: AtomicI32 = AtomicI32::new(-2);
static TRUE: AtomicI32 = AtomicI32::new(1);
static UNIVERSE_SIZE: AtomicI32 = AtomicI32::new(1);
static LAST_USED_CODE: AtomicI32 = AtomicI32::new(0x3fff_ffff);
static APPNUM: AtomicI32 = AtomicI32::new(0);

/// The largest tag.
pub fn tag_ub() -> c_int {
    TAG_UB.load(Ordering::Relaxed)
}

/// Sets what `MPI_LASTUSEDCODE` points to.
pub fn set_last_used_code(code: c_int) {
    LAST_USED_CODE.store(code, Ordering::Relaxed);
}

/// The address of the value of an attribute that every communicator has (MPI-3.1 §8.1.2).
pub fn attribute(keyval: c_int) -> Option<usize> {
    let value = match keyval {
        0x6440_0001 => &TAG_UB,
        0x6440_0003 => &HOST,
        0x6440_0005 => &IO,
        0x6440_0007 => &TRUE,
        0x6440_0009 => &UNIVERSE_SIZE,
        0x6440_000b => &LAST_USED_CODE,
        0x6440_000d => &APPNUM,
        _ => return None,
    };
    Some(value.as_ptr().expose_provenance())
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

const MULTIPLE: c_int = 3;

fn initialize() -> Result<()> {
    let mut state = state();
    if state.environment.is_initialized {
        return Err(Error::new(
            super::errors::OTHER,
            "MPI was initialized before",
        ));
    }
    LazyLock::force(&START);
    state.environment.is_initialized = true;
    state.environment.main = Some(thread::current().id());
    Ok(())
}

/// Functions that may be called at any time, declared as in [`mpi`].
macro_rules! always {
    ($($name:ident($($argument:ident : $type:ty),* $(,)?) => $body:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> c_int {
            let body = || -> Result<()> { $body };
            body().map_or_else(|error| error.code, |()| 0)
        }
    )*};
}

always! {
    MPI_Init(_argc: usize, _argv: usize) => initialize();
    MPI_Init_thread(_argc: usize, _argv: usize, _required: c_int, provided: Out<c_int>) => {
        initialize()?;
        provided.put(MULTIPLE)
    };
    MPI_Initialized(flag: Out<c_int>) => flag.put(state().environment.is_initialized.into());
    MPI_Finalized(flag: Out<c_int>) => flag.put(state().environment.is_finalized.into());
    MPI_Get_version(version: Out<c_int>, subversion: Out<c_int>) => {
        version.put(3)?;
        subversion.put(1)
    };
    MPI_Get_library_version(version: Out<c_char>, length: Out<c_int>) => {
        length.put(version.put_text("No MPI library (mpi4jax, a world of one process)", 8192)?)
    };
    MPI_Pcontrol(_level: c_int) => Ok(());
}

mpi! {
    MPI_Finalize() => {
        for comm in [COMM_SELF, COMM_WORLD] {
            attributes::delete_all(comm, attributes::of_communicator(comm))?;
        }
        state().environment.is_finalized = true;
        Ok(())
    };
    MPI_Query_thread(provided: Out<c_int>) => provided.put(MULTIPLE);
    MPI_Is_thread_main(flag: Out<c_int>) => {
        flag.put((state().environment.main == Some(thread::current().id())).into())
    };
    MPI_Abort(_comm: c_int, code: c_int) => {
        exit(code, &format!("application called MPI_Abort with code {code}"))
    };
    MPI_Get_processor_name(name: Out<c_char>, length: Out<c_int>) => {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        length.put(name.put_text(host, 128)?)
    };
    MPI_Get_address(location: usize, address: Out<usize>) => address.put(location);
    MPI_Alloc_mem(size: isize, _info: c_int, base: Out<usize>) => {
        let expected = "0 or more";
        let size = usize::try_from(size);
        let size = size.map_err(|_| Error::got(ARG, "a negative number", "a size", expected))?;
        // SAFETY: it is C's, and takes any size.
        let address = unsafe { malloc(size.max(1)) };
        if address == 0 {
            return Err(Error::new(NO_MEM, format!("no memory for {size} bytes")));
        }
        base.put(address)
    };
    MPI_Free_mem(base: usize) => {
        // SAFETY: MPI_Alloc_mem made it, as the caller vouches.
        unsafe { free(base) };
        Ok(())
    };
}

unsafe extern "C" {
    fn malloc(size: usize) -> usize;
    fn free(address: usize);
}

/// `MPI_Wtime`.
#[unsafe(no_mangle)]
pub extern "C" fn MPI_Wtime() -> f64 {
    START.elapsed().as_secs_f64()
}

/// `MPI_Wtick`.
#[unsafe(no_mangle)]
pub extern "C" fn MPI_Wtick() -> f64 {
    1e-9
}

/// `MPI_Aint_add`.
#[unsafe(no_mangle)]
pub extern "C" fn MPI_Aint_add(base: isize, displacement: isize) -> isize {
    base.wrapping_add(displacement)
}

/// `MPI_Aint_diff`.
#[unsafe(no_mangle)]
pub extern "C" fn MPI_Aint_diff(first: isize, second: isize) -> isize {
    first.wrapping_sub(second)
}
