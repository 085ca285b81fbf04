//! What becomes of an error code: an error of XLA's, or the end of all ranks.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Failure};
use crate::log;
use crate::mpi::{Abi, Communicator, Functions, abort};

static RAISE_ON_ERROR: AtomicBool = AtomicBool::new(false);

/// Whether an error of MPI's becomes an error of XLA's, or ends all ranks (the default).
pub fn set_raise_on_error(raise: bool) {
    RAISE_ON_ERROR.store(raise, Ordering::Relaxed);
}

/// Whether an error of MPI's becomes an error of XLA's.
pub fn raises() -> bool {
    RAISE_ON_ERROR.load(Ordering::Relaxed)
}

/// Ends all ranks with a line on stderr, or makes an error of the failure.
#[cold]
pub fn failed<A: Abi>(
    functions: &Functions<A>,
    communicator: &Communicator,
    failure: &Failure,
) -> Error {
    let message = format!("r{} | {failure}", communicator.rank);
    if !raises() {
        log::print_error(&format!("{message} - aborting\n"));
        abort(functions, communicator.handle::<A>(), failure.code);
    }
    Error::internal(message)
}
