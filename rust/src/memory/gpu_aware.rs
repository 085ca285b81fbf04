//! Whether MPI takes addresses of device memory: whether it is "GPU-aware".

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use super::driver::Vendor;
use crate::mpi::Library;

/// The extensions by which an MPI tells, of which most have one or none.
#[derive(Default)]
pub struct Queries {
    /// `MPIX_Query_cuda_support`, `MPIX_Query_rocm_support`: Open MPI's, and MPICH's.
    by_vendor: [Option<unsafe extern "C" fn() -> c_int>; 2],
    /// `MPIX_GPU_query_support`: MPICH's.
    by_number: Option<unsafe extern "C" fn(c_int, *mut c_int) -> c_int>,
}

static QUERIES: OnceLock<Queries> = OnceLock::new();

/// Finds what there is to ask of the MPI in `library`.
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

/// What MPI says, if it can be asked.
pub fn mpi_says(vendor: Vendor) -> Option<bool> {
    let queries = QUERIES.get()?;
    if let Some(query) = queries.by_vendor[vendor as usize] {
        // SAFETY: a function without an argument, which may be called at any time.
        return Some(unsafe { query() } != 0);
    }
    let query = queries.by_number?;
    // MPIX_GPU_SUPPORT_CUDA, MPIX_GPU_SUPPORT_HIP
    let number = [0, 2][vendor as usize];
    let mut is_supported = 0;
    // SAFETY: there is room for the answer.
    let code = unsafe { query(number, &raw mut is_supported) };
    (code == 0).then_some(is_supported != 0)
}

const ASK: u8 = 2;

/// What the user says: no, yes, or nothing.
static IS_DIRECT: AtomicU8 = AtomicU8::new(ASK);

/// Has MPI work on device memory itself, or on copies, or as MPI says it can.
pub fn set_direct(direct: Option<bool>) {
    IS_DIRECT.store(direct.map_or(ASK, u8::from), Ordering::Relaxed);
}

/// Whether MPI works on device memory itself.
pub fn is_direct(vendor: Vendor) -> bool {
    match IS_DIRECT.load(Ordering::Relaxed) {
        ASK => {
            static ANSWERS: [OnceLock<bool>; 2] = [const { OnceLock::new() }; 2];
            *ANSWERS[vendor as usize].get_or_init(|| mpi_says(vendor) == Some(true))
        }
        direct => direct == 1,
    }
}
