//! The libraries that the loader has mapped into this process.

use std::ffi::{CStr, c_int, c_void};
use std::slice;

/// A library, as the loader describes it.
pub struct LoadedLibrary<'a> {
    /// The path of its file, or nothing.
    pub name: &'a CStr,
    /// Where it begins.
    pub base: usize,
    /// Its program headers (gABI, "Program Header").
    pub headers: &'a [libc::Elf64_Phdr],
}

/// Shows the libraries until `look` makes something of one, and gives that.
pub fn find_library<T, F: FnMut(LoadedLibrary) -> Option<T>>(look: F) -> Option<T> {
    struct Search<F, T> {
        look: F,
        outcome: Option<T>,
    }

    unsafe extern "C" fn show<F: FnMut(LoadedLibrary) -> Option<T>, T>(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader lends the description of a library, whose name ends, and says how many
        // headers there are. The search is lent below.
        let (library, search) = unsafe {
            let info = &*info;
            let name = (!info.dlpi_name.is_null()).then(|| CStr::from_ptr(info.dlpi_name));
            let library = LoadedLibrary {
                name: name.unwrap_or_default(),
                base: info.dlpi_addr as usize,
                headers: slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()),
            };
            (library, &mut *search.cast::<Search<F, T>>())
        };
        search.outcome = (search.look)(library);
        search.outcome.is_some().into()
    }

    let mut search = Search {
        look,
        outcome: None,
    };
    // SAFETY: the function gets the search for as long as the call takes.
    unsafe { libc::dl_iterate_phdr(Some(show::<F, T>), (&raw mut search).cast()) };
    search.outcome
}
