//! The core of mpi4jax: XLA handlers that call the MPI of this process.
//!
//! Each module imports from those above it in this list only, and files within a module import
//! one way, too. `tests/modules.rs` holds them to both.
//!
//! - [`error`]: why a call fails.
//! - [`log`]: the debug lines.
//! - [`mpi`]: the MPI of this process: its functions, and the objects that calls refer to.
//! - [`xla`]: the frames in which XLA hands a call over.
//! - [`recorder`]: what was called last, and when.
//! - [`trace`]: all calls, in a file.
//! - [`diagnosis`]: what is wrong between ranks.
//! - [`timeline`]: the traces of all processes, as one.
//! - [`memory`]: where the bytes of a call live, and how MPI gets at them.
//! - [`ops`]: the handlers that XLA calls, one for each operation.
//! - [`watch`]: what explains a hang.
//! - [`trampoline`]: what JAX's own collectives call.
//! - [`c_interface`]: the registry for handlers that other packages write.
//! - `python`: what Python sees of all that.

// Where a call could panic, it gives back an error instead.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod c_interface;
pub mod diagnosis;
pub mod error;
pub mod log;
pub mod memory;
pub mod mpi;
pub mod ops;
pub mod recorder;
pub mod timeline;
pub mod trace;
pub mod trampoline;
pub mod watch;
pub mod xla;

#[cfg(feature = "python")]
mod python;

#[cfg(feature = "python")]
#[pyo3::pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::python::{
        begin_meeting, connect_watchers, describe_communicator, device, device_count, end_meeting,
        end_with, finish_flights, follow_copies, free_communicator, free_staging, get_logging,
        has_start_context, identify_communicators, in_flight, is_direct, load, memory_kind,
        memory_kinds, mpi_takes_device_memory, note_start_context, prepare_context, recent_calls,
        registry, serve_jax, set_call_site, set_check, set_communicator, set_count_limit,
        set_datatype, set_direct, set_eager_line, set_flight_line, set_logging, set_messages,
        set_mpi_release, set_neighbors, set_operator, set_pushing, set_raise_on_error,
        set_staging_limit, set_status, set_world, share_default, start_trampoline, start_watching,
        status_ignore, why_no_device,
    };
    #[pymodule_export]
    use super::python::{
        call_sites, communicators, flush_trace, give_up_trace, start_trace, stop_trace,
        write_timeline,
    };

    #[pymodule_init]
    fn add_constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("DEADLOCK", crate::diagnosis::DEADLOCK)?;
        module.add("OPERATORS", super::python::operators(module.py())?)?;
        module.add("NONBLOCKING", super::python::nonblocking(module.py())?)?;
        module.add("JAX_HANDLES", super::python::jax_handles(module.py())?)
    }
}
