//! Host memory: MPI works on XLA's own buffers.

use std::ffi::c_void;
use std::ptr;

use super::access::{Access, Memory};
use super::huge_pages;
use crate::error::Failure;
use crate::xla::{Buffer, ResultBuffer};

/// Memory that XLA and MPI share.
pub struct Host;

impl Memory for Host {
    const IS_ON_DEVICE: bool = false;

    #[inline(always)]
    fn read(&self, operand: &Buffer, bytes: usize) -> Result<*const c_void, Failure> {
        huge_pages::see(operand.address, bytes);
        Ok(operand.address)
    }

    #[inline(always)]
    fn write(&self, result: &ResultBuffer, bytes: usize) -> Result<*mut c_void, Failure> {
        huge_pages::see_result(result.address, bytes);
        Ok(result.address)
    }

    #[inline(always)]
    fn before(&self, _: &Access) -> Result<(), Failure> {
        Ok(())
    }

    #[inline(always)]
    fn after(&self, _: &Access) -> Result<(), Failure> {
        Ok(())
    }

    fn load(&self, operand: &Buffer, into: &mut [u8]) -> Result<(), Failure> {
        assert!(into.len() <= operand.bytes());
        // SAFETY: the operand has that many bytes.
        unsafe { ptr::copy_nonoverlapping(operand.address.cast(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn store(&self, result: &ResultBuffer, from: &[u8]) -> Result<(), Failure> {
        assert!(from.len() <= result.bytes());
        // SAFETY: the result has that many bytes.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), result.address.cast(), from.len()) };
        Ok(())
    }

    fn copy(&self, operand: &Buffer, result: &ResultBuffer, bytes: usize) -> Result<(), Failure> {
        if bytes == 0 || operand.address == result.address {
            return Ok(());
        }
        assert!(bytes <= operand.bytes().min(result.bytes()));
        // SAFETY: both have that many bytes. They may overlap.
        unsafe { ptr::copy(operand.address.cast::<u8>(), result.address.cast(), bytes) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::xla::{BufferFacts, raw::XLA_FFI_DataType_F32};

    /// Fails if more is read or written than an array has.
    #[test]
    fn copies_end_with_the_array() {
        let mut numbers = [1.0_f32, 2.0];
        let address = numbers.as_mut_ptr().cast();
        let facts = |address, count| BufferFacts {
            address,
            dtype: XLA_FFI_DataType_F32,
            dims: &[],
            count,
        };
        // SAFETY: there are that many numbers, or none at the address.
        let array = |address, count| unsafe { ResultBuffer::lent(facts(address, count)) };
        let mut bytes = [0; 8];
        Host.load(&array(address, 2), &mut bytes).unwrap();
        Host.store(&array(address, 1), &bytes[4..]).unwrap();
        assert_eq!(numbers, [2.0, 2.0]);
        let is_refused = |copy: &mut dyn FnMut() -> Result<(), Failure>| {
            catch_unwind(AssertUnwindSafe(copy)).is_err()
        };
        for array in [array(address, 1), array(ptr::null_mut(), 2)] {
            assert!(is_refused(&mut || Host.load(&array, &mut bytes)));
            assert!(is_refused(&mut || Host.store(&array, &[0; 8])));
        }
        assert_eq!(numbers, [2.0, 2.0]);
    }
}
