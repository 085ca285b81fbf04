//! The libraries that are loaded, as the system's loader describes them.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

/// A library, as long as the loader lends its description.
pub struct Library<'a> {
    /// Address that stands for 0 in the library's file.
    pub base: usize,
    /// Its file. Empty for the program itself.
    pub path: &'a Path,
    headers: &'a [libc::Elf64_Phdr],
}

impl Library<'_> {
    /// Its parts of a kind, such as `PT_LOAD`: their addresses, and the flags of what may be done
    /// there.
    pub fn segments(&self, kind: u32) -> Vec<(Range<usize>, u32)> {
        let headers = self.headers.iter().filter(|header| header.p_type == kind);
        let part = |header: &libc::Elf64_Phdr| {
            let start = self.base + header.p_vaddr as usize;
            (start..start + header.p_memsz as usize, header.p_flags)
        };
        headers.map(part).collect()
    }
}

/// Calls a function with each loaded library until it returns a value, and gives that.
pub fn find<T, F: FnMut(&Library) -> Option<T>>(function: F) -> Option<T> {
    let mut search = Search {
        function,
        answer: None,
    };
    // SAFETY: `look` gets the search that it expects, for as long as the call takes.
    unsafe { libc::dl_iterate_phdr(Some(look::<T, F>), (&raw mut search).cast()) };
    search.answer
}

struct Search<T, F> {
    function: F,
    answer: Option<T>,
}

unsafe extern "C" fn look<T, F: FnMut(&Library) -> Option<T>>(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader lends the description of a library, which says how many headers there
    // are, and `find` the search.
    let (info, headers, search) = unsafe {
        let info = &*info;
        let headers = slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        (info, headers, &mut *search.cast::<Search<T, F>>())
    };
    let name = if info.dlpi_name.is_null() {
        c""
    } else {
        // SAFETY: the name ends, and lives as long as the description.
        unsafe { CStr::from_ptr(info.dlpi_name) }
    };
    search.answer = (search.function)(&Library {
        base: info.dlpi_addr as usize,
        path: Path::new(OsStr::from_bytes(name.to_bytes())),
        headers,
    });
    search.answer.is_some().into()
}
