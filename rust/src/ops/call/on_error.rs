//! Error codes of MPI become errors of XLA's, or the end of all ranks.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Failure};
use crate::log;
use crate::mpi::{Abi, Communicator, Functions, abort};
use crate::recorder::{self, Record};

static RAISE_ON_ERROR: AtomicBool = AtomicBool::new(false);

/// Sets whether an error of MPI's becomes an error of XLA's, or ends all ranks (the default).
pub fn set_raise_on_error(raise: bool) {
    RAISE_ON_ERROR.store(raise, Ordering::Relaxed);
}

/// Whether an error of MPI's becomes an error of XLA's.
pub fn raises() -> bool {
    RAISE_ON_ERROR.load(Ordering::Relaxed)
}

/// Ends all ranks with a line on stderr, or makes an error of the failure. A second line describes the
/// call.
pub fn failed<A: Abi>(
    functions: &Functions<A>,
    communicator: &Communicator,
    failure: &Failure,
    record: Option<&Record>,
) -> Error {
    let message = format!("r{} | {failure}", communicator.rank);
    let call = record.map(describe).unwrap_or_default();
    if !raises() {
        log::print_error(&format!("{message} - aborting\n{call}"));
        abort(functions, Some(communicator), failure.code);
    }
    Error::internal(format!("{message}\n{call}").trim_end())
}

/// A call, and its Python line if that is known.
fn describe(record: &Record) -> String {
    let line = record.line().filter(|line| !line.is_empty());
    let line = line.or_else(|| recorder::find_line(record.thread));
    let line = line.map(|line| format!("   {line}")).unwrap_or_default();
    format!("  in {record}{line}\n")
}
