//! Host memory: MPI works on XLA's own buffers.

use std::ffi::c_void;

use super::Memory;
use crate::xla::{Buffer, Result};

pub struct Host;

impl Memory for Host {
    fn read(&self, operand: &Buffer) -> Result<*const c_void> {
        Ok(operand.address)
    }

    fn write(&self, result: &Buffer) -> Result<*mut c_void> {
        Ok(result.address)
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }
}
