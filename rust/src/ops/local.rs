//! Handlers that call no MPI: they are the same for all MPIs.

use std::ptr;

use super::buffers::{check_blocks, measure};
use crate::error::{Error, Result};
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

handlers!(concatenate, in_order, split);

/// Those for arrays anywhere.
pub const ANYWHERE: [(&str, Handler); 1] = [("in_order", handler::in_order)];
/// Those for arrays in host memory.
pub const ON_HOST: [(&str, Handler); 2] = [
    ("concatenate", handler::concatenate),
    ("split", handler::split),
];

/// Gives its operands as they are, in order with all calls before and after it.
fn in_order(frame: &Frame) -> Result<()> {
    let (operands, results) = (frame.all_operands()?, frame.all_results()?);
    if operands.len() != results.len() {
        return Err(Error::invalid(format!(
            "{} results for {} operands",
            results.len(),
            operands.len()
        )));
    }
    for (operand, result) in operands.iter().zip(&results) {
        check_blocks(result, operand, 1)?;
        if operand.address != result.address {
            return Err(Error::invalid(
                "XLA has given a result memory of its own that is to take its operand's",
            ));
        }
    }
    Ok(())
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
