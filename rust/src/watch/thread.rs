//! Thread that runs the watcher of this process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::address::Address;
use super::directory::{Directory, Missing};
use super::mailbox::Mailbox;
use super::names::Names;
use super::observer::Observer;
use super::pmix::Pmix;
use super::round::Failure;
use super::signals::note_interrupts;
use super::watcher::{Action, Event, Settings, WatchedProcess, Watcher};
use crate::diagnosis::End;
use crate::lock::lock;
use crate::log;
use crate::mpi::calls::{NameHandles, NameService};
use crate::mpi::{
    self, Abi, Functions, Waiting, before_finalize, call_in_background, exit_at_once,
};
use crate::ops;
use crate::recorder::os_thread;

/// Parameters of the thread.
#[derive(Debug, Clone)]
pub struct Start {
    /// Rank of this process in `MPI_COMM_WORLD`.
    pub rank: i32,
    /// Number of processes.
    pub size: i32,
    /// Host name.
    pub host: String,
    /// Whether other processes may be on other machines.
    pub all_hosts: bool,
    /// Handles for MPI's name service, or the reason why the service can't be called.
    pub names: Result<NameHandles, String>,
    /// Whether any thread may call MPI.
    pub has_threads: bool,
    /// Whether rank 0 compares, at the end, the messages that all ranks have sent and received.
    pub compares_traffic: bool,
    /// Settings of the user.
    pub settings: Settings,
}

/// State that the thread shares with other threads.
struct Shared {
    /// Mailbox of this rank, unless the system gives this process no socket.
    mailbox: Option<Arc<Mailbox>>,
    isolation: Mutex<Isolation>,
    compares_traffic: bool,
    /// Whether the thread of this rank, which ends, has processed all events and sent all messages.
    has_taken_leave: AtomicBool,
    /// Whether this rank awaits no more counts of messages from others.
    knows_traffic: AtomicBool,
}

impl Shared {
    fn has_taken_leave(&self) -> bool {
        // In this order: the thread clears the flag before it takes events.
        self.mailbox_is_idle() && self.has_taken_leave.load(Ordering::Acquire)
    }

    fn mailbox_is_idle(&self) -> bool {
        self.mailbox
            .as_ref()
            .is_none_or(|mailbox| mailbox.is_idle())
    }
}

/// Whether this rank is cut off from others, so that it can't ask them.
#[derive(Clone, PartialEq)]
enum Isolation {
    /// Not known: the address is being published.
    Unknown,
    /// Not isolated: the rank can ask all ranks that have a mailbox.
    None,
    /// Isolated for this reason.
    Because(String),
}

static END: Mutex<Option<End>> = Mutex::new(None);
static SHARED: OnceLock<Shared> = OnceLock::new();
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// Whether the thread has something to do.
static IS_WOKEN: Mutex<bool> = Mutex::new(false);
static WOKEN: Condvar = Condvar::new();

/// Milliseconds between two looks: usually, and while there is something to do.
const IDLE: u64 = 100;
const BUSY: u64 = 5;
/// Longest delay of `MPI_Finalize`, and of the end of the process, for messages between ranks.
const LEAVE: Duration = Duration::from_secs(10);

fn wake() {
    *lock(&IS_WOKEN) = true;
    WOKEN.notify_all();
}

/// Sleeps until the thread is woken, or for the time.
fn sleep(milliseconds: u64) {
    let guard = lock(&IS_WOKEN);
    let timeout = Duration::from_millis(milliseconds);
    let waited = WOKEN.wait_timeout_while(guard, timeout, |is_woken| !*is_woken);
    *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
}

/// Notes how the main program of this process has ended. Functions that were registered for its exit may
/// still run before `MPI_Finalize`.
pub fn end_with(end: End) {
    *lock(&END) = Some(end);
    wake();
}

/// Waits until a condition holds, but no longer than `LEAVE`.
fn wait_until(holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() && begin.elapsed() < LEAVE {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reason why this rank can't ask others, if any.
pub fn isolation() -> Option<String> {
    let shared = SHARED.get()?;
    wait_until(|| *lock(&shared.isolation) != Isolation::Unknown);
    match &*lock(&shared.isolation) {
        Isolation::Because(why) => Some(why.clone()),
        Isolation::Unknown | Isolation::None => None,
    }
}

/// Address of this rank's mailbox as text, if it has one.
pub fn own_address() -> Option<String> {
    Some(SHARED.get()?.mailbox.as_ref()?.address().to_string())
}

/// Sets the addresses of all ranks, where there is no directory.
pub fn set_addresses(texts: &[String]) {
    let addresses: Option<Vec<Address>> = texts.iter().map(|text| text.parse().ok()).collect();
    if let Some(shared) = SHARED.get()
        && let (Some(mailbox), Some(addresses)) = (&shared.mailbox, addresses)
    {
        mailbox.add_addresses(addresses);
        *lock(&shared.isolation) = Isolation::None;
        wake();
    }
}

/// Prepares the thread for the end of MPI, after which it does not call MPI. The thread still answers
/// other ranks while the process lives, as `MPI_Finalize` waits for them.
fn finish() {
    let fails = lock(&END)
        .get_or_insert_with(|| End {
            code: 0,
            reason: "in MPI_Finalize".into(),
        })
        .code
        != 0;
    if let Some(shared) = SHARED.get() {
        wait_until(|| *lock(&shared.isolation) != Isolation::Unknown);
        IS_ENDING.store(true, Ordering::Release);
        wake();
        if fails || shared.compares_traffic {
            wait_until(|| shared.has_taken_leave());
            // SAFETY: the function may be called while the process exits, and this library is not
            // unloaded.
            unsafe { libc::atexit(process_last_events) };
        }
    }
    // Other ranks may need the core while this one waits for them.
    std::mem::forget(Waiting::begin());
}

/// Waits until the thread has processed what other ranks send at their end.
extern "C" fn process_last_events() {
    if let Some(shared) = SHARED.get() {
        let awaits_traffic =
            || shared.compares_traffic && !shared.knows_traffic.load(Ordering::Acquire);
        wait_until(|| !awaits_traffic() && shared.has_taken_leave());
    }
}

/// Directory of this job: PMIx where the MPI uses it, or else MPI's name service.
fn directory_of<A: Abi>(functions: &'static Functions<A>, start: &Start) -> Box<dyn Directory> {
    let Settings {
        report_after,
        timeout,
        ..
    } = start.settings;
    if !report_after.is_finite() && timeout.is_none() && !start.compares_traffic {
        return Box::new(Missing("reports are turned off".into()));
    }
    if let Some(pmix) = Pmix::find() {
        return Box::new(pmix);
    }
    match &start.names {
        Ok(handles) => {
            let service = NameService::new(functions, *handles);
            Box::new(Names::new(service, start.rank, start.size))
        }
        Err(why) => Box::new(Missing(why.clone())),
    }
}

/// Starts the thread, if this process has none yet.
pub fn start<A: Abi>(start: Start) {
    let Some(functions) = A::functions().get() else {
        return;
    };
    let mut is_new = false;
    let shared = SHARED.get_or_init(|| {
        is_new = true;
        let directory = directory_of(functions, &start);
        let (rank, host) = (start.rank, &start.host);
        let mailbox = Mailbox::open(rank, host, start.all_hosts, directory, wake);
        let isolation = match &mailbox {
            Ok(_) => Isolation::Unknown,
            Err(error) => Isolation::Because(format!("the system gives it no socket ({error})")),
        };
        Shared {
            mailbox: mailbox.ok(),
            isolation: Mutex::new(isolation),
            compares_traffic: start.compares_traffic,
            has_taken_leave: AtomicBool::new(false),
            knows_traffic: AtomicBool::new(false),
        }
    });
    if is_new {
        before_finalize(finish);
        note_interrupts();
        let watch = move || watch::<A>(functions, &start, shared);
        // Without a thread, nothing is watched.
        let _ = os_thread::spawn("mpi4jax-watch", watch);
    }
}

fn publish(shared: &Shared, size: i32) {
    let Some(mailbox) = &shared.mailbox else {
        return;
    };
    // One process has nobody to be cut off from.
    let published = if size > 1 { mailbox.publish() } else { Ok(()) };
    let isolation = match published {
        Ok(()) => Isolation::None,
        Err(why) => Isolation::Because(why),
    };
    let mut known = lock(&shared.isolation);
    if *known == Isolation::Unknown {
        *known = isolation;
    }
}

fn watch<A: Abi>(functions: &'static Functions<A>, start: &Start, shared: &'static Shared) {
    publish(shared, start.size);
    let mut watcher = Watcher::new(start.rank, start.size, &start.host, start.settings);
    let mut process = Observer::new(start.settings.report_after);
    let mut has_sent_traffic = !start.compares_traffic;
    let mut lost = Vec::new();
    loop {
        let is_ending = IS_ENDING.load(Ordering::Acquire);
        shared.has_taken_leave.store(false, Ordering::Release);
        shared
            .knows_traffic
            .store(watcher.knows_traffic(), Ordering::Release);
        process.look(lock(&END).clone(), is_ending);
        watcher.set_isolation(match &*lock(&shared.isolation) {
            Isolation::Because(why) => Some(why.clone()),
            Isolation::Unknown | Isolation::None => None,
        });
        let mut events = std::mem::take(&mut lost);
        events.extend(
            shared
                .mailbox
                .iter()
                .flat_map(|mailbox| mailbox.take_events()),
        );
        let is_busy = !events.is_empty() || watcher.is_busy();
        let mut actions = watcher.step(process.now(), events, &mut process);
        if is_ending && !has_sent_traffic {
            has_sent_traffic = true;
            actions.extend(watcher.end((!process.fails()).then(ops::traffic)));
        }
        let has_acted = !actions.is_empty();
        for action in actions {
            match (action, &shared.mailbox) {
                (Action::Send(rank, message), Some(mailbox)) => mailbox.send(rank, message),
                (Action::Send(to, message), None) => lost.push(Event::Undelivered {
                    to,
                    message,
                    failure: Failure::NotThere,
                }),
                (Action::Print(text), _) => log::print_error(&text),
                (Action::Abort(code), _) => abort(functions, start, code),
            }
        }
        let has_taken_leave = is_ending
            && !has_acted
            && lost.is_empty()
            && shared.mailbox_is_idle()
            && watcher.has_taken_leave();
        shared
            .has_taken_leave
            .store(has_taken_leave, Ordering::Release);
        if lost.is_empty() {
            sleep(if has_acted || is_busy { BUSY } else { IDLE });
        }
    }
}

/// Ends all ranks.
fn abort<A: Abi>(functions: &Functions<A>, start: &Start, code: i32) {
    if start.has_threads {
        call_in_background(|| mpi::abort(functions, None, code));
    }
    // When a process dies, its launcher ends the others.
    exit_at_once(code);
}
