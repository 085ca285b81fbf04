//! What watches the calls: a thread that explains a hang.
//!
//! - `watcher`: when ranks ask each other, and what follows; without MPI and threads.
//! - `exchange`: their messages.
//! - `thread`: the thread.

mod exchange;
mod thread;
mod watcher;

pub use exchange::Objects;
pub use thread::{Start, Whereabouts, connect, end_with, finish, set_whereabouts, start};
pub use watcher::{Action, Alarm, Message, Settings, Watcher};
