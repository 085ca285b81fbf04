//! The thread that watches the calls of this process.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::exchange::{Exchange, Objects};
use super::watcher::{Action, Settings, Watcher, alone, timed_out};
use crate::diagnosis::{DEADLOCK, End, Note, State, Waiting, counts, longest_call};
use crate::log;
use crate::mpi::{Abi, Functions, Handle, let_launcher_read};
use crate::ops;
use crate::recorder::exactly_now;

/// Asks Python what the main thread does, and for its line, if it is outside of MPI; for the line of
/// an eager call, if it is in one. Gives `None` if Python does not run any more.
pub type Whereabouts = Box<dyn Fn() -> Option<(String, String)> + Send + Sync>;

/// What the thread has to know.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// The rank of this process in `MPI_COMM_WORLD`.
    pub rank: i32,
    /// How many processes there are.
    pub size: i32,
    /// What users have set.
    pub settings: Settings,
}

static WHEREABOUTS: OnceLock<Whereabouts> = OnceLock::new();
static END: Mutex<Option<End>> = Mutex::new(None);
static OBJECTS: Mutex<Option<Objects>> = Mutex::new(None);
/// On rank 0: the host of each rank.
static HOSTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static THREAD: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// When the process was interrupted first, or 0.
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

/// How often the thread looks, in milliseconds: usually, and when there is something to do.
const IDLE: u64 = 100;
const BUSY: u64 = 5;
const ENDING: u64 = 1;
/// An interrupt that Python has not handled after so many seconds, it can't handle.
const INTERRUPT_PATIENCE: f64 = 1.0;
/// Python is given so many seconds to say where it is.
const PYTHON_PATIENCE: Duration = Duration::from_millis(1500);

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says how to ask Python.
pub fn set_whereabouts(whereabouts: Whereabouts) {
    let _ = WHEREABOUTS.set(whereabouts);
}

/// Says how this process ends. It is in `MPI_Finalize` soon.
pub fn end_with(end: End) {
    *locked(&END) = Some(end);
    wake();
}

fn wake() {
    if let Some(thread) = &*locked(&THREAD) {
        thread.thread().unpark();
    }
}

/// Gives the watchers of all processes a communicator to talk on, and that of rank 0 the host of
/// each rank.
pub fn connect(objects: Objects, hosts: Vec<String>) {
    *locked(&HOSTS) = hosts;
    *locked(&OBJECTS) = Some(objects);
}

/// Called by MPI when it is about to be finalised: waits until all processes are there, as MPI
/// itself would do next. So each of them answers as long as others wait.
pub fn finish() {
    end_with_default();
    IS_ENDING.store(true, Ordering::Release);
    wake();
    let thread = locked(&THREAD).take();
    if let Some(thread) = thread {
        let _ = thread.join();
    }
}

fn end_with_default() {
    locked(&END).get_or_insert_with(|| End {
        code: 0,
        reason: "in MPI_Finalize".into(),
    });
}

/// Starts the thread. `own` is mpi4py's number for `MPI_COMM_SELF`.
pub fn start<A: Abi>(start: Start, own: usize) {
    let Some(functions) = A::functions().get() else {
        return;
    };
    let mut thread = locked(&THREAD);
    if thread.is_some() {
        return;
    }
    call_when_finalised(functions, A::Comm::from_raw(own));
    note_interrupts();
    let spawned = without_signals(|| {
        thread::Builder::new()
            .name("mpi4jax-watch".into())
            .spawn(move || watch::<A>(functions, start))
    });
    *thread = spawned.ok();
}

/// Signals are for the other threads.
fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: signal sets are plain data, which these functions fill.
    unsafe {
        let (mut all, mut before) = std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = body();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        result
    }
}

/// Has MPI call [`finish`] at the begin of `MPI_Finalize`: it then deletes the attributes of
/// `MPI_COMM_SELF` (MPI-4.1 §11.2.4).
fn call_when_finalised<A: Abi>(functions: &Functions<A>, own: A::Comm) {
    unsafe extern "C" fn copy<A: Abi>(
        _: A::Comm,
        _: c_int,
        _: *mut c_void,
        _: *mut c_void,
        _: *mut c_void,
        flag: *mut c_int,
    ) -> c_int {
        // SAFETY: MPI lends the flag. Copies of the communicator don't get the attribute.
        unsafe { *flag = 0 };
        0
    }
    unsafe extern "C" fn delete<A: Abi>(
        _: A::Comm,
        _: c_int,
        _: *mut c_void,
        _: *mut c_void,
    ) -> c_int {
        finish();
        0
    }
    let mut keyval = 0;
    // SAFETY: both functions live for good, and the key may be written.
    unsafe {
        let made = (functions.comm_create_keyval)(
            Some(copy::<A>),
            Some(delete::<A>),
            &raw mut keyval,
            ptr::null_mut(),
        );
        if made == 0 {
            (functions.comm_set_attr)(own, keyval, ptr::null_mut());
        }
    }
}

/// The handler of interrupts that was there before, Python's.
static HANDLER_BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Notes when the process is interrupted first, and leaves the rest to Python.
fn note_interrupts() {
    extern "C" fn note(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        let now = exactly_now().0;
        let _ = INTERRUPTED.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let Some(before) = HANDLER_BEFORE.get() else {
            return;
        };
        // SAFETY: the handler that was installed, called as its flags say.
        unsafe {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(before.sa_sigaction);
                handler(signal, info, context);
            } else {
                let handler: extern "C" fn(c_int) = std::mem::transmute(before.sa_sigaction);
                handler(signal);
            }
        }
    }
    // SAFETY: `sigaction` is plain data. The handler only calls what may be called in one.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGINT, ptr::null(), &raw mut before) != 0
            || [libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction)
            || HANDLER_BEFORE.set(before).is_err()
        {
            return;
        }
        let mut own = before;
        own.sa_flags |= libc::SA_SIGINFO;
        own.sa_sigaction = note as *const () as usize;
        libc::sigaction(libc::SIGINT, &raw const own, ptr::null_mut());
    }
}

/// What this process does, as far as the core knows at once.
fn brief(rank: i32) -> Note {
    let call = longest_call();
    let end = locked(&END).clone();
    let interrupted = INTERRUPTED.load(Ordering::Relaxed);
    let is_interrupted = interrupted != 0
        && call.as_ref().is_some_and(|call| {
            let since = exactly_now()
                .0
                .saturating_sub(interrupted.max(call.begin.0));
            call.begin.0 <= interrupted && since as f64 * 1e-9 >= INTERRUPT_PATIENCE
        });
    if call.is_none() {
        // Python has got it.
        INTERRUPTED.store(0, Ordering::Relaxed);
    }
    let state = match (end, call) {
        (Some(end), _) => State::Ended(end),
        (None, Some(call)) => State::Waiting(Box::new(Waiting::new(&call))),
        (None, None) => State::Elsewhere {
            activity: String::new(),
            line: String::new(),
        },
    };
    Note {
        rank,
        state,
        is_interrupted,
        counts: Vec::new(),
    }
}

/// The same, with the numbers of its calls, and with what Python knows.
fn full(rank: i32) -> Note {
    let mut note = brief(rank);
    note.counts = counts();
    match &mut note.state {
        State::Waiting(call) if call.line.is_empty() => {
            let (_, line) = ask_python().unwrap_or_default();
            call.line = line;
        }
        State::Elsewhere { activity, line } => {
            (*activity, *line) = ask_python().unwrap_or_else(|| {
                let what = "not in MPI, and Python does not say where";
                (what.to_owned(), String::new())
            });
        }
        _ => {}
    }
    note
}

/// Asks Python, which may be busy for as long as it likes: by a thread of its own.
fn ask_python() -> Option<(String, String)> {
    static IS_ASKED: AtomicBool = AtomicBool::new(false);
    let whereabouts = WHEREABOUTS.get()?;
    if IS_ASKED.swap(true, Ordering::AcqRel) {
        return None;
    }
    let (send, receive) = mpsc::channel();
    let spawned = without_signals(|| {
        thread::Builder::new().spawn(move || {
            let answer = whereabouts();
            IS_ASKED.store(false, Ordering::Release);
            let _ = send.send(answer);
        })
    });
    spawned.ok()?;
    receive.recv_timeout(PYTHON_PATIENCE).ok()?
}

fn watch<A: Abi>(functions: &'static Functions<A>, start: Start) {
    let rank = start.rank;
    let mut watcher = Watcher::new(rank, start.size, start.settings);
    let mut exchange: Option<Exchange<A>> = None;
    let mut reported_alone = 0;
    let mut has_told_traffic = !ops::check_is_enabled();
    let origin = exactly_now();
    loop {
        let is_ending = IS_ENDING.load(Ordering::Acquire);
        if exchange.is_none() {
            exchange = locked(&OBJECTS).map(|objects| Exchange::new(functions, objects));
            watcher.set_hosts(std::mem::take(&mut *locked(&HOSTS)));
        }
        let mut is_busy = false;
        if let Some(exchange) = &mut exchange {
            let messages: Vec<_> = std::iter::from_fn(|| exchange.receive()).collect();
            let now = exactly_now().seconds_since(origin);
            is_busy = !messages.is_empty() || watcher.is_busy();
            let mut actions = watcher.step(now, messages, &brief(rank), &|| full(rank));
            if is_ending && !has_told_traffic {
                has_told_traffic = true;
                let has_failed = locked(&END).as_ref().is_some_and(|end| end.code != 0);
                actions.extend(watcher.end((!has_failed).then(ops::traffic)));
            }
            for action in actions {
                is_busy = true;
                match action {
                    Action::Send(rank, message) => exchange.send(rank, &message),
                    Action::Print(text) => log::print_error(&text),
                    Action::Abort(code) => exchange.abort(code),
                }
            }
            let is_settled = !ops::check_is_enabled() || watcher.knows_traffic();
            if is_ending && is_settled && exchange.has_ended() {
                return;
            }
        } else {
            let note = brief(rank);
            let call = note.waiting().map(|call| (call.number, call.seconds));
            if let Some((number, seconds)) = call
                && seconds >= start.settings.report_after
                && number != reported_alone
            {
                reported_alone = number;
                log::print_error(&alone(full(rank), NO_EXCHANGE));
            }
            if let (Some((_, seconds)), Some(timeout)) = (call, start.settings.timeout)
                && seconds >= timeout
            {
                // Without the level of threads that it takes, MPI can't be asked to do it. When a
                // process dies, its launcher ends the others.
                log::print_error(&timed_out("this rank", DEADLOCK));
                let_launcher_read();
                // SAFETY: this ends the process, without the functions that would run at exit while
                // another thread is in MPI.
                unsafe { libc::_exit(DEADLOCK) };
            }
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

/// Why a rank may have to report alone.
const NO_EXCHANGE: &str = "no call was made on the default communicator, or MPI was not \
    initialised with MPI_THREAD_MULTIPLE (mpi4jax.diagnostics.watch() has ranks ask each other)";
