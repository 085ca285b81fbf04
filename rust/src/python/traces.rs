//! Calls in files, and the timeline that is drawn from them.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zerocopy::IntoBytes;

use crate::timeline::{ClockComparison, Clocks, Pattern};
use crate::{recorder, timeline, trace};

/// Writes all calls from now on into a file. `operations` are the names of all of them. If there
/// were no calls yet, `capacity` is how many may wait to be written.
#[pyfunction]
pub fn start_trace(path: PathBuf, operations: Vec<String>, capacity: usize) -> PyResult<()> {
    recorder::set_capacity(capacity);
    Ok(trace::start(&path, operations)?)
}

/// Writes the calls that are over into the file at once. Gives how many calls are in it so far, and
/// how many are missing.
#[pyfunction]
pub fn flush_trace(py: Python<'_>) -> Option<(u64, u64)> {
    py.detach(trace::flush).map(counts)
}

/// Stops the writing of calls, for this reason.
#[pyfunction]
pub fn give_up_trace(py: Python<'_>, reason: &str) {
    py.detach(|| trace::give_up(reason));
}

/// Ends the trace. Gives how many calls are in the file, and how many are missing.
#[pyfunction]
pub fn stop_trace(py: Python<'_>) -> Option<(u64, u64)> {
    py.detach(trace::stop).map(counts)
}

fn counts(summary: trace::Summary) -> (u64, u64) {
    (summary.count, summary.lost)
}

/// Writes the traces in a folder into one file, from `begin` to `end`, in seconds. Gives a summary,
/// line by line.
#[pyfunction]
pub fn write_timeline(
    py: Python<'_>,
    folder: PathBuf,
    output: PathBuf,
    begin: f64,
    end: f64,
) -> PyResult<Vec<String>> {
    py.detach(|| timeline::merge(&folder, &output, begin..end))
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The entries of the calls in a file that began at this time or later and are over, with the times of
/// rank 0's clock. A comparison of the two clocks is the time on the process's own, by how much it was
/// ahead, and the error of that.
#[pyfunction]
pub fn read_calls(
    py: Python<'_>,
    path: PathBuf,
    begin: u64,
    comparisons: Vec<(i64, i64, i64)>,
    have_same_boot: bool,
) -> PyResult<Bound<'_, PyBytes>> {
    let comparisons = comparisons.into_iter();
    let comparisons = comparisons.map(|(at, offset, error)| ClockComparison { at, offset, error });
    let clocks = Clocks::new(comparisons.collect(), have_same_boot);
    let calls = py.detach(|| timeline::read_calls(&path, begin, &clocks))?;
    Ok(PyBytes::new(py, calls.as_bytes()))
}

/// Pattern of senders and receivers of a collective operation.
#[pyfunction]
pub fn collective_pattern(operation: &str) -> &'static str {
    Pattern::of(operation).name()
}

/// The position of the message that each receive gets, or -1, from the tags of all messages from one
/// process to another.
#[pyfunction]
pub fn match_messages(sent: Vec<i64>, received: Vec<i64>) -> Vec<i64> {
    let positions = timeline::match_messages(&sent, &received).into_iter();
    positions
        .map(|position| position.map_or(-1, |position| position as i64))
        .collect()
}
