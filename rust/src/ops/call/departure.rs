//! The buffers and requests that a nonblocking call leaves to the one that waits.

use crate::memory::Block;
use crate::mpi::{Abi, Datatype};
use crate::recorder::Array;

/// The buffers and requests that a nonblocking call leaves to the one that waits.
pub struct Departure<A: Abi> {
    /// Copies of operands, and room for results.
    pub blocks: Vec<Block>,
    pub results: Vec<ResultToCome>,
    pub requests: Vec<A::Request>,
    /// Lists that MPI may read until the operation is completed.
    pub lists: Vec<Box<dyn Send>>,
}

/// A result that is there when the operation is completed.
pub struct ResultToCome {
    pub array: Array,
    pub datatype: Datatype,
    /// The index of the block at whose begin it is.
    pub block: usize,
    pub bytes: usize,
}

impl<A: Abi> Default for Departure<A> {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            results: Vec::new(),
            requests: Vec::new(),
            lists: Vec::new(),
        }
    }
}
