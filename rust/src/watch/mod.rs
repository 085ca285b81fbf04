//! The watchdog: a thread that watches the calls of this process, and explains a hang.
//!
//! - `round`: how many ranks are asked for their notes, along a tree; without MPI and threads.
//! - `watcher`: when ranks ask each other, and what follows; without MPI and threads, too.
//! - `verdict`: the proof that ends a program, taken twice.
//! - `observer`: the note of this process, from its records and from `signals`, `python_threads` and
//!   `busy_threads`.
//! - `mailbox`: the messages between the watchers of all ranks.
//! - `thread`: the thread.

mod busy_threads;
mod mailbox;
mod observer;
mod python_threads;
mod round;
mod signals;
mod thread;
mod verdict;
mod watcher;

pub use mailbox::{Mailbox, Objects};
pub use python_threads::{Ask, Python, set_ask};
pub use round::{Question, RoundId};
pub use thread::{Start, connect, end_with, start};
pub use watcher::{Action, Alarm, Settings, WatchedProcess, Watcher, WatcherMessage};
