//! What a loaded library calls under the name of an imported function.

use std::ffi::{CStr, c_void};

/// Has a library call `function` wherever it calls the function `name` of another one. `address` is
/// that of any function of the library. Says whether the library imports `name`.
///
/// # Safety
/// `function` has the signature of `name`, does what that promises, and lives for good.
#[cfg(target_os = "linux")]
pub unsafe fn replace_import(address: usize, name: &CStr, function: *const c_void) -> bool {
    let Some(library) = elf::Loaded::at(address) else {
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
        /// Its dynamic section (gABI, "Dynamic Section").
        dynamic: &'static [Dynamic],
        /// What the loader has made read-only after it had filled it.
        read_only: Range<usize>,
    }

    impl Loaded {
        /// The library that has an address, which stays loaded.
        pub fn at(address: usize) -> Option<Self> {
            loaded::find(|library| {
                let mut parts = library.parts(libc::PT_LOAD).into_iter();
                parts.find(|(part, _)| part.contains(&address))?;
                let (dynamic, _) = library.parts(libc::PT_DYNAMIC).pop()?;
                let count = dynamic.len() / size_of::<Dynamic>();
                // SAFETY: the loader has mapped it.
                let entries = unsafe { slice::from_raw_parts(dynamic.start as *const _, count) };
                let is_end = |entry: &Dynamic| entry.d_tag.get(Native) == DT_NULL;
                let (read_only, _) = library.parts(libc::PT_GNU_RELRO).pop().unwrap_or_default();
                Some(Self {
                    base: library.base,
                    dynamic: entries.split(is_end).next()?,
                    read_only,
                })
            })
        }

        /// The places where the library keeps the address of an imported function.
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

    /// Has the page of an address allow this.
    fn protect(address: usize, protection: c_int) -> bool {
        // SAFETY: it only returns a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let start = address & !(page - 1);
        // SAFETY: nobody relies on the page being read-only.
        unsafe { libc::mprotect(start as *mut c_void, page, protection) == 0 }
    }
}
