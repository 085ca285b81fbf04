//! Where the bytes of a call live, and how MPI gets at them.
//!
//! An operation asks for its operands and results through [`Memory`] and is the same for every
//! kind of memory.

mod host;

pub use host::Host;

use std::ffi::c_void;

use crate::xla::{Buffer, Result};

/// The memory that the buffers of one call are in.
pub trait Memory {
    /// An address from which MPI may read the operand.
    fn read(&self, operand: &Buffer) -> Result<*const c_void>;

    /// An address to which MPI may write the result, of so many bytes.
    fn write(&self, result: &Buffer, bytes: usize) -> Result<*mut c_void>;

    /// Makes what MPI wrote visible in the results.
    fn finish(&self) -> Result<()>;
}
