//! Meetings: places in Python where all ranks wait for each other, such as the end of a profile. They
//! are recorded as collective calls on the default communicator, so that ranks that wait there are
//! known to.

use std::collections::HashMap;
use std::sync::Mutex;

use super::operation::{Operation, Scope};
use super::ring::{Recordable, Recording, begin};
use super::tables::DEFAULT_COMMUNICATOR;
use crate::lock::lock;

static PROFILE: Operation = Operation::new("profile", Scope::All);
static TRACE: Operation = Operation::new("trace", Scope::All);

static MEETINGS: Mutex<Option<HashMap<u64, Recording>>> = Mutex::new(None);

struct Meeting;

impl Recordable for Meeting {
    fn integers(&self, _: usize, mut see: impl FnMut(usize, i64)) {
        see(0, DEFAULT_COMMUNICATOR);
    }

    fn attribute_names(&self) -> Vec<String> {
        vec!["comm_number".into()]
    }
}

/// Records that this rank waits for all others, and gives the id of the call.
pub fn begin_meeting(name: &str) -> Option<u64> {
    let all = [&PROFILE, &TRACE];
    let operation = all.into_iter().find(|operation| operation.name == name)?;
    let recording = begin(operation, &Meeting, DEFAULT_COMMUNICATOR);
    let id = recording.id();
    lock(&MEETINGS)
        .get_or_insert_default()
        .insert(id, recording);
    Some(id)
}

/// Records that it does not wait any more.
pub fn end_meeting(id: u64) {
    drop(lock(&MEETINGS).get_or_insert_default().remove(&id));
}
