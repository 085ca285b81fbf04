//! Directory of the launcher, in which the processes of a job find each other's addresses.
//!
//! Neither kind of directory is collective: looking up a process never waits for the main program of
//! another one. A process that is written in C or starts an hour later is only missing.

/// Directory with one text for each rank.
pub trait Directory: Send + Sync {
    /// Publishes the text of this process, or returns the reason why it can't.
    fn publish(&self, text: &str) -> Result<(), String>;

    /// Text of another rank, if it has published one.
    fn look_up(&self, rank: i32) -> Result<Option<String>, Closed>;
}

/// Error: the directory can't be asked any more, because MPI was finalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

/// Stand-in for a missing directory, with the reason.
pub struct Missing(pub String);

impl Directory for Missing {
    fn publish(&self, _: &str) -> Result<(), String> {
        Err(self.0.clone())
    }

    fn look_up(&self, _: i32) -> Result<Option<String>, Closed> {
        Ok(None)
    }
}
