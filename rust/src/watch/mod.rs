//! What watches the calls: a thread that explains a hang.
//!
//! - `ranks`: sets of ranks, in words.
//! - `note`: what a rank says about itself.
//! - `diagnosis`: what is wrong, from the notes of all ranks.
//! - `report`: the same in words.
//! - `watcher`: when ranks ask each other, and what follows; without MPI and threads.
//! - `exchange`: their messages.
//! - `thread`: the thread.

mod diagnosis;
mod exchange;
mod note;
mod ranks;
mod report;
mod thread;
mod watcher;

pub use diagnosis::{Diagnosis, diagnose};
pub use exchange::Objects;
pub use note::{CommunicatorId, End, Half, Note, Peer, State, Waiting};
pub use ranks::Ranks;
pub use report::report;
pub use thread::{Start, Whereabouts, connect, end_with, finish, set_whereabouts, start};
pub use watcher::{Action, Alarm, Message, Settings, Watcher};
