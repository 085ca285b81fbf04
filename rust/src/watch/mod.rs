//! The watchdog: a thread that watches the calls of this process and explains a hang.
//!
//! - `round`: collects the notes of all ranks along a tree; without MPI and threads.
//! - `watcher`: decides when to ask all ranks and what follows; also without MPI and threads.
//! - `verdict`: the proof that ends a program, taken twice.
//! - `observer`: makes the note of this process from its records, `signals`, `python_threads` and
//!   `busy_threads`.
//! - `address`, `directory`: how ranks find each other. `names`, `pmix`: two kinds of directories.
//! - `mailbox`: the messages between the watchers of all ranks.
//! - `thread`: the thread that runs the watcher.

mod address;
mod busy_threads;
mod directory;
mod mailbox;
mod names;
mod observer;
mod pmix;
mod python_threads;
mod round;
mod signals;
mod thread;
mod verdict;
mod watcher;

pub use directory::{Closed, Directory};
pub use mailbox::Mailbox;
pub use python_threads::{Ask, Making, Python, set_ask};
pub use round::{Failure, Question, RoundId};
pub use thread::{Start, end_with, isolation, own_address, set_addresses, start};
pub use watcher::{Action, Alarm, Event, Settings, WatchedProcess, Watcher, WatcherMessage};
