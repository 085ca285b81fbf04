//! Operations in flight, which own the memory that MPI reads and writes until they are done.
//!
//! An [`InFlight`] has the blocks before an operation begins, and the request at once. So whatever fails after
//! that, no block goes back to the pool while MPI may use it: an [`InFlight`] that is dropped too early, or
//! after an error of MPI's, leaks its blocks.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem;
use std::ops::Range;

use super::block::Block;
use crate::mpi::calls::{Incoming, Mpi, Outgoing, Owner, PeerBuffer};
use crate::mpi::{
    Abi, OwnStatus, OwnedRequest, RecvBuffer, SendBuffer, SizedDatatype, is_available,
};
use crate::recorder::Array;

/// A result in a block, which is being received or is there already.
pub struct Arrival {
    /// The index of the block at whose begin the array is, and the bytes of the array.
    pub block: usize,
    pub bytes: usize,
    /// Its type and its size.
    pub array: Array,
    /// The pieces of its message, if one is received.
    pub pieces: Option<Pieces>,
    /// The request and the block of the label that travels ahead of it.
    pub label: Option<(usize, usize)>,
}

/// The pieces in which an array is received.
#[derive(Clone)]
pub struct Pieces {
    /// The indices of their requests.
    pub requests: Range<usize>,
    /// The type in which they are counted.
    pub datatype: SizedDatatype,
    /// Number of elements of each piece but the last.
    pub length: i64,
}

impl Arrival {
    /// An array that is there when all requests are done.
    pub fn whole(array: Array, block: usize, bytes: usize) -> Self {
        Self {
            block,
            bytes,
            array,
            pieces: None,
            label: None,
        }
    }
}

/// Operations that MPI has begun or is about to begin, with their memory.
#[derive(Default)]
pub struct InFlight(RefCell<Parts>);

#[derive(Default)]
struct Parts {
    blocks: Vec<Block>,
    /// Lists that MPI may read.
    lists: Vec<Box<dyn Send>>,
    requests: Vec<OwnedRequest>,
    arrivals: Vec<Arrival>,
}

impl InFlight {
    /// Takes over a block, and gives its index.
    pub fn add_block(&self, block: Block) -> usize {
        let blocks = &mut self.0.borrow_mut().blocks;
        blocks.push(block);
        blocks.len() - 1
    }

    /// Takes over a block for MPI to read, which begins with `count` elements.
    pub fn add_send(&self, block: Block, count: i64, datatype: SizedDatatype) -> SendBuffer<'_> {
        let address = block.address(&(0..datatype.bytes(count)));
        self.add_block(block);
        // SAFETY: the block stays as long as this value is borrowed, and nobody writes to it.
        unsafe { SendBuffer::new(address.cast(), count, datatype) }
    }

    /// Takes over a block for MPI to write, with room for `count` elements, and gives its index, too.
    pub fn add_recv(
        &self,
        block: Block,
        count: i64,
        datatype: SizedDatatype,
    ) -> (usize, RecvBuffer<'_>) {
        let address = block.address(&(0..datatype.bytes(count)));
        let index = self.add_block(block);
        // SAFETY: the block stays as long as this value is borrowed, and nobody else has its address.
        (index, unsafe {
            RecvBuffer::new(address.cast(), count, datatype)
        })
    }

    /// Notes an array that is received or kept.
    pub fn add_arrival(&self, arrival: Arrival) {
        self.0.borrow_mut().arrivals.push(arrival);
    }

    /// Calls `body` with the last block, before anything is begun.
    pub fn with_last_block<T>(&self, body: impl FnOnce(&mut Block) -> T) -> Option<T> {
        let parts = &mut *self.0.borrow_mut();
        assert!(parts.requests.is_empty(), "MPI may use the block");
        parts.blocks.last_mut().map(body)
    }

    /// Begins all messages, the receives first. If that fails, receives are withdrawn. Gives MPI's
    /// error code.
    pub fn begin<A: Abi>(
        &self,
        mpi: &Mpi<A>,
        sent: &[Outgoing<A>],
        received: &[Incoming<A>],
    ) -> c_int {
        let parts = &mut *self.0.borrow_mut();
        let check_own = |address: *const c_void, bytes| {
            let mut blocks = parts.blocks.iter();
            assert!(
                blocks.any(|block| block.has(address.cast(), bytes)),
                "a message in flight is a part of its blocks"
            );
        };
        for PeerBuffer { buffer, .. } in sent {
            check_own(buffer.address::<A>(), buffer.bytes());
        }
        for PeerBuffer { buffer, .. } in received {
            check_own(buffer.address(), buffer.bytes());
        }
        // SAFETY: they are, and the blocks stay until all requests are done.
        unsafe { mpi.begin(sent, received, &mut parts.requests) }
    }

    /// The arrays that are received or kept.
    pub fn arrivals(&mut self) -> &[Arrival] {
        &self.0.get_mut().arrivals
    }

    /// Whether all requests have ended.
    pub fn is_done(&self) -> bool {
        self.0.borrow().requests.iter().all(OwnedRequest::is_done)
    }

    /// Whether MPI uses its memory no more.
    fn is_free(&self) -> bool {
        let requests = &self.0.borrow().requests;
        requests.iter().all(OwnedRequest::has_let_go)
    }

    /// Lets MPI make progress, and notes what is done. Once MPI is finalised, nothing ever is.
    pub fn test(&mut self) {
        if !is_available() {
            return;
        }
        let requests = &mut self.0.get_mut().requests;
        requests.iter_mut().for_each(OwnedRequest::test);
    }

    /// Waits for one request, and gives its status.
    pub fn wait_for(&mut self, request: usize) -> Result<&mut OwnStatus, c_int> {
        self.0.get_mut().requests[request].wait_for_status()
    }

    /// Waits for the label of an array that is being received, if it has one, and gives it with its
    /// status.
    pub fn label(&mut self, arrival: usize) -> Option<Result<(&mut Block, &mut OwnStatus), c_int>> {
        let parts = self.0.get_mut();
        let (request, block) = parts.arrivals[arrival].label.take()?;
        let status = parts.requests[request].wait_for_status();
        Some(status.map(|status| (&mut parts.blocks[block], status)))
    }

    /// Waits for all requests. Gives the first error code.
    pub fn wait(&mut self) -> c_int {
        let codes = self.0.get_mut().requests.iter_mut().map(OwnedRequest::wait);
        codes.fold(0, |first, code| if first == 0 { code } else { first })
    }

    /// The memory of what was received, once all requests are done without an error; else `None`.
    pub fn land(mut self) -> Option<Landed> {
        self.is_free().then(|| {
            let parts = mem::take(self.0.get_mut());
            Landed {
                blocks: parts.blocks,
                arrivals: parts.arrivals,
            }
        })
    }
}

impl Owner for InFlight {
    fn take_over(&self, request: OwnedRequest) {
        self.0.borrow_mut().requests.push(request);
    }

    fn keep(&self, list: Box<dyn Send>) {
        self.0.borrow_mut().lists.push(list);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.is_free() {
            mem::forget(mem::take(self.0.get_mut()));
        }
    }
}

/// Memory that MPI uses no more.
pub struct Landed {
    blocks: Vec<Block>,
    arrivals: Vec<Arrival>,
}

impl Landed {
    /// The bytes of one of the arrays.
    pub fn array(&mut self, index: usize) -> &[u8] {
        let Arrival { block, bytes, .. } = self.arrivals[index];
        self.blocks[block].part(0..bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 5 << 20; // no other test has such a block

    fn with_a_block() -> (InFlight, usize) {
        let in_flight = InFlight::default();
        in_flight.add_block(Block::take(BYTES));
        let address = in_flight.with_last_block(|block| block.part(0..0).as_ptr() as usize);
        (in_flight, address.unwrap())
    }

    #[test]
    fn memory_that_mpi_may_write_is_not_used_again() {
        let (idle, address) = with_a_block();
        drop(idle);
        let (pending, again) = with_a_block();
        assert_eq!(again, address);
        pending.take_over(OwnedRequest::never_done());
        assert!(!pending.is_done());
        assert!(pending.land().is_none());
        assert_ne!(Block::take(BYTES).part(0..0).as_ptr() as usize, address);
    }
}
