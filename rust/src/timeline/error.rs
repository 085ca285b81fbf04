//! The error of a timeline.

use std::fmt;
use std::path::Path;

/// A trace that can't be read, or a timeline that can't be written: the file, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineError(String);

/// An outcome that may be such an error.
pub(super) type Result<T> = std::result::Result<T, TimelineError>;

impl TimelineError {
    /// An error of a file as a whole.
    pub(super) fn of(path: &Path, reason: impl fmt::Display) -> Self {
        Self(format!("{}: {reason}", path.display()))
    }

    /// An error of the line or entry that begins at this byte.
    pub(super) fn at(path: &Path, offset: u64, reason: impl fmt::Display) -> Self {
        Self(format!("{}, byte {offset}: {reason}", path.display()))
    }
}

impl fmt::Display for TimelineError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TimelineError {}
