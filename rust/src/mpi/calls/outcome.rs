//! Outcome of a call of MPI, and errors.

use std::ffi::c_int;

use crate::error::{Error, Failure};
use crate::mpi::abi::Abi;
use crate::mpi::functions::Functions;

/// Error of a call. In boxes, so that an outcome fits into registers.
#[derive(Debug)]
pub enum CallError {
    /// A function of MPI's has returned an error code.
    Mpi(Box<Failure>),
    /// MPI can't be asked to do it.
    Impossible(Box<Error>),
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        Self::Mpi(Box::new(failure))
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Impossible(Box::new(error))
    }
}

/// The outcome of a call.
pub type Outcome = Result<(), CallError>;

/// Makes an error of MPI's error code.
#[inline(always)]
pub fn check<A: Abi>(functions: &Functions<A>, function: &'static str, code: c_int) -> Outcome {
    if code == 0 {
        return Ok(());
    }
    Err(fail(functions, function, code))
}

#[cold]
fn fail<A: Abi>(functions: &Functions<A>, function: &'static str, code: c_int) -> CallError {
    CallError::from(Failure {
        function,
        code,
        text: functions.error_text(code),
    })
}
