//! Checks of what XLA's structs say before it is read.

use std::ffi::c_void;

use crate::error::{Error, Result};

/// Checks that a struct of XLA's has all fields of our declaration.
#[inline(always)]
pub(super) fn check_size<T>(struct_size: usize, name: &str) -> Result<()> {
    check_bytes(struct_size, size_of::<T>(), name)
}

#[inline(always)]
pub(super) fn check_bytes(struct_size: usize, expected: usize, name: &str) -> Result<()> {
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
