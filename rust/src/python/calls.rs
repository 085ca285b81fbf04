//! Settings of all calls, and operations in flight.

use std::time::Duration;

use pyo3::prelude::*;

use crate::memory::huge_pages;
use crate::ops::Left;
use crate::{log, ops};

/// Turns the debug lines on or off.
#[pyfunction]
pub fn set_logging(enable: bool) {
    log::set_enabled(enable);
}

/// Whether the debug lines are on.
#[pyfunction]
pub fn get_logging() -> bool {
    log::is_enabled()
}

/// Makes an error of MPI's raise (True) or end all ranks (False).
#[pyfunction]
pub fn set_raise_on_error(raise_: bool) {
    ops::set_raise_on_error(raise_);
}

/// Sets whether calls are compared between processes before MPI is called.
#[pyfunction]
pub fn set_check(enable: bool) {
    ops::set_check(enable);
}

/// Sets whether the kernel is asked for huge pages for large arrays on the host.
#[pyfunction]
pub fn set_huge_pages(enable: bool) {
    huge_pages::set_huge_pages(enable);
}

/// Lets tests of large counts use small arrays: calls with more than `limit` elements go the ways
/// for counts beyond an int, by MPI's functions for large counts, or without them.
#[pyfunction]
pub fn set_count_limit(limit: i64, use_large: bool) {
    ops::set_count_limit(limit, use_large);
}

/// The number of operations in flight.
#[pyfunction]
pub fn in_flight() -> usize {
    ops::in_flight()
}

/// Says which line an eager call has that has begun the operation with this number.
#[pyfunction]
pub fn set_flight_line(flight: u32, line: &str) {
    ops::set_line(flight, line);
}

/// Sets whether a thread makes progress on operations in flight.
#[pyfunction]
pub fn set_pushing(is_pushed: bool) {
    ops::set_pushing(is_pushed);
}

/// Waits for all operations in flight, for `at_most` seconds at most. Gives their descriptions,
/// each with whether it is done. None can be waited for after that.
#[pyfunction]
pub fn finish_flights(py: Python<'_>, at_most: f64) -> Vec<(String, bool)> {
    let at_most = Duration::try_from_secs_f64(at_most).unwrap_or_default();
    let unwaited = py.detach(|| ops::finish(at_most)).into_iter();
    unwaited
        .map(|Left { what, is_done }| (what, is_done))
        .collect()
}
