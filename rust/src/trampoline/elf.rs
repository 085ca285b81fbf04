//! Where the symbols of a shared library are that it keeps to itself.

/// A symbol: its address, from the beginning of the library on, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Its address in the file.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
}

/// The layout of ELF for 64 bits (gABI, "Object Files"): sizes of entries, and offsets in them.
mod layout {
    pub const MAGIC: &[u8] = b"\x7fELF\x02\x01";
    pub const SECTIONS: usize = 40;
    pub const SECTION_SIZE: usize = 58;
    pub const SECTION_COUNT: usize = 60;
    pub const SECTION_TYPE: usize = 4;
    pub const SECTION_OFFSET: usize = 24;
    pub const SECTION_BYTES: usize = 32;
    pub const SECTION_LINK: usize = 40;
    pub const SYMBOL_TABLE: u32 = 2;
    pub const SYMBOL_SIZE: usize = 24;
    pub const SYMBOL_SECTION: usize = 6;
    pub const SYMBOL_ADDRESS: usize = 8;
    pub const SYMBOL_BYTES: usize = 16;
}

/// Finds symbols by their names in the table that linkers make for debuggers, which has all of
/// them. `None` where there is no such table, and for a name that is missing or there twice.
pub fn symbols<const N: usize>(file: &[u8], names: [&str; N]) -> Option<[Symbol; N]> {
    use layout::*;
    if !file.starts_with(MAGIC) {
        return None;
    }
    let sections = offset(file, SECTIONS)?;
    let section_size = usize::from(u16::from_le_bytes(bytes(file, SECTION_SIZE)?));
    let count = usize::from(u16::from_le_bytes(bytes(file, SECTION_COUNT)?));
    let section = |index: usize| -> Option<&[u8]> {
        let start = sections.checked_add(index.checked_mul(section_size)?)?;
        file.get(start..start.checked_add(section_size)?)
    };
    let content = |section: &[u8]| -> Option<&[u8]> {
        let start = offset(section, SECTION_OFFSET)?;
        file.get(start..start.checked_add(offset(section, SECTION_BYTES)?)?)
    };
    let table = (0..count).filter_map(section).find(|section| {
        bytes(section, SECTION_TYPE).map(u32::from_le_bytes) == Some(SYMBOL_TABLE)
    })?;
    let link = u32::from_le_bytes(bytes(table, SECTION_LINK)?);
    let texts = content(section(link as usize)?)?;

    let mut symbols = [None; N];
    for entry in content(table)?.chunks_exact(SYMBOL_SIZE) {
        // Those without a section are other libraries'.
        if bytes(entry, SYMBOL_SECTION) == Some([0, 0]) {
            continue;
        }
        let text = texts.get(u32::from_le_bytes(bytes(entry, 0)?) as usize..)?;
        for (name, slot) in names.iter().zip(&mut symbols) {
            let is_equal = text
                .strip_prefix(name.as_bytes())
                .is_some_and(|rest| rest.first() == Some(&0));
            if is_equal {
                let symbol = Symbol {
                    address: u64::from_le_bytes(bytes(entry, SYMBOL_ADDRESS)?),
                    size: u64::from_le_bytes(bytes(entry, SYMBOL_BYTES)?),
                };
                if slot.replace(symbol).is_some() {
                    return None;
                }
            }
        }
    }
    let symbols: Vec<_> = symbols.into_iter().collect::<Option<_>>()?;
    symbols.try_into().ok()
}

fn bytes<const N: usize>(file: &[u8], at: usize) -> Option<[u8; N]> {
    file.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn offset(file: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(bytes(file, at)?)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    /// A library with these symbols: their names, sections and addresses.
    fn library(names: &[(&str, u16, u64)]) -> Vec<u8> {
        let mut texts = vec![0];
        let mut table = vec![0; layout::SYMBOL_SIZE];
        for (name, section, address) in names {
            let mut entry = [0; layout::SYMBOL_SIZE];
            entry[..4].copy_from_slice(&(texts.len() as u32).to_le_bytes());
            entry[6..8].copy_from_slice(&section.to_le_bytes());
            entry[8..16].copy_from_slice(&address.to_le_bytes());
            entry[16..].copy_from_slice(&1u64.to_le_bytes());
            table.extend(entry);
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
        let mut file = layout::MAGIC.to_vec();
        file.resize(64, 0);
        let sections = [
            section(3, 64, texts.len(), 0),
            section(layout::SYMBOL_TABLE, 64 + texts.len(), table.len(), 0),
        ];
        file.extend(&texts);
        file.extend(&table);
        let start = file.len() as u64;
        file[40..48].copy_from_slice(&start.to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&2u16.to_le_bytes());
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
        let symbol = |address| Symbol { address, size: 1 };
        assert_eq!(
            symbols(&file, ["two", "one"]),
            Some([symbol(40), symbol(30)])
        );
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
