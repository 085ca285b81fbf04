//! Device memory, and whether MPI takes it.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::memory::kind::MemoryKind;
use crate::memory::{Driver, POOL, gpu_aware, shared_gpu};

/// The platform whose driver was found and has a device: "cuda" or "rocm".
#[pyfunction]
pub fn device() -> Option<&'static str> {
    Driver::get().ok().map(|driver| driver.vendor.name())
}

/// The number of its devices.
#[pyfunction]
pub fn device_count() -> i32 {
    Driver::get().map_or(0, |driver| driver.devices)
}

/// The reason why there is none.
#[pyfunction]
pub fn why_no_device() -> Option<&'static str> {
    Driver::get().err()
}

/// Whether MPI says that it takes addresses of device memory, if it can be asked.
#[pyfunction]
pub fn mpi_takes_device_memory() -> Option<bool> {
    let driver = Driver::get().ok()?;
    gpu_aware::mpi_says(driver.vendor)
}

/// Whether MPI gets addresses of device memory, or of copies.
#[pyfunction]
pub fn is_direct() -> bool {
    Driver::get().is_ok_and(|driver| gpu_aware::is_direct(driver.vendor))
}

/// Sets whether MPI gets addresses of device memory (True), of copies (False), or as it says (None).
#[pyfunction]
#[pyo3(signature = (direct))]
pub fn set_direct(direct: Option<bool>) {
    gpu_aware::set_direct(direct);
}

/// Tells the core the text of `MPI_Get_library_version`.
#[pyfunction]
pub fn set_mpi_release(text: &str) {
    gpu_aware::set_release(text);
}

/// Makes the context of a device current, by its number among those that the driver shows, before
/// MPI is initialised.
#[pyfunction]
pub fn prepare_context(ordinal: i32) -> PyResult<()> {
    gpu_aware::prepare(ordinal).map_err(PyRuntimeError::new_err)
}

/// Notes which context this thread has, where MPI was initialised before, and says whether it has
/// one. This does not initialise a driver.
#[pyfunction]
pub fn note_start_context() -> bool {
    gpu_aware::note_start()
}

/// Whether MPI could find a context of the GPU's when it was initialised. A driver that needs none
/// counts as one.
#[pyfunction]
pub fn has_start_context() -> bool {
    Driver::get().is_ok_and(|driver| gpu_aware::has_start_context(driver.vendor))
}

/// Prepares a look at the first call on device memory whether processes of a job share a GPU.
/// `name` is common to the processes of the job on this node. `warning` has `{gpu}` for the GPU.
#[pyfunction]
pub fn expect_own_gpu(name: String, warning: String) {
    shared_gpu::expect_own(name, warning);
}

/// The kind of the device memory at an address.
#[pyfunction]
pub fn memory_kind(address: usize) -> Option<&'static str> {
    let driver = Driver::get().ok()?;
    Some(MemoryKind::of(driver, address).name())
}

/// The kinds of device memory, each with whether this MPI takes it if it is CUDA-aware.
#[pyfunction]
pub fn memory_kinds() -> Vec<(&'static str, Option<bool>)> {
    MemoryKind::NAMED
        .map(|kind| (kind.name(), gpu_aware::takes(kind)))
        .to_vec()
}

/// Limits the bytes of page-locked memory for copies.
#[pyfunction]
pub fn set_staging_limit(bytes: usize) {
    POOL.set_limit(bytes);
}

/// Frees the staging buffers that no call uses.
#[pyfunction]
pub fn free_staging(py: Python<'_>) {
    // It waits for copies, and a stream may be waiting for a function in Python.
    py.detach(|| POOL.clear());
}
