//! The core of mpi4jax: XLA handlers that call the MPI of this process.
//!
//! XLA calls [`ops`] through the frames of [`xla`]; they call the functions of [`mpi`] on
//! bytes that [`memory`] knows the place of. [`log`] prints the debug lines.

pub mod log;
pub mod memory;
pub mod mpi;
pub mod ops;
pub mod xla;

#[cfg(feature = "python")]
mod python;

#[cfg(feature = "python")]
#[pyo3::pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::python::{
        device, free_communicator, free_staging, get_logging, is_direct, load,
        mpi_takes_device_memory, set_communicator, set_count_limit, set_datatype, set_direct,
        set_logging, set_operator, set_raise_on_error, set_staging_limit, set_status,
        why_no_device,
    };

    #[pymodule_init]
    fn add_constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("OPERATORS", super::python::operators(module.py())?)
    }
}
