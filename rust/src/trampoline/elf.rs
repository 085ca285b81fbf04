//! Addresses of symbols that a shared library does not export.

use std::ops::Range;

use object::LittleEndian;
use object::elf::{FileHeader64, SHT_SYMTAB, Sym64};
use object::read::elf::{FileHeader, Sym};

/// Finds symbols by their names in the table that linkers make for debuggers, which has all of
/// them: their addresses, from the beginning of the library on. `None` where there is no such
/// table, and for a name that is missing or there twice.
pub fn symbols<const N: usize>(file: &[u8], names: [&str; N]) -> Option<[Range<u64>; N]> {
    let header = FileHeader64::<LittleEndian>::parse(file).ok()?;
    let sections = header.sections(LittleEndian, file).ok()?;
    let table = sections.symbols(LittleEndian, file, SHT_SYMTAB).ok()?;
    // Those without a section are other libraries'.
    let is_own = |symbol: &&Sym64<_>| !symbol.is_undefined(LittleEndian);
    let mut symbols = [const { None }; N];
    for symbol in table.iter().filter(is_own) {
        let text = symbol.name(LittleEndian, table.strings()).ok()?;
        if let Some(index) = names.iter().position(|name| name.as_bytes() == text) {
            let start = symbol.st_value(LittleEndian);
            let end = start.checked_add(symbol.st_size(LittleEndian))?;
            if symbols[index].replace(start..end).is_some() {
                return None;
            }
        }
    }
    let symbols: Vec<_> = symbols.into_iter().collect::<Option<_>>()?;
    symbols.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::symbols;

    /// A library with these symbols, each of one byte: their names, sections and addresses.
    fn library(names: &[(&str, u16, u64)]) -> Vec<u8> {
        let mut texts = vec![0];
        let mut table = vec![0; 24];
        for (name, section, address) in names {
            table.extend((texts.len() as u32).to_le_bytes());
            table.extend([0; 2]);
            table.extend(section.to_le_bytes());
            table.extend(address.to_le_bytes());
            table.extend(1u64.to_le_bytes());
            texts.extend(name.as_bytes());
            texts.push(0);
        }
        let section = |kind: u32, start: usize, length: usize, link: u32| {
            let mut section = [0; 64];
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            section[24..32].copy_from_slice(&(start as u64).to_le_bytes());
            section[32..40].copy_from_slice(&(length as u64).to_le_bytes());
            section[40..44].copy_from_slice(&link.to_le_bytes());
            section
        };
        let sections = [
            section(0, 0, 0, 0),
            section(3, 64, texts.len(), 0),
            section(2, 64 + texts.len(), table.len(), 1),
        ];
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        file.extend(&texts);
        file.extend(&table);
        let start = file.len() as u64;
        file[40..48].copy_from_slice(&start.to_le_bytes());
        for (at, value) in [(58, 64), (60, sections.len() as u16), (62, 1)] {
            file[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        file.extend(sections.concat());
        file
    }

    #[test]
    fn symbols_are_found_by_their_whole_names() {
        let file = library(&[
            ("one_more", 1, 10),
            ("one", 0, 20),
            ("one", 1, 30),
            ("two", 1, 40),
        ]);
        assert_eq!(symbols(&file, ["two", "one"]), Some([40..41, 30..31]));
        assert_eq!(symbols(&file, ["on"]), None);
    }

    #[test]
    fn a_name_that_two_symbols_have_is_none() {
        let file = library(&[("one", 1, 10), ("one", 1, 20)]);
        assert_eq!(symbols(&file, ["one"]), None);
    }

    proptest! {
        /// Fails by a panic where a number in the file is believed.
        #[test]
        fn any_file_has_an_answer(
            position: Index,
            bytes in vec(prop_oneof![Just(0), Just(255), any::<u8>()], 1..9),
        ) {
            let mut file = library(&[("one", 1, 10), ("two", 1, 20)]);
            let start = position.index(file.len());
            let end = file.len().min(start + bytes.len());
            file.splice(start..end, bytes);
            let _ = symbols(&file, ["one", "two"]);
        }
    }

    /// Fails by a panic where a length is believed.
    #[test]
    fn what_is_cut_off_has_no_symbols() {
        let file = library(&[("one", 1, 10)]);
        for length in 0..file.len() {
            assert_eq!(symbols(&file[..length], ["one"]), None, "{length} bytes");
        }
        assert_eq!(symbols(b"no library at all", ["one"]), None);
    }
}
