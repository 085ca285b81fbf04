//! The objects that records refer to by numbers, as far as Python has described them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use serde::Deserialize;

use super::group::Group;
use crate::lock::lock;
use crate::mpi::Lineage;
use crate::xla::computed_position;

/// The identity of a communicator: the fact by which other processes recognise it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Identity {
    /// The default communicator.
    Default,
    /// `MPI_COMM_WORLD`.
    World,
    /// A copy of `MPI_COMM_WORLD`, or of a copy of it.
    Copy(Lineage),
    /// A communicator that XLA has made, by its index among those of the same processes.
    Jax(usize),
    /// A place where these processes wait for each other, by its name, and no communicator.
    Meeting,
    /// Nothing but the processes is known.
    #[default]
    Unknown,
}

/// A communicator: its name for users, and its processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommunicatorFacts {
    /// Its name in reports.
    pub name: String,
    /// Its processes.
    pub group: Arc<Group>,
    /// Identity among the communicators of other processes.
    pub identity: Identity,
}

/// The number of the default communicator.
pub const DEFAULT_COMMUNICATOR: i64 = 0;

static IS_DEFAULT_SHARED: AtomicBool = AtomicBool::new(false);

/// Notes that others than mpi4jax may communicate on the default communicator.
pub fn share_default() {
    IS_DEFAULT_SHARED.store(true, Ordering::Relaxed);
}

/// Whether others than mpi4jax may communicate on the default communicator.
pub fn is_default_shared() -> bool {
    IS_DEFAULT_SHARED.load(Ordering::Relaxed)
}

static HAS_FOREIGN_HANDLERS: AtomicBool = AtomicBool::new(false);

/// Notes that another package may have handlers that call MPI, of which there are no records.
pub fn set_foreign_handlers() {
    HAS_FOREIGN_HANDLERS.store(true, Ordering::Relaxed);
}

/// Whether another package may have handlers that call MPI.
pub fn has_foreign_handlers() -> bool {
    HAS_FOREIGN_HANDLERS.load(Ordering::Relaxed)
}

/// `MPI_PROC_NULL` in the MPI that is loaded (MPI-4.1 §3.10). Other negative ranks stand for any
/// process.
static PROC_NULL: AtomicI32 = AtomicI32::new(i32::MIN);

/// Sets `MPI_PROC_NULL`.
pub fn set_proc_null(rank: i32) {
    PROC_NULL.store(rank, Ordering::Relaxed);
}

/// Whether a rank is `MPI_PROC_NULL`.
pub fn is_proc_null(rank: i64) -> bool {
    rank == i64::from(PROC_NULL.load(Ordering::Relaxed))
}

/// A message of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Message {
    /// The rank of the process at the other end.
    pub rank: i64,
    /// The tag.
    pub tag: i64,
    /// Its size, or 0 if the array of the call says it.
    pub bytes: u64,
}

/// The messages of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages {
    /// The messages that the call sends.
    pub sent: Vec<Message>,
    /// The messages that the call receives.
    pub received: Vec<Message>,
}

impl Messages {
    /// Puts in the ranks that the program has computed. A message whose rank is not among them is left out,
    /// and so is one to or from `MPI_PROC_NULL`.
    fn resolve(&mut self, ranks: &[i32]) {
        for messages in [&mut self.sent, &mut self.received] {
            messages.retain_mut(|message| {
                let Some(position) = computed_position(message.rank) else {
                    return true;
                };
                let Some(rank) = ranks.get(position) else {
                    return false;
                };
                message.rank = (*rank).into();
                !is_proc_null(message.rank)
            });
        }
    }
}

#[derive(Default)]
struct Tables {
    communicators: HashMap<i64, CommunicatorFacts>,
    /// The groups that communicators have, by their hashes: many communicators have the same one.
    groups: HashMap<u64, Arc<Group>>,
    call_sites: HashMap<i64, Vec<String>>,
    messages: HashMap<i64, Messages>,
    /// The ranks that the program has computed for the last call at a site, if its messages were told.
    computed_ranks: HashMap<i64, Vec<i32>>,
    /// The call sites in the order in which their lines became known.
    sites_in_order: Vec<i64>,
    eager_line: String,
    /// The lines of the last eager calls of programs whose call sites are known.
    eager_lines: HashMap<i64, String>,
}

static TABLES: Mutex<Option<Tables>> = Mutex::new(None);

/// Largest number of lines of a call site: programs that are equal but for their lines share it.
const MAX_LINES: usize = 4;

fn with_tables<T>(body: impl FnOnce(&mut Tables) -> T) -> T {
    body(lock(&TABLES).get_or_insert_default())
}

/// Describes the communicator with this number.
pub fn set_communicator_facts(comm_number: i64, mut facts: CommunicatorFacts) {
    with_tables(|tables| {
        let entry = tables.groups.entry(facts.group.hash());
        let group = entry.or_insert_with(|| Arc::clone(&facts.group));
        if *group == facts.group {
            facts.group = Arc::clone(group);
        }
        tables.communicators.insert(comm_number, facts)
    });
}

/// The description of the communicator with this number.
pub fn communicator_facts(comm_number: i64) -> Option<CommunicatorFacts> {
    with_tables(|tables| tables.communicators.get(&comm_number).cloned())
}

/// The rank in `MPI_COMM_WORLD` of a process with this rank in a communicator, if that is known.
pub fn world_rank(communicator: i64, rank: i32) -> Option<i32> {
    with_tables(|tables| {
        let facts = tables.communicators.get(&communicator)?;
        facts.group.get(rank.into())
    })
}

/// Sets the Python line of the eager call that begins now: of a program with these call sites, or, without
/// any, of one that is not known.
pub fn set_eager_line(line: &str, sites: &[i64]) {
    with_tables(|tables| {
        if sites.is_empty() {
            line.clone_into(&mut tables.eager_line);
        }
        let lines = sites.iter().map(|site| (*site, line.to_owned()));
        tables.eager_lines.extend(lines);
    });
}

/// Sets the Python line of a call in a compiled program. An empty line means that the program is an eager
/// call.
pub fn set_call_site(site: i64, line: &str) {
    with_tables(|tables| {
        let lines = tables.call_sites.entry(site).or_default();
        if lines.len() < MAX_LINES && !lines.iter().any(|known| known == line) {
            lines.push(line.to_owned());
            tables.sites_in_order.push(site);
        }
    });
}

/// Sets the messages of a call in a compiled program, where its attributes do not say them.
pub fn set_messages(site: i64, messages: Messages) {
    with_tables(|tables| tables.messages.insert(site, messages));
}

/// Sets the ranks that the program has computed for a call that begins.
pub fn set_computed_ranks(site: i64, ranks: &[i32]) {
    with_tables(|tables| {
        if tables.messages.contains_key(&site) {
            let known = tables.computed_ranks.entry(site).or_default();
            known.clear();
            known.extend_from_slice(ranks);
        }
    });
}

/// The messages of a call in a compiled program, if they were told. Messages with computed ranks are left out
/// of a call that is over, as only the ranks of the last call are known.
pub fn messages(site: i64, is_running: bool) -> Option<Messages> {
    with_tables(|tables| {
        let mut messages = tables.messages.get(&site)?.clone();
        let ranks = tables.computed_ranks.get(&site).filter(|_| is_running);
        messages.resolve(ranks.map_or(&[], Vec::as_slice));
        Some(messages)
    })
}

/// The call sites that have become known after the first `count`, and their lines as of now.
pub fn call_sites_since(count: usize) -> Vec<(i64, String)> {
    with_tables(|tables| {
        let sites = tables.sites_in_order.get(count..).unwrap_or_default();
        let lines = |site: &i64| (*site, either(&tables.call_sites[site]));
        sites.iter().map(lines).collect()
    })
}

/// The descriptions of all communicators, in the order of their numbers.
pub fn communicators() -> Vec<(i64, CommunicatorFacts)> {
    with_tables(|tables| {
        let mut all: Vec<_> = tables.communicators.clone().into_iter().collect();
        all.sort_unstable_by_key(|(comm_number, _)| *comm_number);
        all
    })
}

/// The Python line of a call in a compiled program, or several lines if equal programs have several. It is
/// empty for an eager call.
pub fn call_site(site: i64) -> Option<String> {
    with_tables(|tables| Some(either(tables.call_sites.get(&site)?)))
}

/// The Python line of a call in progress. An eager call has the line of the last call of its program, or of
/// any program.
pub fn line_in_progress(site: i64) -> Option<String> {
    with_tables(|tables| {
        let lines = tables.call_sites.get(&site)?;
        let line = tables.eager_lines.get(&site).cloned();
        let line = line.unwrap_or_else(|| either(lines));
        Some(if line.is_empty() {
            tables.eager_line.clone()
        } else {
            line
        })
    })
}

/// A function that finds the Python line of a thread in a call, by the system's number for it. It may
/// take a while.
static FIND_LINE: OnceLock<fn(u32) -> Option<String>> = OnceLock::new();

/// Sets the function that finds the Python line of a thread in a call.
pub fn set_line_finder(find: fn(u32) -> Option<String>) {
    let _ = FIND_LINE.set(find);
}

/// The Python line of a thread in a call, if Python says it.
pub fn find_line(thread: u32) -> Option<String> {
    FIND_LINE.get()?(thread)
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

    #[test]
    fn an_eager_call_has_the_line_that_was_told_last() {
        set_call_site(-7, "");
        set_eager_line("a.py:1", &[]);
        assert_eq!(line_in_progress(-7).unwrap(), "a.py:1");
        for line in ["b.py:2", "c.py:3"] {
            set_call_site(-7, line);
            set_eager_line(line, &[-7, -8]);
        }
        set_eager_line("d.py:4", &[]);
        assert_eq!(line_in_progress(-7).unwrap(), "c.py:3");
        assert_eq!(call_site(-7).unwrap(), "b.py:2 or c.py:3");
        assert_eq!(line_in_progress(-8), None);
    }
}
