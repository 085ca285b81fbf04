//! The messages between the watchers of all ranks, on a communicator of their own.
//!
//! Nothing here waits for another rank: sends are begun and then looked after, and a message is
//! received when it is there.

use std::cell::Cell;
use std::convert::identity;
use std::ffi::c_int;
use std::mem;

use super::watcher::WatcherMessage;
use crate::mpi::calls::{Mpi, Owner};
use crate::mpi::{
    Abi, Communicator, Functions, Neighbor, OwnStatus, OwnedRequest, RecvBuffer, SendBuffer,
    SizedDatatype, StatusPlace, abort,
};

/// The objects of mpi4py's that the mailbox needs.
#[derive(Debug, Clone, Copy)]
pub struct Objects {
    /// The communicator.
    pub communicator: Communicator,
    /// `MPI_BYTE`.
    pub byte: SizedDatatype,
    /// `MPI_ANY_SOURCE`.
    pub any_source: c_int,
}

/// The tag of all messages.
const TAG: c_int = 0;

/// The other side of messages.
fn peer(rank: c_int) -> Neighbor {
    Neighbor { rank, tag: TAG }
}

/// The messages of the watcher of one rank.
pub struct Mailbox<A: Abi> {
    functions: &'static Functions<A>,
    mpi: Mpi<A>,
    objects: Objects,
    /// The messages that are being sent.
    sends: Vec<(OwnedRequest, Vec<u8>)>,
    /// The barrier that this rank is in, at its end.
    barrier: Barrier,
    /// How many barriers it has left.
    barriers: usize,
}

/// The request of a barrier, which has no buffers.
#[derive(Default)]
struct Barrier(Cell<Option<OwnedRequest>>);

impl Owner for Barrier {
    fn take_over(&self, request: OwnedRequest) {
        self.0.set(Some(request));
    }

    fn keep(&self, _: Box<dyn Send>) {}
}

/// Whether a request is complete, or has failed.
fn is_done(request: &mut OwnedRequest) -> bool {
    request.test();
    request.is_done()
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
            mpi: Mpi::new(functions, &objects.communicator),
            objects,
            sends: Vec::new(),
            barrier: Barrier::default(),
            barriers: 0,
        }
    }

    /// Begins to send a message, unless all ranks have come to their end.
    pub fn send(&mut self, rank: i32, message: &WatcherMessage) {
        if self.barriers > 0 {
            return;
        }
        let Ok(bytes) = serde_json::to_vec(message) else {
            return;
        };
        let buffer = SendBuffer::of(&bytes[..], self.objects.byte);
        let Ok(message) = self.mpi.outgoing(peer(rank), buffer) else {
            return;
        };
        let mut requests = Vec::new();
        // SAFETY: the bytes stay where they are until the request is done.
        unsafe { self.mpi.begin(&[message], &[], &mut requests) };
        if let Some(request) = requests.pop() {
            self.sends.push((request, bytes));
        }
    }

    /// Looks after the sends, and gives a message that has come.
    pub fn receive(&mut self) -> Option<(i32, WatcherMessage)> {
        self.sends.retain_mut(|(request, _)| !is_done(request));
        let Objects {
            byte, any_source, ..
        } = self.objects;
        let mut status = OwnStatus::EMPTY;
        let is_there = self.mpi.iprobe(peer(any_source), status.place());
        if is_there != Ok(true) {
            return None;
        }
        let (source, _) = status.source_and_tag::<A>();
        let length = status.count(self.functions, byte.handle::<A>()).ok()?;
        let mut bytes = vec![0_u8; usize::try_from(length).ok()?];
        let room = RecvBuffer::of(&mut bytes[..], byte);
        let call = self.mpi.blocking(identity);
        call.recv(room, peer(source), StatusPlace::ignored()).ok()?;
        Some((source, serde_json::from_slice(&bytes).ok()?))
    }

    /// Says that this rank has ended, and tells whether all others have, and nothing is sent any more.
    ///
    /// A large message is sent when it is received. So all ranks meet twice: behind the first barrier
    /// they only receive, and a rank enters the second one when all that it has sent was received.
    pub fn poll_end(&mut self) -> bool {
        if self.barriers == 1 && !self.sends.is_empty() {
            return false;
        }
        if self.barrier.0.get_mut().is_none() && self.barriers < 2 {
            // SAFETY: a barrier has no buffers.
            let call = unsafe { self.mpi.nonblocking(identity, &self.barrier) };
            if call.barrier().is_err() {
                return true;
            }
        }
        if self.barrier.0.get_mut().as_mut().is_some_and(is_done) {
            self.barrier = Barrier::default();
            self.barriers += 1;
        }
        self.barriers == 2
    }

    /// Ends all ranks.
    pub fn abort(&self, code: i32) {
        abort(self.functions, &self.objects.communicator, code);
    }
}
