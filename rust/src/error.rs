//! The errors of calls.

use std::any::Any;
use std::ffi::c_int;
use std::fmt;

/// The kind of an error, for which XLA has a code each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The call itself is wrong: its buffers or attributes are not what the operation takes.
    Invalid,
    /// The call is right, but what it refers to is gone or was never there.
    Precondition,
    /// The call was made, and failed.
    Internal,
}

/// An error as XLA is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Its kind.
    pub kind: ErrorKind,
    /// The text for the user.
    pub message: String,
}

impl Error {
    /// An error of [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// An error of [`ErrorKind::Precondition`].
    pub fn precondition(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Precondition, message)
    }

    /// An error of [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// The error of a panic in code of ours, by what `catch_unwind` caught.
    #[cold]
    pub fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Self::internal(format!(
            "mpi4jax panicked: {}. This is a defect of mpi4jax: please report it",
            text.unwrap_or("no message")
        ))
    }

    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A function of MPI's or of the driver's that failed.
#[derive(Debug)]
pub struct Failure {
    /// Its name in C.
    pub function: &'static str,
    /// The code that it returned.
    pub code: c_int,
    /// The text of MPI or the driver for the code.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self {
            function,
            code,
            text,
        } = self;
        write!(f, "{function} returned error code {code}: {text}")
    }
}

impl std::error::Error for Failure {}
