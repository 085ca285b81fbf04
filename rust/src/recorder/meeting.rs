//! Meetings: places in Python where some ranks wait for each other in calls of mpi4py's, such as the first
//! call without `comm=`. They are recorded as collective calls, so that ranks that wait there are known to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::group::Group;
use super::operation::{Operation, Scope};
use super::ring::{Recordable, Recording, begin_at};
use super::tables::{CommunicatorFacts, Identity, set_communicator_facts};
use crate::lock::lock;

/// Site of a wait of ranks for each other.
struct Site {
    operation: &'static Operation,
    /// Number that stands for a communicator in records. Those of communicators are not negative, and -1
    /// stands for none.
    comm_number: i64,
    /// Number of meetings of this rank so far.
    count: u64,
}

#[derive(Default)]
struct Sites {
    /// By their names and the hashes of the groups.
    by_name: HashMap<(String, u64), Site>,
    in_progress: HashMap<u64, Recording>,
}

static SITES: Mutex<Option<Sites>> = Mutex::new(None);

struct Meeting(i64);

impl Recordable for Meeting {
    fn integers(&self, _: usize, mut see: impl FnMut(usize, i64)) {
        see(0, self.0);
    }

    fn attribute_names(&self) -> Vec<String> {
        vec!["comm_number".into()]
    }
}

/// Records that this rank waits for the others of a group in `MPI_COMM_WORLD`, and gives the id of the call.
/// `rule` is a sentence for users about who has to come there.
pub fn begin_meeting(name: &str, rule: &str, group: Group) -> u64 {
    let mut sites = lock(&SITES);
    let sites = sites.get_or_insert_default();
    let next_number = -2 - sites.by_name.len() as i64;
    let key = (name.to_owned(), group.hash());
    let site = sites.by_name.entry(key).or_insert_with(|| {
        let facts = CommunicatorFacts {
            name: name.to_owned(),
            group: Arc::new(group),
            identity: Identity::Meeting,
        };
        set_communicator_facts(next_number, facts);
        // Records refer to it for good. There are as many as there are kinds of meetings.
        let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
        let operation = Operation {
            rule: Some(leak(rule)),
            ..Operation::new(leak(name), Scope::All)
        };
        Site {
            operation: Box::leak(Box::new(operation)),
            comm_number: next_number,
            count: 0,
        }
    });
    site.count += 1;
    let recording = begin_at(site.operation, &Meeting(site.comm_number), site.count);
    let id = recording.id();
    sites.in_progress.insert(id, recording);
    id
}

/// Records that this rank has left a meeting.
pub fn end_meeting(id: u64) {
    drop(lock(&SITES).get_or_insert_default().in_progress.remove(&id));
}

/// Number of meetings of this rank where a number of a communicator stands for them.
pub fn meetings_of(comm_number: i64) -> u64 {
    let mut sites = lock(&SITES);
    let mut sites = sites.get_or_insert_default().by_name.values();
    let site = sites.find(|site| site.comm_number == comm_number);
    site.map_or(0, |site| site.count)
}
