//! What a loaded library calls under the name of an imported function.

use std::ffi::{CStr, c_void};

/// Has a library call `function` wherever it calls the function `name` of another one. `address` is
/// that of any function of the library. Says whether the library imports `name`.
///
/// # Safety
/// `function` has the signature of `name`, does what that promises, and lives for good.
#[cfg(target_os = "linux")]
pub unsafe fn replace_import(address: usize, name: &CStr, function: *const c_void) -> bool {
    let Some(library) = elf::Importer::at(address) else {
        return false;
    };
    let slots = library.slots_of(name);
    // SAFETY: the slots are those from which the library takes the address of `name`; the caller
    // vouches for the function.
    unsafe { slots.iter().all(|slot| library.set(*slot, function)) && !slots.is_empty() }
}

/// Only Linux's libraries are known.
#[cfg(not(target_os = "linux"))]
pub unsafe fn replace_import(_: usize, _: &CStr, _: *const c_void) -> bool {
    false
}

#[cfg(target_os = "linux")]
mod elf {
    use std::ffi::{CStr, c_char, c_int, c_void};
    use std::iter;
    use std::ops::Range;
    use std::slice;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use crate::mpi::loaded_libraries::{LoadedLibrary, find_library};

    /// An entry of the dynamic section (gABI, "Dynamic Section").
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Dynamic {
        tag: i64,
        value: usize,
    }

    /// `Elf64_Rela`.
    #[repr(C)]
    struct Relocation {
        offset: usize,
        info: u64,
        _addend: i64,
    }

    // Tags of the dynamic section.
    const NULL: i64 = 0;
    const PLT_BYTES: i64 = 2;
    const TEXTS: i64 = 5;
    const SYMBOLS: i64 = 6;
    const RELOCATIONS: i64 = 7;
    const RELOCATION_BYTES: i64 = 8;
    const PLT_RELOCATIONS: i64 = 23;

    /// A library that the loader has mapped, with what it imports.
    pub struct Importer {
        base: usize,
        dynamic: Vec<Dynamic>,
        /// What the loader has made read-only after it had filled it.
        read_only: Range<usize>,
    }

    impl Importer {
        /// The library that has an address.
        pub fn at(address: usize) -> Option<Self> {
            find_library(|library| Self::with(address, &library))
        }

        /// This library, if it has the address.
        fn with(address: usize, library: &LoadedLibrary) -> Option<Self> {
            let base = library.base;
            let part = |header: &libc::Elf64_Phdr| {
                let start = base + header.p_vaddr as usize;
                start..start + header.p_memsz as usize
            };
            let parts = |kind| {
                let headers = library.headers.iter();
                headers
                    .filter(move |header| header.p_type == kind)
                    .map(part)
            };
            if !parts(libc::PT_LOAD).any(|part| part.contains(&address)) {
                return None;
            }
            let dynamic = parts(libc::PT_DYNAMIC).next();
            let mut entries = dynamic.map_or(0, |part| part.start) as *const Dynamic;
            let dynamic = iter::from_fn(|| {
                // SAFETY: the section ends with an entry that has the tag 0.
                let entry = (!entries.is_null()).then(|| unsafe { *entries })?;
                entries = entries.wrapping_add(1);
                (entry.tag != NULL).then_some(entry)
            });
            Some(Self {
                base,
                dynamic: dynamic.collect(),
                read_only: parts(libc::PT_GNU_RELRO).next().unwrap_or_default(),
            })
        }

        /// The places where the library keeps the address of an imported function.
        pub fn slots_of(&self, name: &CStr) -> Vec<usize> {
            let tables = [
                (PLT_RELOCATIONS, PLT_BYTES),
                (RELOCATIONS, RELOCATION_BYTES),
            ];
            let (Some(symbols), Some(texts)) = (self.address(SYMBOLS), self.address(TEXTS)) else {
                return Vec::new();
            };
            let is_named = |relocation: &&Relocation| {
                let symbol = (relocation.info >> 32) as usize;
                // SAFETY: the loader has mapped the tables that the dynamic section names, and
                // relocations refer to symbols in them. Symbol 0 has no name.
                let text = unsafe {
                    let symbol = (symbols as *const libc::Elf64_Sym).add(symbol);
                    let text = (texts + (*symbol).st_name as usize) as *const c_char;
                    CStr::from_ptr(text)
                };
                symbol != 0 && text == name
            };
            let relocations = tables.into_iter().flat_map(|(start, bytes)| {
                let start = self.address(start).filter(|_| self.value(bytes).is_some());
                let count = self.value(bytes).unwrap_or(0) / size_of::<Relocation>();
                // SAFETY: as above.
                start.map_or(&[][..], |start| unsafe {
                    slice::from_raw_parts(start as *const Relocation, count)
                })
            });
            let named = relocations.filter(is_named);
            named.map(|named| self.base + named.offset).collect()
        }

        /// Sets one of these places. Says whether the system allows it.
        ///
        /// # Safety
        /// The library calls the function with the arguments of the one that was there.
        pub unsafe fn set(&self, slot: usize, function: *const c_void) -> bool {
            let is_read_only = self.read_only.contains(&slot);
            if is_read_only && !protect(slot, libc::PROT_READ | libc::PROT_WRITE) {
                return false;
            }
            // SAFETY: it is a place for an address, aligned as such, which others may read meanwhile.
            let address = unsafe { AtomicPtr::from_ptr(slot as *mut *mut c_void) };
            address.store(function.cast_mut(), Ordering::Release);
            !is_read_only || protect(slot, libc::PROT_READ)
        }

        fn value(&self, tag: i64) -> Option<usize> {
            let entry = self.dynamic.iter().find(|entry| entry.tag == tag);
            entry.map(|entry| entry.value)
        }

        /// An address in the dynamic section. glibc's loader has added the base, musl's has not.
        fn address(&self, tag: i64) -> Option<usize> {
            let value = self.value(tag)?;
            Some(if value < self.base {
                value + self.base
            } else {
                value
            })
        }
    }

    /// Has the page of an address allow this.
    fn protect(address: usize, protection: c_int) -> bool {
        // SAFETY: it only returns a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let start = address & !(page - 1);
        // SAFETY: nobody relies on the page being read-only.
        unsafe { libc::mprotect(start as *mut c_void, page, protection) == 0 }
    }
}
