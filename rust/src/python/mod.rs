//! The extension module `mpi4jax._core`: what Python sees of the core.
//!
//! The functions stand in a file for each subject, and convert only: what they do is done by the
//! modules of the core. `mpi4jax/_core.pyi` declares them for Python, in the order of [`_core`].
//!
//! - `binding`: the MPI that is loaded, and the handlers for XLA.
//! - `objects`: the objects that numbers in programs stand for.
//! - `calls`: settings of all calls, and operations in flight.
//! - `devices`: device memory, and whether MPI takes it.
//! - `records`: what is recorded of calls.
//! - `traces`: calls in files, and the timeline that is drawn from them.
//! - `watching`: the thread that explains a hang.
//! - `distributed`: JAX's own collectives.
//! - `files`: files with checksums.

mod binding;
mod calls;
mod devices;
mod distributed;
mod files;
mod objects;
mod records;
mod traces;
mod watching;

// A free-threaded Python turns its lock on again when it imports this, and says so: threads that
// share a communicator or a request were only tested with the lock.
#[pyo3::pymodule(gil_used = true)]
mod _core {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    use crate::mpi::PredefinedOp;
    use crate::{diagnosis, ops, trace, trampoline};

    #[pymodule_export]
    use super::binding::{load, registry, set_wait_policy, status_ignore};

    #[pymodule_export]
    use super::objects::{
        check_available, describe_communicator, follow, free_communicator, set_communicator,
        set_datatype, set_neighbors, set_operator, set_status, set_world, share_default,
    };

    #[pymodule_export]
    use super::calls::{
        finish_flights, get_logging, in_flight, set_check, set_count_limit, set_flight_line,
        set_huge_pages, set_logging, set_pushing, set_raise_on_error,
    };

    #[pymodule_export]
    use super::devices::{
        device, device_count, expect_own_gpu, free_staging, has_start_context, is_direct,
        memory_kind, memory_kinds, mpi_takes_device_memory, note_start_context, prepare_context,
        set_direct, set_mpi_release, set_staging_limit, why_no_device,
    };

    #[pymodule_export]
    use super::records::{
        begin_meeting, call_sites, communicators, end_meeting, identify_communicators,
        recent_calls, set_call_site, set_eager_line, set_messages,
    };

    #[pymodule_export]
    use super::traces::{
        collective_pattern, flush_trace, give_up_trace, match_messages, read_calls, start_trace,
        stop_trace, write_timeline,
    };

    #[pymodule_export]
    use super::watching::{
        call_uncollected, end_with, isolation, mailbox_address, set_mailbox_addresses,
        start_watching,
    };

    #[pymodule_export]
    use super::distributed::{serve_jax, start_trampoline};

    #[pymodule_export]
    use super::files::{
        checksum, checksum_at, combine_checksums, file_checksum, read_chunks, start_writeback,
        swap_names, sync_path, write_chunks,
    };

    #[pymodule_init]
    fn add_constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        let operators = PredefinedOp::ALL.iter().map(|op| op.name());
        module.add("OPERATORS", PyTuple::new(py, operators)?)?;
        module.add("NONBLOCKING", PyTuple::new(py, ops::nonblocking_names())?)?;
        module.add("CALL_FIELDS", trace::fields())?;
        module.add("DEADLOCK", diagnosis::DEADLOCK)?;
        module.add("JAX_HANDLES", PyTuple::new(py, trampoline::HANDLES)?)
    }
}
