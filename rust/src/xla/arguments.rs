//! The operands and the results of a call.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

use super::buffer::{Buffer, BufferFacts, ResultBuffer, checked_count};
use super::checks::{check_size, slice};
use super::raw::*;
use crate::error::{Error, Result};

/// An array among the operands or the results of a call.
pub trait Argument<'a>: Copy {
    /// XLA's number for the kind of arguments that are arrays.
    const BUFFER: c_int;
    /// The word for such an argument in errors.
    const ROLE: &'static str;
    /// The words for XLA's lists of kinds and of arguments.
    const LISTS: [&'static str; 2];

    /// An array that is nowhere.
    fn nowhere() -> Self;

    /// # Safety
    /// XLA lends the array for `'a`, in this role.
    unsafe fn lent(facts: BufferFacts<'a>) -> Self;
}

/// Makes a type of arrays one of arguments.
macro_rules! argument {
    ($type:ident, $kind:ident, $role:literal) => {
        impl<'a> Argument<'a> for $type<'a> {
            const BUFFER: c_int = $kind;
            const ROLE: &'static str = $role;
            const LISTS: [&'static str; 2] = [concat!($role, " types"), concat!($role, "s")];

            #[inline(always)]
            fn nowhere() -> Self {
                Self::nowhere(0, 0)
            }

            #[inline(always)]
            unsafe fn lent(facts: BufferFacts<'a>) -> Self {
                // SAFETY: the caller's promise.
                unsafe { Self::lent(facts) }
            }
        }
    };
}

argument!(Buffer, XLA_FFI_ArgType_BUFFER, "operand");
argument!(ResultBuffer, XLA_FFI_RetType_BUFFER, "result");

/// The operands or the results of a call. Tokens order calls and hold no data: they are left out.
pub struct Arguments<'a, B> {
    /// The kind of each argument, tokens included.
    pub(super) kinds: &'a [c_int],
    /// XLA's structs for the arguments.
    pub(super) structs: &'a [*mut c_void],
    arrays: PhantomData<B>,
}

impl<'a, B: Argument<'a>> Arguments<'a, B> {
    /// The arguments in two lists of XLA's.
    ///
    /// # Safety
    /// Each list has `size` elements or is null, each struct is null or of its kind, and all stay for `'a`.
    #[inline(always)]
    pub(super) unsafe fn new(
        kinds: *const c_int,
        structs: *const *mut c_void,
        size: i64,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(Self {
                kinds: slice(kinds, size, B::LISTS[0])?,
                structs: slice(structs, size, B::LISTS[1])?,
                arrays: PhantomData,
            })
        }
    }

    /// The arrays, of which there must be exactly `N`.
    #[inline(always)]
    pub fn exactly<const N: usize>(&self) -> Result<[B; N]> {
        let (arrays, count) = self.counted()?;
        if count == N {
            return Ok(arrays);
        }
        let (role, plural) = (B::ROLE, if N == 1 { "" } else { "s" });
        Err(Error::invalid(format!(
            "expected {N} {role}{plural}, got {count}"
        )))
    }

    /// The first `N` arrays, of which there are `N` or one more.
    #[inline(always)]
    pub fn first<const N: usize>(&self) -> Result<[B; N]> {
        let (arrays, count) = self.counted()?;
        if count == N || count == N + 1 {
            return Ok(arrays);
        }
        Err(not_one_of(N, B::ROLE, count))
    }

    /// The array, if there is one.
    #[inline(always)]
    pub fn optional(&self) -> Result<Option<B>> {
        let ([array], count) = self.counted()?;
        if count <= 1 {
            return Ok((count == 1).then_some(array));
        }
        Err(not_one_of(0, B::ROLE, count))
    }

    /// All arrays.
    pub fn all(&self) -> Result<Vec<B>> {
        let mut arrays = Vec::with_capacity(self.kinds.len());
        self.see(|_, array| arrays.push(array))?;
        Ok(arrays)
    }

    /// The last array, with its index among all arguments.
    pub(super) fn last(&self) -> Result<Option<(usize, B)>> {
        for index in (0..self.kinds.len()).rev() {
            let argument = Self {
                kinds: &self.kinds[index..=index],
                structs: &self.structs[index..=index],
                arrays: PhantomData,
            };
            if let Some(array) = argument.optional()? {
                return Ok(Some((index, array)));
            }
        }
        Ok(None)
    }

    /// The data type and the number of elements of the first argument, if that is an array.
    #[inline(always)]
    pub fn first_type(&self) -> Option<(XLA_FFI_DataType, i64)> {
        let raw = struct_of::<B>(self.kinds.first(), self.structs.first())?;
        if raw.dtype == XLA_FFI_DataType_TOKEN {
            return None;
        }
        // SAFETY: XLA vouches for its arrays (c_api.h: "length == rank").
        let dims: &[i64] = unsafe { slice(raw.dims, raw.rank, "") }.ok()?;
        Some((raw.dtype, checked_count(dims)?))
    }

    /// The arguments without the last one, if that is the byte that orders calls on GPUs. Programs that an
    /// earlier version has exported have a token there.
    pub(super) fn without_order_byte(&self) -> Result<Self> {
        let last = struct_of::<B>(self.kinds.last(), self.structs.last());
        let is_byte = |raw: &XLA_FFI_Buffer| {
            // SAFETY: XLA vouches for its arrays (c_api.h: "length == rank").
            let dims = unsafe { slice(raw.dims, raw.rank, "dimensions") };
            raw.dtype == XLA_FFI_DataType_U8 && matches!(dims, Ok([1]))
        };
        let count = match last {
            Some(raw) if raw.dtype == XLA_FFI_DataType_TOKEN => self.kinds.len(),
            Some(raw) if is_byte(raw) => self.kinds.len() - 1,
            _ => {
                let role = B::ROLE;
                return Err(Error::invalid(format!(
                    "the last {role} of a call on a device is not the byte that orders it"
                )));
            }
        };
        Ok(Self {
            kinds: &self.kinds[..count],
            structs: &self.structs[..count],
            arrays: PhantomData,
        })
    }

    /// The first `N` arrays, and the number of all.
    #[inline(always)]
    fn counted<const N: usize>(&self) -> Result<([B; N], usize)> {
        let mut arrays = [B::nowhere(); N];
        let count = self.see(|index, array| {
            if let Some(slot) = arrays.get_mut::<usize>(index) {
                *slot = array;
            }
        })?;
        Ok((arrays, count))
    }

    /// Shows the arrays, with their indices, and counts them.
    #[inline(always)]
    fn see(&self, mut see: impl FnMut(usize, B)) -> Result<usize> {
        let role = B::ROLE;
        let mut count = 0;
        for (kind, pointer) in self.kinds.iter().zip(self.structs) {
            if *kind != B::BUFFER {
                return Err(Error::invalid(format!(
                    "{role} {count} has kind {kind}, expected a buffer"
                )));
            }
            let raw = struct_of::<B>(Some(kind), Some(pointer)).ok_or_else(|| {
                Error::invalid(format!("{role} {count} is null, expected a buffer"))
            })?;
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
            see(count, unsafe { B::lent(facts) });
            count += 1;
        }
        Ok(count)
    }
}

/// XLA's struct for an argument, if that is a buffer.
#[inline(always)]
fn struct_of<'a, B: Argument<'a>>(
    kind: Option<&c_int>,
    pointer: Option<&*mut c_void>,
) -> Option<&'a XLA_FFI_Buffer> {
    let pointer = pointer.filter(|_| kind == Some(&B::BUFFER))?;
    // SAFETY: null, or the struct for its kind, by the promise of `new`.
    unsafe { pointer.cast::<XLA_FFI_Buffer>().as_ref() }
}

/// There are neither `least` buffers nor one more.
#[cold]
fn not_one_of(least: usize, role: &str, count: usize) -> Error {
    let most = least + 1;
    Error::invalid(format!("expected {least} or {most} {role}s, got {count}"))
}

#[cold]
fn negative(role: &str, index: usize, dims: &[i64]) -> Error {
    Error::invalid(format!(
        "{role} {index} has shape {dims:?}, expected no negative size"
    ))
}
