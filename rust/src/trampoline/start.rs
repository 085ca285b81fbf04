//! Starts the MPItrampoline in jaxlib.

use std::path::Path;

/// Makes jaxlib's MPItrampoline, in the library at `path`, look for the library that the environment
/// names now. It has looked when it was loaded, and has found nothing then: MPItrampoline has a
/// function for programs that decide later, which jaxlib does not show to others.
pub fn start(path: &Path) -> Result<(), String> {
    #[cfg(target_os = "linux")]
    return linux::start(path);
    #[cfg(not(target_os = "linux"))]
    return Err(format!(
        "{} can be looked into on Linux only",
        path.display()
    ));
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::c_void;
    use std::fs::{self, File};
    use std::ops::Range;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use std::{mem, ptr, slice};

    use crate::loaded::{self, Library};
    use crate::trampoline::elf::symbols;

    pub fn start(path: &Path) -> Result<(), String> {
        let shown = path.display();
        let file = Mapped::open(path).ok_or_else(|| format!("{shown} can't be read"))?;
        let identity = identity_of(path);
        let is_it = |library: &Library| identity_of(library.path) == identity;
        let (base, parts) = loaded::find(|library| {
            is_it(library).then(|| (library.base, library.segments(libc::PT_LOAD)))
        })
        .ok_or_else(|| format!("{shown} is not loaded"))?;
        let names = ["mpitrampoline_init", "did_init_mpitrampoline"];
        let [init, did_init] = symbols(file.bytes(), names)
            .ok_or_else(|| format!("{shown} does not say where its MPItrampoline is"))?;
        let unexpected = || format!("{shown} has an MPItrampoline of another kind");
        if did_init.end - did_init.start != 1 {
            return Err(unexpected());
        }
        // The address of a symbol, if all of it is where this may be done.
        let address = |symbol: Range<u64>, flag| {
            let start = base.wrapping_add(symbol.start as usize);
            let end = base.wrapping_add(symbol.end as usize);
            let is_there = |(part, flags): &(Range<usize>, u32)| {
                flags & flag != 0 && part.start <= start && end <= part.end
            };
            parts.iter().any(is_there).then_some(start)
        };
        let init = address(init, libc::PF_X).ok_or_else(unexpected)?;
        let did_init = address(did_init, libc::PF_W).ok_or_else(unexpected)? as *mut u8;
        // SAFETY: the variable is a bool in memory of the library's that may be written, and the
        // function, in its code, takes nothing and gives nothing. It did nothing when the library
        // was loaded, without a name in the environment, but to say that it was called.
        unsafe {
            if *did_init > 1 {
                return Err(unexpected());
            }
            *did_init = 0;
            let init: extern "C" fn() = mem::transmute(init);
            init();
        }
        Ok(())
    }

    /// A file in memory.
    struct Mapped {
        address: *mut c_void,
        length: usize,
    }

    impl Mapped {
        fn open(path: &Path) -> Option<Self> {
            let file = File::open(path).ok()?;
            let length = usize::try_from(file.metadata().ok()?.len()).ok()?;
            let (access, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
            // SAFETY: a new mapping, of a file that is open.
            let address =
                unsafe { libc::mmap(ptr::null_mut(), length, access, flags, file.as_raw_fd(), 0) };
            (address != libc::MAP_FAILED).then_some(Self { address, length })
        }

        fn bytes(&self) -> &[u8] {
            // SAFETY: all of it is mapped. A library that is loaded is replaced, and not written.
            unsafe { slice::from_raw_parts(self.address.cast(), self.length) }
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: the mapping is this one's own.
            unsafe { libc::munmap(self.address, self.length) };
        }
    }

    /// The device and the number of a file, which say whether it is the same under another name.
    fn identity_of(path: &Path) -> Option<(u64, u64)> {
        let facts = fs::metadata(path).ok()?;
        Some((facts.dev(), facts.ino()))
    }
}
