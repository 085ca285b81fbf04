//! Messages that are in flight at the same time.

use std::ffi::{c_int, c_void};

use super::Call;
use super::counts::{Counting, invoke};
use super::derived::TypedCount;
use crate::error::Result;
use crate::memory::Memory;
use crate::mpi::{Abi, Datatype, Functions, Handle, Neighbor};
use crate::recorder::Progress;

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
    ) -> Result<Self> {
        Ok(Self {
            peer,
            address,
            count,
            elements: call.typed_count(count, datatype)?,
        })
    }
}

/// Messages in flight.
pub struct Requests<'c, A: Abi> {
    functions: &'static Functions<A>,
    counting: &'c Counting<A>,
    progress: Option<Progress>,
    comm: A::Comm,
    receives: Vec<A::Request>,
    sends: Vec<A::Request>,
}

impl<'c, A: Abi> Requests<'c, A> {
    pub fn new<M>(call: &'c Call<'c, A, M>, comm: A::Comm) -> Self {
        Self {
            functions: call.functions,
            counting: &call.counting,
            progress: Some(call.progress()),
            comm,
            receives: Vec::new(),
            sends: Vec::new(),
        }
    }

    /// Begins all messages, the receives first. Gives the first error code if they can't all be
    /// begun, and then none is under way.
    ///
    /// # Safety
    /// The elements of all messages are there, and nobody else's, until all messages are done.
    pub unsafe fn begin<M>(
        call: &'c Call<'c, A, M>,
        comm: A::Comm,
        sent: &[MessageBuffer<A, M>],
        received: &[MessageBuffer<A, M>],
    ) -> std::result::Result<Self, c_int> {
        let mut requests = Self::new(call, comm);
        requests.receives.reserve(received.len());
        requests.sends.reserve(sent.len());
        // SAFETY: the caller's promise.
        let receive = |message| unsafe { requests.receive(message) };
        let mut begun = received.iter().try_for_each(receive);
        if begun.is_ok() {
            // SAFETY: the same.
            let send = |message| unsafe { requests.send(message) };
            begun = sent.iter().try_for_each(send);
        }
        if let Err(code) = begun {
            requests.withdraw();
            return Err(code);
        }
        Ok(requests)
    }

    /// Begins to receive a message, or gives MPI's error code.
    ///
    /// # Safety
    /// There is room for it until all messages are done.
    unsafe fn receive<M>(
        &mut self,
        message: &MessageBuffer<A, M>,
    ) -> std::result::Result<(), c_int> {
        let mut request = A::Request::from_raw(0);
        let form = self.counting.form(message.elements.count);
        // SAFETY: the caller's promise.
        let code = unsafe {
            invoke!(form.irecv(
                message.address,
                message.elements.count,
                message.elements.datatype,
                message.peer.rank,
                message.peer.tag,
                self.comm,
                &raw mut request,
            ))
        };
        if code == 0 {
            self.receives.push(request);
            return Ok(());
        }
        Err(code)
    }

    /// Begins to send a message, or gives MPI's error code.
    ///
    /// # Safety
    /// Its elements are there, and stay as they are until all messages are done.
    pub unsafe fn send<M>(
        &mut self,
        message: &MessageBuffer<A, M>,
    ) -> std::result::Result<(), c_int> {
        let mut request = A::Request::from_raw(0);
        let form = self.counting.form(message.elements.count);
        // SAFETY: the caller's promise.
        let code = unsafe {
            invoke!(form.isend(
                message.address.cast_const(),
                message.elements.count,
                message.elements.datatype,
                message.peer.rank,
                message.peer.tag,
                self.comm,
                &raw mut request,
            ))
        };
        if code == 0 {
            self.sends.push(request);
            return Ok(());
        }
        Err(code)
    }

    /// The messages that are received, and then those that are sent, for who waits for them later.
    pub fn into_list(self) -> Vec<A::Request> {
        let mut list = self.receives;
        list.extend(self.sends);
        list
    }

    /// Leaves it to others to say how far the call has got: not every request is a message.
    pub fn without_progress(mut self) -> Self {
        self.progress = None;
        self
    }

    /// Waits for all messages, and gives the first error code.
    pub fn wait(self) -> c_int {
        let mut first = 0;
        let requests = self.receives.into_iter().chain(self.sends);
        for (index, mut request) in requests.enumerate() {
            if let Some(progress) = &self.progress {
                progress.set_awaited_message(index);
            }
            let ignore = A::constants().status_ignore as *mut A::Status;
            // SAFETY: MPI gave the request, and gets it back once.
            let code = unsafe { (self.functions.wait)(&raw mut request, ignore) };
            first = if first == 0 { code } else { first };
        }
        first
    }

    /// Sees to it that MPI writes nothing any more when not all messages could be begun. What the
    /// others then wait for does not come: there is no way on from an error (MPI-4.1 §9.3).
    #[cold]
    fn withdraw(mut self) {
        for request in &mut self.receives {
            // SAFETY: MPI gave the request, and has not got it back.
            unsafe { (self.functions.cancel)(request) };
        }
        self.sends.clear();
        self.wait();
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
    // SAFETY: the caller's promise, as all messages are done when this returns.
    let begun = unsafe { Requests::begin(call, comm, sent, received) };
    begun.map_or_else(|code| code, Requests::wait)
}
