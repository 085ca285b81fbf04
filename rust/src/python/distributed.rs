//! JAX's own collectives, through the MPI of this process.

use std::collections::HashMap;
use std::path::PathBuf;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::binding::loaded;
use crate::trampoline;

/// Makes the MPI that is bound answer JAX's collectives, with these handles for the names in
/// `JAX_HANDLES`. JAX's processes have these ranks in `MPI_COMM_WORLD`, and this one is that with
/// `rank` among them. `owners` gives the process of each device, by the device's number, which jaxlib
/// keeps in `device_bytes`. `versions` is what errors call jaxlib.
#[pyfunction]
pub fn serve_jax(
    handles: Vec<usize>,
    members: Vec<i32>,
    rank: i32,
    device_bytes: usize,
    versions: String,
    owners: Py<PyAny>,
) {
    let owners = Box::new(move || {
        let owners: Option<PyResult<HashMap<i64, i32>>> =
            Python::try_attach(|py| owners.call0(py)?.extract(py));
        owners.and_then(Result::ok).unwrap_or_default()
    });
    let devices = trampoline::Devices {
        bytes: device_bytes,
        versions,
        owners,
    };
    if let Some(core) = loaded() {
        core.serve_jax(handles, members, rank, devices);
    }
}

/// Makes the MPItrampoline in jaxlib's library at `path` look for the library that the environment
/// names.
#[pyfunction]
pub fn start_trampoline(path: PathBuf) -> PyResult<()> {
    trampoline::start(&path).map_err(PyRuntimeError::new_err)
}
