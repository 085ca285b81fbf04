//! The messages between the watchers of all ranks, on a communicator of their own.
//!
//! Nothing here waits for another rank: sends are begun and then looked after, and a message is
//! received when it is there.

use std::ffi::{c_int, c_void};
use std::mem;

use super::watcher::WatcherMessage;
use crate::mpi::{Abi, Communicator, Datatype, Functions, Handle, Status, abort, source_and_tag};

/// The objects of mpi4py's that the mailbox needs.
#[derive(Debug, Clone, Copy)]
pub struct Objects {
    /// The communicator.
    pub communicator: Communicator,
    /// `MPI_BYTE`.
    pub byte: Datatype,
    /// `MPI_ANY_SOURCE`.
    pub any_source: c_int,
}

/// The tag of all messages.
const TAG: c_int = 0;

/// The messages of the watcher of one rank.
pub struct Mailbox<A: Abi> {
    functions: &'static Functions<A>,
    objects: Objects,
    /// The messages that are being sent.
    sends: Vec<(A::Request, Vec<u8>)>,
    /// The barrier that this rank is in, at its end.
    barrier: Option<A::Request>,
    /// How many barriers it has left.
    barriers: usize,
}

/// Whether a request is complete, or has failed.
fn is_done<A: Abi>(functions: &Functions<A>, request: &mut A::Request) -> bool {
    let mut flag = 0;
    // SAFETY: a request of MPI's that is not freed; the flag may be written.
    let code = unsafe {
        (functions.test)(
            request,
            &raw mut flag,
            A::constants().status_ignore as *mut A::Status,
        )
    };
    flag != 0 || code != 0
}

/// MPI may still read what is being sent.
impl<A: Abi> Drop for Mailbox<A> {
    fn drop(&mut self) {
        mem::forget(mem::take(&mut self.sends));
    }
}

impl<A: Abi> Mailbox<A> {
    /// A mailbox on a communicator that nobody else uses.
    pub fn new(functions: &'static Functions<A>, objects: Objects) -> Self {
        Self {
            functions,
            objects,
            sends: Vec::new(),
            barrier: None,
            barriers: 0,
        }
    }

    fn comm(&self) -> A::Comm {
        self.objects.communicator.handle::<A>()
    }

    fn byte(&self) -> A::Datatype {
        self.objects.byte.handle::<A>()
    }

    /// Begins to send a message, unless all ranks have come to their end.
    pub fn send(&mut self, rank: i32, message: &WatcherMessage) {
        if self.barriers > 0 {
            return;
        }
        let Ok(bytes) = serde_json::to_vec(message) else {
            return;
        };
        let mut request = A::Request::from_raw(0);
        // SAFETY: the bytes stay where they are until the request is done.
        let code = unsafe {
            (self.functions.int.isend)(
                bytes.as_ptr().cast(),
                bytes.len() as c_int,
                self.byte(),
                rank,
                TAG,
                self.comm(),
                &raw mut request,
            )
        };
        if code == 0 {
            self.sends.push((request, bytes));
        }
    }

    /// Looks after the sends, and gives a message that has come.
    pub fn receive(&mut self) -> Option<(i32, WatcherMessage)> {
        let functions = self.functions;
        self.sends
            .retain_mut(|(request, _)| !is_done::<A>(functions, request));
        let mut status = Status::EMPTY;
        let status = status.address::<A>();
        let (mut flag, mut length) = (0, 0);
        // SAFETY: there is room for the status, and the flag may be written.
        let code = unsafe {
            (functions.iprobe)(
                self.objects.any_source,
                TAG,
                self.comm(),
                &raw mut flag,
                status,
            )
        };
        if code != 0 || flag == 0 {
            return None;
        }
        // SAFETY: MPI has filled the status.
        let (source, _) = unsafe {
            (functions.get_count)(status, self.byte(), &raw mut length);
            source_and_tag::<A>(status)
        };
        let mut bytes = vec![0_u8; usize::try_from(length).ok()?];
        // SAFETY: the message is there, and there is room for it.
        let code = unsafe {
            (functions.int.recv)(
                bytes.as_mut_ptr().cast::<c_void>(),
                length,
                self.byte(),
                source,
                TAG,
                self.comm(),
                A::constants().status_ignore as *mut A::Status,
            )
        };
        let message = (code == 0).then(|| serde_json::from_slice(&bytes).ok())??;
        Some((source, message))
    }

    /// Says that this rank has ended, and tells whether all others have, and nothing is sent any more.
    ///
    /// A large message is sent when it is received. So all ranks meet twice: behind the first barrier
    /// they only receive, and a rank enters the second one when all that it has sent was received.
    pub fn poll_end(&mut self) -> bool {
        if self.barriers == 1 && !self.sends.is_empty() {
            return false;
        }
        let functions = self.functions;
        if self.barrier.is_none() && self.barriers < 2 {
            let mut request = A::Request::from_raw(0);
            // SAFETY: a communicator of this process's.
            let code = unsafe { (functions.ibarrier)(self.comm(), &raw mut request) };
            if code != 0 {
                return true;
            }
            self.barrier = Some(request);
        }
        if let Some(request) = &mut self.barrier
            && is_done::<A>(functions, request)
        {
            self.barrier = None;
            self.barriers += 1;
        }
        self.barriers == 2
    }

    /// Ends all ranks.
    pub fn abort(&self, code: i32) {
        abort(self.functions, &self.objects.communicator, code);
    }
}
