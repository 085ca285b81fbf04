//! Handlers that call no MPI: they are the same for all MPIs.

use std::ops::Add;
use std::ptr;

use super::call::buffers::{check_blocks, measure};
use crate::error::{Error, Result};
use crate::xla::raw::{self, XLA_FFI_DataType};
use crate::xla::{Buffer, Frame, Handler};

/// Makes XLA handlers of functions of a frame.
macro_rules! handlers {
    ($($name:ident),*) => {
        mod handler {
            use crate::xla;

            $(
                pub unsafe extern "C" fn $name(
                    frame: *mut xla::raw::XLA_FFI_CallFrame,
                ) -> *mut xla::raw::XLA_FFI_Error {
                    // SAFETY: XLA calls the handler with a frame that it lends.
                    unsafe { xla::enter(frame, super::$name) }
                }
            )*
        }
    };
}

handlers!(
    concatenate,
    copy,
    give_back,
    in_order,
    in_order_on_device,
    order,
    split
);

/// Those for arrays in host memory.
pub const ON_HOST: [(&str, Handler); 6] = [
    ("concatenate", handler::concatenate),
    ("copy", handler::copy),
    ("give_back", handler::give_back),
    ("in_order", handler::in_order),
    ("order", handler::order),
    ("split", handler::split),
];
/// Those for arrays in device memory.
pub const ON_DEVICE: [(&str, Handler); 2] = [
    ("in_order", handler::in_order_on_device),
    ("order", handler::order),
];

/// Makes a token of the byte that orders calls on GPUs, or a byte of a token: neither holds data.
fn order(_: &Frame) -> Result<()> {
    Ok(())
}

/// Gives its operands as they are, in order with all calls before and after it.
fn in_order(frame: &Frame) -> Result<()> {
    in_place(frame).map(drop)
}

fn in_order_on_device(frame: &Frame) -> Result<()> {
    in_order(&frame.without_order_byte()?)
}

/// The arrays of a call that has each operand as a result, too.
fn in_place<'a>(frame: &Frame<'a>) -> Result<Vec<Buffer<'a>>> {
    let (operands, results) = (frame.all_operands()?, frame.all_results()?);
    if operands.len() != results.len() {
        return Err(Error::invalid(format!(
            "{} results for {} operands",
            results.len(),
            operands.len()
        )));
    }
    check_same_memory(&operands, &results)?;
    Ok(results)
}

fn check_same_memory(operands: &[Buffer], results: &[Buffer]) -> Result<()> {
    for (operand, result) in operands.iter().zip(results) {
        check_blocks(result, operand, 1)?;
        if operand.address != result.address {
            return Err(Error::invalid(
                "XLA has given a result memory of its own that is to take its operand's",
            ));
        }
    }
    Ok(())
}

/// Copies parts of arrays to parts of results, one after the other. The first operands may be what
/// the results have in all other parts. Sources are the other operands and, behind them, these
/// results.
fn copy(frame: &Frame) -> Result<()> {
    let (operands, results) = (frame.all_operands()?, frame.all_results()?);
    let updated = frame.attribute("updated")? as usize;
    if updated > operands.len() || (updated != 0 && updated != results.len()) {
        return Err(Error::invalid(format!(
            "{updated} of {} operands can't be updated by {} results",
            operands.len(),
            results.len()
        )));
    }
    let (old, sources) = operands.split_at(updated);
    check_same_memory(old, &results)?;
    let sources = [sources, &results[..updated]].concat();
    let numbers = frame.ints_attribute("copies")?;
    for copy in copies(&numbers, &sources, &results)? {
        copy.make();
    }
    Ok(())
}

/// The transpose of copies between arrays, in place: from the last copy to the first, adds what is
/// where it would go to what is where it would come from, and leaves zeros.
fn give_back(frame: &Frame) -> Result<()> {
    let arrays = in_place(frame)?;
    let numbers = frame.ints_attribute("copies")?;
    for copy in copies(&numbers, &arrays, &arrays)?.iter().rev() {
        copy.give_back()?;
    }
    Ok(())
}

/// The copies that numbers stand for: for each the places and the first elements of source and
/// result, and the number of its loops, before these.
fn copies<'a>(
    numbers: &'a [i64],
    sources: &[Buffer],
    results: &[Buffer],
) -> Result<Vec<PartCopy<'a>>> {
    let mut copies = Vec::new();
    let mut rest = numbers;
    while let [source, from, result, to, loop_count, tail @ ..] = rest {
        let length = usize::try_from(*loop_count).map(|count| count.saturating_mul(3));
        let Some((loops, tail)) = tail.split_at_checked(length.unwrap_or(usize::MAX)) else {
            return Err(Error::invalid(format!(
                "{tail:?} are not the loops of {loop_count} axes"
            )));
        };
        copies.push(PartCopy::new(
            Part::new(sources, *source, *from, loops, 1)?,
            Part::new(results, *result, *to, loops, 2)?,
            loops,
        )?);
        rest = tail;
    }
    if rest.is_empty() {
        return Ok(copies);
    }
    Err(Error::invalid(format!("{rest:?} are not copies")))
}

/// A part of an array.
struct Part {
    dtype: XLA_FFI_DataType,
    bytes_of_element: usize,
    /// Where its first element is.
    address: *mut u8,
}

impl Part {
    /// A part of one of the arrays, which is checked to be in there. A loop is three numbers: how
    /// often, and by how many elements from one to the next, of the source and of the result. `step`
    /// is the place of the one that counts.
    fn new(arrays: &[Buffer], index: i64, start: i64, loops: &[i64], step: usize) -> Result<Self> {
        let array = usize::try_from(index).ok().and_then(|n| arrays.get(n));
        let array = array.ok_or_else(|| Error::invalid(format!("there is no array {index}")))?;
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
        let (datatype, _) = measure(array)?;
        let bytes = start as usize * datatype.size;
        Ok(Self {
            dtype: array.dtype,
            bytes_of_element: datatype.size,
            address: array.address.cast::<u8>().wrapping_add(bytes),
        })
    }
}

/// A copy from one part to another of the same type.
struct PartCopy<'a> {
    from: Part,
    to: Part,
    loops: &'a [i64],
}

impl<'a> PartCopy<'a> {
    fn new(from: Part, to: Part, loops: &'a [i64]) -> Result<Self> {
        if from.dtype == to.dtype {
            return Ok(Self { from, to, loops });
        }
        Err(Error::invalid(format!(
            "XLA type {} can't be copied to XLA type {}",
            from.dtype, to.dtype
        )))
    }

    fn make(&self) {
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
    fn give_back(&self) -> Result<()> {
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

/// Puts arrays one behind the other, along their last axis.
fn concatenate(frame: &Frame) -> Result<()> {
    let [whole] = frame.results()?;
    let copy = |part: *mut u8, whole, bytes| {
        // SAFETY: both have so many bytes there, as `for_each_row` says.
        unsafe { ptr::copy_nonoverlapping(part.cast_const(), whole, bytes) }
    };
    for_each_row(&frame.all_operands()?, &whole, copy)
}

/// Gives the parts of an array, along its last axis.
fn split(frame: &Frame) -> Result<()> {
    let [whole] = frame.operands()?;
    let copy = |part, whole: *mut u8, bytes| {
        // SAFETY: both have so many bytes there, as `for_each_row` says.
        unsafe { ptr::copy_nonoverlapping(whole.cast_const(), part, bytes) }
    };
    for_each_row(&frame.all_results()?, &whole, copy)
}

/// Calls `copy` for each row of each part: where it is there, where in the whole, and how long.
fn for_each_row(
    parts: &[Buffer],
    whole: &Buffer,
    copy: impl Fn(*mut u8, *mut u8, usize),
) -> Result<()> {
    let (datatype, bytes) = measure(whole)?;
    let Some((last, rows)) = whole.dims.split_last() else {
        return Err(Error::invalid("an array without axes has no parts"));
    };
    let mut length = 0;
    for part in parts {
        let fits = part.dtype == whole.dtype && part.dims.len() == rows.len() + 1;
        if !fits || part.dims[..rows.len()] != *rows {
            return Err(Error::invalid(format!(
                "an array of shape {:?} is no part of one of shape {:?}",
                part.dims, whole.dims
            )));
        }
        length += part.dims[rows.len()];
    }
    if length != *last {
        return Err(Error::invalid(format!(
            "parts with {length} elements are not an array with {last}"
        )));
    }
    if bytes == 0 {
        return Ok(());
    }
    let row_bytes = *last as usize * datatype.size;
    let mut start = 0;
    for part in parts {
        let part_bytes = part.dims[rows.len()] as usize * datatype.size;
        for row in 0..bytes / row_bytes {
            copy(
                part.address.cast::<u8>().wrapping_add(row * part_bytes),
                whole
                    .address
                    .cast::<u8>()
                    .wrapping_add(row * row_bytes + start),
                part_bytes,
            );
        }
        start += part_bytes;
    }
    Ok(())
}
