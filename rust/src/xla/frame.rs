//! The safe view of a call frame.
//!
//! Everything a frame points to belongs to XLA and lives as long as the call. What is read is
//! checked first: the size that XLA says it filled, the number of buffers, the type of each
//! attribute. A frame that does not fit is an [`Error`], never a crash.

use std::borrow::Cow;
use std::ffi::{CString, c_int, c_void};
use std::io::{self, Write};
use std::mem::offset_of;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use super::data_types::data_type_size;
use super::raw::*;
use crate::error::{Error, ErrorKind, Result};

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

    const fn nowhere(dtype: XLA_FFI_DataType, count: i64) -> Self {
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

impl ResultBuffer<'_> {
    /// An array that is nowhere yet.
    pub const fn nowhere(dtype: XLA_FFI_DataType, count: i64) -> Self {
        Self(Buffer::nowhere(dtype, count))
    }

    /// [`Buffer::part`] of an array that may be written.
    pub fn part(&self, first: i64, count: i64) -> Option<Self> {
        self.0.part(first, count).map(Self)
    }

    /// One for tests.
    ///
    /// # Safety
    /// As for [`Buffer::lent`], and nobody else uses the array.
    #[cfg(test)]
    pub(crate) const unsafe fn lent(facts: BufferFacts<'_>) -> ResultBuffer<'_> {
        // SAFETY: the caller's promise.
        ResultBuffer(unsafe { Buffer::lent(facts) })
    }
}

/// The call frame of one execution.
///
/// The decoding is inlined by force. The compiler would not, and a handler would take a fifth
/// longer (`cargo bench`).
pub struct Frame<'a> {
    raw: &'a XLA_FFI_CallFrame,
    /// Numbers of operands and results, without the byte that orders calls on GPUs.
    operand_count: i64,
    result_count: i64,
}

/// Checks that a struct of XLA's has all fields of our declaration.
#[inline(always)]
fn check_size<T>(struct_size: usize, name: &str) -> Result<()> {
    check_bytes(struct_size, size_of::<T>(), name)
}

#[inline(always)]
fn check_bytes(struct_size: usize, expected: usize, name: &str) -> Result<()> {
    if struct_size >= expected {
        return Ok(());
    }
    Err(too_small(struct_size, expected, name))
}

#[cold]
fn too_small(struct_size: usize, expected: usize, name: &str) -> Error {
    Error::invalid(format!(
        "{name} has {struct_size} bytes, expected at least {expected}"
    ))
}

/// Borrows the array that `pointer` and `len` describe.
///
/// # Safety
/// Where `len` is positive and `pointer` is not null, `pointer` has `len` elements that live
/// for `'a`.
#[inline(always)]
pub(super) unsafe fn slice<'a, T>(pointer: *const T, len: i64, name: &str) -> Result<&'a [T]> {
    match usize::try_from(len) {
        Ok(0) => Ok(&[]),
        // SAFETY: not null, and the caller vouches for the length.
        Ok(len) if !pointer.is_null() => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
        _ => Err(no_slice(pointer.cast(), len, name)),
    }
}

#[cold]
fn no_slice(pointer: *const c_void, len: i64, name: &str) -> Error {
    Error::invalid(format!("{name}: a length of {len} at address {pointer:p}"))
}

impl<'a> Frame<'a> {
    /// Wraps the frame of a call that XLA wants executed.
    ///
    /// # Safety
    /// It is XLA's: as long as its structs are the size that they say, all that they point to is what
    /// `c_api.h` says, and stays for `'a`.
    #[inline(always)]
    unsafe fn new(raw: &'a XLA_FFI_CallFrame) -> Result<Self> {
        check_size::<XLA_FFI_CallFrame>(raw.struct_size, "XLA_FFI_CallFrame")?;
        check_size::<XLA_FFI_Args>(raw.args.struct_size, "XLA_FFI_Args")?;
        check_size::<XLA_FFI_Rets>(raw.rets.struct_size, "XLA_FFI_Rets")?;
        check_size::<XLA_FFI_Attrs>(raw.attrs.struct_size, "XLA_FFI_Attrs")?;
        if raw.stage != XLA_FFI_ExecutionStage_EXECUTE {
            return Err(Error::invalid(format!(
                "called in stage {}, expected the execution stage",
                raw.stage
            )));
        }
        Ok(Self {
            raw,
            operand_count: raw.args.size,
            result_count: raw.rets.size,
        })
    }

    /// The frame as XLA lends it.
    pub(super) const fn raw(&self) -> &'a XLA_FFI_CallFrame {
        self.raw
    }

    /// The frame without its last operand and its last result, if they are the byte that orders
    /// calls on GPUs. Programs that an earlier version has exported have a token there.
    pub fn without_order_byte(&self) -> Result<Self> {
        let (operand_kinds, operands) = self.arguments()?;
        let (result_kinds, results) = self.returns()?;
        // SAFETY: XLA's own, of the kinds that it says.
        let bytes = unsafe {
            (
                order_byte(operand_kinds, XLA_FFI_ArgType_BUFFER, operands, "operand")?,
                order_byte(result_kinds, XLA_FFI_RetType_BUFFER, results, "result")?,
            )
        };
        Ok(Self {
            raw: self.raw,
            operand_count: self.operand_count - bytes.0,
            result_count: self.result_count - bytes.1,
        })
    }

    /// The stream on which the device gets the arrays of this call ready, and uses the results.
    pub fn stream(&self) -> Result<*mut c_void> {
        // SAFETY: null, or XLA's function table.
        let api = unsafe { self.raw.api.as_ref() }
            .ok_or_else(|| Error::invalid("a frame without XLA's functions"))?;
        check_size::<XLA_FFI_Api>(api.struct_size, "XLA_FFI_Api")?;
        let get = api
            .XLA_FFI_Stream_Get
            .ok_or_else(|| Error::invalid("XLA has no function XLA_FFI_Stream_Get"))?;
        let mut args = XLA_FFI_Stream_Get_Args {
            struct_size: size_of::<XLA_FFI_Stream_Get_Args>(),
            extension_start: ptr::null_mut(),
            ctx: self.raw.ctx,
            stream: ptr::null_mut(),
        };
        // SAFETY: a function of XLA's, with the context of this call.
        let error = unsafe { get(&raw mut args) };
        if error.is_null() {
            return Ok(args.stream);
        }
        if let Some(destroy) = api.XLA_FFI_Error_Destroy {
            let mut args = XLA_FFI_Error_Destroy_Args {
                struct_size: size_of::<XLA_FFI_Error_Destroy_Args>(),
                extension_start: ptr::null_mut(),
                error,
            };
            // SAFETY: XLA gave the error away, and it is freed once.
            unsafe { destroy(&raw mut args) };
        }
        Err(Error::internal("XLA gave no stream to a call on a device"))
    }

    /// The kinds of XLA's arguments, and the arguments.
    #[inline(always)]
    fn arguments(&self) -> Result<(&'a [c_int], &'a [*mut c_void])> {
        let args = &self.raw.args;
        // SAFETY: XLA vouches for its arrays (c_api.h: "length == size").
        unsafe {
            Ok((
                slice(args.types, self.operand_count, "operand types")?,
                slice(args.args, self.operand_count, "operands")?,
            ))
        }
    }

    /// The kinds of XLA's results, and the results.
    #[inline(always)]
    fn returns(&self) -> Result<(&'a [c_int], &'a [*mut c_void])> {
        let rets = &self.raw.rets;
        // SAFETY: XLA vouches for its arrays (c_api.h: "length == size").
        unsafe {
            Ok((
                slice(rets.types, self.result_count, "result types")?,
                slice(rets.rets, self.result_count, "results")?,
            ))
        }
    }

    /// The operands, of which there must be exactly `N`. Tokens order calls and hold no data:
    /// they are left out.
    #[inline(always)]
    pub fn operands<const N: usize>(&self) -> Result<[Buffer<'a>; N]> {
        let (kinds, pointers) = self.arguments()?;
        // SAFETY: XLA's own, of the kinds that it says.
        unsafe { buffers(kinds, XLA_FFI_ArgType_BUFFER, pointers, "operand") }
    }

    /// The results, of which there must be exactly `N`, tokens left out.
    #[inline(always)]
    pub fn results<const N: usize>(&self) -> Result<[ResultBuffer<'a>; N]> {
        let (kinds, pointers) = self.returns()?;
        // SAFETY: XLA's own, of the kinds that it says.
        let results = unsafe { buffers(kinds, XLA_FFI_RetType_BUFFER, pointers, "result")? };
        Ok(results.map(ResultBuffer))
    }

    /// The first `N` operands, of which there are `N` or one more, tokens left out.
    #[inline(always)]
    pub fn first_operands<const N: usize>(&self) -> Result<[Buffer<'a>; N]> {
        let (kinds, pointers) = self.arguments()?;
        // SAFETY: XLA's own, of the kinds that it says.
        unsafe { first_buffers(kinds, XLA_FFI_ArgType_BUFFER, pointers, "operand") }
    }

    /// The operand, if there is one, tokens left out.
    #[inline(always)]
    pub fn optional_operand(&self) -> Result<Option<Buffer<'a>>> {
        let (kinds, pointers) = self.arguments()?;
        // SAFETY: XLA's own, of the kinds that it says.
        unsafe { optional_buffer(kinds, XLA_FFI_ArgType_BUFFER, pointers, "operand") }
    }

    /// The result, if there is one, tokens left out.
    #[inline(always)]
    pub fn optional_result(&self) -> Result<Option<ResultBuffer<'a>>> {
        let (kinds, pointers) = self.returns()?;
        // SAFETY: XLA's own, of the kinds that it says.
        let result = unsafe { optional_buffer(kinds, XLA_FFI_RetType_BUFFER, pointers, "result")? };
        Ok(result.map(ResultBuffer))
    }

    /// All operands, tokens left out.
    pub fn all_operands(&self) -> Result<Vec<Buffer<'a>>> {
        let (kinds, pointers) = self.arguments()?;
        // SAFETY: XLA's own, of the kinds that it says.
        unsafe { all_buffers(kinds, XLA_FFI_ArgType_BUFFER, pointers, "operand") }
    }

    /// The last operand that is no token, with its index among all.
    pub(super) fn last_operand(&self) -> Result<Option<(usize, Buffer<'a>)>> {
        let (kinds, pointers) = self.arguments()?;
        for index in (0..kinds.len()).rev() {
            let (kind, pointer) = (&kinds[index..=index], &pointers[index..=index]);
            // SAFETY: XLA's own, of the kinds that it says.
            let array = unsafe { all_buffers(kind, XLA_FFI_ArgType_BUFFER, pointer, "operand") }?;
            if let Some(array) = array.first() {
                return Ok(Some((index, *array)));
            }
        }
        Ok(None)
    }

    /// All results, tokens left out.
    pub fn all_results(&self) -> Result<Vec<ResultBuffer<'a>>> {
        let (kinds, pointers) = self.returns()?;
        // SAFETY: XLA's own, of the kinds that it says.
        let results = unsafe { all_buffers(kinds, XLA_FFI_RetType_BUFFER, pointers, "result")? };
        Ok(results.into_iter().map(ResultBuffer).collect())
    }

    /// The data type and the number of elements of the first operand, if there is one.
    #[inline(always)]
    pub fn first_operand(&self) -> Option<(XLA_FFI_DataType, i64)> {
        let args = &self.raw.args;
        // SAFETY: XLA vouches for its arrays (c_api.h: "length == size").
        unsafe {
            first_array(
                args.types,
                XLA_FFI_ArgType_BUFFER,
                args.args,
                self.operand_count,
            )
        }
    }

    /// The data type and the number of elements of the first result, if there is one.
    #[inline(always)]
    pub fn first_result(&self) -> Option<(XLA_FFI_DataType, i64)> {
        let rets = &self.raw.rets;
        // SAFETY: XLA vouches for its arrays (c_api.h: "length == size").
        unsafe {
            first_array(
                rets.types,
                XLA_FFI_RetType_BUFFER,
                rets.rets,
                self.result_count,
            )
        }
    }

    /// Shows the first attributes as integers, with their indices in the order of their names: an array
    /// as a hash of its elements, and any other that is no integer as 0.
    #[inline(always)]
    pub fn integers(&self, count: usize, mut see: impl FnMut(usize, i64)) {
        let attrs = &self.raw.attrs;
        // SAFETY: XLA vouches for its arrays (c_api.h: "length == size").
        let (Ok(types), Ok(values)) = (unsafe {
            (
                slice(attrs.types, attrs.size, ""),
                slice(attrs.attrs, attrs.size, ""),
            )
        }) else {
            return;
        };
        for (index, (kind, value)) in types.iter().zip(values).take(count).enumerate() {
            if *kind == XLA_FFI_AttrType_ARRAY {
                // SAFETY: null, or the struct for arrays.
                see(
                    index,
                    hash_of_array(unsafe { value.cast::<XLA_FFI_Array>().as_ref() }),
                );
                continue;
            }
            // SAFETY: null, or a struct for its kind, of which the one for scalars is the smallest.
            let scalar = unsafe { value.cast::<XLA_FFI_Scalar>().as_ref() };
            let value = match scalar {
                Some(scalar)
                    if *kind == XLA_FFI_AttrType_SCALAR && scalar.dtype == XLA_FFI_DataType_S64 =>
                {
                    // SAFETY: the type says that it is an i64. XLA promises no alignment.
                    unsafe { scalar.value.cast::<i64>().read_unaligned() }
                }
                _ => 0,
            };
            see(index, value);
        }
    }

    /// The names of all attributes, in their order.
    pub fn attribute_names(&self) -> Vec<String> {
        let attrs = &self.raw.attrs;
        // SAFETY: XLA vouches for its arrays (c_api.h: "length == size").
        let spans = unsafe { slice(attrs.names, attrs.size, "attribute names") };
        let name = |span: &*mut XLA_FFI_ByteSpan| {
            // SAFETY: null, or a span of `len` bytes of XLA's.
            unsafe {
                let span = span.as_ref()?;
                let bytes = slice(span.ptr.cast::<u8>(), span.len as i64, "a name").ok()?;
                Some(String::from_utf8_lossy(bytes).into_owned())
            }
        };
        let spans = spans.unwrap_or_default();
        spans
            .iter()
            .map(|span| name(span).unwrap_or_default())
            .collect()
    }

    /// The attribute called `name`, which must be of this kind, as XLA's struct for the kind.
    ///
    /// # Safety
    /// `T` is the struct for attributes of this kind.
    #[inline(always)]
    unsafe fn find<T>(&self, name: &str, kind: c_int, expected: &str) -> Result<Option<&'a T>> {
        let attrs = &self.raw.attrs;
        // SAFETY: XLA vouches for its arrays (c_api.h: "length == size").
        let (types, names, values) = unsafe {
            (
                slice(attrs.types, attrs.size, "attribute types")?,
                slice(attrs.names, attrs.size, "attribute names")?,
                slice(attrs.attrs, attrs.size, "attributes")?,
            )
        };
        let mut position = None;
        for (index, span) in names.iter().enumerate() {
            // SAFETY: null, or a span of XLA's.
            let Some(span) = (unsafe { span.as_ref() }) else {
                return Err(Error::invalid("an attribute without a name"));
            };
            // SAFETY: each name is a span of `len` bytes.
            if unsafe { is_called(span, name) } {
                position = Some(index);
                break;
            }
        }
        let entry = position.and_then(|index| types.get(index).zip(values.get(index)));
        let Some((actual, value)) = entry else {
            return Ok(None);
        };
        if *actual != kind {
            return Err(Error::invalid(format!(
                "attribute `{name}` has kind {actual}, expected {expected}"
            )));
        }
        // SAFETY: null, or the struct for its kind, by the caller's promise.
        let value = unsafe { value.cast::<T>().as_ref() };
        value
            .map(Some)
            .ok_or_else(|| Error::invalid(format!("attribute `{name}` is null")))
    }

    /// The 64-bit integer attribute called `name`.
    #[inline(always)]
    pub fn attribute(&self, name: &str) -> Result<i64> {
        // SAFETY: the struct for scalars.
        let scalar: Option<&XLA_FFI_Scalar> =
            unsafe { self.find(name, XLA_FFI_AttrType_SCALAR, "a scalar")? };
        let scalar = scalar.ok_or_else(|| missing(name))?;
        if scalar.dtype != XLA_FFI_DataType_S64 {
            return Err(Error::invalid(format!(
                "attribute `{name}` has type {}, expected a 64-bit integer",
                scalar.dtype
            )));
        }
        // SAFETY: the type says that it is an i64. XLA promises no alignment.
        Ok(unsafe { scalar.value.cast::<i64>().read_unaligned() })
    }

    /// The attribute called `name`, an array of 64-bit integers.
    pub fn ints_attribute(&self, name: &str) -> Result<Cow<'a, [i64]>> {
        self.optional_ints_attribute(name)?
            .ok_or_else(|| missing(name))
    }

    /// Such an attribute, or None if there is no attribute of the name.
    pub fn optional_ints_attribute(&self, name: &str) -> Result<Option<Cow<'a, [i64]>>> {
        // SAFETY: the struct for arrays.
        let array: Option<&'a XLA_FFI_Array> =
            unsafe { self.find(name, XLA_FFI_AttrType_ARRAY, "an array")? };
        let Some(array) = array else {
            return Ok(None);
        };
        if array.dtype != XLA_FFI_DataType_S64 {
            return Err(Error::invalid(format!(
                "attribute `{name}` has elements of type {}, expected 64-bit integers",
                array.dtype
            )));
        }
        if array.data.is_null() && array.size > 0 {
            return Err(Error::invalid(format!(
                "attribute `{name}` has {} elements at the null address",
                array.size
            )));
        }
        let start = array.data.cast::<i64>();
        if start.is_aligned() {
            // SAFETY: its elements are i64, and they are there.
            let integers = unsafe { slice(start, array.size as i64, name)? };
            return Ok(Some(Cow::Borrowed(integers)));
        }
        // SAFETY: its elements are i64, and they are there.
        Ok(Some(unsafe { elements(array) }.collect()))
    }

    /// The attribute `name` as a C int, which is what MPI takes for ranks and tags.
    pub fn int_attribute(&self, name: &str) -> Result<c_int> {
        let value = self.attribute(name)?;
        c_int::try_from(value).map_err(|_| {
            Error::invalid(format!(
                "attribute `{name}` is {value}, not an int of MPI's"
            ))
        })
    }
}

#[cold]
fn missing(name: &str) -> Error {
    Error::invalid(format!("attribute `{name}` is missing"))
}

/// Whether the name in `span` is `name`.
///
/// # Safety
/// If its pointer is not null, `span` has `len` bytes.
unsafe fn is_called(span: &XLA_FFI_ByteSpan, name: &str) -> bool {
    if span.len != name.len() || span.ptr.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(span.ptr.cast::<u8>(), span.len) };
    // Names are short: a loop is over before memcmp has begun.
    bytes.iter().eq(name.as_bytes())
}

/// Picks the `N` data buffers among XLA's arguments or results.
///
/// # Safety
/// Each pointer of kind `buffer` points to an `XLA_FFI_Buffer` that lives for `'a`.
#[inline(always)]
unsafe fn buffers<'a, const N: usize>(
    kinds: &[c_int],
    buffer: c_int,
    pointers: &[*mut c_void],
    role: &str,
) -> Result<[Buffer<'a>; N]> {
    // SAFETY: the caller's promise.
    let (buffers, count) = unsafe { count_buffers(kinds, buffer, pointers, role)? };
    if count == N {
        return Ok(buffers);
    }
    let plural = if N == 1 { "" } else { "s" };
    Err(Error::invalid(format!(
        "expected {N} {role}{plural}, got {count}"
    )))
}

/// Picks the first `N` data buffers among XLA's arguments or results, which may have one more.
///
/// # Safety
/// Each pointer of kind `buffer` points to an `XLA_FFI_Buffer` that lives for `'a`.
#[inline(always)]
unsafe fn first_buffers<'a, const N: usize>(
    kinds: &[c_int],
    buffer: c_int,
    pointers: &[*mut c_void],
    role: &str,
) -> Result<[Buffer<'a>; N]> {
    // SAFETY: the caller's promise.
    let (buffers, count) = unsafe { count_buffers(kinds, buffer, pointers, role)? };
    if count == N || count == N + 1 {
        return Ok(buffers);
    }
    Err(not_one_of(N, role, count))
}

/// The first `N` data buffers among XLA's arguments or results, and how many there are.
///
/// # Safety
/// Each pointer of kind `buffer` points to an `XLA_FFI_Buffer` that lives for `'a`.
#[inline(always)]
unsafe fn count_buffers<'a, const N: usize>(
    kinds: &[c_int],
    buffer: c_int,
    pointers: &[*mut c_void],
    role: &str,
) -> Result<([Buffer<'a>; N], usize)> {
    let mut buffers = [Buffer::nowhere(0, 0); N];
    let see = |index, buffer| {
        if let Some(slot) = buffers.get_mut::<usize>(index) {
            *slot = buffer;
        }
    };
    // SAFETY: the caller's promise.
    let count = unsafe { see_buffers(kinds, buffer, pointers, role, see)? };
    Ok((buffers, count))
}

/// The data buffer among XLA's arguments or results, if there is one.
///
/// # Safety
/// Each pointer of kind `buffer` points to an `XLA_FFI_Buffer` that lives for `'a`.
#[inline(always)]
unsafe fn optional_buffer<'a>(
    kinds: &[c_int],
    buffer: c_int,
    pointers: &[*mut c_void],
    role: &str,
) -> Result<Option<Buffer<'a>>> {
    let mut array = None;
    let see = |_, buffer| array = Some(buffer);
    // SAFETY: the caller's promise.
    let count = unsafe { see_buffers(kinds, buffer, pointers, role, see)? };
    if count <= 1 {
        return Ok(array);
    }
    Err(not_one_of(0, role, count))
}

/// There are neither `least` buffers nor one more.
#[cold]
fn not_one_of(least: usize, role: &str, count: usize) -> Error {
    let most = least + 1;
    Error::invalid(format!("expected {least} or {most} {role}s, got {count}"))
}

/// All data buffers among XLA's arguments or results.
///
/// # Safety
/// Each pointer of kind `buffer` points to an `XLA_FFI_Buffer` that lives for `'a`.
unsafe fn all_buffers<'a>(
    kinds: &[c_int],
    buffer: c_int,
    pointers: &[*mut c_void],
    role: &str,
) -> Result<Vec<Buffer<'a>>> {
    let mut buffers = Vec::with_capacity(kinds.len());
    let see = |_, buffer| buffers.push(buffer);
    // SAFETY: the caller's promise.
    unsafe { see_buffers(kinds, buffer, pointers, role, see)? };
    Ok(buffers)
}

/// Shows the data buffers among XLA's arguments or results, with their indices, and counts them.
///
/// # Safety
/// Each pointer of kind `buffer` points to an `XLA_FFI_Buffer` that lives for `'a`.
#[inline(always)]
unsafe fn see_buffers<'a>(
    kinds: &[c_int],
    buffer: c_int,
    pointers: &[*mut c_void],
    role: &str,
    mut see: impl FnMut(usize, Buffer<'a>),
) -> Result<usize> {
    let mut count = 0;
    for (kind, pointer) in kinds.iter().zip(pointers) {
        if *kind != buffer {
            return Err(Error::invalid(format!(
                "{role} {count} has kind {kind}, expected a buffer"
            )));
        }
        // SAFETY: the kind says that it is a buffer.
        let raw = unsafe { pointer.cast::<XLA_FFI_Buffer>().as_ref() }
            .ok_or_else(|| Error::invalid(format!("{role} {count} is null, expected a buffer")))?;
        check_size::<XLA_FFI_Buffer>(raw.struct_size, "XLA_FFI_Buffer")?;
        if raw.dtype == XLA_FFI_DataType_TOKEN {
            continue;
        }
        // SAFETY: XLA vouches for its arrays (c_api.h: "length == rank").
        let dims: &[i64] = unsafe { slice(raw.dims, raw.rank, "dimensions")? };
        let facts = BufferFacts {
            address: raw.data,
            dtype: raw.dtype,
            dims,
            count: checked_count(dims).ok_or_else(|| negative(role, count, dims))?,
        };
        // SAFETY: the array is XLA's, which lends it for the call.
        see(count, unsafe { Buffer::lent(facts) });
        count += 1;
    }
    Ok(count)
}

/// Number of bytes that order the call, none where a token does: the last of XLA's arguments or results.
///
/// # Safety
/// Each pointer of kind `buffer` points to an `XLA_FFI_Buffer`.
unsafe fn order_byte(
    kinds: &[c_int],
    buffer: c_int,
    pointers: &[*mut c_void],
    role: &str,
) -> Result<i64> {
    let last = match (kinds.last(), pointers.last()) {
        // SAFETY: the kind says that it is a buffer.
        (Some(kind), Some(pointer)) if *kind == buffer => unsafe {
            pointer.cast::<XLA_FFI_Buffer>().as_ref()
        },
        _ => None,
    };
    if last.is_some_and(|raw| raw.dtype == XLA_FFI_DataType_TOKEN) {
        return Ok(0);
    }
    let is_byte = |raw: &XLA_FFI_Buffer| {
        // SAFETY: XLA vouches for its arrays (c_api.h: "length == rank").
        let dims = unsafe { slice(raw.dims, raw.rank, "dimensions") };
        raw.dtype == XLA_FFI_DataType_U8 && matches!(dims, Ok([1]))
    };
    if last.is_some_and(is_byte) {
        return Ok(1);
    }
    Err(Error::invalid(format!(
        "the last {role} of a call on a device is not the byte that orders it"
    )))
}

/// The elements of an array.
///
/// # Safety
/// They are 64-bit integers, and their address is null only if there are none.
pub(super) unsafe fn elements(array: &XLA_FFI_Array) -> impl Iterator<Item = i64> {
    let start = array.data.cast::<i64>();
    // SAFETY: within the array, by the caller's promise. XLA promises no alignment.
    (0..array.size).map(move |index| unsafe { start.add(index).read_unaligned() })
}

/// Whether the elements of an array are 64-bit integers, and are there.
pub(super) fn has_integers(array: &XLA_FFI_Array) -> bool {
    array.dtype == XLA_FFI_DataType_S64 && (array.size == 0 || !array.data.is_null())
}

/// A hash of an attribute that is an array, the same in all processes. One that is not of 64-bit
/// integers counts as empty.
fn hash_of_array(array: Option<&XLA_FFI_Array>) -> i64 {
    let readable = array.filter(|array| has_integers(array));
    // SAFETY: it was looked at just now.
    readable.map_or_else(|| hash([]), |array| hash(unsafe { elements(array) })) as i64
}

/// A hash of integers, the same in all processes: FNV-1a
/// (<http://www.isthe.com/chongo/tech/comp/fnv/>), each mixed in as a whole.
pub fn hash(integers: impl IntoIterator<Item = i64>) -> u64 {
    let mix = |hash: u64, integer: i64| (hash ^ integer as u64).wrapping_mul(0x0100_0000_01b3);
    integers.into_iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// The data type and the number of elements of the first array that is no token.
///
/// # Safety
/// Both arrays have `size` elements, and each pointer of kind `buffer` points to a buffer.
#[inline(always)]
unsafe fn first_array(
    kinds: *const c_int,
    buffer: c_int,
    pointers: *const *mut c_void,
    size: i64,
) -> Option<(XLA_FFI_DataType, i64)> {
    // SAFETY: the caller vouches for all of it.
    unsafe {
        let kind = *slice(kinds, size, "").ok()?.first()?;
        let pointer = *slice(pointers, size, "").ok()?.first()?;
        let raw = pointer.cast::<XLA_FFI_Buffer>().as_ref()?;
        if kind != buffer || raw.dtype == XLA_FFI_DataType_TOKEN {
            return None;
        }
        let dims: &[i64] = slice(raw.dims, raw.rank, "").ok()?;
        Some((raw.dtype, checked_count(dims)?))
    }
}

/// Answers XLA's question for the handler's metadata, if that is what this call is.
///
/// The version reported is the framework's own: the handler looks at `struct_size` before it
/// reads anything, so it serves every version, while XLA wants to see one that it knows.
fn answer_metadata(frame: &XLA_FFI_CallFrame) -> Result<bool> {
    let mut next = frame.extension_start;
    let extension = loop {
        // SAFETY: null, or the next of the extensions, which outlive the call.
        match unsafe { next.as_ref() } {
            None => return Ok(false),
            Some(extension) if extension.type_ == XLA_FFI_Extension_Metadata => break extension,
            Some(other) => next = other.next,
        }
    };
    check_size::<XLA_FFI_Metadata_Extension>(extension.struct_size, "XLA_FFI_Metadata_Extension")?;
    // SAFETY: the type and the size say that it is a metadata extension; XLA lends it for
    // writing.
    let Some(metadata) = (unsafe {
        (*next.cast::<XLA_FFI_Metadata_Extension>())
            .metadata
            .as_mut()
    }) else {
        return Err(Error::invalid("metadata asked for, with no room for it"));
    };
    // XLA counts up to the end of the last field, without the padding behind it.
    check_bytes(
        metadata.struct_size,
        offset_of!(XLA_FFI_Metadata, traits) + size_of::<u32>(),
        "XLA_FFI_Metadata",
    )?;
    // SAFETY: `api` is null or XLA's function table.
    let version = unsafe { frame.api.as_ref() }.map_or((0, 1), |api| {
        let version = &api.api_version;
        (version.major_version, version.minor_version)
    });
    (
        metadata.api_version.major_version,
        metadata.api_version.minor_version,
    ) = version;
    // No trait is claimed: an MPI call can't be captured into a command buffer.
    metadata.traits = 0;
    Ok(true)
}

/// XLA's code for errors of a kind.
fn code_of(kind: ErrorKind) -> XLA_FFI_Error_Code {
    match kind {
        ErrorKind::Invalid => XLA_FFI_Error_Code_INVALID_ARGUMENT,
        ErrorKind::Precondition => XLA_FFI_Error_Code_FAILED_PRECONDITION,
        ErrorKind::Internal => XLA_FFI_Error_Code_INTERNAL,
    }
}

/// Hands an error over to XLA. Null means success, so a frame without an API table, in which
/// no error can be made, ends the process rather than pass for one.
fn report(frame: &XLA_FFI_CallFrame, error: &Error) -> *mut XLA_FFI_Error {
    let message = CString::new(error.message.replace('\0', " ")).unwrap_or_default();
    let mut args = XLA_FFI_Error_Create_Args {
        struct_size: size_of::<XLA_FFI_Error_Create_Args>(),
        extension_start: ptr::null_mut(),
        message: message.as_ptr(),
        errc: code_of(error.kind),
    };
    // SAFETY: `api` is null or XLA's function table.
    match unsafe { frame.api.as_ref() }.and_then(|api| api.XLA_FFI_Error_Create) {
        // SAFETY: XLA's function, with a message that outlives the call.
        Some(create) => unsafe { create(&raw mut args) },
        None => {
            let text = format!(
                "mpi4jax: {}, and XLA gave no way to say so\n",
                error.message
            );
            let _ = io::stderr().write_all(text.as_bytes());
            std::process::abort()
        }
    }
}

/// Runs a handler's body: answers metadata, decodes the frame, turns errors and panics into
/// XLA's errors.
///
/// # Safety
/// `frame` is a call frame that XLA lends for the duration of the call.
pub unsafe fn enter(
    frame: *mut XLA_FFI_CallFrame,
    body: impl FnOnce(&Frame) -> Result<()>,
) -> *mut XLA_FFI_Error {
    // SAFETY: the caller's promise.
    unsafe { enter_another(frame, |frame| body(frame).map(|()| ptr::null_mut())) }
}

/// Runs the body of a handler that calls another one, whose error it gives.
///
/// # Safety
/// `frame` is a call frame that XLA lends for the duration of the call.
#[inline(always)]
pub(super) unsafe fn enter_another(
    frame: *mut XLA_FFI_CallFrame,
    body: impl FnOnce(&Frame) -> Result<*mut XLA_FFI_Error>,
) -> *mut XLA_FFI_Error {
    // SAFETY: the caller's promise.
    let frame = unsafe { &*frame };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        if answer_metadata(frame)? {
            return Ok(ptr::null_mut());
        }
        // SAFETY: the caller's promise.
        body(&unsafe { Frame::new(frame) }?)
    }));
    match outcome {
        Ok(Ok(error)) => error,
        Ok(Err(error)) => report(frame, &error),
        Err(panic) => report(frame, &Error::of_panic(&*panic)),
    }
}

/// Number of elements of an array of this shape, whose sizes are not negative.
#[inline(always)]
pub fn count_of(dims: &[i64]) -> i64 {
    dims.iter().fold(1, |count, dim| count.saturating_mul(*dim))
}

/// Number of elements of an array, if no size in its shape is negative.
#[inline(always)]
fn checked_count(dims: &[i64]) -> Option<i64> {
    let signs = dims.iter().fold(0, |signs, dim| signs | dim);
    (signs >= 0).then(|| count_of(dims))
}

#[cold]
fn negative(role: &str, index: usize, dims: &[i64]) -> Error {
    Error::invalid(format!(
        "{role} {index} has shape {dims:?}, expected no negative size"
    ))
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
