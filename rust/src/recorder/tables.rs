//! What is known of the things that records refer to by numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::xla::hash;

/// What users call a communicator, and which processes it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommunicatorFacts {
    /// Its name in reports.
    pub name: String,
    /// The ranks in `MPI_COMM_WORLD` of its processes, in their order.
    pub members: Vec<i32>,
    /// The number that MPI has for it in Fortran, by the order in which communicators were made.
    pub creation: i64,
}

impl CommunicatorFacts {
    /// A hash of the members, the same in all processes.
    pub fn hash(&self) -> u64 {
        hash(self.members.iter().map(|rank| i64::from(*rank)))
    }
}

/// The rank of no process in the MPI that is loaded (MPI-4.1 §3.10). Other negative ones stand for
/// any process.
static PROC_NULL: AtomicI32 = AtomicI32::new(i32::MIN);

/// Says which rank is that of no process.
pub fn set_proc_null(rank: i32) {
    PROC_NULL.store(rank, Ordering::Relaxed);
}

/// Whether a rank is that of no process.
pub fn is_nobody(rank: i64) -> bool {
    rank == i64::from(PROC_NULL.load(Ordering::Relaxed))
}

/// The messages of a call, each with the rank of the other side and the tag.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages {
    /// Those that it sends.
    pub sent: Vec<(i64, i64)>,
    /// Those that it receives.
    pub received: Vec<(i64, i64)>,
}

#[derive(Default)]
struct Tables {
    communicators: HashMap<i64, CommunicatorFacts>,
    call_sites: HashMap<i64, Vec<String>>,
    messages: HashMap<i64, Messages>,
    /// The call sites in the order in which their lines became known.
    told: Vec<i64>,
    eager_line: String,
}

static TABLES: Mutex<Option<Tables>> = Mutex::new(None);

/// Programs that are equal but for their lines have the same calls. So many lines are kept.
const MOST_LINES: usize = 4;

fn with_tables<T>(body: impl FnOnce(&mut Tables) -> T) -> T {
    let mut tables: MutexGuard<_> = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    body(tables.get_or_insert_default())
}

/// Says what there is to know about the communicator with this number.
pub fn set_communicator_facts(number: i64, facts: CommunicatorFacts) {
    with_tables(|tables| tables.communicators.insert(number, facts));
}

/// What is known about the communicator with this number.
pub fn communicator_facts(number: i64) -> Option<CommunicatorFacts> {
    with_tables(|tables| tables.communicators.get(&number).cloned())
}

/// The rank in `MPI_COMM_WORLD` of a process with this rank in a communicator, if that is known.
pub fn world_rank(communicator: i64, rank: i32) -> Option<i32> {
    let rank = usize::try_from(rank).ok()?;
    with_tables(|tables| {
        let facts = tables.communicators.get(&communicator)?;
        facts.members.get(rank).copied()
    })
}

/// Says which line the eager call that begins now comes from.
pub fn set_eager_line(line: &str) {
    with_tables(|tables| line.clone_into(&mut tables.eager_line));
}

/// The line of the eager call that began last, if it was told.
pub fn eager_line() -> String {
    with_tables(|tables| tables.eager_line.clone())
}

/// Says which Python line a call in a compiled program comes from. An empty one says that the
/// program is an eager call.
pub fn set_call_site(site: i64, line: &str) {
    with_tables(|tables| {
        let lines = tables.call_sites.entry(site).or_default();
        if lines.len() < MOST_LINES && !lines.iter().any(|known| known == line) {
            lines.push(line.to_owned());
            tables.told.push(site);
        }
    });
}

/// Says which messages a call in a compiled program has, if these are not among its attributes.
pub fn set_messages(site: i64, messages: Messages) {
    with_tables(|tables| tables.messages.insert(site, messages));
}

/// The messages of a call in a compiled program, if they were told.
pub fn messages(site: i64) -> Option<Messages> {
    with_tables(|tables| tables.messages.get(&site).cloned())
}

/// The call sites that have become known after the first so many, and their lines as of now.
pub fn call_sites_since(count: usize) -> Vec<(i64, String)> {
    with_tables(|tables| {
        let told = tables.told.get(count..).unwrap_or_default();
        let lines = |site: &i64| (*site, either(&tables.call_sites[site]));
        told.iter().map(lines).collect()
    })
}

/// What is known about all communicators, in the order of their numbers.
pub fn communicators() -> Vec<(i64, CommunicatorFacts)> {
    with_tables(|tables| {
        let mut all: Vec<_> = tables.communicators.clone().into_iter().collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all
    })
}

/// The Python line of a call in a compiled program: one of several, if equal programs have
/// several. It is empty for an eager call.
pub fn call_site(site: i64) -> Option<String> {
    with_tables(|tables| Some(either(tables.call_sites.get(&site)?)))
}

/// Several lines as one. That there are eager calls as well goes without saying.
fn either(lines: &[String]) -> String {
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let lines = lines.into_iter().filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_programs_have_several_lines() {
        for line in ["a.py:1", "a.py:1", "", "b.py:2", "d", "too many"] {
            set_call_site(-5, line);
        }
        assert_eq!(call_site(-5).unwrap(), "a.py:1 or b.py:2 or d");
        assert_eq!(call_site(-6), None);
    }
}
