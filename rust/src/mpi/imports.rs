//! Imports of a loaded library: replacing a function that it calls.

use std::ffi::{CStr, c_void};

/// Replaces the function `name` that a library imports by `function`. `address` is the address of any
/// function in the library. Returns whether the import was found and replaced.
///
/// # Safety
/// `function` has the signature of `name`, keeps its promises, and is never unloaded.
#[cfg(target_os = "linux")]
pub unsafe fn replace_import(address: usize, name: &CStr, function: *const c_void) -> bool {
    let Some(library) = elf::Loaded::at(address) else {
        return false;
    };
    let slots = library.slots_of(name);
    // SAFETY: the library reads the address of `name` from these slots; the caller vouches for the
    // function.
    unsafe { slots.iter().all(|slot| library.set(*slot, function)) && !slots.is_empty() }
}

/// Imports can be replaced on Linux only.
#[cfg(not(target_os = "linux"))]
pub unsafe fn replace_import(_: usize, _: &CStr, _: *const c_void) -> bool {
    false
}

#[cfg(target_os = "linux")]
mod elf {
    use std::ffi::{CStr, c_char, c_int, c_void};
    use std::ops::Range;
    use std::slice;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use object::NativeEndian as Native;
    use object::elf::{
        DT_JMPREL, DT_NULL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_STRTAB, DT_SYMTAB, DynamicTag,
    };

    use crate::loaded;

    type Dynamic = object::elf::Dyn64<Native>;
    type Relocation = object::elf::Rela64<Native>;

    /// A library that the loader has mapped.
    pub struct Loaded {
        base: usize,
        /// The dynamic section (gABI, "Dynamic Section").
        dynamic: &'static [Dynamic],
        /// The pages that the loader made read-only after relocation.
        read_only: Range<usize>,
    }

    impl Loaded {
        /// The library that contains an address. It must stay loaded.
        pub fn at(address: usize) -> Option<Self> {
            loaded::find(|library| {
                let mut segments = library.segments(libc::PT_LOAD).into_iter();
                segments.find(|(segment, _)| segment.contains(&address))?;
                let (dynamic, _) = library.segments(libc::PT_DYNAMIC).pop()?;
                let count = dynamic.len() / size_of::<Dynamic>();
                // SAFETY: the loader has mapped the dynamic section.
                let entries = unsafe { slice::from_raw_parts(dynamic.start as *const _, count) };
                let is_end = |entry: &Dynamic| entry.d_tag.get(Native) == DT_NULL;
                let relro = library.segments(libc::PT_GNU_RELRO).pop();
                let (relro, _) = relro.unwrap_or_default();
                Some(Self {
                    base: library.base,
                    dynamic: entries.split(is_end).next()?,
                    read_only: read_only_pages(&relro, page_size()),
                })
            })
        }

        /// The addresses of the slots in which the library keeps the address of an imported function.
        pub fn slots_of(&self, name: &CStr) -> Vec<usize> {
            let tables = [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)];
            let (Some(symbols), Some(texts)) = (self.address(DT_SYMTAB), self.address(DT_STRTAB))
            else {
                return Vec::new();
            };
            let is_named = |relocation: &&Relocation| {
                let symbol = relocation.r_sym(Native, false) as usize;
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
            let slot = |named: &Relocation| self.base + named.r_offset.get(Native) as usize;
            relocations.filter(is_named).map(slot).collect()
        }

        /// Sets a slot to the address of a function. Returns whether the system allows it.
        ///
        /// # Safety
        /// The function takes the arguments of the function that was in the slot.
        pub unsafe fn set(&self, slot: usize, function: *const c_void) -> bool {
            let is_read_only = self.read_only.contains(&slot);
            if is_read_only && !protect(slot, libc::PROT_READ | libc::PROT_WRITE) {
                return false;
            }
            // SAFETY: the slot holds an aligned address. Other threads may read it meanwhile.
            let address = unsafe { AtomicPtr::from_ptr(slot as *mut *mut c_void) };
            address.store(function.cast_mut(), Ordering::Release);
            !is_read_only || protect(slot, libc::PROT_READ)
        }

        fn value(&self, tag: DynamicTag) -> Option<usize> {
            let mut entries = self.dynamic.iter();
            let entry = entries.find(|entry| entry.d_tag.get(Native) == tag)?;
            Some(entry.d_val.get(Native) as usize)
        }

        /// An address in the dynamic section. glibc's loader has added the base, musl's has not.
        fn address(&self, tag: DynamicTag) -> Option<usize> {
            let value = self.value(tag)?;
            Some(if value < self.base {
                value + self.base
            } else {
                value
            })
        }
    }

    /// The pages that the loader makes read-only for a segment `PT_GNU_RELRO`: glibc
    /// (`_dl_protect_relro`) and musl (`reloc_all`) round both ends down. A library that is linked for
    /// pages of 4 KiB may have variables in the page where the segment ends, if the system's pages are
    /// larger.
    fn read_only_pages(segment: &Range<usize>, page_size: usize) -> Range<usize> {
        page_of(segment.start, page_size)..page_of(segment.end, page_size)
    }

    /// The address of the page that contains an address.
    fn page_of(address: usize, page_size: usize) -> usize {
        address & !(page_size - 1)
    }

    fn page_size() -> usize {
        // SAFETY: `sysconf` only returns a number.
        unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
    }

    /// Sets the protection of the page that contains an address. Returns whether the system allows it.
    fn protect(address: usize, protection: c_int) -> bool {
        let page_size = page_size();
        let start = page_of(address, page_size);
        // SAFETY: no code relies on the page being read-only.
        unsafe { libc::mprotect(start as *mut c_void, page_size, protection) == 0 }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Fails if a page with variables behind the segment becomes read-only.
        #[test]
        fn only_whole_pages_are_read_only() {
            const BASE: usize = 0x7f00_0000_0000;
            let pages = |segment: Range<usize>, page_size| {
                let segment = BASE + segment.start..BASE + segment.end;
                let pages = read_only_pages(&segment, page_size);
                pages.start - BASE..pages.end - BASE
            };
            // Linked for pages of 4 KiB, with variables from 0x25000 on.
            let segment = 0x1_3d40..0x2_5000;
            assert_eq!(pages(segment.clone(), 0x1000), 0x1_3000..0x2_5000);
            assert_eq!(pages(segment, 0x1_0000), 0x1_0000..0x2_0000);
            // Linked for pages of 64 KiB.
            let segment = 0x1_fd40..0x3_0000;
            assert_eq!(pages(segment.clone(), 0x1000), 0x1_f000..0x3_0000);
            assert_eq!(pages(segment, 0x1_0000), 0x1_0000..0x3_0000);
            // A small segment that shares its page with variables.
            assert!(pages(0x1_1000..0x1_2000, 0x1_0000).is_empty());
        }
    }
}
