//! Asking Python where its threads are.

use std::collections::BTreeMap;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use crate::diagnosis::ThreadActivity;
use crate::recorder::{self, os_thread};

/// The state of Python's threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Python {
    /// The lines of those that are in calls, by the system's numbers. An eager call that XLA makes
    /// has that of the thread that waits for it, under the number 0.
    pub lines: BTreeMap<u32, String>,
    /// The threads that may do something before a call returns.
    pub elsewhere: Vec<ThreadActivity>,
    /// The threads that wait for JAX or for another thread: their numbers, and the functions that do
    /// so.
    pub waiting: Vec<(u32, u64)>,
    /// Whether one of them waits for JAX.
    pub wait_for_jax: bool,
    /// Why JAX may have it wait for something else than the calls in progress, if it may.
    pub doubt: String,
    /// Whether the main thread waits at exit until the JAX of all processes does.
    pub is_in_shutdown: bool,
    /// Whether an interrupt raises `KeyboardInterrupt`: the program handles none itself.
    pub has_default_interrupt: bool,
}

/// Asks Python. Some threads, by the system's numbers for them, are known to be in calls. Gives
/// `None` if Python does not run any more.
pub type Ask = Box<dyn Fn(Vec<u32>) -> Option<Python> + Send + Sync>;

static ASK: OnceLock<Ask> = OnceLock::new();

/// Says how to ask Python.
pub fn set_ask(ask: Ask) {
    let _ = ASK.set(ask);
    recorder::set_line_finder(find_line);
}

/// Python is given so many seconds to answer.
const PATIENCE: f64 = 1.5;

/// The Python line of a thread in a call, by the system's number for it. It waits for the answer, but
/// not for long.
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

/// Asks in a thread of its own, as Python may be busy for as long as it likes.
#[derive(Default)]
pub struct Asking {
    questions: Option<mpsc::Sender<(f64, Vec<u32>)>>,
    answers: Option<mpsc::Receiver<(f64, Option<Python>)>>,
    /// When it was asked, until it answers.
    asked: Option<f64>,
}

impl Asking {
    /// Whether there is a question that was not answered.
    pub fn is_pending(&self) -> bool {
        self.asked.is_some()
    }

    /// Asks, at a time in seconds.
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

    /// The answer, with the time of the question: nothing while it may come soon, and `None` for as
    /// long as it is late.
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
