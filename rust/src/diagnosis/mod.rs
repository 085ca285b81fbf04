//! What is wrong between ranks, from what each of them says about itself.
//!
//! - `ranks`: sets of ranks, in words.
//! - `note`: what a rank says about itself.
//! - `findings`: what is wrong, from the notes of all ranks.
//! - `report`: the same in words.
//! - `traffic`: messages that were sent and never received.

mod findings;
mod note;
mod ranks;
mod report;
mod traffic;

pub use findings::{DEADLOCK, Diagnosis, SETTLED, diagnose, disagreements, listed, settled};
pub use note::{
    CommunicatorId, End, Half, Note, Peer, State, Waiting, agreed, agreed_in_words, counts,
    longest_call,
};
pub use ranks::Ranks;
pub use report::{Doing, report, rows, rows_of};
pub use traffic::{Kind, Sent, Traffic, unreceived};
