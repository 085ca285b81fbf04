//! Operations in flight, which own the memory that MPI reads and writes until they are done.
//!
//! Whoever begins an operation has this value before, and it has the request at once. So whatever fails
//! after that, no block goes back to the pool while MPI may use it: dropped too early, it leaks them.

use std::ffi::c_int;
use std::mem;
use std::ops::Range;

use crate::memory::Block;
use crate::mpi::{Datatype, Request, Status};
use crate::recorder::Array;

/// An array that is being received, or is there already.
pub struct Arrival {
    /// The index of the block at whose begin it is, and its bytes.
    pub block: usize,
    pub bytes: usize,
    /// Its type and its size.
    pub array: Array,
    /// The pieces in which it is received, by the indices of their requests.
    pub pieces: Range<usize>,
    /// The type in which its pieces are counted, and how many of these a piece has.
    pub datatype: Datatype,
    pub length: i64,
    /// The request and the block of the label that travels ahead of it.
    pub label: Option<(usize, usize)>,
}

impl Arrival {
    /// An array that is there when all requests are done.
    pub fn whole(array: Array, datatype: Datatype, block: usize, bytes: usize) -> Self {
        Self {
            block,
            bytes,
            array,
            pieces: 0..0,
            datatype,
            length: i64::MAX,
            label: None,
        }
    }
}

/// Operations that MPI has begun or is about to begin, with their memory.
#[derive(Default)]
pub struct InFlight {
    blocks: Vec<Block>,
    /// Lists that MPI may read.
    lists: Vec<Box<dyn Send>>,
    requests: Vec<Request>,
    pub arrivals: Vec<Arrival>,
}

impl InFlight {
    /// Takes over a block for MPI to read or write, and gives its index.
    pub fn add_block(&mut self, block: Block) -> usize {
        self.blocks.push(block);
        self.blocks.len() - 1
    }

    /// The last block, before anything is begun.
    pub fn last_block(&mut self) -> Option<&mut Block> {
        assert!(self.requests.is_empty(), "MPI may use the block");
        self.blocks.last_mut()
    }

    /// Takes over a list for MPI to read.
    pub fn keep(&mut self, list: Box<dyn Send>) {
        self.lists.push(list);
    }

    /// Takes over a request. Who has made it keeps its buffers, in blocks and lists of this value.
    pub fn take_over(&mut self, request: Request) {
        self.requests.push(request);
    }

    /// The requests, to add some.
    ///
    /// # Safety
    /// The buffers of a new one are in blocks and lists of this value. None is taken out.
    pub unsafe fn requests(&mut self) -> &mut Vec<Request> {
        &mut self.requests
    }

    pub fn is_done(&self) -> bool {
        self.requests.iter().all(Request::is_done)
    }

    /// Has MPI make progress, and notes what is done.
    pub fn test(&mut self) {
        self.requests.iter_mut().for_each(Request::test);
    }

    /// Waits for one request, and gives its status.
    pub fn wait_for(&mut self, request: usize) -> Result<&mut Status, c_int> {
        let request = &mut self.requests[request];
        match request.wait() {
            0 => Ok(request.status()),
            code => Err(code),
        }
    }

    /// Waits for the label of an array that is being received, if it has one, and gives it with its
    /// status.
    pub fn label(&mut self, arrival: usize) -> Option<Result<(&mut Block, &mut Status), c_int>> {
        let (request, block) = self.arrivals[arrival].label.take()?;
        let request = &mut self.requests[request];
        Some(match request.wait() {
            0 => Ok((&mut self.blocks[block], request.status())),
            code => Err(code),
        })
    }

    /// Waits for all requests. Gives the first error code.
    pub fn wait(&mut self) -> c_int {
        let codes = self.requests.iter_mut().map(Request::wait);
        codes.fold(0, |first, code| if first == 0 { code } else { first })
    }

    /// What was received, once all requests are done. Nothing, if some are not.
    pub fn land(mut self) -> Option<Landed> {
        self.is_done().then(|| Landed {
            blocks: mem::take(&mut self.blocks),
            arrivals: mem::take(&mut self.arrivals),
        })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.is_done() {
            mem::forget(mem::take(&mut self.blocks));
            mem::forget(mem::take(&mut self.lists));
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
        let mut in_flight = InFlight::default();
        in_flight.add_block(Block::take(BYTES));
        let address = in_flight.blocks[0].address(0) as usize;
        (in_flight, address)
    }

    #[test]
    fn memory_that_mpi_may_write_is_not_used_again() {
        let (idle, address) = with_a_block();
        drop(idle);
        let (mut pending, again) = with_a_block();
        assert_eq!(again, address);
        pending.take_over(Request::never_done());
        assert!(!pending.is_done());
        assert!(pending.land().is_none());
        assert_ne!(Block::take(BYTES).address(0) as usize, address);
    }
}
