//! Files with a checksum.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};
use std::slice;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::files::{self, Damage};

/// The system's error about a file, of the class that Python has for it. Python adds the name of a file
/// that it has open.
fn of_system(error: &io::Error, path: Option<&Path>) -> PyErr {
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or(&text);
    let code = error.raw_os_error().unwrap_or(libc::EIO);
    match path {
        Some(path) => PyOSError::new_err((code, text.to_owned(), path.to_owned())),
        None => PyOSError::new_err((code, text.to_owned())),
    }
}

/// The error for a damaged chunk. Its text goes on behind the name of the file.
fn of_damage(damage: Damage) -> PyErr {
    PyValueError::new_err(match damage {
        Damage::Io(error) => return of_system(&error, None),
        Damage::Size(found, expected) => {
            format!("has {found} bytes and a checksum, expected {expected} bytes and a checksum")
        }
        Damage::Checksum(found, expected) => {
            format!("is damaged: the checksum of its bytes is {found:08x}, expected {expected:08x}")
        }
        Damage::Compression(expected) => format!(
            "is damaged: a chunk of it can't be decompressed to the {expected} bytes that \
             were expected"
        ),
        Damage::End => "is damaged: it ends within a chunk".to_owned(),
    })
}

/// The CRC-32C of some bytes.
#[pyfunction]
pub fn checksum(bytes: &[u8]) -> u32 {
    files::checksum(bytes)
}

/// The CRC-32C of the bytes at an address.
#[pyfunction]
pub fn checksum_at(py: Python<'_>, address: usize, size: usize) -> u32 {
    py.detach(|| files::checksum(read_only(address, size)))
}

/// The CRC-32C of some bytes and `size` more, by the checksums of both.
#[pyfunction]
pub fn combine_checksums(first: u32, second: u32, size: usize) -> u32 {
    files::combine_checksums(first, second, size)
}

/// The CRC-32C of all bytes of a file.
#[pyfunction]
pub fn file_checksum(py: Python<'_>, path: PathBuf) -> PyResult<u32> {
    py.detach(|| files::file_checksum(&path))
        .map_err(|error| of_system(&error, Some(&path)))
}

/// Writes `count` chunks of `size` bytes, which follow each other at an address, each with its checksum
/// behind it, into an open file. They are compressed if `element` is the size of their elements, and not 0.
/// Gives the size that each has in the file, and the checksum of what was written.
#[pyfunction]
pub fn write_chunks(
    py: Python<'_>,
    file: c_int,
    offset: u64,
    address: usize,
    size: usize,
    count: usize,
    element: usize,
) -> PyResult<(Vec<u64>, u32)> {
    let element = (element > 0).then_some(element);
    let chunks: Vec<_> = read_only(address, size * count)
        .chunks_exact(size)
        .collect();
    py.detach(|| files::write_chunks(&opened(file), offset, &chunks, element))
        .map_err(|error| of_system(&error, None))
}

/// Lets the system put an open file on the disk while the program goes on.
#[pyfunction]
pub fn start_writeback(file: c_int) {
    files::start_writeback(&opened(file));
}

/// Reads chunks of an open file, whose offsets and sizes with their checksums are `places`, to an address,
/// where they follow each other and have `size` bytes each.
#[pyfunction]
pub fn read_chunks(
    py: Python<'_>,
    file: c_int,
    places: Vec<[u64; 2]>,
    address: usize,
    size: usize,
    is_compressed: bool,
) -> PyResult<()> {
    // SAFETY: Python passes the address of an array of its own that has room for all, and keeps it.
    let bytes = unsafe { slice::from_raw_parts_mut(address as *mut u8, size * places.len()) };
    let file = opened(file);
    py.detach(|| {
        let mut chunks = places.into_iter().zip(bytes.chunks_exact_mut(size));
        chunks.try_for_each(|([offset, stored], chunk)| {
            files::read(&file, offset, stored, chunk, is_compressed)
        })
    })
    .map_err(of_damage)
}

/// A file that Python has open, and keeps open.
fn opened(file: c_int) -> ManuallyDrop<File> {
    // SAFETY: the file is open during the call, and is not closed by its end.
    ManuallyDrop::new(unsafe { File::from_raw_fd(file) })
}

/// Puts a file, or the names of the files in a folder, on the disk.
#[pyfunction]
pub fn sync_path(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    py.detach(|| files::sync(&path))
        .map_err(|error| of_system(&error, Some(&path)))
}

/// Swaps two names in one step. Gives whether the file system can do this.
#[pyfunction]
pub fn swap_names(a: PathBuf, b: PathBuf) -> PyResult<bool> {
    files::swap(&a, &b).map_err(|error| of_system(&error, Some(&b)))
}

/// The bytes of an array of NumPy's.
fn read_only<'a>(address: usize, size: usize) -> &'a [u8] {
    match size {
        0 => &[],
        // SAFETY: Python passes the address and the size of an array, which it keeps, and which
        // nobody writes meanwhile.
        _ => unsafe { slice::from_raw_parts(address as *const u8, size) },
    }
}
