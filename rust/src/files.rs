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
const CHECKSUM: u64 = size_of::<u32>() as u64;

/// Damage of a chunk.
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

/// A chunk in a file: its bytes, with their checksum behind them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Size of the bytes and their checksum.
    pub size: u64,
    /// Checksum of all of them.
    pub checksum: u32,
}

/// Bytes of a file, one after the other, and the checksum of those that were read or written.
struct Stream<'a> {
    file: &'a File,
    at: u64,
    checksum: u32,
}

impl<'a> Stream<'a> {
    fn new(file: &'a File, at: u64) -> Self {
        Self {
            file,
            at,
            checksum: 0,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum = crc32c::crc32c_append(self.checksum, bytes);
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, self.at)?;
        self.checksum = crc32c::crc32c_append(self.checksum, bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// Writes a chunk into a file, where it begins at an offset: bytes of an array, which are compressed (up to
/// `blosc::MAX_BYTES`) if the size of their elements is given.
pub fn write(
    file: &File,
    offset: u64,
    bytes: &[u8],
    element: Option<usize>,
) -> io::Result<Written> {
    let mut stream = Stream::new(file, offset);
    if let Some(element) = element {
        let first = offset + blosc::front_size(bytes.len()) as u64;
        stream.at = first;
        let front = blosc::compress(bytes, element, |block| stream.write(block))?;
        file.write_all_at(&front, offset)?;
        let behind = (stream.at - first) as usize;
        stream.checksum = combine_checksums(checksum(&front), stream.checksum, behind);
    } else {
        for block in bytes.chunks(BLOCK) {
            stream.write(block)?;
        }
    }
    let checksum = stream.checksum;
    stream.write(&checksum.to_le_bytes())?;
    Ok(Written {
        size: stream.at - offset,
        checksum: stream.checksum,
    })
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
    let mut stream = Stream::new(file, offset);
    if is_compressed {
        let no_blocks = || Damage::Compression(expected);
        let mut front = vec![0; blosc::front_size(bytes.len())];
        stream.read(&mut front)?;
        let blocks = blosc::Blocks::new(&front, bytes.len(), found as usize);
        let mut blocks = blocks.ok_or_else(no_blocks)?;
        let mut packed = vec![];
        for (block, size) in blosc::blocks_of(bytes).zip(blocks.sizes()) {
            packed.resize(size, 0);
            stream.read(&mut packed)?;
            blocks.decompress(&packed, block).ok_or_else(no_blocks)?;
        }
    } else {
        for block in bytes.chunks_mut(BLOCK) {
            stream.read(block)?;
        }
    }
    let (checksum, mut behind) = (stream.checksum, [0; size_of::<u32>()]);
    stream.read(&mut behind)?;
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
            let sizes = [1, 7, BLOCK, 3 * BLOCK + 5];
            let chunks =
                sizes.map(|size| -> Vec<u8> { (0..size).map(|n| (n * n + n / 7) as u8).collect() });
            let file = File::create(&path).unwrap();
            let (mut total, mut places) = (Written::default(), vec![]);
            for bytes in &chunks {
                let written = write(&file, total.size, bytes, element).unwrap();
                places.push((total.size, written.size));
                let size = written.size as usize;
                total.checksum = combine_checksums(total.checksum, written.checksum, size);
                total.size += written.size;
            }
            start_writeback(&file);
            sync(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), total.size);
            assert_eq!(file_checksum(&path).unwrap(), total.checksum);
            for (bytes, (offset, size)) in chunks.iter().zip(places) {
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
                let whole = fs::read(&path).unwrap();
                let mut damaged = whole.clone();
                damaged[offset as usize + size as usize / 2] ^= 8;
                fs::write(&path, damaged).unwrap();
                let error = check(bytes.len(), size).unwrap_err();
                let is_seen = match element {
                    None => matches!(error, Damage::Checksum(..)),
                    Some(_) => matches!(error, Damage::Checksum(..) | Damage::Compression(_)),
                };
                assert!(is_seen);
                assert_ne!(file_checksum(&path).unwrap(), total.checksum);
                fs::write(&path, &whole[..offset as usize + 2]).unwrap();
                assert!(matches!(check(bytes.len(), size), Err(Damage::End)));
                fs::write(&path, whole).unwrap();
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
