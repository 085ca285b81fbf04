//! Messages of the process to itself (MPI-3.1 §3). A send copies its elements: it is complete at
//! once, except a synchronous one, which is complete when it is received.

use std::ffi::c_int;

use super::communicators;
use super::datatypes::Data;
use super::environment::tag_ub;
use super::errors::{BUFFER, Error, RANK, Result, TAG, TRUNCATE};
use super::handles::{MESSAGE_NO_PROC, REQUEST_NULL, State, changed, state, wait};
use super::memory::Out;
use super::requests::{self, Request, Status, put_status};

/// `MPI_PROC_NULL`.
pub const PROC_NULL: c_int = -1;
const ANY_SOURCE: c_int = -2;
const ANY_TAG: c_int = -1;
/// `MPI_BSEND_OVERHEAD`.
const OVERHEAD: usize = 96;

/// A message that was sent.
pub struct Message {
    comm: c_int,
    tag: c_int,
    bytes: Vec<u8>,
    /// The request that is complete when the message is received, if it is synchronous.
    sender: Option<c_int>,
}

/// A receive that waits for its message.
pub struct Receive {
    comm: c_int,
    tag: c_int,
    data: Data,
    request: c_int,
}

/// What a request does, and does again if it is persistent.
#[derive(Clone)]
pub enum Operation {
    Send {
        comm: c_int,
        data: Data,
        dest: c_int,
        tag: c_int,
        is_synchronous: bool,
    },
    Receive {
        comm: c_int,
        data: Data,
        source: c_int,
        tag: c_int,
    },
}

/// The modes of sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Standard,
    Buffered,
    Synchronous,
    Ready,
}

fn matches(message: &Message, comm: c_int, tag: c_int) -> bool {
    message.comm == comm && (tag == ANY_TAG || message.tag == tag)
}

fn check_rank(rank: c_int, what: &str, any: c_int) -> Result<()> {
    if rank == PROC_NULL || rank == any {
        return Ok(());
    }
    communicators::check_rank(rank, RANK, what)
}

fn check_tag(tag: c_int, any: c_int) -> Result<()> {
    if (0..=tag_ub()).contains(&tag) || tag == any {
        return Ok(());
    }
    Err(Error::got(
        TAG,
        tag,
        "the tag",
        &format!("0 to {}", tag_ub()),
    ))
}

/// Checks the arguments of functions that look for messages.
fn check_source(source: c_int, tag: c_int) -> Result<()> {
    check_rank(source, "the source", ANY_SOURCE)?;
    check_tag(tag, ANY_TAG)
}

fn send(
    mode: Mode,
    (address, count, datatype): (usize, c_int, c_int),
    dest: c_int,
    tag: c_int,
    comm: c_int,
) -> Result<Operation> {
    check_rank(dest, "the destination", PROC_NULL)?;
    check_tag(tag, 0)?;
    let state = state();
    let data = state.data(address, count, datatype)?;
    if mode == Mode::Buffered && dest != PROC_NULL {
        let room = state
            .environment
            .attached
            .map_or(0, |(_, size)| size as usize);
        let needed = data.bytes() + OVERHEAD;
        if needed > room {
            let expected = format!("at least {needed}");
            return Err(Error::got(
                BUFFER,
                room,
                "the bytes of the attached buffer",
                &expected,
            ));
        }
    }
    Ok(Operation::Send {
        comm,
        data,
        dest,
        tag,
        is_synchronous: mode == Mode::Synchronous,
    })
}

fn receive(
    (address, count, datatype): (usize, c_int, c_int),
    source: c_int,
    tag: c_int,
    comm: c_int,
) -> Result<Operation> {
    check_source(source, tag)?;
    let data = state().data(address, count, datatype)?;
    Ok(Operation::Receive {
        comm,
        data,
        source,
        tag,
    })
}

impl State {
    /// Starts what a request does.
    pub fn begin(&mut self, request: c_int, operation: Operation) {
        match operation {
            Operation::Send {
                dest: PROC_NULL, ..
            } => self.complete(request, Status::EMPTY),
            Operation::Receive {
                source: PROC_NULL, ..
            } => {
                self.complete(request, Status::of_no_process());
            }
            Operation::Send {
                comm,
                data,
                tag,
                is_synchronous,
                ..
            } => {
                let sender = is_synchronous.then_some(request);
                let message = Message {
                    comm,
                    tag,
                    bytes: data.message(),
                    sender,
                };
                let found = self
                    .receives
                    .iter()
                    .position(|receive| matches(&message, receive.comm, receive.tag));
                match found {
                    Some(index) => {
                        let receive = self.receives.remove(index);
                        self.receive(&message, receive.request, &receive.data);
                    }
                    None => self.messages.push(message),
                }
                if !is_synchronous {
                    self.complete(request, Status::EMPTY);
                }
                changed();
            }
            Operation::Receive {
                comm, data, tag, ..
            } => match self.find(comm, tag) {
                Some(index) => {
                    let message = self.messages.remove(index);
                    self.receive(&message, request, &data);
                }
                None => self.receives.push(Receive {
                    comm,
                    tag,
                    data,
                    request,
                }),
            },
        }
    }

    fn find(&self, comm: c_int, tag: c_int) -> Option<usize> {
        self.messages
            .iter()
            .position(|message| matches(message, comm, tag))
    }

    /// Gives a message to a receive.
    fn receive(&mut self, message: &Message, request: c_int, data: &Data) {
        data.unpack(&message.bytes);
        let room = data.bytes();
        let mut status = Status::of_message(message.tag, message.bytes.len().min(room));
        if message.bytes.len() > room {
            let given = message.bytes.len();
            let text = format!("got a message of {given} bytes, expected at most {room}");
            status.error = self.errors.keep(TRUNCATE, text);
        }
        self.complete(request, status);
        if let Some(sender) = message.sender {
            self.complete(sender, Status::EMPTY);
        }
    }

    /// Takes back what a request waits for, and says whether it could.
    pub fn withdraw(&mut self, request: c_int) -> bool {
        let before = self.messages.len() + self.receives.len();
        self.messages
            .retain(|message| message.sender != Some(request));
        self.receives.retain(|receive| receive.request != request);
        before > self.messages.len() + self.receives.len()
    }

    /// Forgets the messages of a communicator that nobody can receive any more.
    pub fn forget(&mut self, comm: c_int) {
        self.messages
            .retain(|message| message.comm != comm || message.sender.is_some());
    }
}

/// Starts an operation with a request of its own.
fn start(comm: c_int, operation: Operation) -> c_int {
    let mut state = state();
    let request = state.requests.add(Request::active(comm));
    state.begin(request, operation);
    request
}

fn run(comm: c_int, operation: Operation) -> Result<Status> {
    requests::wait_for(start(comm, operation))
}

/// The status of the next message, which is waited for if `is_blocking`, and what `take` does with
/// its index.
fn probe<T>(
    (source, tag, comm): (c_int, c_int, c_int),
    is_blocking: bool,
    of_no_process: T,
    take: impl Fn(&mut State, usize) -> T,
) -> Result<Option<(Status, T)>> {
    check_source(source, tag)?;
    if source == PROC_NULL {
        return Ok(Some((Status::of_no_process(), of_no_process)));
    }
    let mut state = state();
    loop {
        if let Some(index) = state.find(comm, tag) {
            let message = &state.messages[index];
            let status = Status::of_message(message.tag, message.bytes.len());
            let taken = take(&mut state, index);
            return Ok(Some((status, taken)));
        }
        if !is_blocking {
            return Ok(None);
        }
        state = wait(state);
    }
}

fn take(state: &mut State, index: usize) -> c_int {
    let message = state.messages.remove(index);
    state.matched.add(message)
}

/// Receives a message that was taken by `MPI_Mprobe`, with a request.
fn receive_matched(
    message: Out<c_int>,
    (address, count, datatype): (usize, c_int, c_int),
) -> Result<c_int> {
    let mut state = state();
    let handle = message.get()?;
    let data = state.data(address, count, datatype)?;
    let request = if handle == MESSAGE_NO_PROC {
        let request = state
            .requests
            .add(Request::active(super::handles::COMM_WORLD));
        state.complete(request, Status::of_no_process());
        request
    } else {
        let found = state.matched.remove(handle)?;
        let request = state.requests.add(Request::active(found.comm));
        state.receive(&found, request, &data);
        request
    };
    message.put(REQUEST_NULL)?;
    Ok(request)
}

macro_rules! sends {
    ($($mode:ident: $blocking:ident, $nonblocking:ident, $persistent:ident;)*) => {
        mpi! {$(
            $blocking(
                buffer: usize, count: c_int, datatype: c_int, dest: c_int, tag: c_int, comm: c_int,
            ) on comm => {
                run(comm, send(Mode::$mode, (buffer, count, datatype), dest, tag, comm)?)?;
                Ok(())
            };
            $nonblocking(
                buffer: usize, count: c_int, datatype: c_int, dest: c_int, tag: c_int, comm: c_int,
                request: Out<c_int>,
            ) on comm => {
                let operation = send(Mode::$mode, (buffer, count, datatype), dest, tag, comm)?;
                request.put(start(comm, operation))
            };
            $persistent(
                buffer: usize, count: c_int, datatype: c_int, dest: c_int, tag: c_int, comm: c_int,
                request: Out<c_int>,
            ) on comm => {
                let operation = send(Mode::$mode, (buffer, count, datatype), dest, tag, comm)?;
                request.put(state().requests.add(Request::persistent(comm, operation)))
            };
        )*}
    };
}

sends! {
    Standard: MPI_Send, MPI_Isend, MPI_Send_init;
    Buffered: MPI_Bsend, MPI_Ibsend, MPI_Bsend_init;
    Synchronous: MPI_Ssend, MPI_Issend, MPI_Ssend_init;
    Ready: MPI_Rsend, MPI_Irsend, MPI_Rsend_init;
}

mpi! {
    MPI_Recv(
        buffer: usize, count: c_int, datatype: c_int, source: c_int, tag: c_int, comm: c_int,
        status: Out<Status>,
    ) on comm => {
        put_status(status, run(comm, receive((buffer, count, datatype), source, tag, comm)?)?)
    };
    MPI_Irecv(
        buffer: usize, count: c_int, datatype: c_int, source: c_int, tag: c_int, comm: c_int,
        request: Out<c_int>,
    ) on comm => {
        request.put(start(comm, receive((buffer, count, datatype), source, tag, comm)?))
    };
    MPI_Recv_init(
        buffer: usize, count: c_int, datatype: c_int, source: c_int, tag: c_int, comm: c_int,
        request: Out<c_int>,
    ) on comm => {
        let operation = receive((buffer, count, datatype), source, tag, comm)?;
        request.put(state().requests.add(Request::persistent(comm, operation)))
    };
    MPI_Sendrecv(
        from: usize, send_count: c_int, send_type: c_int, dest: c_int, send_tag: c_int,
        to: usize, recv_count: c_int, recv_type: c_int, source: c_int, recv_tag: c_int,
        comm: c_int, status: Out<Status>,
    ) on comm => {
        let sent = send(Mode::Standard, (from, send_count, send_type), dest, send_tag, comm)?;
        let received = receive((to, recv_count, recv_type), source, recv_tag, comm)?;
        run(comm, sent)?;
        put_status(status, run(comm, received)?)
    };
    MPI_Sendrecv_replace(
        buffer: usize, count: c_int, datatype: c_int, dest: c_int, send_tag: c_int,
        source: c_int, recv_tag: c_int, comm: c_int, status: Out<Status>,
    ) on comm => {
        let sent = send(Mode::Standard, (buffer, count, datatype), dest, send_tag, comm)?;
        let received = receive((buffer, count, datatype), source, recv_tag, comm)?;
        run(comm, sent)?;
        put_status(status, run(comm, received)?)
    };
    MPI_Probe(source: c_int, tag: c_int, comm: c_int, status: Out<Status>) on comm => {
        let found = probe((source, tag, comm), true, (), |_, _| ())?;
        found.map_or(Ok(()), |(found, ())| put_status(status, found))
    };
    MPI_Iprobe(
        source: c_int, tag: c_int, comm: c_int, flag: Out<c_int>, status: Out<Status>,
    ) on comm => {
        let found = probe((source, tag, comm), false, (), |_, _| ())?;
        flag.put(found.is_some().into())?;
        found.map_or(Ok(()), |(found, ())| put_status(status, found))
    };
    MPI_Mprobe(
        source: c_int, tag: c_int, comm: c_int, message: Out<c_int>, status: Out<Status>,
    ) on comm => {
        let found = probe((source, tag, comm), true, MESSAGE_NO_PROC, take)?;
        found.map_or(Ok(()), |(found, taken)| {
            message.put(taken)?;
            put_status(status, found)
        })
    };
    MPI_Improbe(
        source: c_int, tag: c_int, comm: c_int, flag: Out<c_int>, message: Out<c_int>,
        status: Out<Status>,
    ) on comm => {
        let found = probe((source, tag, comm), false, MESSAGE_NO_PROC, take)?;
        flag.put(found.is_some().into())?;
        found.map_or(message.put(REQUEST_NULL), |(found, taken)| {
            message.put(taken)?;
            put_status(status, found)
        })
    };
    MPI_Mrecv(
        buffer: usize, count: c_int, datatype: c_int, message: Out<c_int>, status: Out<Status>,
    ) => {
        let request = receive_matched(message, (buffer, count, datatype))?;
        put_status(status, requests::wait_for(request)?)
    };
    MPI_Imrecv(
        buffer: usize, count: c_int, datatype: c_int, message: Out<c_int>, request: Out<c_int>,
    ) => request.put(receive_matched(message, (buffer, count, datatype))?);
    MPI_Buffer_attach(buffer: usize, size: c_int) => {
        let mut state = state();
        if size < 0 || state.environment.attached.is_some() {
            let given = format!("a buffer of {size} bytes");
            return Err(Error::got(BUFFER, given, "a buffer", "one of 0 bytes or more, and no other"));
        }
        state.environment.attached = Some((buffer, size));
        Ok(())
    };
    MPI_Buffer_detach(buffer: Out<usize>, size: Out<c_int>) => {
        let attached = state().environment.attached.take();
        let (address, bytes) =
            attached.ok_or_else(|| Error::new(BUFFER, "no buffer is attached"))?;
        buffer.put(address)?;
        size.put(bytes)
    };
}
