//! Files with a checksum: the bytes, and then their CRC-32C, as Zarr's codec `crc32c` has it.
//!
//! Bytes are read and written in blocks, whose checksum is computed while they are in the cache.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

/// Size of a block.
const BLOCK: usize = 1 << 20;

/// What is wrong with a file.
#[derive(Debug)]
pub enum Damage {
    /// The system's error.
    Io(io::Error),
    /// The size in bytes, without the checksum, and the size that was expected.
    Size(u64, u64),
    /// The checksum of the bytes, and the one behind them.
    Checksum(u32, u32),
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The checksum of some bytes.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Writes bytes and their checksum into a file, and returns the checksum. What is there already is
/// replaced. If the file `will_be_synced`, the system begins to put it on the disk.
pub fn write(path: &Path, bytes: &[u8], will_be_synced: bool) -> io::Result<u32> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let mut checksum = 0;
    for block in bytes.chunks(BLOCK) {
        checksum = crc32c::crc32c_append(checksum, block);
        file.write_all(block)?;
    }
    file.write_all(&checksum.to_le_bytes())?;
    if will_be_synced {
        start_writeback(&file);
    }
    Ok(checksum)
}

/// Lets the system put a file on the disk while the program goes on. It may do so later, too.
fn start_writeback(file: &File) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;

        // SAFETY: the descriptor is open. Zero bytes from the first one on are all.
        unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Reads the bytes of a file, which are as many as there is room for, and compares their checksum with
/// the one behind them.
pub fn read(path: &Path, bytes: &mut [u8]) -> Result<(), Damage> {
    let mut file = open(path, bytes.len() as u64)?;
    let mut checksum = 0;
    for block in bytes.chunks_mut(BLOCK) {
        file.read_exact(block)?;
        checksum = crc32c::crc32c_append(checksum, block);
    }
    compare(&mut file, checksum)
}

/// Compares the checksum of a file of `size` bytes with the one behind them.
pub fn verify(path: &Path, size: u64) -> Result<(), Damage> {
    let mut file = open(path, size)?;
    let mut block = vec![0; BLOCK];
    let (mut checksum, mut left) = (0, size);
    while left > 0 {
        let part = &mut block[..left.min(BLOCK as u64) as usize];
        file.read_exact(part)?;
        checksum = crc32c::crc32c_append(checksum, part);
        left -= part.len() as u64;
    }
    compare(&mut file, checksum)
}

/// A file of `size` bytes, without the checksum behind them.
fn open(path: &Path, size: u64) -> Result<File, Damage> {
    let file = File::open(path)?;
    let found = file.metadata()?.len();
    match found.checked_sub(size_of::<u32>() as u64) {
        Some(bytes) if bytes == size => Ok(file),
        _ => Err(Damage::Size(
            found.saturating_sub(size_of::<u32>() as u64),
            size,
        )),
    }
}

fn compare(file: &mut File, checksum: u32) -> Result<(), Damage> {
    let mut behind = [0; size_of::<u32>()];
    file.read_exact(&mut behind)?;
    let behind = u32::from_le_bytes(behind);
    if behind != checksum {
        return Err(Damage::Checksum(checksum, behind));
    }
    Ok(())
}

/// Puts a file, or the names of the files in a folder, on the disk.
pub fn sync(path: &Path) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        // Some file systems have nothing to do here, and say so.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Swaps two names in one step, so that each of them exists at any moment. Gives whether the file
/// system can do this.
pub fn swap(a: &Path, b: &Path) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    {
        use std::ffi::CString;
        use std::os::unix::ffi::OsStrExt;

        let names = [a, b].map(|path| CString::new(path.as_os_str().as_bytes()));
        let [a, b] = names;
        let (a, b) = (a?, b?);
        // By its number, as glibc has the function from 2.28 on only.
        // SAFETY: both names end with a zero, and live longer than the call.
        let code = unsafe {
            libc::syscall(
                libc::SYS_renameat2,
                libc::AT_FDCWD,
                a.as_ptr(),
                libc::AT_FDCWD,
                b.as_ptr(),
                libc::RENAME_EXCHANGE,
            )
        };
        if code == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOSYS | libc::ENOTSUP) => Ok(false),
            _ => Err(error),
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (a, b);
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;
    use std::path::PathBuf;
    use std::process;

    use super::*;

    fn path(name: &str) -> PathBuf {
        env::temp_dir().join(format!("mpi4jax-files-{}-{name}", process::id()))
    }

    #[test]
    #[cfg(not(miri))] // it has no files
    fn what_is_written_is_read_and_damage_is_seen() {
        let path = path("chunk");
        for size in [0, 1, 7, BLOCK, 3 * BLOCK + 5] {
            let bytes: Vec<u8> = (0..size).map(|n| (n * n + n / 7) as u8).collect();
            let checksum = write(&path, &bytes, true).unwrap();
            sync(&path).unwrap();
            assert_eq!(checksum, super::checksum(&bytes));
            let mut read_back = vec![1; size];
            read(&path, &mut read_back).unwrap();
            assert_eq!(read_back, bytes);
            verify(&path, size as u64).unwrap();
            let error = read(&path, &mut vec![0; size + 1]).unwrap_err();
            assert!(matches!(error, Damage::Size(found, expected)
                if (found, expected) == (size as u64, size as u64 + 1)));
            let mut damaged = fs::read(&path).unwrap();
            damaged[size / 2] ^= 8;
            fs::write(&path, damaged).unwrap();
            assert!(matches!(
                read(&path, &mut read_back),
                Err(Damage::Checksum(..))
            ));
            assert!(matches!(
                verify(&path, size as u64),
                Err(Damage::Checksum(..))
            ));
        }
        fs::write(&path, [1, 2]).unwrap();
        assert!(matches!(verify(&path, 0), Err(Damage::Size(0, 0))));
        fs::remove_file(&path).unwrap();
        assert!(matches!(verify(&path, 0), Err(Damage::Io(_))));
    }

    #[test]
    fn the_checksum_is_that_of_rfc_3720() {
        assert_eq!(checksum(&[0; 32]), 0x8A91_36AA);
        assert_eq!(checksum(b"123456789"), 0xE306_9283);
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn names_are_swapped() {
        let (a, b) = (path("a"), path("b"));
        fs::write(&a, "a").unwrap();
        fs::write(&b, "b").unwrap();
        if swap(&a, &b).unwrap() {
            assert_eq!(fs::read(&a).unwrap(), b"b");
        }
        fs::remove_file(&a).unwrap();
        assert_eq!(swap(&a, &b).unwrap_err().kind(), ErrorKind::NotFound);
        fs::remove_file(&b).unwrap();
    }
}
