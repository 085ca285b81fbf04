//! Files with a checksum.

use std::io;
use std::path::{Path, PathBuf};
use std::slice;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::files::{self, Damage};

/// The system's error about a file, of the class that Python has for it.
fn of_system(error: &io::Error, path: &Path) -> PyErr {
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or(&text);
    let code = error.raw_os_error().unwrap_or(libc::EIO);
    PyOSError::new_err((code, text.to_owned(), path.to_owned()))
}

/// The error for a damaged file. Its text goes on behind the name of the file.
fn of_damage(damage: Damage, path: &Path) -> PyErr {
    match damage {
        Damage::Io(error) => of_system(&error, path),
        Damage::Size(found, expected) => PyValueError::new_err(format!(
            "has {found} bytes and a checksum, expected {expected} bytes and a checksum"
        )),
        Damage::Checksum(found, expected) => PyValueError::new_err(format!(
            "is damaged: the checksum of its bytes is {found:08x}, expected {expected:08x}"
        )),
    }
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

/// Writes the bytes at an address, and then their checksum, into a file. Gives the checksum.
#[pyfunction]
pub fn write_file(
    py: Python<'_>,
    path: PathBuf,
    address: usize,
    size: usize,
    will_be_synced: bool,
) -> PyResult<u32> {
    py.detach(|| files::write(&path, read_only(address, size), will_be_synced))
        .map_err(|error| of_system(&error, &path))
}

/// Reads the bytes of a file to an address, and compares their checksum with the one behind them.
#[pyfunction]
pub fn read_file(py: Python<'_>, path: PathBuf, address: usize, size: usize) -> PyResult<()> {
    let bytes: &mut [u8] = match size {
        0 => &mut [],
        // SAFETY: Python passes the address and the size of an array of its own, and keeps it.
        _ => unsafe { slice::from_raw_parts_mut(address as *mut u8, size) },
    };
    py.detach(|| files::read(&path, bytes))
        .map_err(|damage| of_damage(damage, &path))
}

/// Compares the checksum of a file of `size` bytes with the one behind them.
#[pyfunction]
pub fn verify_file(py: Python<'_>, path: PathBuf, size: u64) -> PyResult<()> {
    py.detach(|| files::verify(&path, size))
        .map_err(|damage| of_damage(damage, &path))
}

/// Puts a file, or the names of the files in a folder, on the disk.
#[pyfunction]
pub fn sync_path(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    py.detach(|| files::sync(&path))
        .map_err(|error| of_system(&error, &path))
}

/// Swaps two names in one step. Gives whether the file system can do this.
#[pyfunction]
pub fn swap_names(a: PathBuf, b: PathBuf) -> PyResult<bool> {
    files::swap(&a, &b).map_err(|error| of_system(&error, &b))
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
