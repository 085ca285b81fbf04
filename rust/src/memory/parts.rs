//! Copies between parts of arrays in host memory.

use std::ops::Add;
use std::ptr;

use crate::error::{Error, Result};
use crate::xla::raw::{self, XLA_FFI_DataType};
use crate::xla::{Buffer, ResultBuffer, data_type_size};

/// A part of an array.
struct ArrayPart {
    dtype: XLA_FFI_DataType,
    bytes_of_element: usize,
    /// Address of the first element.
    address: *mut u8,
}

impl ArrayPart {
    /// The part of an array that loops visit, checked to lie in it. A loop is three numbers: its count,
    /// and its strides in the source and in the result, in elements. `step` is the index of the stride
    /// in this array. Listed rows may be any of its rows.
    #[inline(always)]
    fn new(
        array: &Buffer,
        start: i64,
        loops: &[i64],
        step: usize,
        listed: Option<(usize, RowList)>,
    ) -> Result<Self> {
        let mut last = Some(start);
        for (index, numbers) in loops.chunks_exact(3).enumerate() {
            let (size, step) = match listed {
                Some((outer, list)) if outer == index => (list.limit, numbers[step]),
                _ => (numbers[0], numbers[step]),
            };
            let is_loop = size > 0 && step >= 0;
            let length = (size - 1).saturating_mul(step);
            last = last
                .filter(|_| is_loop)
                .map(|last| last.saturating_add(length));
        }
        if start < 0 || last.is_none_or(|last| last >= array.count) {
            let mut loops = loops.to_vec();
            if let Some((outer, list)) = listed {
                loops[3 * outer] = list.limit;
            }
            return Err(Error::invalid(format!(
                "{loops:?} from element {start} are not in an array of shape {:?}",
                array.dims
            )));
        }
        let bytes_of_element = data_type_size(array.dtype);
        if bytes_of_element == 0 {
            return Err(Error::invalid(format!(
                "elements of XLA type {} can't be copied",
                array.dtype
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

/// Number of listed rows that are checked at once. Checking each as it is copied would take a third longer.
const CHECKED: usize = 64;

/// Indices of rows that a loop follows, in place of consecutive rows. The array has no row of an index
/// beyond its last one: what would be read there is zero, and what would be written is dropped.
#[derive(Clone, Copy)]
pub struct RowList<'a> {
    pub rows: &'a [i32],
    /// Number of rows of the array.
    pub limit: i64,
}

impl RowList<'_> {
    #[inline(always)]
    fn get(&self, index: i64) -> Option<i64> {
        let row = i64::from(self.rows[index as usize]);
        (0..self.limit).contains(&row).then_some(row)
    }

    /// Calls a function with each position in the list and its row, if the array has that row.
    #[inline(always)]
    fn for_each(&self, mut make: impl FnMut(i64, Option<i64>)) {
        let limit = i32::try_from(self.limit).unwrap_or(i32::MAX);
        let mut index = 0;
        for rows in self.rows.chunks(CHECKED) {
            let are_there = |all, row: &i32| all & (*row >= 0) & (*row < limit);
            if rows.iter().fold(true, are_there) {
                for row in rows {
                    make(index, Some(i64::from(*row)));
                    index += 1;
                }
            } else {
                for _ in rows {
                    make(index, self.get(index));
                    index += 1;
                }
            }
        }
    }
}

/// The loop of a copy that goes over listed rows of the source, of the result, or of both.
#[derive(Clone, Copy)]
pub struct RowLoop<'a> {
    /// Number of loops outside of this one.
    pub outer: usize,
    pub source: Option<RowList<'a>>,
    pub result: Option<RowList<'a>>,
}

impl RowLoop<'_> {
    /// Calls a function with the rows of source and result at each position, if the arrays have them.
    #[inline(always)]
    fn for_each(&self, size: i64, mut make: impl FnMut([Option<i64>; 2])) {
        // Compilers would ask in each round which lists there are.
        match (self.source, self.result) {
            (None, None) => (0..size).for_each(|row| make([Some(row); 2])),
            (Some(from), None) => from.for_each(|index, row| make([row, Some(index)])),
            (None, Some(to)) => to.for_each(|index, row| make([Some(index), row])),
            (Some(from), Some(to)) => (0..size).for_each(|n| make([from.get(n), to.get(n)])),
        }
    }
}

/// A copy from one part to another of the same type.
pub struct PartCopy<'a> {
    from: ArrayPart,
    to: ArrayPart,
    loops: &'a [i64],
    row_loop: Option<RowLoop<'a>>,
}

impl<'a> PartCopy<'a> {
    /// A copy between parts of two arrays, which begin at these elements.
    #[inline(always)]
    pub fn new(
        source: (&Buffer, i64),
        result: (&ResultBuffer, i64),
        loops: &'a [i64],
        row_loop: Option<RowLoop<'a>>,
    ) -> Result<Self> {
        let listed = |list_of: fn(&RowLoop<'a>) -> Option<RowList<'a>>| {
            let row_loop = row_loop.as_ref()?;
            Some((row_loop.outer, list_of(row_loop)?))
        };
        let from = ArrayPart::new(source.0, source.1, loops, 1, listed(|rows| rows.source))?;
        let to = ArrayPart::new(result.0, result.1, loops, 2, listed(|rows| rows.result))?;
        if from.dtype == to.dtype {
            return Ok(Self {
                from,
                to,
                loops,
                row_loop,
            });
        }
        Err(Error::invalid(format!(
            "XLA type {} can't be copied to XLA type {}",
            from.dtype, to.dtype
        )))
    }

    /// Makes the copy.
    pub fn make(&self) {
        match &self.row_loop {
            None => Self::make_together([self]),
            Some(row_loop) => self.make_row_by_row(row_loop),
        }
    }

    fn make_row_by_row(&self, row_loop: &RowLoop) {
        let (from, to) = (self.from.address.cast_const(), self.to.address);
        let loops = self.loops;
        // SAFETY: all rows below the limits are in their arrays, and XLA aligns these.
        unsafe {
            match self.from.bytes_of_element {
                1 => copy_listed_rows::<u8>((from, to), loops, row_loop.outer, row_loop),
                2 => copy_listed_rows::<u16>(cast((from, to)), loops, row_loop.outer, row_loop),
                4 => copy_listed_rows::<u32>(cast((from, to)), loops, row_loop.outer, row_loop),
                8 => copy_listed_rows::<u64>(cast((from, to)), loops, row_loop.outer, row_loop),
                _ => {
                    copy_listed_rows::<[u64; 2]>(cast((from, to)), loops, row_loop.outer, row_loop);
                }
            }
        }
    }

    /// Makes independent copies: none reads or writes what another one writes. Two copies with the same
    /// loops, whose rows are on different pages, are made together, such as those of both edges of a
    /// field: there, a row begins on the page and in the cache line in which the row before it ends.
    pub fn make_all(copies: &[Self]) {
        let mut rest = copies;
        while let [copy, later @ ..] = rest {
            rest = match later {
                [next, later @ ..] if copy.goes_along_with(next) => {
                    Self::make_together([copy, next]);
                    later
                }
                _ => {
                    copy.make();
                    later
                }
            };
        }
    }

    /// Whether another copy has the same loops, one of which has strides of pages.
    fn goes_along_with(&self, other: &Self) -> bool {
        let bytes = self.from.bytes_of_element;
        let is_far = |numbers: &[i64]| is_far(numbers[1].max(numbers[2]), bytes);
        self.row_loop.is_none()
            && other.row_loop.is_none()
            && (self.loops, bytes) == (other.loops, other.from.bytes_of_element)
            && self.loops.chunks_exact(3).any(is_far)
    }

    /// Makes copies with the same loops.
    fn make_together<const N: usize>(copies: [&Self; N]) {
        let (bytes, loops) = (copies[0].from.bytes_of_element, copies[0].loops);
        let ends = copies.map(|copy| (copy.from.address.cast_const(), copy.to.address));
        // SAFETY: all parts are in their arrays, and XLA aligns these.
        unsafe {
            match bytes {
                1 => copy_elements::<u8, N>(ends, loops),
                2 => copy_elements::<u16, N>(ends.map(cast), loops),
                4 => copy_elements::<u32, N>(ends.map(cast), loops),
                8 => copy_elements::<u64, N>(ends.map(cast), loops),
                _ => copy_elements::<[u64; 2], N>(ends.map(cast), loops),
            }
        }
    }
}

/// The transpose of a copy, which writes both of its arrays.
pub struct PartReturn<'a>(PartCopy<'a>);

impl<'a> PartReturn<'a> {
    /// The transpose of a copy between parts that begin at these elements.
    pub fn new(
        source: (&ResultBuffer, i64),
        result: (&ResultBuffer, i64),
        loops: &'a [i64],
        row_loop: Option<RowLoop<'a>>,
    ) -> Result<Self> {
        PartCopy::new((source.0, source.1), result, loops, row_loop).map(Self)
    }

    /// Adds the elements of the copy's result to those of its source, and sets the former to zero.
    pub fn make(&self) -> Result<()> {
        let copy = &self.0;
        let (from, to, loops) = (copy.from.address, copy.to.address, copy.loops);
        let floats = (from.cast::<f32>(), to.cast::<f32>());
        let doubles = (from.cast::<f64>(), to.cast::<f64>());
        let row_loop = copy.row_loop.as_ref();
        // SAFETY: both parts are in their arrays, and XLA aligns these.
        unsafe {
            match copy.from.dtype {
                raw::XLA_FFI_DataType_F32 => add_back_part(floats, loops, row_loop),
                raw::XLA_FFI_DataType_F64 => add_back_part(doubles, loops, row_loop),
                raw::XLA_FFI_DataType_C64 => add_back_part(floats, &twice(loops), row_loop),
                raw::XLA_FFI_DataType_C128 => {
                    add_back_part(doubles, &twice(loops), row_loop);
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

/// The loops over complex numbers, with an inner loop over the two real numbers of each.
fn twice(loops: &[i64]) -> Vec<i64> {
    let steps = |numbers: &[i64]| [numbers[0], 2 * numbers[1], 2 * numbers[2]];
    let loops = loops.chunks_exact(3).flat_map(steps);
    loops.chain([2, 1, 1]).collect()
}

/// Addresses that a copy reads and writes.
type FromTo<T> = (*const T, *mut T);

fn cast<T>((from, to): FromTo<u8>) -> FromTo<T> {
    (from.cast(), to.cast())
}

/// Least number of contiguous elements that are moved by a call.
const MANY: i64 = 16;
/// Number of rows by which rows on other pages are fetched ahead.
const ROWS_AHEAD: i64 = 32;

/// Whether a step of this many elements is a page or more.
const fn is_far(elements: i64, bytes_of_element: usize) -> bool {
    elements.saturating_mul(bytes_of_element as i64) >= 4096
}

/// Copies elements by nested loops.
///
/// # Safety
/// The arrays have all elements that the loops visit, on both sides.
unsafe fn copy_elements<T: Copy, const N: usize>(copies: [FromTo<T>; N], loops: &[i64]) {
    // SAFETY: the caller's promise. Both sides may be parts of one array.
    unsafe {
        match *loops {
            [] => copy_rows(copies, 1, [0, 0], 1),
            [size, 1, 1] if size >= MANY => {
                for (from, to) in copies {
                    ptr::copy(from, to, size as usize);
                }
            }
            [size, source, result] => copy_rows(copies, size, [source, result], 1),
            [size, source, result, length, 1, 1] if length < MANY => {
                copy_rows(copies, size, [source, result], length);
            }
            [size, source, result, ref inner @ ..] => {
                for index in 0..size {
                    copy_elements(copies.map(at(index, [source, result])), inner);
                }
            }
            _ => unreachable!("a loop has three numbers"),
        }
    }
}

/// Copies rows of a few elements, with these strides between rows in source and result.
///
/// Where the rows of one side are on different pages, they are prefetched, but for the first copy only:
/// the other edge of a field is beside them, and with both, the processor would look up each page twice.
///
/// # Safety
/// The arrays have all elements that the loops visit, on both sides.
unsafe fn copy_rows<T: Copy, const N: usize>(
    copies: [FromTo<T>; N],
    size: i64,
    steps: [i64; 2],
    length: i64,
) {
    let [source, result] = steps;
    let next = |index| at(index + ROWS_AHEAD, steps)(copies[0]);
    let fetch_source = |index| prefetch(next(index).0);
    let fetch_result = |index| prefetch(next(index).1);
    let far = is_far(source.max(result), size_of::<T>()).then_some(source > result);
    // One loop for all of these would take half as long again.
    // SAFETY: the caller's promise.
    unsafe {
        match (length, far) {
            (1, None) => copy_each_row(copies, size, steps, 1, |_| ()),
            (1, Some(true)) => copy_each_row(copies, size, steps, 1, fetch_source),
            (1, Some(false)) => copy_each_row(copies, size, steps, 1, fetch_result),
            (_, None) => copy_each_row(copies, size, steps, length, |_| ()),
            (_, Some(true)) => copy_each_row(copies, size, steps, length, fetch_source),
            (_, Some(false)) => copy_each_row(copies, size, steps, length, fetch_result),
        }
    }
}

/// # Safety
/// The arrays have all elements of the rows, on both sides.
#[inline(always)]
unsafe fn copy_each_row<T: Copy, const N: usize>(
    copies: [FromTo<T>; N],
    size: i64,
    steps: [i64; 2],
    length: i64,
    fetch: impl Fn(i64),
) {
    for index in 0..size {
        fetch(index);
        for (from, to) in copies.map(at(index, steps)) {
            for element in 0..length as isize {
                // SAFETY: the caller's promise.
                unsafe {
                    let value = from.wrapping_offset(element).read();
                    to.wrapping_offset(element).write(value);
                }
            }
        }
    }
}

/// Advances the addresses of a copy by `index` strides.
#[inline(always)]
fn at<T>(index: i64, [source, result]: [i64; 2]) -> impl Fn(FromTo<T>) -> FromTo<T> {
    let (source, result) = (index.wrapping_mul(source), index.wrapping_mul(result));
    move |(from, to)| {
        (
            from.wrapping_offset(source as isize),
            to.wrapping_offset(result as isize),
        )
    }
}

/// Asks the processor to fetch what is soon read or written. The address need not be in any array.
#[inline(always)]
fn prefetch<T>(address: *const T) {
    // SAFETY: it changes nothing but caches, and never faults.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    // SAFETY: it changes nothing but caches, and never faults.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Copies listed rows by nested loops, of which the first `outer` are outside the loop over the rows.
///
/// # Safety
/// The arrays have all elements of rows below the limits, on both sides.
unsafe fn copy_listed_rows<T: Copy + Default>(
    copy: FromTo<T>,
    loops: &[i64],
    outer: usize,
    row_loop: &RowLoop,
) {
    let [size, source, result, ref inner @ ..] = *loops else {
        return;
    };
    // SAFETY: the caller's promise.
    unsafe {
        if outer > 0 {
            for index in 0..size {
                let next = at(index, [source, result])(copy);
                copy_listed_rows(next, inner, outer - 1, row_loop);
            }
            return;
        }
        let steps = [source, result];
        match *inner {
            [] => copy_each_listed(copy, size, steps, row_loop, |(from, to)| {
                to.write(from.map_or(T::default(), |from| from.read()));
            }),
            [length, 1, 1] if length < MANY => {
                copy_each_listed(copy, size, steps, row_loop, |(from, to)| {
                    for element in 0..length as isize {
                        let value = from.map(|from| from.wrapping_offset(element).read());
                        to.wrapping_offset(element).write(value.unwrap_or_default());
                    }
                });
            }
            ref inner => copy_each_listed(copy, size, steps, row_loop, |(from, to)| match from {
                Some(from) => copy_elements([(from, to)], inner),
                None => {
                    let zero = T::default();
                    copy_elements([(ptr::from_ref(&zero), to)], &from_one_place(inner));
                }
            }),
        }
    }
}

/// Loops whose source is one element.
fn from_one_place(loops: &[i64]) -> Vec<i64> {
    let steps = |numbers: &[i64]| [numbers[0], 0, numbers[2]];
    loops.chunks_exact(3).flat_map(steps).collect()
}

/// Calls a function with the addresses of each row: where it is read, if the array has it, and where it
/// is written.
#[inline(always)]
fn copy_each_listed<T>(
    copy: FromTo<T>,
    size: i64,
    [source, result]: [i64; 2],
    row_loop: &RowLoop,
    make: impl Fn((Option<*const T>, *mut T)),
) {
    row_loop.for_each(size, move |[from, to]| {
        let from = from.map(|row| at(row, [source, 0])(copy).0);
        if let Some(row) = to {
            make((from, at(row, [0, result])(copy).1));
        }
    });
}

/// Adds elements to others and sets the former to zero, by nested loops, one of which may follow a list.
///
/// # Safety
/// The arrays have all elements of rows below the limits, on both sides.
unsafe fn add_back_part<T>(part: (*mut T, *mut T), loops: &[i64], row_loop: Option<&RowLoop>)
where
    T: Copy + Default + Add<Output = T>,
{
    // SAFETY: the caller's promise.
    unsafe {
        match row_loop {
            None => add_back_elements(part.0, part.1, loops),
            Some(row_loop) => add_back_listed_rows(part, loops, row_loop.outer, row_loop),
        }
    }
}

/// # Safety
/// The arrays have all elements of rows below the limits, on both sides.
unsafe fn add_back_listed_rows<T>(
    (from, to): (*mut T, *mut T),
    loops: &[i64],
    outer: usize,
    row_loop: &RowLoop,
) where
    T: Copy + Default + Add<Output = T>,
{
    let [size, source, result, ref inner @ ..] = *loops else {
        return;
    };
    let at_row =
        |address: *mut T, row: i64, step: i64| address.wrapping_offset((row * step) as isize);
    if outer > 0 {
        for index in 0..size {
            let next = (at_row(from, index, source), at_row(to, index, result));
            // SAFETY: the caller's promise.
            unsafe { add_back_listed_rows(next, inner, outer - 1, row_loop) };
        }
        return;
    }
    // SAFETY: the caller's promise.
    row_loop.for_each(size, move |rows| unsafe {
        match rows {
            [_, None] => (),
            [Some(row), Some(other)] => {
                add_back_elements(at_row(from, row, source), at_row(to, other, result), inner);
            }
            [None, Some(other)] => {
                let zero = T::default();
                let copy = (ptr::from_ref(&zero), at_row(to, other, result));
                copy_elements([copy], &from_one_place(inner));
            }
        }
    });
}

/// Adds elements to others and sets the former to zero, by nested loops.
///
/// # Safety
/// The arrays have all elements that the loops visit, on both sides.
unsafe fn add_back_elements<T>(from: *mut T, to: *mut T, loops: &[i64])
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
                add_back_elements(from, to, inner);
            }
        }
    }
}
