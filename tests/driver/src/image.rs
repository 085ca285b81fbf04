//! The variables in the image of a module that is an ELF file.

use std::ffi::{CStr, CString};

/// Whether an image is an ELF file, and not text.
///
/// # Safety
/// `image` must have four bytes, as every image has.
pub unsafe fn is_elf(image: *const u8) -> bool {
    // SAFETY: the caller's promise.
    let magic = unsafe { image.cast::<[u8; 4]>().read_unaligned() };
    &magic == b"\x7fELF"
}

/// Where the ELF header has the offset of the section headers, and how many there are.
const SECTIONS: usize = 0x28;
const SECTION_COUNT: usize = 0x3C;
/// The bytes of a section header, and where it has the type, the place, the length, and the index
/// of the section with the names.
const HEADER: usize = 64;
const TYPE: usize = 4;
const PLACE: usize = 0x18;
const LENGTH: usize = 0x20;
const NAMES: usize = 0x28;
const SYMBOL_TABLE: u32 = 2;
/// The bytes of a symbol, and where it has its kind and its bytes.
const SYMBOL: usize = 24;
const KIND: usize = 4;
const BYTES: usize = 16;
/// The kind of a variable.
const OBJECT: u8 = 1;

/// The names of the variables, with their bytes.
///
/// # Safety
/// `image` must be an ELF file of 64 bits.
pub unsafe fn variables(image: *const u8) -> Vec<(CString, usize)> {
    // SAFETY: what is read is where the format has it.
    unsafe {
        let word = |offset: usize| image.add(offset).cast::<u64>().read_unaligned() as usize;
        let half = |offset: usize| image.add(offset).cast::<u32>().read_unaligned();
        let sections = word(SECTIONS);
        let count = image.add(SECTION_COUNT).cast::<u16>().read_unaligned();
        let header = |index: usize| sections + index * HEADER;
        let tables = (0..usize::from(count)).map(header);
        let mut variables = Vec::new();
        for table in tables.filter(|table| half(table + TYPE) == SYMBOL_TABLE) {
            let names = word(header(half(table + NAMES) as usize) + PLACE);
            let start = word(table + PLACE);
            for symbol in (start..start + word(table + LENGTH)).step_by(SYMBOL) {
                if *image.add(symbol + KIND) & 0xF == OBJECT {
                    let name = CStr::from_ptr(image.add(names + half(symbol) as usize).cast());
                    variables.push((name.to_owned(), word(symbol + BYTES)));
                }
            }
        }
        variables
    }
}
