//! The table of flights: operations that one call has started, and another one waits for.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::bell::Bell;
use super::sync::{AtomicBool, Condvar};
use crate::diagnosis::{CommunicatorId, Posted, messages_of};
use crate::lock::lock;
use crate::memory::InFlight;
use crate::recorder::{self, Group};

/// An operation that one call has started.
pub struct Flight {
    /// The name of the operation.
    pub operation: &'static str,
    /// Number of the call site that has begun the flight.
    pub call_site: i64,
    /// The number of the communicator.
    pub communicator: i64,
    /// For a collective operation, its place among those on the communicator; else 0.
    pub sequence: u64,
    /// Whether the program may end without a wait for the flight, which is no mistake then.
    pub may_be_lost: bool,
    /// Whether the operation may need calls of MPI to come to its end.
    pub needs_pushing: bool,
    pub begin: Instant,
    /// The requests, with their memory.
    pub in_flight: InFlight,
}

/// The number of flight ids. An id is a float in a ticket, so that derivatives follow it: there are as many
/// ids as floats tell apart.
const IDS: u32 = 1 << 24;
/// Largest number of flights that are kept although nobody may wait for them.
const MAX_PERHAPS_LOST: usize = 1024;
/// Number of flights that are still known when they are over: the last ones.
const REMEMBERED: usize = 4096;

/// A flight, with the facts that are known without its lock.
struct KnownFlight {
    flight: SharedFlight,
    origin: Origin,
    communicator: i64,
    sequence: u64,
}

struct Flights {
    by_id: BTreeMap<u32, KnownFlight>,
    last: u32,
    /// Whether there is a flight that the progress thread has not seen.
    has_news: bool,
    /// The ids of flights for which nobody may wait, the oldest first.
    perhaps_lost: VecDeque<u32>,
    /// The origins of flights that are over, each in the slot of its id.
    remembered: Vec<Origin>,
}

/// The call that has started a flight.
#[derive(Clone)]
struct Origin {
    flight_id: u32,
    operation: &'static str,
    call_site: i64,
    /// The line of an eager call.
    line: Option<String>,
}

impl Origin {
    /// `the iallreduce started at main.py:5`.
    fn describe(&self) -> String {
        let line = self.line.clone();
        let line = line.or_else(|| recorder::call_site(self.call_site));
        let operation = self.operation;
        match line.filter(|line| !line.is_empty()) {
            Some(line) => format!("the {operation} started at {line}"),
            None => format!("the {operation}"),
        }
    }
}

static FLIGHTS: Mutex<Flights> = Mutex::new(Flights {
    by_id: BTreeMap::new(),
    last: 0,
    has_news: false,
    perhaps_lost: VecDeque::new(),
    remembered: Vec::new(),
});
/// Tells the progress thread that something is in flight.
static BELL: Bell = Bell {
    is_asleep: AtomicBool::new(false),
    news: Condvar::new(),
};

fn flights() -> MutexGuard<'static, Flights> {
    lock(&FLIGHTS)
}

impl Flights {
    fn next_id(&mut self) -> u32 {
        loop {
            self.last = (self.last + 1) % IDS;
            if self.last != 0 && !self.by_id.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Notes a flight for which nobody may wait, and forgets the oldest of those.
    fn may_lose(&mut self, flight_id: u32) {
        self.perhaps_lost.push_back(flight_id);
        if self.perhaps_lost.len() <= MAX_PERHAPS_LOST {
            return;
        }
        let oldest = self.perhaps_lost.pop_front().unwrap_or(flight_id);
        let Some(entry) = self.by_id.get(&oldest) else {
            return;
        };
        // One that the progress thread is looking at is not over. It may take a while, and need the
        // GIL, for an operator made from a Python function.
        let is_over = entry.flight.try_lock().is_ok_and(|flight| {
            let flight = flight.as_ref();
            flight.is_none_or(|flight| flight.in_flight.is_done())
        });
        if is_over {
            self.remove(oldest);
        } else {
            self.perhaps_lost.push_back(oldest);
        }
    }

    /// Takes out a flight, and remembers its origin.
    fn remove(&mut self, flight_id: u32) -> Option<KnownFlight> {
        let entry = self.by_id.remove(&flight_id)?;
        let origin = entry.origin.clone();
        let slot = flight_id as usize % REMEMBERED;
        if self.remembered.len() <= slot {
            self.remembered.resize(slot + 1, origin.clone());
        }
        self.remembered[slot] = origin;
        Some(entry)
    }

    /// The origin of a flight that is over, in words.
    fn describe(&self, flight_id: u32) -> String {
        let known = self.remembered.get(flight_id as usize % REMEMBERED);
        known
            .filter(|known| known.flight_id == flight_id)
            .map_or_else(
                || "an operation started long ago".to_owned(),
                Origin::describe,
            )
    }
}

/// The value by which a program refers to a flight: its number, and a seal.
///
/// Floats, as JAX differentiates these.
pub type Ticket = [f32; 2];

/// The ticket of a flight. Other flights, processes and runs have other seals. They are odd and above
/// 2²³, so that shorter types of floats round them.
pub fn ticket_of(flight_id: u32) -> Ticket {
    static RUN: OnceLock<i64> = OnceLock::new();
    let run = *RUN.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| i64::from(since.subsec_nanos()));
        crate::xla::hash([now, i64::from(std::process::id())]) as i64
    });
    let hash = crate::xla::hash([run, i64::from(flight_id)]) as u32;
    let seal = (hash % IDS) | (IDS / 2) | 1;
    [flight_id as f32, seal as f32]
}

/// Keeps a flight until it is waited for, and gives its id.
pub fn keep(flight: Flight) -> u32 {
    let needs_pushing = flight.needs_pushing && !flight.in_flight.is_done();
    let may_be_lost = flight.may_be_lost;
    let mut all = flights();
    let flight_id = all.next_id();
    let entry = KnownFlight {
        origin: Origin {
            flight_id,
            operation: flight.operation,
            call_site: flight.call_site,
            line: None,
        },
        communicator: flight.communicator,
        sequence: flight.sequence,
        flight: Arc::new(Mutex::new(Some(flight))),
    };
    all.by_id.insert(flight_id, entry);
    if may_be_lost {
        all.may_lose(flight_id);
    }
    all.has_news |= needs_pushing;
    drop(all);
    if needs_pushing {
        BELL.ring();
    }
    flight_id
}

/// A flight that one thread at a time looks at. It is gone once somebody waits for it.
pub type SharedFlight = Arc<Mutex<Option<Flight>>>;

/// All flights, for the progress thread, and whether some of them are new. With `sleep`, waits until a flight
/// is new.
pub fn survey(sleep: bool) -> (Vec<SharedFlight>, bool) {
    let mut all = flights();
    if sleep {
        all = BELL.sleep(all, |all| all.has_news);
    }
    let has_news = mem::take(&mut all.has_news);
    let flights = all.by_id.values();
    let flights = flights.map(|entry| Arc::clone(&entry.flight)).collect();
    (flights, has_news)
}

/// Takes out all flights, each with its origin in words.
pub fn take_all() -> Vec<(Flight, String)> {
    let all = mem::take(&mut flights().by_id).into_values();
    let flights =
        all.filter_map(|entry| Some((lock(&entry.flight).take()?, entry.origin.describe())));
    flights.collect()
}

/// Takes out the flight with this ticket, and gives its id, or says why there is none.
pub fn take(ticket: Ticket) -> Result<(u32, Flight), String> {
    let flight_id = ticket[0] as u32;
    if ticket != ticket_of(flight_id) {
        let [id, seal] = ticket;
        return Err(format!(
            "wait got a request that was changed, or is of another process or of a program that \
             has ended: no operation here gave the ticket [{id}, {seal}]. Requests, also those in \
             a tree, can be passed on and copied, but not converted or computed with"
        ));
    }
    let mut all = flights();
    let Some(entry) = all.remove(flight_id) else {
        let operation = all.describe(flight_id);
        return Err(format!(
            "wait got a request that was waited for before: {operation}"
        ));
    };
    drop(all);
    let flight = lock(&entry.flight).take();
    flight
        .map(|flight| (flight_id, flight))
        .ok_or_else(|| "wait got a request that is being waited for".to_owned())
}

/// Sets the Python line of the eager call that has started a flight.
pub fn set_line(flight_id: u32, line: &str) {
    if let Some(entry) = flights().by_id.get_mut(&flight_id) {
        entry.origin.line = Some(line.to_owned());
    }
}

/// All flights, as other processes may match them, with the groups of the communicators. `None` if the table
/// is locked.
pub fn posted() -> Option<(Vec<Posted>, Vec<Group>)> {
    const ATTEMPTS: usize = 10;
    const PAUSE: Duration = Duration::from_millis(1);
    let mut attempts = (0..ATTEMPTS).map(|attempt| {
        if attempt > 0 {
            thread::sleep(PAUSE);
        }
        FLIGHTS.try_lock().ok()
    });
    let all = attempts.find_map(|all| all)?;
    let (mut posted, mut groups) = (Vec::new(), Vec::new());
    for entry in all.by_id.values() {
        let facts = recorder::communicator_facts(entry.communicator).unwrap_or_default();
        let messages = recorder::messages(entry.origin.call_site, true).unwrap_or_default();
        groups.push(Group::clone(&facts.group));
        posted.push(Posted {
            communicator: CommunicatorId::of(&facts),
            operation: match entry.sequence {
                0 => String::new(),
                _ => entry.origin.operation.to_owned(),
            },
            messages: messages_of(messages, &facts),
            communicator_name: facts.name,
        });
    }
    Some((posted, groups))
}

/// Number of operations in flight.
pub fn count() -> usize {
    flights().by_id.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn that_may_be_lost() -> Flight {
        Flight {
            operation: "hold",
            call_site: 0,
            communicator: 0,
            sequence: 0,
            may_be_lost: true,
            needs_pushing: false,
            begin: Instant::now(),
            in_flight: InFlight::default(),
        }
    }

    /// Fails if the table is locked while it waits for a flight, as the progress thread may be in that, in
    /// an operator that needs the GIL, and a thread with the GIL may ask the table.
    #[test]
    fn the_table_waits_for_no_flight() {
        const A_DEADLOCK: Duration = Duration::from_secs(300);
        let first = keep(that_may_be_lost());
        let flight = Arc::clone(&flights().by_id[&first].flight);
        let in_mpi = lock(&flight);
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            for _ in 0..=MAX_PERHAPS_LOST {
                keep(that_may_be_lost());
            }
            done.send(()).unwrap();
        });
        assert_eq!(is_done.recv_timeout(A_DEADLOCK), Ok(()));
        assert!(flights().by_id.contains_key(&first));
        drop(in_mpi);
        take_all();
    }
}
