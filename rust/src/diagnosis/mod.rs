//! Mistakes between ranks, and deadlocks, from the notes in which processes describe themselves.
//!
//! - `ranks`: sets of ranks, in words.
//! - `note`: the note of a process: its calls, threads and messages.
//! - `notes`: the notes of many processes.
//! - `snapshot`: the state of all processes at one time, by communicators and messages.
//! - `proof`: the ranks that can never continue.
//! - `findings`: the mistakes, in sentences.
//! - `report`: the table of what ranks do, and the findings.
//! - `lines`: lines of a report that fit a terminal.
//! - `traffic`: messages that were sent and never received.

mod findings;
mod lines;
mod note;
mod notes;
mod proof;
mod ranks;
mod report;
mod snapshot;
mod traffic;

pub use findings::{
    DEADLOCK, Diagnosis, INTERRUPTED, describe_disagreement, diagnose, join_words, listed,
    settling_time,
};
pub use lines::{WIDTH, fit};
pub use note::{
    Attendance, CallNote, Collective, CommunicatorId, CommunicatorKind, End, Endpoint, Loop, Note,
    Peer, Posted, Running, State, ThreadActivity, agreed, attendances, describe_agreed, group_of,
    messages_of,
};
pub use notes::Notes;
pub use proof::SETTLED;
pub use ranks::Ranks;
pub use report::{Activity, report, rows, rows_of};
pub use snapshot::Snapshot;
pub use traffic::{Route, Sent, Traffic, unreceived};
