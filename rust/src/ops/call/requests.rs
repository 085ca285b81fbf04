//! Messages that are in flight at the same time.

use std::ffi::{c_int, c_void};

use super::Call;
use super::in_flight::InFlight;
use crate::error;
use crate::memory::Memory;
use crate::mpi::calls::{Mpi, TypedCount};
use crate::mpi::{Abi, Datatype, Neighbor, Request};

/// The buffer of a message, with the process that it is sent to or received from.
pub struct MessageBuffer<A: Abi> {
    /// The process on the other side, and the tag.
    pub peer: Neighbor,
    /// Where its elements are, or go to.
    address: *mut c_void,
    /// How many there are.
    pub count: i64,
    elements: TypedCount<A>,
}

impl<A: Abi> MessageBuffer<A> {
    pub fn new<M: Memory>(
        call: &Call<A, M>,
        peer: Neighbor,
        address: *mut c_void,
        count: i64,
        datatype: Datatype,
    ) -> error::Result<Self> {
        Ok(Self {
            peer,
            address,
            count,
            elements: call.typed(count, datatype)?,
        })
    }
}

/// Begins all messages, the receives first, and adds their requests to `requests`, in this order. If
/// that fails, it gives the first error code, and no message is received any more: who sends one then
/// waits for nothing, as there is no way on from an error (MPI-4.1 §9.3).
///
/// # Safety
/// The elements of all messages are there, and nobody else's, until their requests are done.
pub unsafe fn begin<A: Abi>(
    mpi: &Mpi<A>,
    sent: &[MessageBuffer<A>],
    received: &[MessageBuffer<A>],
    requests: &mut Vec<Request>,
) -> c_int {
    requests.reserve(received.len() + sent.len());
    let first = requests.len();
    let mut receive = |MessageBuffer {
                           address,
                           elements,
                           peer,
                           ..
                       }: &MessageBuffer<A>| {
        // SAFETY: the caller's promise.
        unsafe { mpi.irecv(*address, elements, *peer) }.map(|request| requests.push(request))
    };
    let mut begun = received.iter().try_for_each(&mut receive);
    let receives = requests.len();
    if begun.is_ok() {
        let mut send = |MessageBuffer {
                            address,
                            elements,
                            peer,
                            ..
                        }: &MessageBuffer<A>| {
            // SAFETY: the caller's promise.
            unsafe { mpi.isend(*address, elements, *peer) }.map(|request| requests.push(request))
        };
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
    pub unsafe fn begin<A: Abi>(
        &mut self,
        mpi: &Mpi<A>,
        sent: &[MessageBuffer<A>],
        received: &[MessageBuffer<A>],
    ) -> c_int {
        // SAFETY: the blocks stay until all requests are done.
        unsafe { begin(mpi, sent, received, self.requests()) }
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
    mpi: &Mpi<A>,
    sent: &[MessageBuffer<A>],
    received: &[MessageBuffer<A>],
) -> c_int {
    let mut requests = OfTheCall(Vec::new());
    // SAFETY: the caller's promise, as all of them are done when this returns.
    let mut first = unsafe { begin(mpi, sent, received, &mut requests.0) };
    for (index, request) in requests.0.iter_mut().enumerate() {
        call.progress().set_awaited_message(index);
        let code = request.wait();
        first = if first == 0 { code } else { first };
    }
    first
}
