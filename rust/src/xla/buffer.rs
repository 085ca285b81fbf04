//! The arrays of a call.

use std::ffi::c_void;
use std::ops::{Deref, Range};
use std::ptr;

use super::data_types::data_type_size;
use super::raw::{XLA_FFI_DataType, XLA_FFI_DataType_S32};

/// One array of a call: an operand that may be read, or a result that must be written. It is there for as
/// long as XLA lends it, `'a`. Nobody can have one that is elsewhere:
///
/// ```compile_fail,E0594
/// fn moved(mut array: _core::xla::Buffer) {
///     array.address = std::ptr::null_mut();
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Buffer<'a>(BufferFacts<'a>);

/// The facts of an array. All may read them, and nobody changes those of a [`Buffer`].
#[derive(Debug, Clone, Copy)]
pub struct BufferFacts<'a> {
    /// Address of the elements, on the host or on a device.
    pub address: *mut c_void,
    /// The type of its elements.
    pub dtype: XLA_FFI_DataType,
    /// Its shape.
    pub dims: &'a [i64],
    /// The number of elements.
    pub count: i64,
}

impl<'a> Deref for Buffer<'a> {
    type Target = BufferFacts<'a>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'a> Buffer<'a> {
    /// # Safety
    /// The array has its `count` elements at its address, and stays there for `'a`.
    #[inline(always)]
    pub(crate) const unsafe fn lent(facts: BufferFacts<'a>) -> Self {
        Self(facts)
    }

    /// Elements of an array of 32-bit integers in host memory, which no one writes.
    pub fn as_ints(&self) -> Option<&'a [i32]> {
        let start: *const i32 = self.address.cast();
        let count = usize::try_from(self.count).ok()?;
        let fits = count <= isize::MAX as usize / size_of::<i32>();
        if self.dtype != XLA_FFI_DataType_S32 || !fits || start.is_null() || !start.is_aligned() {
            return None;
        }
        // SAFETY: the promise of `lent`, and this array is an operand only.
        Some(unsafe { std::slice::from_raw_parts(start, count) })
    }

    pub(super) const fn nowhere(dtype: XLA_FFI_DataType, count: i64) -> Self {
        Self(BufferFacts {
            address: ptr::null_mut(),
            dtype,
            dims: &[],
            count,
        })
    }

    /// A contiguous part of the array: `count` elements from `first` on, if it has them.
    pub fn part(&self, first: i64, count: i64) -> Option<Self> {
        let end = first.checked_add(count)?;
        if first < 0 || count < 0 || end > self.count {
            return None;
        }
        let start = usize::try_from(first)
            .ok()?
            .checked_mul(data_type_size(self.dtype))?;
        Some(Self(BufferFacts {
            address: self.address.wrapping_byte_add(start),
            dims: &[],
            count,
            ..self.0
        }))
    }

    /// Number of bytes of the elements at the address.
    pub fn bytes(&self) -> usize {
        if self.address.is_null() {
            return 0;
        }
        let count = usize::try_from(self.count).unwrap_or(0);
        count.saturating_mul(data_type_size(self.dtype))
    }

    /// Addresses of its bytes.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.address.addr();
        start..start.saturating_add(self.bytes())
    }

    /// Whether some of its bytes are another array's.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (own, others) = (self.addresses(), other.addresses());
        own.start.max(others.start) < own.end.min(others.end)
    }
}

/// Array that a call may write: one of its results. JAX may use an operand elsewhere, so a call may
/// write the operand's memory only if a result takes that memory:
///
/// ```compile_fail,E0423
/// fn written(operand: _core::xla::Buffer) -> _core::xla::ResultBuffer {
///     _core::xla::ResultBuffer(operand)
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ResultBuffer<'a>(Buffer<'a>);

impl<'a> Deref for ResultBuffer<'a> {
    type Target = Buffer<'a>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'a> From<ResultBuffer<'a>> for Buffer<'a> {
    #[inline(always)]
    fn from(result: ResultBuffer<'a>) -> Self {
        result.0
    }
}

impl<'a> ResultBuffer<'a> {
    /// # Safety
    /// As for [`Buffer::lent`], and nobody else uses the array.
    #[inline(always)]
    pub(crate) const unsafe fn lent(facts: BufferFacts<'a>) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Buffer::lent(facts) })
    }

    /// An array that is nowhere yet.
    pub const fn nowhere(dtype: XLA_FFI_DataType, count: i64) -> Self {
        Self(Buffer::nowhere(dtype, count))
    }

    /// [`Buffer::part`] of an array that may be written.
    pub fn part(&self, first: i64, count: i64) -> Option<Self> {
        self.0.part(first, count).map(Self)
    }
}

/// Number of elements of an array of this shape, whose sizes are not negative.
#[inline(always)]
pub fn count_of(dims: &[i64]) -> i64 {
    dims.iter().fold(1, |count, dim| count.saturating_mul(*dim))
}

/// Number of elements of an array, if no size in its shape is negative.
#[inline(always)]
pub(super) fn checked_count(dims: &[i64]) -> Option<i64> {
    let signs = dims.iter().fold(0, |signs, dim| signs | dim);
    (signs >= 0).then(|| count_of(dims))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xla::raw::XLA_FFI_DataType_F64;

    #[test]
    fn a_part_of_an_array_lies_within_it() {
        let mut numbers = [0.0_f64; 6];
        let address: *mut c_void = numbers.as_mut_ptr().cast();
        // SAFETY: the array has that many elements, and outlives the buffer.
        let array = unsafe {
            Buffer::lent(BufferFacts {
                address,
                dtype: XLA_FFI_DataType_F64,
                dims: &[2, 3],
                count: 6,
            })
        };
        let part = array.part(2, 3).expect("it has these elements");
        assert_eq!(part.address, address.wrapping_byte_add(16));
        assert_eq!((part.count, part.bytes()), (3, 24));
        assert!(array.part(6, 0).is_some());
        for (first, count) in [(4, 3), (-1, 2), (0, -1), (1, i64::MAX)] {
            assert!(array.part(first, count).is_none());
        }
    }
}
