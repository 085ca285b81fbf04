//! The thread that explains a hang.

use std::collections::BTreeMap;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::binding::loaded;
use crate::diagnosis::{End, ThreadActivity};
use crate::mpi::calls::NameHandles;
use crate::watch::{self, Making, Settings, Start};

/// The state of Python's threads: the lines of those that are in calls; those that are elsewhere, by
/// name, activity and line; those that wait, by the system's number and what they wait in; the
/// communicator that the main thread makes by mpi4py; whether one waits for JAX, and why that may be for something else than a call, if it may; whether the main
/// thread waits at exit for the JAX of all processes; whether an interrupt raises `KeyboardInterrupt`.
type Whereabouts = (
    BTreeMap<u32, String>,
    Vec<(String, String, String)>,
    Vec<(u32, u64)>,
    Option<(u64, String, Vec<i32>, String)>,
    bool,
    String,
    bool,
    bool,
);

/// The handles that MPI's name service takes, or why it can't be called.
#[derive(FromPyObject)]
pub enum Names {
    Handles((usize, usize, usize, usize)),
    Missing(String),
}

/// Starts to watch the calls of this process, which has this rank in `MPI_COMM_WORLD`, on a machine called
/// `host`; others may be on other machines (`all_hosts`) or not. `whereabouts` says where Python's threads
/// are; it gets the system's numbers of those that are in calls. `names` has the handles of
/// `MPI_COMM_WORLD`, `MPI_COMM_SELF`, `MPI_INFO_NULL` and `MPI_ERRORS_RETURN`, or says why MPI's name service
/// can't be called. With `has_threads`, any thread may call MPI; with `compares_traffic`, rank 0 reports
/// messages that were never received.
#[pyfunction]
#[pyo3(signature = (
    rank, size, host, whereabouts, *, all_hosts, names, has_threads, compares_traffic, report_after, timeout, end_deadlocks,
))]
#[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
pub fn start_watching(
    rank: i32,
    size: i32,
    host: String,
    whereabouts: Py<PyAny>,
    all_hosts: bool,
    names: Names,
    has_threads: bool,
    compares_traffic: bool,
    report_after: f64,
    timeout: Option<f64>,
    end_deadlocks: bool,
) {
    // The thread that asks is none of Python's.
    watch::set_ask(Box::new(move |in_calls| {
        let answer =
            Python::try_attach(|py| whereabouts.call1(py, (in_calls,)).ok()?.extract(py).ok());
        let answer: Whereabouts = answer??;
        let (
            lines,
            elsewhere,
            waiting,
            making,
            wait_for_jax,
            doubt,
            is_in_shutdown,
            has_default_interrupt,
        ) = answer;
        let thread_activity = |(thread, activity, line)| ThreadActivity {
            thread,
            activity,
            line,
        };
        let making = making.map(|(call, function, members, line)| Making {
            call,
            function,
            members,
            line,
        });
        Some(watch::Python {
            lines,
            elsewhere: elsewhere.into_iter().map(thread_activity).collect(),
            waiting,
            making,
            wait_for_jax,
            doubt,
            is_in_shutdown,
            has_default_interrupt,
        })
    }));
    let settings = Settings {
        report_after,
        timeout,
        end_deadlocks,
    };
    let names = match names {
        Names::Handles((world, comm_self, info, errors_return)) => {
            // SAFETY: Python passes these handles of mpi4py's.
            Ok(unsafe { NameHandles::new([world, comm_self], info, errors_return) })
        }
        Names::Missing(why) => Err(why),
    };
    let start = Start {
        rank,
        size,
        host,
        all_hosts,
        names,
        has_threads,
        compares_traffic,
        settings,
    };
    if let Some(core) = loaded() {
        core.start_watching(start);
    }
}

/// Address of this rank's mailbox, if it has one.
#[pyfunction]
pub fn mailbox_address() -> Option<String> {
    watch::own_address()
}

/// Reason why this rank can't ask others what they do, if any. Waits until that is known.
#[pyfunction]
pub fn isolation(py: Python<'_>) -> Option<String> {
    py.detach(watch::isolation)
}

/// Takes the addresses of all ranks' mailboxes, where these have no directory.
#[pyfunction]
pub fn set_mailbox_addresses(addresses: Vec<String>) {
    watch::set_addresses(&addresses);
}

/// Says how this process ends: its exit code, and the reason in words.
#[pyfunction]
pub fn end_with(code: i32, reason: String) {
    watch::end_with(End { code, reason });
}

/// Calls a function that runs no Python code, and collects no garbage meanwhile.
///
/// Python < 3.12 may collect garbage where it makes an object, even in the midst of reading another
/// thread's frame. A callback of the collection can let that thread run, which ends the frame: what Python
/// then reads is freed memory.
#[pyfunction]
#[pyo3(signature = (function, *arguments))]
pub fn call_uncollected<'py>(
    function: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: this thread holds the lock of the interpreter.
    let was_enabled = unsafe { ffi::PyGC_Disable() } != 0;
    let result = function.call1(arguments);
    if was_enabled {
        // SAFETY: as above.
        unsafe { ffi::PyGC_Enable() };
    }
    result
}
