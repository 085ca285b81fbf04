//! The thread that watches the calls of this process.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::mailbox::{Mailbox, Objects};
use super::observer::Observer;
use super::signals::note_interrupts;
use super::watcher::{Action, Settings, WatchedProcess, Watcher, report_alone, timeout_text};
use crate::diagnosis::{DEADLOCK, End};
use crate::lock::lock;
use crate::log;
use crate::memory::gpu_aware;
use crate::mpi::{Abi, Functions, before_finalize, exit_at_once};
use crate::ops;
use crate::recorder::os_thread;

/// The parameters of the thread.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// The rank of this process in `MPI_COMM_WORLD`.
    pub rank: i32,
    /// How many processes there are.
    pub size: i32,
    /// The settings of the user.
    pub settings: Settings,
}

static END: Mutex<Option<End>> = Mutex::new(None);
static OBJECTS: Mutex<Option<Objects>> = Mutex::new(None);
/// On rank 0: the host of each rank.
static HOSTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static THREAD: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// How often the thread looks, in milliseconds: usually, and when there is something to do.
const IDLE: u64 = 100;
const BUSY: u64 = 5;
const ENDING: u64 = 1;

/// Says how the main program of this process has ended. Functions may run that were registered for
/// its exit; after them, it is in `MPI_Finalize`.
pub fn end_with(end: End) {
    *lock(&END) = Some(end);
    wake();
}

fn wake() {
    if let Some(thread) = &*lock(&THREAD) {
        thread.thread().unpark();
    }
}

/// Gives the watchers of all processes a communicator to talk on, and that of rank 0 the host of
/// each rank.
pub fn connect(objects: Objects, hosts: Vec<String>) {
    *lock(&HOSTS) = hosts;
    *lock(&OBJECTS) = Some(objects);
}

/// Called when MPI is about to be finalised: waits until all processes are there, as MPI
/// itself would do next. So each of them answers as long as others wait.
fn finish() {
    end_with_default();
    IS_ENDING.store(true, Ordering::Release);
    wake();
    let thread = lock(&THREAD).take();
    if let Some(thread) = thread {
        let _ = thread.join();
    }
}

fn end_with_default() {
    lock(&END).get_or_insert_with(|| End {
        code: 0,
        reason: "in MPI_Finalize".into(),
    });
}

/// Starts the thread.
pub fn start<A: Abi>(start: Start) {
    let Some(functions) = A::functions().get() else {
        return;
    };
    let mut thread = lock(&THREAD);
    if thread.is_some() {
        return;
    }
    before_finalize(finish);
    note_interrupts();
    let watch = move || watch::<A>(functions, start);
    *thread = os_thread::spawn("mpi4jax-watch", watch).ok();
}

fn watch<A: Abi>(functions: &'static Functions<A>, start: Start) {
    let rank = start.rank;
    let mut watcher = Watcher::new(rank, start.size, start.settings);
    let mut process = Observer::new();
    let mut mailbox: Option<Mailbox<A>> = None;
    let mut alone = Alone::default();
    let mut has_sent_traffic = !ops::check_is_enabled();
    loop {
        let is_ending = IS_ENDING.load(Ordering::Acquire);
        process.look(lock(&END).clone(), is_ending);
        if mailbox.is_none() {
            mailbox = lock(&OBJECTS).map(|objects| Mailbox::new(functions, objects));
            watcher.set_hosts(std::mem::take(&mut *lock(&HOSTS)));
        }
        let mut is_busy = false;
        if let Some(mailbox) = &mut mailbox {
            // Its messages are in host memory, but MPI may go on with any others.
            let _context = gpu_aware::enter_last();
            let messages: Vec<_> = std::iter::from_fn(|| mailbox.receive()).collect();
            is_busy = !messages.is_empty() || watcher.is_busy();
            let mut actions = watcher.step(process.now(), messages, &mut process);
            if is_ending && !has_sent_traffic {
                has_sent_traffic = true;
                actions.extend(watcher.end((!process.fails()).then(ops::traffic)));
            }
            for action in actions {
                is_busy = true;
                match action {
                    Action::Send(rank, message) => mailbox.send(rank, &message),
                    Action::Print(text) => log::print_error(&text),
                    Action::Abort(code) => mailbox.abort(code),
                }
            }
            let is_settled = !ops::check_is_enabled() || watcher.knows_traffic();
            if is_ending && is_settled && mailbox.poll_end() {
                return;
            }
        } else {
            alone.look(&start, &mut process);
            if is_ending {
                return;
            }
        }
        thread::park_timeout(Duration::from_millis(match (is_ending, is_busy) {
            (true, _) => ENDING,
            (_, true) => BUSY,
            _ => IDLE,
        }));
    }
}

/// The watcher of a rank that can't ask others.
#[derive(Default)]
struct Alone {
    /// The calls that were reported.
    reported: HashSet<u64>,
}

impl Alone {
    fn look(&mut self, start: &Start, process: &mut Observer) {
        let settings = start.settings;
        let calls = process.calls();
        self.reported
            .retain(|id| calls.iter().any(|call| call.0 == *id));
        let is_news = |(id, seconds): &&(u64, f64)| {
            *seconds >= settings.report_after && !self.reported.contains(id)
        };
        let news: Vec<u64> = calls.iter().filter(is_news).map(|call| call.0).collect();
        let is_timed_out = settings.timeout.is_some_and(|timeout| {
            let mut calls = calls.iter();
            calls.any(|(_, seconds)| *seconds >= timeout)
        });
        if !news.is_empty()
            && let Some((note, _)) = process.note(&[])
        {
            log::print_error(&report_alone(start.rank, note, NO_MAILBOX));
            self.reported.extend(news);
        }
        if is_timed_out {
            // Without the level of threads that it takes, MPI can't be asked to do it. When a
            // process dies, its launcher ends the others.
            log::print_error(&timeout_text("this rank", DEADLOCK));
            exit_at_once(DEADLOCK);
        }
    }
}

/// Why a rank may have to report alone.
const NO_MAILBOX: &str = "no call was made on the default communicator, or MPI was not \
    initialised with MPI_THREAD_MULTIPLE (mpi4jax.diagnostics.watch() has ranks ask each other)";
