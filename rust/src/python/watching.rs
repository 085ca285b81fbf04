//! The thread that explains a hang.

use std::collections::BTreeMap;

use pyo3::prelude::*;

use super::binding::loaded;
use crate::diagnosis::{End, ThreadActivity};
use crate::mpi::{Communicator, SizedDatatype};
use crate::watch::{self, Objects, Settings, Start};

/// The state of Python's threads: the lines of those that are in calls; those that are elsewhere, by
/// name, activity and line; those that wait, by the system's number and what they wait in; whether
/// one waits for JAX, and why that may be for something else than a call, if it may; whether the main
/// thread waits at exit for the JAX of all processes; whether an interrupt raises `KeyboardInterrupt`.
type Whereabouts = (
    BTreeMap<u32, String>,
    Vec<(String, String, String)>,
    Vec<(u32, u64)>,
    bool,
    String,
    bool,
    bool,
);

/// Starts to watch the calls of this process, which has this rank in `MPI_COMM_WORLD`.
/// `whereabouts` says where Python's threads are; it gets the system's numbers of those that are in
/// calls.
#[pyfunction]
#[pyo3(signature = (rank, size, whereabouts, *, report_after, timeout, end_deadlocks))]
pub fn start_watching(
    rank: i32,
    size: i32,
    whereabouts: Py<PyAny>,
    report_after: f64,
    timeout: Option<f64>,
    end_deadlocks: bool,
) {
    // The thread that asks is none of Python's.
    watch::set_ask(Box::new(move |in_calls| {
        let answer =
            Python::try_attach(|py| whereabouts.call1(py, (in_calls,)).ok()?.extract(py).ok());
        let answer: Whereabouts = answer??;
        let (lines, elsewhere, waiting, wait_for_jax, doubt, is_in_shutdown, has_default_interrupt) =
            answer;
        let thread_activity = |(thread, activity, line)| ThreadActivity {
            thread,
            activity,
            line,
        };
        Some(watch::Python {
            lines,
            elsewhere: elsewhere.into_iter().map(thread_activity).collect(),
            waiting,
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
    let start = Start {
        rank,
        size,
        settings,
    };
    if let Some(core) = loaded() {
        core.start_watching(start);
    }
}

/// Gives the watchers of all processes a communicator to talk on, by its handle, and the rank of this
/// process in it and its size, with the handles of `MPI_BYTE` and `MPI_ANY_SOURCE`. Rank 0 gets the host
/// of each rank.
#[pyfunction]
pub fn connect_watchers(
    comm: usize,
    rank: i32,
    size: i32,
    byte: usize,
    any_source: i32,
    hosts: Vec<String>,
) {
    // SAFETY: Python passes handles of mpi4py's, and keeps the communicator.
    let (communicator, byte) = unsafe {
        (
            Communicator::new(comm, rank, size, 0),
            SizedDatatype::new(byte, 1),
        )
    };
    let objects = Objects {
        communicator,
        byte,
        any_source,
    };
    watch::connect(objects, hosts);
}

/// Says how this process ends: its exit code, and the reason in words.
#[pyfunction]
pub fn end_with(code: i32, reason: String) {
    watch::end_with(End { code, reason });
}
