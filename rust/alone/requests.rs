//! Requests, their completion, and statuses (MPI-3.1 §3.7, §3.9, §12.2).

use std::ffi::{c_int, c_void};
use std::ptr;

use super::errors::{Error, IN_STATUS, REQUEST, Result, outcome};
use super::handles::{COMM_WORLD, REQUEST_NULL, State, UNDEFINED, changed, state, wait};
use super::memory::{In, Out};
use super::messages::Operation;

/// `MPI_Status`, as MPICH has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Status {
    count_low: c_int,
    /// The upper bits of the count, shifted by one, and the bit that it was cancelled.
    count_high_and_cancelled: c_int,
    pub source: c_int,
    pub tag: c_int,
    pub error: c_int,
}

impl Status {
    /// The status of a request that does nothing.
    pub const EMPTY: Self = Self {
        count_low: 0,
        count_high_and_cancelled: 0,
        source: -2,
        tag: -1,
        error: 0,
    };

    /// The status of a receive from `MPI_PROC_NULL`.
    pub fn of_no_process() -> Self {
        Self {
            source: -1,
            ..Self::EMPTY
        }
    }

    /// The status of a message.
    pub fn of_message(tag: c_int, bytes: usize) -> Self {
        Self {
            source: 0,
            tag,
            ..Self::EMPTY
        }
        .with_bytes(bytes)
    }

    /// The number of bytes received.
    pub fn bytes(self) -> usize {
        let high = self.count_high_and_cancelled.cast_unsigned() as usize >> 1;
        high << 32 | self.count_low.cast_unsigned() as usize
    }

    /// The status of another number of bytes.
    pub fn with_bytes(self, bytes: usize) -> Self {
        let high = (bytes >> 32 << 1) as c_int | self.count_high_and_cancelled & 1;
        Self {
            count_low: bytes as u32 as c_int,
            count_high_and_cancelled: high,
            ..self
        }
    }

    fn with_cancelled(self, flag: bool) -> Self {
        let high = self.count_high_and_cancelled & !1 | c_int::from(flag);
        Self {
            count_high_and_cancelled: high,
            ..self
        }
    }
}

/// `MPI_STATUS_IGNORE` and `MPI_STATUSES_IGNORE`.
fn is_ignored(status: Out<Status>) -> bool {
    status.0.addr() == 1
}

/// Writes a status, without its error (MPI-3.1 §3.2.5).
pub fn put_status(to: Out<Status>, status: Status) -> Result<()> {
    if is_ignored(to) {
        return Ok(());
    }
    to.put(Status {
        error: to.get()?.error,
        ..status
    })
}

/// The callbacks of a generalized request.
#[derive(Clone, Copy)]
struct General {
    query: Option<extern "C" fn(*mut c_void, *mut Status) -> c_int>,
    free: Option<extern "C" fn(*mut c_void) -> c_int>,
    cancel: Option<extern "C" fn(*mut c_void, c_int) -> c_int>,
    extra: usize,
}

impl General {
    fn extra(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.extra)
    }

    fn free(&self) -> Result<()> {
        self.free.map_or(Ok(()), |free| outcome(free(self.extra())))
    }
}

/// How far a request is.
#[derive(Clone, Copy)]
enum Progress {
    Inactive,
    Active,
    Complete(Status),
}

/// An operation that a program can wait for.
pub struct Request {
    comm: c_int,
    progress: Progress,
    /// What is started again, if the request is persistent.
    operation: Option<Operation>,
    general: Option<General>,
    /// Whether nobody will wait for it.
    is_freed: bool,
}

impl Request {
    /// A request whose operation goes on.
    pub fn active(comm: c_int) -> Self {
        let progress = Progress::Active;
        Self {
            comm,
            progress,
            operation: None,
            general: None,
            is_freed: false,
        }
    }

    /// A request that was done at once.
    pub fn done(comm: c_int) -> Self {
        Self {
            progress: Progress::Complete(Status::EMPTY),
            ..Self::active(comm)
        }
    }

    /// A request that is to be started.
    pub fn persistent(comm: c_int, operation: Operation) -> Self {
        let (progress, operation) = (Progress::Inactive, Some(operation));
        Self {
            progress,
            operation,
            ..Self::active(comm)
        }
    }
}

impl State {
    /// Notes that the operation of a request is complete.
    pub fn complete(&mut self, handle: c_int, status: Status) {
        if let Ok(request) = self.requests.get_mut(handle) {
            request.progress = Progress::Complete(status);
            if request.is_freed && request.general.is_none() {
                let _ = self.requests.remove(handle);
            }
        }
        changed();
    }

    /// How far a request is. That of `MPI_REQUEST_NULL` is inactive.
    fn progress(&self, handle: c_int) -> Result<Progress> {
        if handle == REQUEST_NULL {
            return Ok(Progress::Inactive);
        }
        let request = self.requests.get(handle)?;
        if request.is_freed {
            return Err(Error::new(REQUEST, "got a request that was freed"));
        }
        Ok(request.progress)
    }
}

/// The status of a request that isn't active, which is then gone or inactive if it `is_taken`.
fn status_of(handle: c_int, is_taken: bool) -> Result<Status> {
    let (mut status, general) = {
        let mut state = state();
        let Progress::Complete(status) = state.progress(handle)? else {
            return Ok(Status::EMPTY);
        };
        let request = state.requests.get_mut(handle)?;
        let general = request.general;
        if is_taken && request.operation.is_some() {
            request.progress = Progress::Inactive;
        } else if is_taken {
            state.requests.remove(handle)?;
        }
        (status, general)
    };
    if let Some(general) = general {
        if let Some(query) = general.query {
            status.error = query(general.extra(), &raw mut status);
        }
        if is_taken {
            general.free()?;
        }
    }
    Ok(status)
}

/// The error of a status, which a handler raises already known.
fn check(status: Status, comm: c_int) -> Result<Status> {
    outcome(status.error).map_err(|error| error.on(comm))?;
    Ok(status)
}

fn comm_of(handle: c_int) -> c_int {
    state()
        .requests
        .get(handle)
        .map_or(COMM_WORLD, |request| request.comm)
}

/// Waits for a request, and returns its status.
pub fn wait_for(handle: c_int) -> Result<Status> {
    let comm = comm_of(handle);
    wait_until(&[handle], |active, _| active == 0)?;
    check(status_of(handle, true)?, comm)
}

/// Waits until the numbers of active and complete requests are enough, and returns the latter.
fn wait_until(handles: &[c_int], enough: impl Fn(usize, usize) -> bool) -> Result<Vec<usize>> {
    let mut state = state();
    loop {
        let (mut active, mut complete) = (0, Vec::new());
        for (index, handle) in handles.iter().enumerate() {
            match state.progress(*handle)? {
                Progress::Inactive => {}
                Progress::Active => active += 1,
                Progress::Complete(_) => complete.push(index),
            }
        }
        if enough(active, complete.len()) {
            return Ok(complete);
        }
        state = wait(state);
    }
}

/// Takes a complete request out of an array: persistent ones stay.
fn take(requests: Out<c_int>, index: usize) -> Result<Status> {
    let handle = In(requests.0.cast_const()).at(index)?;
    let status = status_of(handle, true);
    if handle != REQUEST_NULL && state().requests.get(handle).is_err() {
        requests.put_at(index, REQUEST_NULL)?;
    }
    status
}

fn handles(requests: Out<c_int>, count: c_int) -> Result<Vec<c_int>> {
    In(requests.0.cast_const()).all(count)
}

/// Takes requests, and writes their statuses with errors from the first place on.
fn take_all(
    requests: Out<c_int>,
    indices: impl Iterator<Item = usize>,
    statuses: Out<Status>,
) -> Result<()> {
    let mut failed = None;
    for (place, index) in indices.enumerate() {
        let comm = comm_of(In(requests.0.cast_const()).at(index)?);
        let status = take(requests, index).unwrap_or_else(|error| Status {
            error: error.code,
            ..Status::EMPTY
        });
        if status.error != 0 {
            failed = Some(comm);
        }
        if !is_ignored(statuses) {
            statuses.put_at(place, status)?;
        }
    }
    let text = "at least one of the requests failed";
    failed.map_or(Ok(()), |comm| Err(Error::new(IN_STATUS, text).on(comm)))
}

/// Takes the first complete request, if there is one.
fn take_any(
    requests: Out<c_int>,
    complete: &[usize],
    index: Out<c_int>,
    status: Out<Status>,
) -> Result<()> {
    let Some(first) = complete.first() else {
        index.put(UNDEFINED)?;
        return put_status(status, Status::EMPTY);
    };
    let comm = comm_of(In(requests.0.cast_const()).at(*first)?);
    index.put(*first as c_int)?;
    let taken = take(requests, *first)?;
    put_status(status, taken)?;
    check(taken, comm).map(|_| ())
}

/// Takes all complete requests, if there are active ones or these.
fn take_some(
    requests: Out<c_int>,
    complete: Option<&[usize]>,
    taken: Out<c_int>,
    indices: Out<c_int>,
    statuses: Out<Status>,
) -> Result<()> {
    let Some(complete) = complete else {
        return taken.put(UNDEFINED);
    };
    taken.put(complete.len() as c_int)?;
    for (place, index) in complete.iter().enumerate() {
        indices.put_at(place, *index as c_int)?;
    }
    take_all(requests, complete.iter().copied(), statuses)
}

/// Complete requests among these, and whether any are active.
fn look(handles: &[c_int]) -> Result<(bool, Vec<usize>)> {
    let is_active = std::cell::Cell::new(false);
    let complete = wait_until(handles, |active, _| {
        is_active.set(active > 0);
        true
    })?;
    Ok((is_active.get(), complete))
}

fn start(requests: &[c_int]) -> Result<()> {
    let mut state = state();
    for handle in requests {
        let request = state.requests.get_mut(*handle)?;
        let (Some(operation), Progress::Inactive) = (request.operation.clone(), request.progress)
        else {
            return Err(Error::new(
                REQUEST,
                "got a request that is not persistent, or is active",
            ));
        };
        request.progress = Progress::Active;
        state.begin(*handle, operation);
    }
    Ok(())
}

mpi! {
    MPI_Wait(request: Out<c_int>, status: Out<Status>) => {
        let handle = request.get()?;
        let comm = comm_of(handle);
        wait_until(&[handle], |active, _| active == 0)?;
        let taken = take(request, 0)?;
        put_status(status, taken)?;
        check(taken, comm).map(|_| ())
    };
    MPI_Test(request: Out<c_int>, flag: Out<c_int>, status: Out<Status>) => {
        let handle = request.get()?;
        let comm = comm_of(handle);
        let (is_active, _) = look(&[handle])?;
        flag.put((!is_active).into())?;
        if is_active {
            return Ok(());
        }
        let taken = take(request, 0)?;
        put_status(status, taken)?;
        check(taken, comm).map(|_| ())
    };
    MPI_Waitall(count: c_int, requests: Out<c_int>, statuses: Out<Status>) => {
        wait_until(&handles(requests, count)?, |active, _| active == 0)?;
        take_all(requests, 0..count as usize, statuses)
    };
    MPI_Testall(count: c_int, requests: Out<c_int>, flag: Out<c_int>, statuses: Out<Status>) => {
        let (is_active, _) = look(&handles(requests, count)?)?;
        flag.put((!is_active).into())?;
        if is_active {
            return Ok(());
        }
        take_all(requests, 0..count as usize, statuses)
    };
    MPI_Waitany(
        count: c_int, requests: Out<c_int>, index: Out<c_int>, status: Out<Status>,
    ) => {
        let enough = |active, complete| complete > 0 || active == 0;
        let complete = wait_until(&handles(requests, count)?, enough)?;
        take_any(requests, &complete, index, status)
    };
    MPI_Testany(
        count: c_int, requests: Out<c_int>, index: Out<c_int>, flag: Out<c_int>,
        status: Out<Status>,
    ) => {
        let (is_active, complete) = look(&handles(requests, count)?)?;
        if complete.is_empty() && is_active {
            index.put(UNDEFINED)?;
            return flag.put(0);
        }
        flag.put(1)?;
        take_any(requests, &complete, index, status)
    };
    MPI_Waitsome(
        count: c_int, requests: Out<c_int>, taken: Out<c_int>, indices: Out<c_int>,
        statuses: Out<Status>,
    ) => {
        let enough = |active, complete| complete > 0 || active == 0;
        let complete = wait_until(&handles(requests, count)?, enough)?;
        let complete = (!complete.is_empty()).then_some(&complete[..]);
        take_some(requests, complete, taken, indices, statuses)
    };
    MPI_Testsome(
        count: c_int, requests: Out<c_int>, taken: Out<c_int>, indices: Out<c_int>,
        statuses: Out<Status>,
    ) => {
        let (is_active, complete) = look(&handles(requests, count)?)?;
        let complete = (is_active || !complete.is_empty()).then_some(&complete[..]);
        take_some(requests, complete, taken, indices, statuses)
    };
    MPI_Start(request: Out<c_int>) => start(&[request.get()?]);
    MPI_Startall(count: c_int, requests: Out<c_int>) => start(&handles(requests, count)?);
    MPI_Request_free(request: Out<c_int>) => {
        let handle = request.get()?;
        let general = {
            let mut state = state();
            let found = state.requests.get_mut(handle)?;
            let general = found.general;
            if matches!(found.progress, Progress::Active) {
                found.is_freed = true;
                None
            } else {
                state.requests.remove(handle)?;
                general
            }
        };
        request.put(REQUEST_NULL)?;
        general.map_or(Ok(()), |general| general.free())
    };
    MPI_Request_get_status(request: c_int, flag: Out<c_int>, status: Out<Status>) => {
        let (is_active, _) = look(&[request])?;
        flag.put((!is_active).into())?;
        if is_active { Ok(()) } else { put_status(status, status_of(request, false)?) }
    };
    MPI_Cancel(request: Out<c_int>) => {
        let handle = request.get()?;
        let general = {
            let mut state = state();
            if state.withdraw(handle) {
                state.complete(handle, Status::EMPTY.with_cancelled(true));
            }
            let found = state.requests.get(handle)?;
            found.general.map(|general| (general, matches!(found.progress, Progress::Complete(_))))
        };
        let Some((general, is_complete)) = general else { return Ok(()) };
        general.cancel.map_or(Ok(()), |cancel| outcome(cancel(general.extra(), is_complete.into())))
    };
    MPI_Grequest_start(
        query: Option<extern "C" fn(*mut c_void, *mut Status) -> c_int>,
        free: Option<extern "C" fn(*mut c_void) -> c_int>,
        cancel: Option<extern "C" fn(*mut c_void, c_int) -> c_int>,
        extra: usize,
        request: Out<c_int>,
    ) => {
        let general = Some(General { query, free, cancel, extra });
        let made = Request { general, ..Request::active(COMM_WORLD) };
        request.put(state().requests.add(made))
    };
    MPI_Grequest_complete(request: c_int) => {
        let freed = {
            let mut state = state();
            let found = state.requests.get(request)?;
            let general = found.general.ok_or_else(|| {
                Error::new(REQUEST, "got a request that is not a generalized one")
            })?;
            let is_freed = found.is_freed;
            state.complete(request, Status::EMPTY);
            if is_freed {
                state.requests.remove(request)?;
            }
            is_freed.then_some(general)
        };
        freed.map_or(Ok(()), |general| general.free())
    };
    MPI_Test_cancelled(status: In<Status>, flag: Out<c_int>) => {
        flag.put(status.at(0)?.count_high_and_cancelled & 1)
    };
    MPI_Status_set_cancelled(status: Out<Status>, flag: c_int) => {
        status.put(status.get()?.with_cancelled(flag != 0))
    };
    MPI_Status_c2f(from: In<Status>, to: Out<Status>) => to.put(from.at(0)?);
    MPI_Status_f2c(from: In<Status>, to: Out<Status>) => to.put(from.at(0)?);
}
