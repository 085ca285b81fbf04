//! Handlers that call no MPI: they are the same for all MPIs.

use super::call::buffers::check_blocks;
use crate::error::{Error, Result};
use crate::memory::{PartCopy, PartReturn, RowList, RowLoop, huge_pages};
use crate::xla::{self, Buffer, Frame, Handler, ResultBuffer, count_of};

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
    handler!("copy_transposed", copy_transposed),
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
    in_place(&frame.operands.all()?, frame).map(drop)
}

fn in_order_on_device(frame: &Frame) -> Result<()> {
    in_order(&frame.without_order_byte()?)
}

/// The results of a call, which are these operands.
fn in_place<'a>(operands: &[Buffer], frame: &Frame<'a>) -> Result<Vec<ResultBuffer<'a>>> {
    let results = frame.results.all()?;
    if operands.len() != results.len() {
        return Err(Error::invalid(format!(
            "{} results for {} operands",
            results.len(),
            operands.len()
        )));
    }
    check_same_memory(operands, &results)?;
    Ok(results)
}

fn check_same_memory(operands: &[Buffer], results: &[ResultBuffer]) -> Result<()> {
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
/// and, behind them, these results. Where copies go over listed rows, the last operand has the lists.
fn copy(frame: &Frame) -> Result<()> {
    let (mut operands, results) = (frame.operands.all()?, frame.results.all()?);
    let row_numbers = frame.attributes.optional_integers("rows")?;
    let table = row_numbers.as_ref().and_then(|_| operands.pop());
    let updated = frame.attributes.integer("updated")?;
    let (old, sources) = updated_and_others(updated, &operands, &results)?;
    if !old.is_empty() && old.len() != results.len() {
        return Err(not_updated(updated, &operands, &results));
    }
    see(&operands, &results[old.len()..]);
    let updated = results[..old.len()].iter().copied().map(Buffer::from);
    let sources: Vec<_> = sources.iter().copied().chain(updated).collect();
    let numbers = frame.attributes.integers("copies")?;
    // In programs that an earlier version has exported, each copy is a stage.
    let stages = frame.attributes.optional_integers("stages")?;
    let rows = RowTable::new(row_numbers.as_deref(), table.as_ref(), &results)?;
    let copies = decode(
        &numbers,
        &rows,
        |(source, from), (result, to), loops, rows| {
            let (source, result) = (array_at(&sources, source)?, array_at(&results, result)?);
            PartCopy::new((source, from), (result, to), loops, rows)
        },
    )?;
    make(&copies, stages.as_deref())
}

/// The transpose of copies between arrays, in place: from the last copy to the first, adds what is
/// where it would go to what is where it would come from, and leaves zeros.
fn copy_transposed(frame: &Frame) -> Result<()> {
    let mut operands = frame.operands.all()?;
    let row_numbers = frame.attributes.optional_integers("rows")?;
    let table = row_numbers.as_ref().and_then(|_| operands.pop());
    let arrays = in_place(&operands, frame)?;
    let numbers = frame.attributes.integers("copies")?;
    let rows = RowTable::new(row_numbers.as_deref(), table.as_ref(), &arrays)?;
    make_transposed_copies(&numbers, &rows, |index| array_at(&arrays, index).copied())
}

/// Splits the operands into the first `updated`, which the first results update, and the others. All of
/// these results have to be where their operands are.
fn updated_and_others<'p, 'a>(
    updated: i64,
    operands: &'p [Buffer<'a>],
    results: &[ResultBuffer],
) -> Result<(&'p [Buffer<'a>], &'p [Buffer<'a>])> {
    let halves = usize::try_from(updated)
        .ok()
        .filter(|count| *count <= results.len())
        .and_then(|count| operands.split_at_checked(count));
    let (old, others) = halves.ok_or_else(|| not_updated(updated, operands, results))?;
    check_same_memory(old, results)?;
    Ok((old, others))
}

#[cold]
fn not_updated(updated: i64, operands: &[Buffer], results: &[ResultBuffer]) -> Error {
    Error::invalid(format!(
        "{updated} of {} operands can't be updated by {} results",
        operands.len(),
        results.len()
    ))
}

/// Notes that a call copies between these operands and these results, which are new memory.
fn see(operands: &[Buffer], results: &[ResultBuffer]) {
    for array in operands {
        huge_pages::see(array.address, array.bytes());
    }
    for result in results {
        huge_pages::see_result(result.address, result.bytes());
    }
}

/// Arrays of a call that does not only copy. Their numbers are those of the operands and, behind them, of
/// the results. Any of them may be read, but only a result is written, also by the number of the operand
/// that it updates.
pub(super) struct NumberedArrays<'a> {
    operands: Vec<Buffer<'a>>,
    results: Vec<ResultBuffer<'a>>,
    /// Number of leading operands that the first results update.
    updated: usize,
}

impl<'a> NumberedArrays<'a> {
    pub fn new(
        updated: i64,
        operands: Vec<Buffer<'a>>,
        results: Vec<ResultBuffer<'a>>,
    ) -> Result<Self> {
        let (old, _) = updated_and_others(updated, &operands, &results)?;
        let updated = old.len();
        see(&operands, &results[updated..]);
        Ok(Self {
            operands,
            results,
            updated,
        })
    }

    /// An array to be read.
    #[inline(always)]
    pub fn source(&self, array_number: i64) -> Result<Buffer<'a>> {
        let index = usize::try_from(array_number).unwrap_or(usize::MAX);
        if let Some(operand) = self.operands.get(index) {
            return Ok(*operand);
        }
        self.result(array_number).map(|result| *result)
    }

    /// An array to be written.
    #[inline(always)]
    pub fn result(&self, array_number: i64) -> Result<ResultBuffer<'a>> {
        let index = usize::try_from(array_number).unwrap_or(usize::MAX);
        let own_index = match index.checked_sub(self.operands.len()) {
            Some(own_index) => own_index,
            None if index < self.updated => index,
            None => return Err(not_written(array_number)),
        };
        let result = self.results.get(own_index);
        result.copied().ok_or_else(|| no_array(array_number))
    }

    /// Makes copies, or the transpose of copies. The lists are:
    ///
    /// - the numbers of the copies;
    /// - how many copies each stage has, or nothing if it is the transpose that is made;
    /// - if copies go over listed rows: the number of the array with the lists of rows, and then the
    ///   numbers of a [`RowTable`].
    pub fn make_copies(&self, [numbers, stages, rows]: [&[i64]; 3]) -> Result<()> {
        let rows = match rows {
            [] => RowTable::default(),
            [table, numbers @ ..] => {
                let table = self.source(*table)?;
                RowTable::new(Some(numbers), Some(&table), &self.results)?
            }
        };
        if stages.is_empty() {
            return make_transposed_copies(numbers, &rows, |array_number| {
                self.result(array_number)
            });
        }
        let copies = decode(
            numbers,
            &rows,
            |(source, from), (result, to), loops, rows| {
                let (source, result) = (self.source(source)?, self.result(result)?);
                PartCopy::new((&source, from), (&result, to), loops, rows)
            },
        )?;
        make(&copies, Some(stages))
    }
}

#[cold]
fn not_written(array_number: i64) -> Error {
    Error::invalid(format!(
        "array {array_number} can't be written: no result updates the operand"
    ))
}

#[cold]
fn no_array(array_number: i64) -> Error {
    Error::invalid(format!("there is no array {array_number}"))
}

/// A part of an array: the number of the array, and the first element.
type PartStart = (i64, i64);

/// Decodes numbers that stand for copies: for each the places and the first elements of source and
/// result, and the number of its loops, before these. `new` makes a copy of them.
fn decode<'a, C>(
    numbers: &'a [i64],
    rows: &'a RowTable,
    new: impl Fn(PartStart, PartStart, &'a [i64], Option<RowLoop<'a>>) -> Result<C>,
) -> Result<Vec<C>> {
    let mut copies = Vec::with_capacity(numbers.len() / 5);
    let mut rest = numbers;
    while let [source, from, result, to, loop_count, tail @ ..] = rest {
        let length = usize::try_from(*loop_count).map(|count| count.saturating_mul(3));
        let Some((loops, tail)) = tail.split_at_checked(length.unwrap_or(usize::MAX)) else {
            return Err(Error::invalid(format!(
                "{tail:?} are not the loops of {loop_count} axes"
            )));
        };
        let row_loop = rows.row_loop(copies.len(), loops)?;
        copies.push(new((*source, *from), (*result, *to), loops, row_loop)?);
        rest = tail;
    }
    if rest.is_empty() {
        return Ok(copies);
    }
    Err(Error::invalid(format!("{rest:?} are not copies")))
}

/// The rows of copies that go over listed rows.
#[derive(Default)]
struct RowTable<'a> {
    /// All lists, one after the other.
    rows: &'a [i32],
    /// For each copy, how many loops are outside of that over the rows, or -1 without such a loop. Then
    /// for the source and for the result: where the list begins, or -1 without one, and how many rows
    /// the array has.
    numbers: &'a [i64],
}

impl<'a> RowTable<'a> {
    /// The numbers of copies, and the array with the lists, if there are such. The copies write to these
    /// results.
    fn new(
        numbers: Option<&'a [i64]>,
        table: Option<&Buffer<'a>>,
        results: &[ResultBuffer],
    ) -> Result<Self> {
        let Some(numbers) = numbers else {
            return Ok(Self::default());
        };
        let rows = table.and_then(Buffer::as_ints);
        let rows = rows.ok_or_else(|| Error::invalid("the last operand is not a list of rows"))?;
        // Rows are looked at before they are used.
        let is_written = |table| results.iter().any(|result| result.overlaps(table));
        if table.is_some_and(is_written) {
            return Err(Error::invalid("a list of rows is in memory of a result"));
        }
        Ok(Self { rows, numbers })
    }

    /// The loop of a copy over listed rows, if it has one.
    #[inline(always)]
    fn row_loop(&self, copy: usize, loops: &[i64]) -> Result<Option<RowLoop<'a>>> {
        let Some(&[outer, ref lists @ ..]) = self.numbers.get(5 * copy..5 * copy + 5) else {
            return Ok(None);
        };
        let Ok(outer) = usize::try_from(outer) else {
            return Ok(None);
        };
        let size = loops.get(outer.saturating_mul(3)).copied().unwrap_or(-1);
        Ok(Some(RowLoop {
            outer,
            source: self.list(lists[0], size, lists[1])?,
            result: self.list(lists[2], size, lists[3])?,
        }))
    }

    fn list(&self, start: i64, size: i64, limit: i64) -> Result<Option<RowList<'a>>> {
        if start < 0 {
            return Ok(None);
        }
        let range = usize::try_from(start).ok().zip(usize::try_from(size).ok());
        let rows = range.and_then(|(start, size)| self.rows.get(start..start.checked_add(size)?));
        let rows = rows.ok_or_else(|| {
            let length = self.rows.len();
            Error::invalid(format!(
                "{size} rows from {start} are not in a list of {length}"
            ))
        })?;
        Ok(Some(RowList { rows, limit }))
    }
}

/// Makes copies, stage after stage. `stages` has the number of copies in each; without it, that is one.
fn make(copies: &[PartCopy], stages: Option<&[i64]>) -> Result<()> {
    let Some(stages) = stages else {
        copies.iter().for_each(PartCopy::make);
        return Ok(());
    };
    let sizes = stages.iter().map(|size| usize::try_from(*size).ok());
    let count = sizes
        .clone()
        .try_fold(0, |sum: usize, size| sum.checked_add(size?));
    if count != Some(copies.len()) {
        return Err(Error::invalid(format!(
            "{} copies are not stages of {stages:?}",
            copies.len()
        )));
    }
    let mut rest = copies;
    for size in sizes.flatten() {
        let (stage, later) = rest.split_at(size);
        PartCopy::make_all(stage);
        rest = later;
    }
    Ok(())
}

/// Makes the transpose of copies between arrays that are all written: from the last copy to the first.
fn make_transposed_copies<'a>(
    numbers: &[i64],
    rows: &RowTable,
    array: impl Fn(i64) -> Result<ResultBuffer<'a>>,
) -> Result<()> {
    let returns = decode(
        numbers,
        rows,
        |(source, from), (result, to), loops, rows| {
            let (source, result) = (array(source)?, array(result)?);
            PartReturn::new((&source, from), (&result, to), loops, rows)
        },
    )?;
    returns.iter().rev().try_for_each(PartReturn::make)
}

/// Puts arrays one behind the other, along their last axis.
fn concatenate(frame: &Frame) -> Result<()> {
    let [whole] = frame.results.exactly()?;
    let parts = frame.operands.all()?;
    for (part, start, loops) in rows_of_parts(&parts, &whole)? {
        PartCopy::new((part, 0), (&whole, start), &loops, None)?.make();
    }
    Ok(())
}

/// Gives the parts of an array, along its last axis.
fn split(frame: &Frame) -> Result<()> {
    let [whole] = frame.operands.exactly()?;
    let parts = frame.results.all()?;
    for (part, start, mut loops) in rows_of_parts(&parts, &whole)? {
        loops.swap(1, 2);
        PartCopy::new((&whole, start), (part, 0), &loops, None)?.make();
    }
    Ok(())
}

/// Each part of an array, but for empty ones, with its first element in a row of the whole, and the
/// loops of a copy of it to there.
fn rows_of_parts<'a, 'p, B: Copy + Into<Buffer<'a>>>(
    parts: &'p [B],
    whole: &Buffer,
) -> Result<Vec<(&'p B, i64, [i64; 6])>> {
    let Some((last, rows)) = whole.dims.split_last() else {
        return Err(Error::invalid("an array without axes has no parts"));
    };
    let row_count = count_of(rows);
    let mut start = 0;
    let mut copies = Vec::new();
    for array in parts {
        let part: Buffer = (*array).into();
        let fits = part.dtype == whole.dtype && part.dims.len() == rows.len() + 1;
        if !fits || part.dims[..rows.len()] != *rows {
            return Err(Error::invalid(format!(
                "an array of shape {:?} is no part of one of shape {:?}",
                part.dims, whole.dims
            )));
        }
        let length = part.dims[rows.len()];
        if part.count > 0 {
            copies.push((array, start, [row_count, length, *last, length, 1, 1]));
        }
        start = length.saturating_add(start);
    }
    if start != *last {
        return Err(Error::invalid(format!(
            "parts with {start} elements are not an array with {last}"
        )));
    }
    Ok(copies)
}

/// One of the arrays.
#[inline(always)]
fn array_at<T>(arrays: &[T], index: i64) -> Result<&T> {
    let array = usize::try_from(index).ok().and_then(|n| arrays.get(n));
    array.ok_or_else(|| no_array(index))
}
