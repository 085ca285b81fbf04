//! Questions to Python about the state of its threads.

use std::collections::BTreeMap;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use crate::diagnosis::ThreadActivity;
use crate::recorder::{self, os_thread};

/// State of Python's threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Python {
    /// Python lines of the threads in calls, by the system's thread number. Number 0 stands for the thread
    /// that waits for an eager call of XLA's.
    pub lines: BTreeMap<u32, String>,
    /// Threads that may do something before a call returns.
    pub elsewhere: Vec<ThreadActivity>,
    /// Threads that wait for JAX or for another thread, with the functions in which they wait.
    pub waiting: Vec<(u32, u64)>,
    /// Communicator that the main thread is making by mpi4py.
    pub making: Option<Making>,
    /// Whether a thread waits for JAX.
    pub wait_for_jax: bool,
    /// Reason why that thread may wait for something else than the calls in progress, if any.
    pub doubt: String,
    /// Whether the main thread waits at exit for the JAX of all processes.
    pub is_in_shutdown: bool,
    /// Whether an interrupt raises `KeyboardInterrupt`, as the program has no handler.
    pub has_default_interrupt: bool,
}

/// Call of mpi4py by which the main thread makes a communicator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Making {
    /// Number of the call, constant while it lasts.
    pub call: u64,
    /// Name of the function.
    pub function: String,
    /// Ranks in `MPI_COMM_WORLD` that have to make the same call.
    pub members: Vec<i32>,
    /// Python line of the call.
    pub line: String,
}

/// Function that asks Python about its threads. Its argument holds the system's numbers of the threads
/// that are in calls. It returns `None` if Python does not run any more.
pub type Ask = Box<dyn Fn(Vec<u32>) -> Option<Python> + Send + Sync>;

static ASK: OnceLock<Ask> = OnceLock::new();

/// Sets the function that asks Python.
pub fn set_ask(ask: Ask) {
    let _ = ASK.set(ask);
    recorder::set_line_finder(find_line);
}

/// Seconds after which an answer of Python is late.
const PATIENCE: f64 = 1.5;

/// Python line of a thread that is in a call, by the system's thread number. Waits up to `PATIENCE` for
/// Python's answer.
fn find_line(thread: u32) -> Option<String> {
    let ask = ASK.get()?;
    let (answer, answers) = mpsc::channel();
    let spawned = os_thread::spawn("mpi4jax-line", move || {
        let _ = answer.send(ask(vec![thread]));
    });
    spawned.ok()?;
    let python = answers
        .recv_timeout(Duration::from_secs_f64(PATIENCE))
        .ok()??;
    let line = python.lines.get(&thread).or(python.lines.get(&0))?;
    (!line.is_empty()).then(|| line.clone())
}

/// Channel to a separate thread that asks Python, which may take any time to answer.
#[derive(Default)]
pub struct Asking {
    questions: Option<mpsc::Sender<(f64, Vec<u32>)>>,
    answers: Option<mpsc::Receiver<(f64, Option<Python>)>>,
    /// Time of the pending question.
    asked: Option<f64>,
}

impl Asking {
    /// Whether a question is pending.
    pub fn is_pending(&self) -> bool {
        self.asked.is_some()
    }

    /// Sends a question, at a time in seconds.
    pub fn ask(&mut self, now: f64, in_calls: Vec<u32>) {
        let Some(ask) = ASK.get() else {
            return;
        };
        if self.questions.is_none() {
            let (questions, to_answer) = mpsc::channel();
            let (answer, answers) = mpsc::channel();
            let spawned = os_thread::spawn("mpi4jax-ask", move || {
                for (when, in_calls) in to_answer {
                    if answer.send((when, ask(in_calls))).is_err() {
                        return;
                    }
                }
            });
            if spawned.is_err() {
                return;
            }
            (self.questions, self.answers) = (Some(questions), Some(answers));
        }
        let questions = self.questions.as_ref();
        if questions.is_some_and(|questions| questions.send((now, in_calls)).is_ok()) {
            self.asked = Some(now);
        }
    }

    /// Answer of Python, with the time of the question. Nothing while the answer may still come in time;
    /// the current time and `None` for as long as the answer is late.
    pub fn poll(&mut self, now: f64) -> Option<(f64, Option<Python>)> {
        let when = self.asked?;
        let answer = self.answers.as_ref()?.try_recv();
        if let Ok(answer) = answer {
            self.asked = None;
            return Some(answer);
        }
        (now - when >= PATIENCE).then_some((now, None))
    }
}
