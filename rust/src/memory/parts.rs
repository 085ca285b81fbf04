//! Copies between parts of arrays in host memory.

use std::ops::Add;
use std::ptr;

use crate::error::{Error, Result};
use crate::mpi::REGISTRY;
use crate::xla::Buffer;
use crate::xla::raw::{self, XLA_FFI_DataType};

/// A part of an array.
struct Part {
    dtype: XLA_FFI_DataType,
    bytes_of_element: usize,
    /// Where its first element is.
    address: *mut u8,
}

impl Part {
    /// A part of an array, which is checked to be in there. A loop is three numbers: how often, and by
    /// how many elements from one to the next, of the source and of the result. `step` is the place of
    /// the one that counts.
    fn new(array: &Buffer, start: i64, loops: &[i64], step: usize) -> Result<Self> {
        let bytes_of_element = REGISTRY.datatype(array.dtype)?.size;
        let last = loops.chunks_exact(3).try_fold(start, |last, numbers| {
            let (size, step) = (numbers[0], numbers[step]);
            let is_loop = size > 0 && step >= 0;
            is_loop.then(|| last.saturating_add((size - 1).saturating_mul(step)))
        });
        if start < 0 || last.is_none_or(|last| last >= array.count) {
            return Err(Error::invalid(format!(
                "{loops:?} from element {start} are not in an array of shape {:?}",
                array.dims
            )));
        }
        let bytes = start as usize * bytes_of_element;
        Ok(Self {
            dtype: array.dtype,
            bytes_of_element,
            address: array.address.cast::<u8>().wrapping_add(bytes),
        })
    }
}

/// A copy from one part to another of the same type.
pub struct PartCopy<'a> {
    from: Part,
    to: Part,
    loops: &'a [i64],
}

impl<'a> PartCopy<'a> {
    /// A copy of the part of one array that begins at element `from` to that of another one which begins
    /// at element `to`.
    pub fn new(
        (source, from): (&Buffer, i64),
        (result, to): (&Buffer, i64),
        loops: &'a [i64],
    ) -> Result<Self> {
        let from = Part::new(source, from, loops, 1)?;
        let to = Part::new(result, to, loops, 2)?;
        if from.dtype == to.dtype {
            return Ok(Self { from, to, loops });
        }
        Err(Error::invalid(format!(
            "XLA type {} can't be copied to XLA type {}",
            from.dtype, to.dtype
        )))
    }

    /// Makes the copy.
    pub fn make(&self) {
        let (from, to, loops) = (self.from.address, self.to.address, self.loops);
        // SAFETY: both parts are in their arrays, and XLA aligns these.
        unsafe {
            match self.from.bytes_of_element {
                1 => copy_elements::<u8>(from, to, loops),
                2 => copy_elements::<u16>(from.cast(), to.cast(), loops),
                4 => copy_elements::<u32>(from.cast(), to.cast(), loops),
                8 => copy_elements::<u64>(from.cast(), to.cast(), loops),
                _ => copy_elements::<[u64; 2]>(from.cast(), to.cast(), loops),
            }
        }
    }

    /// Makes the transpose of the copy.
    pub fn give_back(&self) -> Result<()> {
        let (from, to, loops) = (self.from.address, self.to.address, self.loops);
        let floats = (from.cast::<f32>(), to.cast::<f32>());
        let doubles = (from.cast::<f64>(), to.cast::<f64>());
        // SAFETY: both parts are in their arrays, and XLA aligns these.
        unsafe {
            match self.from.dtype {
                raw::XLA_FFI_DataType_F32 => give_back_elements(floats.0, floats.1, loops),
                raw::XLA_FFI_DataType_F64 => give_back_elements(doubles.0, doubles.1, loops),
                raw::XLA_FFI_DataType_C64 => give_back_elements(floats.0, floats.1, &twice(loops)),
                raw::XLA_FFI_DataType_C128 => {
                    give_back_elements(doubles.0, doubles.1, &twice(loops));
                }
                dtype => {
                    return Err(Error::invalid(format!(
                        "numbers of XLA type {dtype} can't be added"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Loops over the real numbers in complex ones, which are two, one behind the other.
fn twice(loops: &[i64]) -> Vec<i64> {
    let steps = |numbers: &[i64]| [numbers[0], 2 * numbers[1], 2 * numbers[2]];
    let loops = loops.chunks_exact(3).flat_map(steps);
    loops.chain([2, 1, 1]).collect()
}

/// Copies elements, by loops one in the other.
///
/// # Safety
/// All of them are there, on both sides.
unsafe fn copy_elements<T: Copy>(mut from: *const T, mut to: *mut T, loops: &[i64]) {
    let [size, source, result, inner @ ..] = loops else {
        // SAFETY: the caller's promise.
        unsafe { to.write(from.read()) };
        return;
    };
    if matches!((source, result, inner), (1, 1, [])) {
        // SAFETY: the caller's promise. Both may be parts of one array.
        unsafe { ptr::copy(from, to, *size as usize) };
        return;
    }
    for _ in 0..*size {
        // SAFETY: the caller's promise.
        unsafe {
            if inner.is_empty() {
                to.write(from.read());
            } else {
                copy_elements(from, to, inner);
            }
        }
        from = from.wrapping_offset(*source as isize);
        to = to.wrapping_offset(*result as isize);
    }
}

/// Adds elements to others and leaves zeros, by loops one in the other.
///
/// # Safety
/// All of them are there, on both sides.
unsafe fn give_back_elements<T>(from: *mut T, to: *mut T, loops: &[i64])
where
    T: Copy + Default + Add<Output = T>,
{
    let (size, source, result, inner) = match loops {
        [size, source, result, inner @ ..] => (*size, *source, *result, inner),
        [..] => (1, 0, 0, &[][..]),
    };
    for index in 0..size as isize {
        let from = from.wrapping_offset(index * source as isize);
        let to = to.wrapping_offset(index * result as isize);
        // SAFETY: the caller's promise.
        unsafe {
            if inner.is_empty() {
                from.write(from.read() + to.read());
                to.write(T::default());
            } else {
                give_back_elements(from, to, inner);
            }
        }
    }
}
