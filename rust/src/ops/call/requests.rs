//! Messages that are in flight at the same time.

use std::ffi::{c_int, c_void};

use super::Call;
use super::counts::invoke;
use super::derived::TypedCount;
use super::in_flight::InFlight;
use crate::error;
use crate::memory::Memory;
use crate::mpi::{Abi, Datatype, Handle, Neighbor, Request};

/// The buffer of a message, with the process that it is sent to or received from.
pub struct MessageBuffer<'c, A: Abi, M> {
    /// The process on the other side, and the tag.
    pub peer: Neighbor,
    /// Where its elements are, or go to.
    address: *mut c_void,
    /// How many there are.
    pub count: i64,
    elements: TypedCount<'c, A, M>,
}

impl<'c, A: Abi, M: Memory> MessageBuffer<'c, A, M> {
    pub fn new(
        call: &'c Call<'c, A, M>,
        peer: Neighbor,
        address: *mut c_void,
        count: i64,
        datatype: Datatype,
    ) -> error::Result<Self> {
        Ok(Self {
            peer,
            address,
            count,
            elements: call.typed_count(count, datatype)?,
        })
    }
}

/// Begins all messages, the receives first, and adds their requests to `requests`, in this order. If
/// that fails, it gives the first error code, and no message is received any more: who sends one then
/// waits for nothing, as there is no way on from an error (MPI-4.1 §9.3).
///
/// # Safety
/// The elements of all messages are there, and nobody else's, until their requests are done.
pub unsafe fn begin<A: Abi, M>(
    call: &Call<A, M>,
    comm: A::Comm,
    sent: &[MessageBuffer<A, M>],
    received: &[MessageBuffer<A, M>],
    requests: &mut Vec<Request>,
) -> c_int {
    requests.reserve(received.len() + sent.len());
    let first = requests.len();
    // SAFETY: the caller's promise.
    let mut receive = |message| unsafe { receive(call, comm, message) }.map(|r| requests.push(r));
    let mut begun = received.iter().try_for_each(&mut receive);
    let receives = requests.len();
    if begun.is_ok() {
        // SAFETY: the caller's promise.
        let mut send = |message| unsafe { send(call, comm, message) }.map(|r| requests.push(r));
        begun = sent.iter().try_for_each(&mut send);
    }
    let code = begun.err().unwrap_or(0);
    if code != 0 {
        withdraw(&mut requests[first..receives]);
    }
    code
}

impl InFlight {
    /// Begins all messages, the receives first. If that fails, receives are withdrawn. Gives MPI's
    /// error code.
    ///
    /// # Safety
    /// All messages are parts of blocks of this value.
    pub unsafe fn begin<A: Abi, M: Memory>(
        &mut self,
        call: &Call<A, M>,
        comm: A::Comm,
        sent: &[MessageBuffer<A, M>],
        received: &[MessageBuffer<A, M>],
    ) -> c_int {
        // SAFETY: the blocks stay until all requests are done.
        unsafe { begin(call, comm, sent, received, self.requests()) }
    }
}

/// Sees to it that nothing is received any more.
#[cold]
fn withdraw(receives: &mut [Request]) {
    receives.iter_mut().for_each(Request::cancel);
    for receive in receives {
        receive.wait();
    }
}

/// Begins to receive a message, or gives MPI's error code.
///
/// # Safety
/// There is room for it until the request is done.
unsafe fn receive<A: Abi, M>(
    call: &Call<A, M>,
    comm: A::Comm,
    message: &MessageBuffer<A, M>,
) -> Result<Request, c_int> {
    let mut request = A::Request::from_raw(0);
    let form = call.counting.form(message.elements.count);
    // SAFETY: the caller's promise.
    let code = unsafe {
        invoke!(form.irecv(
            message.address,
            message.elements.count,
            message.elements.datatype,
            message.peer.rank,
            message.peer.tag,
            comm,
            &raw mut request,
        ))
    };
    // SAFETY: MPI has given the request, and the caller keeps the buffer.
    (code == 0)
        .then(|| unsafe { Request::new(call.functions, request) })
        .ok_or(code)
}

/// Begins to send a message, or gives MPI's error code.
///
/// # Safety
/// Its elements are there, and stay as they are until the request is done.
unsafe fn send<A: Abi, M>(
    call: &Call<A, M>,
    comm: A::Comm,
    message: &MessageBuffer<A, M>,
) -> Result<Request, c_int> {
    let mut request = A::Request::from_raw(0);
    let form = call.counting.form(message.elements.count);
    // SAFETY: the caller's promise.
    let code = unsafe {
        invoke!(form.isend(
            message.address.cast_const(),
            message.elements.count,
            message.elements.datatype,
            message.peer.rank,
            message.peer.tag,
            comm,
            &raw mut request,
        ))
    };
    // SAFETY: MPI has given the request, and the caller keeps the buffer.
    (code == 0)
        .then(|| unsafe { Request::new(call.functions, request) })
        .ok_or(code)
}

/// Requests whose buffers are those of the call: it does not return before they are done.
struct OfTheCall(Vec<Request>);

impl Drop for OfTheCall {
    fn drop(&mut self) {
        for request in &mut self.0 {
            request.wait();
        }
    }
}

/// Begins all messages and waits for them. Gives the first error code.
///
/// # Safety
/// The elements of all messages are there, and nobody else's, until it returns.
pub unsafe fn exchange_messages<A: Abi, M>(
    call: &Call<A, M>,
    comm: A::Comm,
    sent: &[MessageBuffer<A, M>],
    received: &[MessageBuffer<A, M>],
) -> c_int {
    let mut requests = OfTheCall(Vec::new());
    // SAFETY: the caller's promise, as all of them are done when this returns.
    let mut first = unsafe { begin(call, comm, sent, received, &mut requests.0) };
    for (index, request) in requests.0.iter_mut().enumerate() {
        call.progress().set_awaited_message(index);
        let code = request.wait();
        first = if first == 0 { code } else { first };
    }
    first
}
