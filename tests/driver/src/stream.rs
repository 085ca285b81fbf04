//! Streams, each with a thread that runs its commands late, and events.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::driver::{current_context, give};
use crate::state::{
    INVALID_HANDLE, INVALID_VALUE, NOT_READY, OUT_OF_MEMORY, Outcome, State, lock, notify,
    wait_while,
};

/// Before each command a stream sleeps for a time below this.
const LATENESS: u64 = 300;

/// Host memory that a copy uses, and whether it writes there.
pub struct HostAccess {
    pub range: Range<usize>,
    pub writes: bool,
}

pub struct Command {
    /// Taken by the thread; the command stays in the queue until the work is done.
    work: Option<Box<dyn FnOnce() + Send>>,
    delay: Duration,
    host: Option<HostAccess>,
}

impl Command {
    pub fn new(work: impl FnOnce() + Send + 'static) -> Self {
        Self {
            work: Some(Box::new(work)),
            delay: Duration::ZERO,
            host: None,
        }
    }

    pub fn uses(self, host: HostAccess) -> Self {
        Self {
            host: Some(host),
            ..self
        }
    }

    pub fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }
}

pub struct Stream {
    context: usize,
    commands: VecDeque<Command>,
    /// How many commands were queued, and how many of them are done.
    queued: u64,
    done: u64,
    /// None once the stream is being freed.
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    pub fn push(&mut self, command: Command) {
        self.commands.push_back(command);
        self.queued += 1;
        notify();
    }

    pub fn context(&self) -> usize {
        self.context
    }

    pub fn is_of(&self, context: usize) -> bool {
        self.context == context
    }

    pub fn is_busy(&self) -> bool {
        !self.commands.is_empty()
    }

    pub fn copies(&self) -> impl Iterator<Item = &HostAccess> {
        self.commands
            .iter()
            .filter_map(|command| command.host.as_ref())
    }
}

/// The stream with this handle. The null stream is none: the core must use XLA's.
pub fn stream(state: &mut State, handle: *mut c_void) -> Result<&mut Stream, c_int> {
    let stream = state.streams.get_mut(&(handle as usize));
    stream
        .filter(|stream| stream.thread.is_some())
        .ok_or(INVALID_HANDLE)
}

/// The handle of a new stream; None without memory for a thread.
pub fn create(context: usize) -> Option<usize> {
    let mut state = lock();
    let (handle, seed) = state.new_handle();
    let thread = thread::Builder::new()
        .spawn(move || run(handle, seed))
        .ok()?;
    let (commands, thread) = (VecDeque::new(), Some(thread));
    state.streams.insert(
        handle,
        Stream {
            context,
            commands,
            queued: 0,
            done: 0,
            thread,
        },
    );
    Some(handle)
}

pub fn free(handle: *mut c_void) {
    let mut state = lock();
    let thread = stream(&mut state, handle)
        .ok()
        .and_then(|stream| stream.thread.take());
    let Some(thread) = thread else {
        state.violation("a stream was freed that is none");
        return;
    };
    let handle = handle as usize;
    let mut state = wait_while(state, |state| is_busy(state, handle));
    state.streams.remove(&handle);
    notify();
    drop(state);
    // Its thread ends without a panic; if not, stderr has it.
    let _ = thread.join();
}

pub fn idle() {
    drop(wait_while(lock(), |state| {
        state.streams.values().any(Stream::is_busy)
    }));
}

pub fn synchronize(handle: *mut c_void) -> Outcome {
    let mut state = lock();
    let count = stream(&mut state, handle)?.queued;
    let point = Point {
        stream: handle as usize,
        count,
    };
    drop(wait_while(state, |state| point.is_pending(state)));
    Ok(())
}

fn is_busy(state: &State, handle: usize) -> bool {
    let stream = state.streams.get(&handle);
    stream.is_some_and(Stream::is_busy)
}

/// The thread of a stream. `seed` makes its times the same in each run.
fn run(handle: usize, seed: u64) {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut state = lock();
    loop {
        state = wait_while(state, |state| {
            state.streams.contains_key(&handle) && !is_busy(state, handle)
        });
        let Some(stream) = state.streams.get_mut(&handle) else {
            return;
        };
        let Some(command) = stream.commands.front_mut() else {
            continue;
        };
        let (work, delay) = (command.work.take(), command.delay);
        drop(state);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        thread::sleep(delay + Duration::from_micros(random % (LATENESS + 1)));
        if let Some(work) = work {
            work();
        }
        state = lock();
        if let Some(stream) = state.streams.get_mut(&handle) {
            stream.commands.pop_front();
            stream.done += 1;
        }
        notify();
    }
}

pub fn stream_create(handle: *mut *mut c_void, _flags: c_uint) -> Outcome {
    let stream = create(current_context()).ok_or(OUT_OF_MEMORY)?;
    give(handle, stream as *mut c_void)
}

/// Each stream has a thread of its own, so that none has to let another one pass.
pub fn stream_create_with_priority(
    handle: *mut *mut c_void,
    flags: c_uint,
    _priority: c_int,
) -> Outcome {
    stream_create(handle, flags)
}

pub fn stream_destroy(handle: *mut c_void) -> Outcome {
    stream(&mut lock(), handle)?;
    free(handle);
    Ok(())
}

pub fn stream_query(handle: *mut c_void) -> Outcome {
    match stream(&mut lock(), handle)?.is_busy() {
        true => Err(NOT_READY),
        false => Ok(()),
    }
}

/// Answers that no capture is under way, as no function could begin one.
pub fn capture_status(handle: *mut c_void, status: *mut c_int) -> Outcome {
    stream(&mut lock(), handle)?;
    give(status, 0)
}

/// Makes a stream wait for the point that an event marks now.
pub fn wait_event(on: *mut c_void, handle: *mut c_void, _flags: c_uint) -> Outcome {
    let mut state = lock();
    let point = event(&mut state, handle)?.point;
    let stream = stream(&mut state, on)?;
    stream.push(Command::new(move || {
        drop(wait_while(lock(), |state| {
            point.is_some_and(|point| point.is_pending(state))
        }));
    }));
    Ok(())
}

/// A function that a stream calls, in its thread.
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is within a function that a stream calls, which must not call the driver.
pub fn is_in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

pub fn host_function(on: *mut c_void, function: HostFunction, argument: *mut c_void) -> Outcome {
    let function = function.ok_or(INVALID_VALUE)?;
    let argument = argument as usize;
    let work = move || {
        IN_HOST_FUNCTION.set(true);
        // SAFETY: the caller gives a function that takes this.
        unsafe { function(argument as *mut c_void) };
        IN_HOST_FUNCTION.set(false);
    };
    stream(&mut lock(), on)?.push(Command::new(work));
    Ok(())
}

pub struct Event {
    context: usize,
    /// None: never recorded, which is complete.
    point: Option<Point>,
    /// When the stream came to the last point.
    time: Option<Instant>,
}

/// The first `count` commands of a stream.
#[derive(Clone, Copy)]
struct Point {
    stream: usize,
    count: u64,
}

impl Point {
    /// A stream that is gone has done all of its commands.
    fn is_pending(&self, state: &State) -> bool {
        let stream = state.streams.get(&self.stream);
        stream.is_some_and(|stream| stream.done < self.count)
    }
}

fn event(state: &mut State, handle: *mut c_void) -> Result<&mut Event, c_int> {
    state
        .events
        .get_mut(&(handle as usize))
        .ok_or(INVALID_HANDLE)
}

pub fn event_create(handle: *mut *mut c_void, _flags: c_uint) -> Outcome {
    if handle.is_null() {
        return Err(INVALID_VALUE);
    }
    let mut state = lock();
    let (new, _) = state.new_handle();
    state.events.insert(
        new,
        Event {
            context: current_context(),
            point: None,
            time: None,
        },
    );
    // SAFETY: `handle` is the caller's to be written.
    unsafe { *handle = new as *mut c_void };
    Ok(())
}

pub fn event_record(handle: *mut c_void, on: *mut c_void) -> Outcome {
    let mut state = lock();
    let context = event(&mut state, handle)?.context;
    let stream = stream(&mut state, on)?;
    if stream.context != context {
        return Err(INVALID_HANDLE);
    }
    let key = handle as usize;
    stream.push(Command::new(move || {
        if let Some(event) = lock().events.get_mut(&key) {
            event.time = Some(Instant::now());
        }
    }));
    let point = Point {
        stream: on as usize,
        count: stream.queued,
    };
    event(&mut state, handle)?.point = Some(point);
    Ok(())
}

pub fn event_query(handle: *mut c_void) -> Outcome {
    let mut state = lock();
    let point = event(&mut state, handle)?.point;
    match point.is_some_and(|point| point.is_pending(&state)) {
        true => Err(NOT_READY),
        false => Ok(()),
    }
}

pub fn event_synchronize(handle: *mut c_void) -> Outcome {
    let mut state = lock();
    let point = event(&mut state, handle)?.point;
    drop(wait_while(state, |state| {
        point.is_some_and(|point| point.is_pending(state))
    }));
    Ok(())
}

pub fn elapsed(milliseconds: *mut f32, start: *mut c_void, end: *mut c_void) -> Outcome {
    event_query(start)?;
    event_query(end)?;
    let mut state = lock();
    let start = event(&mut state, start)?.time.ok_or(INVALID_HANDLE)?;
    let end = event(&mut state, end)?.time.ok_or(INVALID_HANDLE)?;
    give(milliseconds, end.duration_since(start).as_secs_f32() * 1e3)
}

/// Destroys the event; the commands that it marks go on.
pub fn event_destroy(handle: *mut c_void) -> Outcome {
    lock()
        .events
        .remove(&(handle as usize))
        .map(drop)
        .ok_or(INVALID_HANDLE)
}
