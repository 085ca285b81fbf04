//! Whether MPI takes addresses of device memory: whether it is "GPU-aware".

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use super::driver::{Driver, InContext, Stream, Vendor, context_without_driver};
use super::kind::{MemoryKind, Release};
use crate::log;
use crate::mpi::Library;
use crate::xla::Buffer;

/// The extensions by which an MPI tells, of which most have one or none.
#[derive(Default)]
pub struct Queries {
    /// `MPIX_Query_cuda_support`, `MPIX_Query_rocm_support`: Open MPI's, and MPICH's.
    by_vendor: [Option<unsafe extern "C" fn() -> c_int>; 2],
    /// `MPIX_GPU_query_support`: MPICH's.
    by_number: Option<unsafe extern "C" fn(c_int, *mut c_int) -> c_int>,
}

static QUERIES: OnceLock<Queries> = OnceLock::new();

/// Finds the extensions in the MPI in `library`.
pub fn bind(library: &Library) {
    QUERIES.get_or_init(|| {
        // SAFETY: the signatures of these extensions, in all MPIs that have them.
        unsafe {
            Queries {
                by_vendor: [
                    library.function("MPIX_Query_cuda_support").ok(),
                    library
                        .function("MPIX_Query_rocm_support")
                        .or_else(|_| library.function("MPIX_Query_hip_support"))
                        .ok(),
                ],
                by_number: library.function("MPIX_GPU_query_support").ok(),
            }
        }
    });
}

/// The answer of MPI, if it can be asked.
pub fn mpi_says(vendor: Vendor) -> Option<bool> {
    let queries = QUERIES.get()?;
    if let Some(query) = queries.by_vendor[vendor as usize] {
        // SAFETY: a function without an argument, which may be called at any time.
        return Some(unsafe { query() } != 0);
    }
    let query = queries.by_number?;
    // MPIX_GPU_SUPPORT_CUDA, MPIX_GPU_SUPPORT_HIP
    let gpu_type = [0, 2][vendor as usize];
    let mut is_supported = 0;
    // SAFETY: there is room for the answer.
    let code = unsafe { query(gpu_type, &raw mut is_supported) };
    (code == 0).then_some(is_supported != 0)
}

const ASK: u8 = 2;

/// The setting of the user: no, yes, or nothing.
static IS_DIRECT: AtomicU8 = AtomicU8::new(ASK);

/// Sets whether MPI works on device memory itself or on copies: with `None`, as MPI says it can.
pub fn set_direct(direct: Option<bool>) {
    IS_DIRECT.store(direct.map_or(ASK, u8::from), Ordering::Relaxed);
    SAID.store(0, Ordering::Relaxed);
}

/// Whether the user says that MPI works on device memory itself.
fn is_forced() -> bool {
    IS_DIRECT.load(Ordering::Relaxed) == 1
}

/// Whether the user, or else MPI, says so.
fn is_wanted(vendor: Vendor) -> bool {
    match IS_DIRECT.load(Ordering::Relaxed) {
        ASK => {
            static ANSWERS: [OnceLock<bool>; 2] = [const { OnceLock::new() }; 2];
            *ANSWERS[vendor as usize].get_or_init(|| mpi_says(vendor) == Some(true))
        }
        direct => direct == 1,
    }
}

/// Whether MPI works on device memory itself, as far as that does not depend on the memory.
pub fn is_direct(vendor: Vendor) -> bool {
    is_wanted(vendor) && (is_forced() || has_start_context(vendor))
}

/// The MPI of this process.
static RELEASE: OnceLock<Release> = OnceLock::new();

/// Sets the release of MPI from the text of `MPI_Get_library_version`.
pub fn set_release(text: &str) {
    RELEASE.get_or_init(|| Release::parse(text));
}

/// Whether this MPI takes memory of a kind if it is CUDA-aware, if that is known.
pub fn takes(kind: MemoryKind) -> Option<bool> {
    RELEASE.get().and_then(|release| release.takes(kind))
}

/// The context that was current when MPI was initialised, null if there was none.
static START_CONTEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Whether MPI could find a context when it was initialised.
///
/// Open MPI looks for one then, and otherwise stays without support for GPUs, in parts or as a whole
/// (open-mpi/ompi#11084, #11831, #13354). AMD's needs none (#11084).
pub fn has_start_context(vendor: Vendor) -> bool {
    vendor == Vendor::Rocm || !START_CONTEXT.load(Ordering::Relaxed).is_null()
}

/// Makes the primary context of a device that JAX will use current on this thread, before MPI is
/// initialised. XLA takes the same one. The process keeps its share in it.
pub fn prepare(ordinal: c_int) -> Result<(), String> {
    let driver = Driver::get()?;
    if driver.vendor == Vendor::Rocm {
        return Ok(());
    }
    let (mut device, mut context) = (0, ptr::null_mut());
    // SAFETY: there is room for the answers, and each call gets what the one before has given.
    unsafe {
        driver
            .device_get(&raw mut device, ordinal)
            .and_then(|()| driver.primary_context_retain(&raw mut context, device))
            .and_then(|()| driver.set_current_context(context))
    }
    .map_err(|failure| failure.to_string())?;
    START_CONTEXT.store(context, Ordering::Relaxed);
    Ok(())
}

/// Notes the current context of this thread, where MPI was initialised by others before. Gives whether there
/// is one.
pub fn note_start() -> bool {
    let context = context_without_driver();
    START_CONTEXT.store(context, Ordering::Relaxed);
    !context.is_null()
}

/// The context of the last call on device memory.
static LAST_CONTEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Makes the context of a stream current for a call on device memory that MPI gets itself: its calls
/// to the driver are for that, and what it has begun in one context can't be waited for in another
/// (open-mpi/ompi#13836). `None` if MPI gets copies. `arrays` are those of the call that have some
/// bytes.
pub fn enter_direct<'a>(
    driver: &'static Driver,
    stream: Stream,
    arrays: impl Iterator<Item = &'a Buffer<'a>>,
) -> Option<InContext> {
    if !is_direct(driver.vendor) {
        return None;
    }
    // Where the driver fails, so do copies, and their error says so.
    let context = driver.context_of(stream).ok()?;
    let start = START_CONTEXT.load(Ordering::Relaxed);
    if driver.vendor == Vendor::Cuda && !start.is_null() && start != context {
        say(Obstacle::OtherContext);
        if !is_forced() {
            return None;
        }
    }
    let in_context = driver.enter(context).ok()?;
    for array in arrays {
        let kind = MemoryKind::of(driver, array.address as usize);
        if !is_taken(kind) {
            say(Obstacle::MemoryKind(kind));
            return None;
        }
    }
    LAST_CONTEXT.store(context, Ordering::Relaxed);
    Some(in_context)
}

/// Whether MPI gets memory of this kind. The user knows better than a table without an answer, but
/// not than one that says no: the process would crash.
fn is_taken(kind: MemoryKind) -> bool {
    takes(kind).unwrap_or_else(is_forced)
}

/// Makes the context of the last call on device memory current for a thread of the core's own, or else that
/// which MPI has found at its start, as the thread's calls of MPI may move the data of others
/// (open-mpi/ompi#13836). `None` without either, or if MPI gets no device memory.
pub fn enter_last() -> Option<InContext> {
    let mut context = LAST_CONTEXT.load(Ordering::Relaxed);
    if context.is_null() {
        context = START_CONTEXT.load(Ordering::Relaxed);
    }
    if context.is_null() || !Driver::get().is_ok_and(|driver| is_direct(driver.vendor)) {
        return None;
    }
    Driver::get().ok()?.enter(context).ok()
}

/// Reason why MPI had better not get an array itself.
enum Obstacle {
    OtherContext,
    MemoryKind(MemoryKind),
}

/// Obstacles that were named, a bit for each.
static SAID: AtomicU8 = AtomicU8::new(0);

/// Names an obstacle, once.
#[cold]
fn say(obstacle: Obstacle) {
    let bit = match obstacle {
        Obstacle::OtherContext => 1,
        Obstacle::MemoryKind(kind) => 2 << kind as u8,
    };
    if SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        log::print_error(&format!("mpi4jax: {}\n", describe(obstacle)));
    }
}

const COPIED: &str = "arrays on the GPU are copied to host memory for MPI";

fn describe(obstacle: Obstacle) -> String {
    let release = RELEASE.get().map_or("this MPI", |release| &release.name);
    match obstacle {
        Obstacle::OtherContext if is_forced() => format!(
            "MPI gets arrays of another GPU, or context, than that which was current when it was \
             initialised, which {release} may not be able to use (open-mpi/ompi#13836). Let each \
             process see its own GPU only (CUDA_VISIBLE_DEVICES), or set MPI4JAX_USE_CUDA_MPI=0"
        ),
        Obstacle::OtherContext => format!(
            "{COPIED}: they are on another GPU, or in another context, than that which was current \
             when MPI was initialised, and MPI keeps to that (open-mpi/ompi#13836). Let each \
             process see its own GPU only (CUDA_VISIBLE_DEVICES)"
        ),
        Obstacle::MemoryKind(kind) if takes(kind) == Some(false) => format!(
            "{COPIED}: they are in {kind}, which {release} takes for the host's. Open MPI 4.1.7, \
             5.0.6 and later know it; XLA_PYTHON_CLIENT_ALLOCATOR=default gives other memory"
        ),
        Obstacle::MemoryKind(kind) => format!(
            "{COPIED}: they are in {kind}, and it is not known whether {release} can use it. If it \
             can, set MPI4JAX_USE_CUDA_MPI=1; XLA_PYTHON_CLIENT_ALLOCATOR=default gives other memory"
        ),
    }
}
