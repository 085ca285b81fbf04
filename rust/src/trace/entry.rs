//! Format of the file of calls, and its reader.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::xla;

/// The first eight bytes of a file: format and version.
const MAGIC: [u8; 8] = *b"mpi4jax1";
/// The size of the header, before the entries: [`MAGIC`], and a hash of the fields.
const HEADER: usize = 16;

/// Stands for an attribute that an operation does not have.
pub const NONE: i32 = i32::MIN;

/// Declares [`Entry`] and [`fields`] by one list.
macro_rules! entry {
    ($($(#[$text:meta])* $field:ident: $type:ident,)*) => {
        /// A call, in the machine's byte order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, FromBytes, Immutable, IntoBytes)]
        #[repr(C)]
        pub struct Entry {
            $($(#[$text])* pub $field: $type,)*
        }

        /// The fields of an [`Entry`], each with NumPy's name for its type, such as `u8` for `u64`.
        pub fn fields() -> Vec<(&'static str, String)> {
            vec![$((
                stringify!($field),
                format!("{}{}", &stringify!($type)[..1], size_of::<$type>()),
            ),)*]
        }
    };
}

entry! {
    /// When the call began, in nanoseconds of the monotonic clock.
    begin: u64,
    /// When it returned, or 0.
    end: u64,
    /// Number of the call site: the call in its program.
    call_site: i64,
    /// The number of elements sent.
    sent: i64,
    /// The number of elements received.
    received: i64,
    /// The position among the collective calls on the communicator, or 0.
    sequence: u64,
    /// The number of the operation in flight that the call has started, or waits for, or 0.
    in_flight: u64,
    /// The number of the communicator.
    communicator: i32,
    /// The number of the operator.
    op: i32,
    /// The root.
    root: i32,
    /// The rank that a message is sent to.
    dest: i32,
    /// The rank that a message is received from.
    source: i32,
    /// The tag of what is sent.
    send_tag: i32,
    /// The tag of what is received.
    recv_tag: i32,
    /// XLA's number for the data type that is sent, or 0.
    sent_type: u8,
    /// XLA's number for the data type that is received, or 0.
    received_type: u8,
    /// The index of the operation in the list of them.
    operation: u16,
}

/// The size of an entry.
pub const SIZE: usize = size_of::<Entry>();

/// The header of a file.
pub fn header() -> [u8; HEADER] {
    let fields = fields().into_iter();
    let text: String = fields
        .map(|(name, code)| format!("{name} {code} "))
        .collect();
    let layout = xla::hash(text.bytes().map(i64::from));
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..].copy_from_slice(&layout.to_ne_bytes());
    header
}

/// The offset of an entry in the file.
pub fn offset(index: u64) -> u64 {
    HEADER as u64 + index * SIZE as u64
}

/// Reads up to `count` entries of a file, from the entry with the index `first` on.
/// A process that was killed before its first call has none, and perhaps no file.
pub fn read(path: &Path, first: u64, count: usize) -> io::Result<Vec<Entry>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    (&mut file).take(HEADER as u64).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    if bytes != header() {
        let reason = "is not a file of this version of mpi4jax";
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    file.seek(SeekFrom::Start(offset(first)))?;
    bytes.clear();
    file.take((count * SIZE) as u64).read_to_end(&mut bytes)?;
    // The last entry may be incomplete.
    let entries = bytes.chunks_exact(SIZE);
    Ok(entries
        .filter_map(|entry| Entry::read_from_bytes(entry).ok())
        .collect())
}
