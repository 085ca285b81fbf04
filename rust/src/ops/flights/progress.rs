//! The thread that has MPI move what is in flight, and the end of all of it.
//!
//! Most MPIs move a large message only while somebody is in MPI. So a thread looks at what has been
//! in flight for some time, if MPI allows calls from several threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use super::table;
use crate::lock::lock;
use crate::memory::gpu_aware;
use crate::mpi::is_available;
use crate::recorder::os_thread;

/// Whether a thread is to see to what is in flight.
static IS_PUSHED: AtomicBool = AtomicBool::new(false);
/// Flights that are younger are left alone: small messages are there when they are waited for.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// From one look at what is older to the next: so long at first, and in the end.
const PAUSES: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(1));
/// A look that takes longer has moved something, and there may be more.
const WORK: Duration = Duration::from_micros(5);
/// The thread sleeps when there was nothing in flight for so long.
const PATIENCE: Duration = Duration::from_millis(20);

/// Sets whether a thread sees to what is in flight, for which MPI has to allow calls from several threads.
pub fn set_pushing(is_pushed: bool) {
    IS_PUSHED.store(is_pushed, Ordering::Relaxed);
}

/// The thread has this while it may call MPI.
static IN_MPI: Mutex<()> = Mutex::new(());

/// Stops the thread's calls of MPI, which is about to be finalised. Waits until the thread has left MPI, but
/// not for ever: it may be in an operator made from a Python function, which needs the GIL.
pub fn stop() {
    const PATIENCE: Duration = Duration::from_secs(5);
    set_pushing(false);
    let begin = Instant::now();
    while matches!(IN_MPI.try_lock(), Err(TryLockError::WouldBlock)) && begin.elapsed() < PATIENCE {
        thread::sleep(PAUSES.0);
    }
}

/// Starts the thread, if it may run and does not yet.
pub fn start() {
    if !IS_PUSHED.load(Ordering::Relaxed) {
        return;
    }
    static STARTED: OnceLock<bool> = OnceLock::new();
    STARTED.get_or_init(|| os_thread::spawn("mpi4jax-progress", push).is_ok());
}

/// Calls MPI, again and again, so that it moves what is in flight. Never returns.
fn push() {
    let mut last_work = Instant::now();
    // By what the last look has found: on a busy machine, much time may pass from one to the next.
    let mut may_sleep = false;
    loop {
        let (flights, has_news) = table::survey(may_sleep);
        may_sleep = !has_news;
        if has_news {
            last_work = Instant::now();
        }
        let mut oldest = Duration::ZERO;
        let begin = Instant::now();
        // These messages are in host memory, but MPI may go on with any others.
        let _context = gpu_aware::enter_last();
        let in_mpi = lock(&IN_MPI);
        for flight in &flights {
            if let Ok(mut flight) = flight.try_lock()
                && let Some(flight) = flight.as_mut()
                && flight.needs_pushing
                && !flight.in_flight.is_done()
                && IS_PUSHED.load(Ordering::Relaxed)
            {
                last_work = begin;
                may_sleep = false;
                if flight.begin.elapsed() >= FIRST_LOOK {
                    flight.in_flight.test();
                    oldest = oldest.max(flight.begin.elapsed());
                }
            }
        }
        drop(in_mpi);
        may_sleep &= last_work.elapsed() > PATIENCE;
        if begin.elapsed() > WORK {
            thread::yield_now();
        } else {
            let is_young = oldest < FIRST_LOOK;
            let pause = (oldest / 16).clamp(PAUSES.0, PAUSES.1);
            thread::sleep(if is_young { FIRST_LOOK } else { pause });
        }
    }
}

/// An operation that nobody has waited for, at the end of the program.
pub struct Left {
    /// The operation and its line.
    pub what: String,
    /// Whether it has come to its end.
    pub is_done: bool,
}

/// Waits for all that is in flight, but no longer than this, and not where MPI may not be called. Gives
/// what there was. Nothing can be waited for after that.
pub fn finish(at_most: Duration) -> Vec<Left> {
    set_pushing(false);
    let begin = Instant::now();
    let mut left = Vec::new();
    for (flight, origin) in table::take_all() {
        let mut in_flight = flight.in_flight;
        in_flight.test();
        while !in_flight.is_done() && begin.elapsed() < at_most && is_available() {
            thread::sleep(PAUSES.0);
            in_flight.test();
        }
        if !flight.may_be_lost {
            left.push(Left {
                what: origin,
                is_done: in_flight.is_done(),
            });
        }
    }
    left
}
