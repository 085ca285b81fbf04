//! Kinds of device memory, and which of them an MPI takes.
//!
//! Memory of the driver's plain allocator belongs to a context, and an MPI that is CUDA-aware knows
//! it by that. Memory of stream-ordered pools and of the virtual-memory functions belongs to none:
//! an MPI that does not look further takes it for the host's, and crashes.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use super::driver::{Context, Driver, Vendor};

/// `CU_POINTER_ATTRIBUTE_CONTEXT`. AMD's attributes have the same numbers.
pub const CONTEXT: c_int = 1;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
pub const MEMORY_TYPE: c_int = 2;
/// `CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE`.
pub const IS_LEGACY_IPC_CAPABLE: c_int = 10;
/// `CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`.
pub const MEMPOOL_HANDLE: c_int = 17;

/// `CU_MEMORYTYPE_DEVICE`.
pub const TYPE_DEVICE: c_uint = 2;

/// Origin of memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// The plain allocator (`cuMemAlloc`): JAX's own up to 0.8.
    Plain,
    /// A stream-ordered pool (`cuMemAllocAsync`): XLA's allocator `cuda_async`.
    Pool,
    /// The virtual-memory functions (`cuMemMap`): JAX's own from 0.10 on.
    Mapped,
    /// The driver does not say, or calls it the host's.
    Unknown,
}

impl MemoryKind {
    /// Those that MPIs are known to take, or not.
    pub const NAMED: [Self; 3] = [Self::Plain, Self::Pool, Self::Mapped];

    /// The kind of the memory at an address. For the plain one, which is the most frequent, the driver
    /// is asked once.
    pub fn of(driver: &Driver, address: usize) -> Self {
        if driver.vendor == Vendor::Rocm {
            // What is said here is of CUDA's memory. AMD's has no context to tell it by.
            return Self::Plain;
        }
        let (mut context, mut pool): (Context, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
        let (mut memory_type, mut has_legacy_ipc): (c_uint, c_int) = (0, 0);
        let ask = |attribute, value: *mut c_void| {
            // SAFETY: there is room for the answer, of the type that goes with the attribute.
            unsafe { driver.pointer_attribute(value, attribute, address) }.is_ok()
        };
        // "VMM and memory pool pointers do not have a device context associated with them by
        // design" (open-mpi/ompi#12835).
        if ask(CONTEXT, (&raw mut context).cast()) && !context.is_null() {
            return Self::Plain;
        }
        if !ask(MEMORY_TYPE, (&raw mut memory_type).cast()) || memory_type != TYPE_DEVICE {
            return Self::Unknown;
        }
        // A driver without pools does not know the attribute.
        if ask(MEMPOOL_HANDLE, (&raw mut pool).cast()) && !pool.is_null() {
            return Self::Pool;
        }
        match ask(IS_LEGACY_IPC_CAPABLE, (&raw mut has_legacy_ipc).cast()) {
            true if has_legacy_ipc != 0 => Self::Plain,
            _ => Self::Mapped,
        }
    }

    /// Its name for Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Pool => "pool",
            Self::Mapped => "mapped",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "memory of the driver's plain allocator",
            Self::Pool => "memory of a stream-ordered pool (XLA's allocator cuda_async)",
            Self::Mapped => "memory of the virtual-memory functions (JAX's own from 0.10 on)",
            Self::Unknown => "memory of a kind that the driver does not tell",
        })
    }
}

/// An MPI, from the text of `MPI_Get_library_version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Its name and version, as in "Open MPI 5.0.3".
    pub name: String,
    /// The version, if it is Open MPI.
    open_mpi: Option<[u32; 3]>,
}

/// From these on, Open MPI recognises memory of pools and of the virtual-memory functions:
/// open-mpi/ompi#12751 and #12841 in 4.1.7, #12781 and #12843 in 5.0.6; #12757 and #12835 are in the
/// branches after that. Older ones look for the memory's context only. (#14331 corrects the device
/// that newer ones note for it; the address is taken for a device's without that, too.)
const OPEN_MPI_TAKES_ALL: [[u32; 3]; 2] = [[4, 1, 7], [5, 0, 6]];

impl Release {
    /// Reads the text of `MPI_Get_library_version`.
    pub fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let name = line
            .split(',')
            .next()
            .unwrap_or_default()
            .trim_matches(['\0', ' ']);
        let open_mpi = name.strip_prefix("Open MPI v").map(version);
        Self {
            name: match name.strip_prefix("Open MPI v") {
                Some(version) => format!("Open MPI {version}"),
                None => name.split_whitespace().collect::<Vec<_>>().join(" "),
            },
            open_mpi,
        }
    }

    /// Whether it takes memory of this kind if it is CUDA-aware. `None` if that is not known.
    ///
    /// Of MPIs other than Open MPI only the plain kind is known, which "CUDA-aware" has always meant.
    pub fn takes(&self, kind: MemoryKind) -> Option<bool> {
        match (kind, self.open_mpi) {
            (MemoryKind::Plain, _) => Some(true),
            (MemoryKind::Unknown, _) | (_, None) => None,
            (MemoryKind::Pool | MemoryKind::Mapped, Some(version)) => {
                let [of_4, of_5] = OPEN_MPI_TAKES_ALL;
                let first = if version[0] < 5 { of_4 } else { of_5 };
                Some(version >= first)
            }
        }
    }
}

/// The numbers of "5.0.6rc1". A release candidate counts as the release before, as it may lack what
/// came late.
fn version(text: &str) -> [u32; 3] {
    let mut numbers = [0_u32; 3];
    for (part_value, part) in numbers.iter_mut().zip(text.split('.')) {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        *part_value = digits.parse().unwrap_or(0);
    }
    if text.contains("rc") {
        numbers[2] = numbers[2].saturating_sub(1);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [MemoryKind; 4] = [
        MemoryKind::Plain,
        MemoryKind::Pool,
        MemoryKind::Mapped,
        MemoryKind::Unknown,
    ];

    fn taken(text: &str) -> [Option<bool>; 4] {
        let release = Release::parse(text);
        KINDS.map(|kind| release.takes(kind))
    }

    #[test]
    fn open_mpi_takes_all_kinds_from_some_versions_on() {
        let old = [Some(true), Some(false), Some(false), None];
        let new = [Some(true), Some(true), Some(true), None];
        for version in ["4.0.7", "4.1.6", "4.1.7rc1", "5.0.0", "5.0.5", "5.0.6rc1"] {
            assert_eq!(
                taken(&format!("Open MPI v{version}, package: x")),
                old,
                "{version}"
            );
        }
        for version in ["4.1.7", "4.1.8", "5.0.6", "5.0.10", "5.1.0a1", "6.0.0"] {
            assert_eq!(
                taken(&format!("Open MPI v{version}, package: x")),
                new,
                "{version}"
            );
        }
    }

    #[test]
    fn of_others_only_plain_memory_is_known() {
        for text in [
            "MPICH Version:      4.3.2\nMPICH Device: ch4:ofi",
            "Intel(R) MPI",
            "",
        ] {
            assert_eq!(taken(text), [Some(true), None, None, None]);
        }
    }

    #[test]
    fn names_are_short() {
        let name = |text| Release::parse(text).name;
        assert_eq!(
            name("Open MPI v5.0.3, package: Debian, ident: 5"),
            "Open MPI 5.0.3"
        );
        assert_eq!(
            name("MPICH Version:      4.3.2\nMPICH Device: x"),
            "MPICH Version: 4.3.2"
        );
    }
}
