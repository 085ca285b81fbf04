//! What watches the calls: a thread that explains a hang.
//!
//! - `round`: asking many ranks, along a tree; without MPI and threads.
//! - `watcher`: when ranks ask each other, and what follows; also without.
//! - `signals`, `python`, `threads`: what there is to know about this process.
//! - `process`: what the thread makes of that.
//! - `mailbox`: the messages of the ranks.
//! - `thread`: the thread.

mod busy_threads;
mod mailbox;
mod observer;
mod python_threads;
mod round;
mod signals;
mod thread;
mod watcher;

pub use mailbox::Objects;
pub use python_threads::{Ask, Python, set_ask};
pub use round::{Question, RoundId};
pub use thread::{Start, connect, end_with, finish, start};
pub use watcher::{Action, Alarm, Process, Settings, Watcher, WatcherMessage};
