//! Handlers that call no MPI: they are the same for all MPIs.

use super::call::buffers::check_blocks;
use crate::error::{Error, Result};
use crate::memory::{PartCopy, huge_pages};
use crate::xla::{self, Buffer, Frame, Handler, count_of};

/// An XLA handler that calls a function of a frame, with its name.
macro_rules! handler {
    ($name:literal, $body:ident) => {{
        unsafe extern "C" fn handler(
            frame: *mut xla::raw::XLA_FFI_CallFrame,
        ) -> *mut xla::raw::XLA_FFI_Error {
            // SAFETY: XLA calls the handler with a frame that it lends.
            unsafe { xla::enter(frame, $body) }
        }
        ($name, handler as Handler)
    }};
}

/// Those for arrays in host memory.
pub const ON_HOST: [(&str, Handler); 6] = [
    handler!("concatenate", concatenate),
    handler!("copy", copy),
    handler!("give_back", give_back),
    handler!("in_order", in_order),
    handler!("order", order),
    handler!("split", split),
];
/// Those for arrays in device memory.
pub const ON_DEVICE: [(&str, Handler); 2] = [
    handler!("in_order", in_order_on_device),
    handler!("order", order),
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

/// Copies parts of arrays to parts of results, stage after stage: the copies of a stage are independent.
/// The first operands may be what the results have in all other parts. Sources are the other operands
/// and, behind them, these results.
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
    for array in operands.iter().chain(&results[updated..]) {
        huge_pages::see(array.address, array.bytes());
    }
    let (old, sources) = operands.split_at(updated);
    check_same_memory(old, &results)?;
    let sources = [sources, &results[..updated]].concat();
    let numbers = frame.ints_attribute("copies")?;
    let copies = copies(&numbers, &sources, &results)?;
    for stage in stages(frame, &copies)? {
        PartCopy::make_all(stage);
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
            (array_at(sources, *source)?, *from),
            (array_at(results, *result)?, *to),
            loops,
        )?);
        rest = tail;
    }
    if rest.is_empty() {
        return Ok(copies);
    }
    Err(Error::invalid(format!("{rest:?} are not copies")))
}

/// The copies of each stage. In programs that an earlier version has exported, each copy is one.
fn stages<'p, 'a>(frame: &Frame, copies: &'p [PartCopy<'a>]) -> Result<Vec<&'p [PartCopy<'a>]>> {
    let sizes = frame.ints_attribute("stages");
    let sizes = sizes.unwrap_or_else(|_| vec![1; copies.len()]);
    let mut rest = copies;
    let mut take = |size: &i64| {
        let (stage, later) = rest.split_at_checked(usize::try_from(*size).ok()?)?;
        rest = later;
        Some(stage)
    };
    let stages = sizes.iter().map(&mut take).collect::<Option<Vec<_>>>();
    match stages {
        Some(stages) if rest.is_empty() => Ok(stages),
        _ => Err(Error::invalid(format!(
            "{} copies are not stages of {sizes:?}",
            copies.len()
        ))),
    }
}

/// Puts arrays one behind the other, along their last axis.
fn concatenate(frame: &Frame) -> Result<()> {
    let [whole] = frame.results()?;
    let parts = frame.all_operands()?;
    for (part, start, loops) in rows_of_parts(&parts, &whole)? {
        PartCopy::new((part, 0), (&whole, start), &loops)?.make();
    }
    Ok(())
}

/// Gives the parts of an array, along its last axis.
fn split(frame: &Frame) -> Result<()> {
    let [whole] = frame.operands()?;
    let parts = frame.all_results()?;
    for (part, start, mut loops) in rows_of_parts(&parts, &whole)? {
        loops.swap(1, 2);
        PartCopy::new((&whole, start), (part, 0), &loops)?.make();
    }
    Ok(())
}

/// Each part of an array, but for empty ones, with its first element in a row of the whole, and the
/// loops of a copy of it to there.
fn rows_of_parts<'p, 'a>(
    parts: &'p [Buffer<'a>],
    whole: &Buffer,
) -> Result<Vec<(&'p Buffer<'a>, i64, [i64; 6])>> {
    let Some((last, rows)) = whole.dims.split_last() else {
        return Err(Error::invalid("an array without axes has no parts"));
    };
    let row_count = count_of(rows);
    let mut start = 0;
    let mut copies = Vec::new();
    for part in parts {
        let fits = part.dtype == whole.dtype && part.dims.len() == rows.len() + 1;
        if !fits || part.dims[..rows.len()] != *rows {
            return Err(Error::invalid(format!(
                "an array of shape {:?} is no part of one of shape {:?}",
                part.dims, whole.dims
            )));
        }
        let length = part.dims[rows.len()];
        if part.count > 0 {
            copies.push((part, start, [row_count, length, *last, length, 1, 1]));
        }
        start += length;
    }
    if start != *last {
        return Err(Error::invalid(format!(
            "parts with {start} elements are not an array with {last}"
        )));
    }
    Ok(copies)
}

/// One of the arrays.
fn array_at<'p, 'a>(arrays: &'p [Buffer<'a>], index: i64) -> Result<&'p Buffer<'a>> {
    let array = usize::try_from(index).ok().and_then(|n| arrays.get(n));
    array.ok_or_else(|| Error::invalid(format!("there is no array {index}")))
}
