//! What is wrong between ranks, from what each of them says about itself.
//!
//! - `ranks`: sets of ranks, in words.
//! - `note`: what a process says about itself.
//! - `notes`: what many of them say.
//! - `snapshot`: what all of them do at one time.
//! - `proof`: which ranks can never continue.
//! - `findings`: what is wrong.
//! - `report`: the same in words.
//! - `traffic`: messages that were sent and never received.

mod findings;
mod note;
mod notes;
mod proof;
mod ranks;
mod report;
mod snapshot;
mod traffic;

pub use findings::{
    DEADLOCK, Diagnosis, INTERRUPTED, diagnose, disagreement_in_words, listed, settled,
};
pub use note::{
    Attendance, CallNote, Collective, CommunicatorId, CommunicatorKind, End, Endpoint, Note, Peer,
    Posted, Running, State, ThreadActivity, agreed, agreed_in_words, attendances, group_of,
    messages_of,
};
pub use notes::Notes;
pub use proof::SETTLED;
pub use ranks::Ranks;
pub use report::{Activity, report, rows, rows_of};
pub use snapshot::Snapshot;
pub use traffic::{Route, Sent, Traffic, unreceived};
