//! The pointers that C hands over.
//!
//! These types are arguments of MPI's functions and are made by C callers (or tests), who vouch for
//! them as the standard asks: each is null or points to what the function's definition says.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use super::errors::{ARG, Error, Result};

/// The address of a variable or an array that a function writes, and may read before.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Out<T>(pub *mut T);

/// The address of an array that a function reads.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct In<T>(pub *const T);

/// A text that a function reads.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Text(pub *const c_char);

/// The error for a null pointer.
pub fn null() -> Error {
    Error::new(
        ARG,
        "got a null pointer for an argument, expected an address",
    )
}

impl<T: Copy> Out<T> {
    /// Writes one value.
    pub fn put(self, value: T) -> Result<()> {
        self.put_at(0, value)
    }

    /// Writes an element.
    pub fn put_at(self, index: usize, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(null());
        }
        // SAFETY: the caller of the C function has room for the elements that it asks for.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// Writes elements from the first on. None are needed for none.
    pub fn put_all(self, values: &[T]) -> Result<()> {
        values
            .iter()
            .enumerate()
            .try_for_each(|(index, value)| self.put_at(index, *value))
    }

    /// The value before.
    pub fn get(self) -> Result<T> {
        In(self.0.cast_const()).at(0)
    }
}

impl<T: Copy> In<T> {
    /// An element.
    pub fn at(self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(null());
        }
        // SAFETY: the caller of the C function has given that many elements.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// The first elements.
    pub fn all(self, count: c_int) -> Result<Vec<T>> {
        (0..super::errors::count(count)?)
            .map(|index| self.at(index))
            .collect()
    }
}

impl Text {
    /// The text, of any bytes.
    pub fn read(self) -> Result<String> {
        if self.0.is_null() {
            return Err(null());
        }
        // SAFETY: the caller of the C function gives a text that ends in a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

impl Out<c_char> {
    /// Writes a text with its zero, cut to `room` bytes, and returns its length.
    pub fn put_text(self, text: &str, room: usize) -> Result<c_int> {
        let bytes = &text.as_bytes()[..text.len().min(room.saturating_sub(1))];
        for (index, byte) in bytes.iter().chain(&[0]).enumerate().take(room) {
            self.put_at(index, c_char::from_ne_bytes([*byte]))?;
        }
        Ok(bytes.len() as c_int)
    }
}

/// Copies bytes, which may overlap.
pub fn copy(from: usize, to: usize, bytes: usize) {
    if bytes > 0 && from != to {
        // SAFETY: both are in buffers of the program's, which MPI may read and write.
        unsafe {
            ptr::copy(
                ptr::with_exposed_provenance::<u8>(from),
                ptr::with_exposed_provenance_mut::<u8>(to),
                bytes,
            );
        }
    }
}

/// Bytes of a buffer of the program's.
pub fn read(from: usize, bytes: usize, to: &mut Vec<u8>) {
    if bytes > 0 {
        let start = to.len();
        to.resize(start + bytes, 0);
        copy(from, to[start..].as_mut_ptr().expose_provenance(), bytes);
    }
}

/// Writes to a buffer of the program's.
pub fn write(from: &[u8], to: usize) {
    copy(from.as_ptr().expose_provenance(), to, from.len());
}
