//! Messages that are in flight at the same time (MPI-4.1 §3.7).

use std::ffi::c_int;

use super::caller::Mpi;
use super::derived::TypedCount;
use super::outcome::CallError;
use crate::mpi::abi::Abi;
use crate::mpi::buffers::{RecvBuffer, SendBuffer};
use crate::mpi::registry::Neighbor;
use crate::mpi::requests::OwnedRequest;

/// A buffer, with the process that it is sent to or received from.
pub struct PeerBuffer<A: Abi, B> {
    /// The process on the other side, and the tag.
    pub peer: Neighbor,
    /// The elements of the message.
    pub buffer: B,
    elements: TypedCount<A>,
}

/// A message that is sent.
pub type Outgoing<'b, A> = PeerBuffer<A, SendBuffer<'b>>;
/// A message that is received.
pub type Incoming<'b, A> = PeerBuffer<A, RecvBuffer<'b>>;

/// Requests whose buffers are borrowed: dropping them waits for all.
struct Borrowed(Vec<OwnedRequest>);

impl Drop for Borrowed {
    fn drop(&mut self) {
        for request in &mut self.0 {
            request.wait();
        }
    }
}

impl<A: Abi> Mpi<A> {
    /// A message to be sent.
    pub fn outgoing<'b>(
        &self,
        peer: Neighbor,
        buffer: SendBuffer<'b>,
    ) -> Result<Outgoing<'b, A>, CallError> {
        let elements = self.typed(buffer.count(), buffer.datatype())?;
        Ok(PeerBuffer {
            peer,
            buffer,
            elements,
        })
    }

    /// A message to be received.
    pub fn incoming<'b>(
        &self,
        peer: Neighbor,
        buffer: RecvBuffer<'b>,
    ) -> Result<Incoming<'b, A>, CallError> {
        let elements = self.typed(buffer.count(), buffer.datatype())?;
        Ok(PeerBuffer {
            peer,
            buffer,
            elements,
        })
    }

    /// Begins all messages and waits for one after the other, each after its index is told to `awaits`:
    /// first those that are received. Gives the first error code.
    pub fn exchange(
        &self,
        sent: &[Outgoing<A>],
        received: &[Incoming<A>],
        mut awaits: impl FnMut(usize),
    ) -> c_int {
        let mut requests = Borrowed(Vec::new());
        // SAFETY: all requests are done when this returns, or panics.
        let mut first = unsafe { self.begin(sent, received, &mut requests.0) };
        for (index, request) in requests.0.iter_mut().enumerate() {
            awaits(index);
            let code = request.wait();
            first = if first == 0 { code } else { first };
        }
        first
    }

    /// Begins all messages, the receives first, and adds their requests to `requests`, in this order. If
    /// that fails, it gives the first error code, and no message is received any more: who sends one
    /// then waits for nothing, as there is no way on from an error (MPI-4.1 §9.3).
    ///
    /// # Safety
    /// The buffers stay until their requests are done.
    pub unsafe fn begin(
        &self,
        sent: &[Outgoing<A>],
        received: &[Incoming<A>],
        requests: &mut Vec<OwnedRequest>,
    ) -> c_int {
        requests.reserve(received.len() + sent.len());
        let first = requests.len();
        // SAFETY: the caller's promise.
        let receive = |message: &Incoming<A>| unsafe {
            self.irecv(message.buffer.address(), &message.elements, message.peer)
        };
        let mut outcome = add_each(requests, received, receive);
        let receives = requests.len();
        if outcome.is_ok() {
            // SAFETY: the caller's promise.
            let send = |message: &Outgoing<A>| unsafe {
                let address = message.buffer.address::<A>();
                self.isend(address, &message.elements, message.peer)
            };
            outcome = add_each(requests, sent, send);
        }
        let Err(code) = outcome else {
            return 0;
        };
        withdraw(&mut requests[first..receives]);
        code
    }
}

/// Begins messages and adds their requests, until one can't be begun.
fn add_each<M>(
    requests: &mut Vec<OwnedRequest>,
    messages: &[M],
    begin: impl Fn(&M) -> Result<OwnedRequest, c_int>,
) -> Result<(), c_int> {
    for message in messages {
        requests.push(begin(message)?);
    }
    Ok(())
}

/// Cancels receives, and waits until MPI has let go of their buffers.
#[cold]
fn withdraw(receives: &mut [OwnedRequest]) {
    receives.iter_mut().for_each(OwnedRequest::cancel);
    for receive in receives {
        receive.wait();
    }
}
