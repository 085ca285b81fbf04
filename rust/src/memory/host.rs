//! Host memory: MPI works on XLA's own buffers.

use std::ffi::c_void;
use std::ptr;

use super::access::{Access, Memory};
use crate::error::Failure;
use crate::xla::Buffer;

/// Memory that XLA and MPI share.
pub struct Host;

impl Memory for Host {
    const IS_ON_DEVICE: bool = false;

    #[inline(always)]
    fn read(&self, operand: &Buffer, _: usize) -> Result<*const c_void, Failure> {
        Ok(operand.address)
    }

    #[inline(always)]
    fn write(&self, result: &Buffer, bytes: usize) -> Result<*mut c_void, Failure> {
        ask_for_huge_pages(result.address, bytes);
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
        // SAFETY: the operand has so many bytes.
        unsafe { ptr::copy_nonoverlapping(operand.address.cast(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn store(&self, result: &Buffer, from: &[u8]) -> Result<(), Failure> {
        assert!(from.len() <= result.bytes());
        // SAFETY: the result has so many bytes.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), result.address.cast(), from.len()) };
        Ok(())
    }
}

/// From here on the kernel is asked for huge pages, as NumPy does.
const LARGE: usize = 4 << 20;

#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;

/// Has the kernel map a large result in huge pages, if it is new memory.
///
/// XLA takes large arrays fresh from the system. The first write to each page is a trap into
/// the kernel, and for pages of 4 KiB these take longer than the message.
#[inline(always)]
pub(super) fn ask_for_huge_pages(address: *mut c_void, bytes: usize) {
    if bytes >= LARGE {
        ask(address, bytes);
    }
}

#[cfg(target_os = "linux")]
fn ask(address: *mut c_void, bytes: usize) {
    let start = (address as usize).next_multiple_of(HUGE_PAGE);
    let end = (address as usize + bytes) / HUGE_PAGE * HUGE_PAGE;
    if start < end {
        // SAFETY: the range lies within the result. The advice changes no content, and whether
        // it is taken makes no difference but to speed.
        unsafe { libc::madvise(start as *mut c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

/// Other systems can't be asked.
#[cfg(not(target_os = "linux"))]
fn ask(_: *mut c_void, _: usize) {}

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
        // SAFETY: there are so many numbers, or none at the address.
        let array = |address, count| unsafe { Buffer::lent(facts(address, count)) };
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
