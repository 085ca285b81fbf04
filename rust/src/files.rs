//! Files of chunks: the bytes of each, and then their CRC-32C, as Zarr's codec `crc32c` has it.
//!
//! Bytes are read and written in blocks, whose checksum is computed while they are in the cache.

pub mod blosc;

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub use crc32c::crc32c_combine as combine_checksums;

/// Size of a block.
const BLOCK: usize = 1 << 20;
/// Size of a checksum.
const CHECKSUM: u64 = size_of::<u32>() as u64;

/// Reason why a chunk can't be read.
#[derive(Debug)]
pub enum Damage {
    /// The system's error.
    Io(io::Error),
    /// The size in bytes, without the checksum, and the size that was expected.
    Size(u64, u64),
    /// The checksum of the bytes, and the one behind them.
    Checksum(u32, u32),
    /// The bytes can't be decompressed to as many as were expected.
    Compression(u64),
    /// The file ends within the chunk.
    End,
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::End,
            _ => Self::Io(error),
        }
    }
}

/// The checksum of some bytes.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// The checksum of all bytes of a file.
pub fn file_checksum(path: &Path) -> io::Result<u32> {
    let mut file = File::open(path)?;
    let mut block = vec![0; BLOCK];
    let mut checksum = 0;
    loop {
        match file.read(&mut block)? {
            0 => return Ok(checksum),
            size => checksum = crc32c::crc32c_append(checksum, &block[..size]),
        }
    }
}

/// Writes chunks into a file, from an offset on: bytes of arrays, with their checksum behind them. They are
/// compressed (up to `blosc::MAX_BYTES`) if the size of their elements is given. Gives the size that each
/// has in the file, and the checksum of all.
pub fn write_chunks(
    file: &File,
    offset: u64,
    chunks: &[&[u8]],
    element: Option<usize>,
) -> io::Result<(Vec<u64>, u32)> {
    let mut writer = Writer {
        file,
        end: offset,
        checksum: 0,
        pending: vec![],
    };
    let mut write = |chunk: &&[u8]| {
        if chunk.len() < BLOCK / 2 {
            writer.write_small(chunk, element)
        } else {
            writer.write_large(chunk, element)
        }
    };
    let sizes = chunks.iter().map(&mut write).collect::<io::Result<_>>()?;
    writer.flush()?;
    Ok((sizes, writer.checksum))
}

struct Writer<'a> {
    file: &'a File,
    /// End of what is in the file.
    end: u64,
    /// Checksum of what was written.
    checksum: u32,
    /// Small chunks that are not in the file yet.
    pending: Vec<u8>,
}

impl Writer<'_> {
    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.pending, self.end)?;
        self.end += self.pending.len() as u64;
        self.checksum = crc32c::crc32c_append(self.checksum, &self.pending);
        self.pending.clear();
        Ok(())
    }

    /// Writes a chunk together with others, and gives its size.
    fn write_small(&mut self, bytes: &[u8], element: Option<usize>) -> io::Result<u64> {
        let first = self.pending.len();
        if let Some(element) = element {
            self.pending
                .resize(first + blosc::front_size(bytes.len()), 0);
            let write = |block: &[u8]| -> io::Result<()> {
                self.pending.extend_from_slice(block);
                Ok(())
            };
            let front = blosc::compress(bytes, element, write)?;
            self.pending[first..][..front.len()].copy_from_slice(&front);
        } else {
            self.pending.extend_from_slice(bytes);
        }
        let of_bytes = checksum(&self.pending[first..]);
        self.pending.extend(of_bytes.to_le_bytes());
        let size = self.pending.len() - first;
        if self.pending.len() >= BLOCK {
            self.flush()?;
        }
        Ok(size as u64)
    }

    /// Writes a chunk block by block, and gives its size. Its bytes are read once: the checksum of all is
    /// combined with that of the chunk, which takes some microseconds.
    fn write_large(&mut self, bytes: &[u8], element: Option<usize>) -> io::Result<u64> {
        self.flush()?;
        let (file, offset) = (self.file, self.end);
        let front_size = element.map_or(0, |_| blosc::front_size(bytes.len()));
        let first = offset + front_size as u64;
        self.end = first;
        let mut of_bytes = 0;
        let write = |block: &[u8]| {
            of_bytes = crc32c::crc32c_append(of_bytes, block);
            file.write_all_at(block, self.end)?;
            self.end += block.len() as u64;
            Ok::<_, io::Error>(())
        };
        if let Some(element) = element {
            let front = blosc::compress(bytes, element, write)?;
            file.write_all_at(&front, offset)?;
            let behind = (self.end - first) as usize;
            of_bytes = combine_checksums(checksum(&front), of_bytes, behind);
        } else {
            bytes.chunks(BLOCK).try_for_each(write)?;
        }
        let behind = of_bytes.to_le_bytes();
        file.write_all_at(&behind, self.end)?;
        self.end += CHECKSUM;
        let size = self.end - offset;
        let of_chunk = crc32c::crc32c_append(of_bytes, &behind);
        self.checksum = combine_checksums(self.checksum, of_chunk, size as usize);
        Ok(size)
    }
}

/// Lets the system put a file on the disk while the program goes on. It may do so later, too.
pub fn start_writeback(file: &File) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;

        // SAFETY: the descriptor is open. Zero bytes from the first one on are all.
        unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Reads a chunk of a file, which has `size` bytes there with its checksum, and compares the checksum.
/// The chunk has as many bytes as there is room for.
pub fn read(
    file: &File,
    offset: u64,
    size: u64,
    bytes: &mut [u8],
    is_compressed: bool,
) -> Result<(), Damage> {
    let expected = bytes.len() as u64;
    let found = size.saturating_sub(CHECKSUM);
    if size < CHECKSUM || !is_compressed && found != expected {
        return Err(Damage::Size(found, expected));
    }
    let (mut end, mut checksum) = (offset, 0);
    let mut read = |bytes: &mut [u8]| -> io::Result<u32> {
        file.read_exact_at(bytes, end)?;
        end += bytes.len() as u64;
        let before = checksum;
        checksum = crc32c::crc32c_append(checksum, bytes);
        Ok(before)
    };
    if is_compressed {
        let no_blocks = || Damage::Compression(expected);
        let mut front = vec![0; blosc::front_size(bytes.len())];
        read(&mut front)?;
        let blocks = blosc::Blocks::new(&front, bytes.len(), found as usize);
        let mut blocks = blocks.ok_or_else(no_blocks)?;
        let mut packed = vec![];
        for (block, size) in blosc::blocks_of(bytes).zip(blocks.sizes()) {
            packed.resize(size, 0);
            read(&mut packed)?;
            blocks.decompress(&packed, block).ok_or_else(no_blocks)?;
        }
    } else {
        for block in bytes.chunks_mut(BLOCK) {
            read(block)?;
        }
    }
    let mut behind = [0; size_of::<u32>()];
    let checksum = read(&mut behind)?;
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
        let path = path("chunks");
        for element in [None, Some(4)] {
            let sizes = [1, 7, BLOCK / 3, BLOCK, 3 * BLOCK + 5, BLOCK / 2 - 2, 9];
            let chunks =
                sizes.map(|size| -> Vec<u8> { (0..size).map(|n| (n * n + n / 7) as u8).collect() });
            let file = File::create(&path).unwrap();
            file.write_all_at(b"front", 0).unwrap();
            let bytes = chunks.each_ref().map(Vec::as_slice);
            let (sizes, of_all) = write_chunks(&file, 5, &bytes, element).unwrap();
            start_writeback(&file);
            sync(&path).unwrap();
            let whole = fs::read(&path).unwrap();
            assert_eq!(whole.len() as u64, 5 + sizes.iter().sum::<u64>());
            assert_eq!(checksum(&whole[5..]), of_all);
            assert_eq!(checksum(&whole), file_checksum(&path).unwrap());
            let mut offset = 5;
            for (bytes, size) in chunks.iter().zip(sizes) {
                let check = |expected: usize, size| {
                    let mut back = vec![1; expected];
                    let file = File::open(&path).unwrap();
                    read(&file, offset, size, &mut back, element.is_some()).map(|()| back)
                };
                assert_eq!(check(bytes.len(), size).unwrap(), *bytes);
                let error = check(bytes.len() + 1, size).unwrap_err();
                match element {
                    None => assert!(matches!(error, Damage::Size(..))),
                    Some(_) => assert!(matches!(error, Damage::Compression(_))),
                }
                assert!(matches!(check(bytes.len(), 3), Err(Damage::Size(0, _))));
                let mut damaged = whole.clone();
                damaged[offset as usize + size as usize / 2] ^= 8;
                fs::write(&path, damaged).unwrap();
                let error = check(bytes.len(), size).unwrap_err();
                let is_seen = match element {
                    None => matches!(error, Damage::Checksum(..)),
                    Some(_) => matches!(error, Damage::Checksum(..) | Damage::Compression(_)),
                };
                assert!(is_seen);
                assert_ne!(file_checksum(&path).unwrap(), checksum(&whole));
                fs::write(&path, &whole[..offset as usize + 2]).unwrap();
                assert!(matches!(check(bytes.len(), size), Err(Damage::End)));
                fs::write(&path, &whole).unwrap();
                offset += size;
            }
        }
        fs::remove_file(&path).unwrap();
        assert!(file_checksum(&path).is_err());
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
