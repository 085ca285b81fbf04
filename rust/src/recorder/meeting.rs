//! What all ranks do together in Python, such as the end of a profile: it is recorded as a collective
//! call on the default communicator, so that ranks that wait there are known to.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::ring::{Operation, Recordable, Recording, Scope, begin};
use super::tables::DEFAULT_COMMUNICATOR;

static PROFILE: Operation = Operation::new("profile", Scope::All);
static TRACE: Operation = Operation::new("trace", Scope::All);

static MEETINGS: Mutex<Option<HashMap<u64, Recording>>> = Mutex::new(None);

struct Meeting;

impl Recordable for Meeting {
    fn sent(&self) -> Option<(i32, i64)> {
        None
    }

    fn received(&self) -> Option<(i32, i64)> {
        None
    }

    fn integers(&self, mut see: impl FnMut(usize, i64)) {
        see(0, DEFAULT_COMMUNICATOR);
    }

    fn attribute_names(&self) -> Vec<String> {
        vec!["comm_number".into()]
    }
}

/// Records that this rank waits for all others, and gives a number for it.
pub fn begin_meeting(name: &str) -> Option<u64> {
    let all = [&PROFILE, &TRACE];
    let operation = all.into_iter().find(|operation| operation.name == name)?;
    let recording = begin(operation, &Meeting, DEFAULT_COMMUNICATOR);
    let number = recording.number();
    let mut meetings = MEETINGS.lock().unwrap_or_else(PoisonError::into_inner);
    meetings.get_or_insert_default().insert(number, recording);
    Some(number)
}

/// Records that it does not wait any more.
pub fn end_meeting(number: u64) {
    let mut meetings = MEETINGS.lock().unwrap_or_else(PoisonError::into_inner);
    drop(meetings.get_or_insert_default().remove(&number));
}
