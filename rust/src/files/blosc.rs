//! Compressed bytes in the format of Blosc 1, as Zarr's codec `blosc` has them.
//!
//! The bytes are cut into blocks. In each, the first bytes of all elements come first, then the second
//! ones, and so on (they are shuffled): neighbours in a field differ in their last bytes only. LZ4 then
//! compresses the block. In front of all blocks are a header and the table of their offsets.

use lz4_flex::block;

const HEADER: usize = 16;
/// Size of a block: shuffled and compressed, it stays in a core's cache.
const BLOCK: usize = 256 << 10;
/// Largest number of bytes that a header can state.
pub const MAX_BYTES: usize = i32::MAX as usize - HEADER;

const FORMAT: u8 = 2;
const LZ4_FORMAT: u8 = 1;
// Flags of the header. LZ4 has number 1 in the upper three bits.
const SHUFFLED: u8 = 1;
const ONE_STREAM: u8 = 0x10;
const LZ4: u8 = 1 << 5;

/// Number of bytes in front of the blocks of up to `MAX_BYTES` bytes.
pub fn front_size(bytes: usize) -> usize {
    HEADER + 4 * bytes.div_ceil(BLOCK)
}

/// First bytes of the header, for elements of this size.
fn beginning(element: u8) -> [u8; 4] {
    let shuffles = if element > 1 { SHUFFLED } else { 0 };
    [FORMAT, LZ4_FORMAT, LZ4 | ONE_STREAM | shuffles, element]
}

/// Compresses bytes, which are elements of `element` bytes each, and gives what is in front of the blocks.
/// `write` gets the blocks, one after the other.
pub fn compress<E>(
    bytes: &[u8],
    element: usize,
    mut write: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<Vec<u8>, E> {
    assert!(bytes.len() <= MAX_BYTES);
    let block_size = BLOCK.min(bytes.len());
    let mut size = front_size(bytes.len());
    let mut front = Vec::with_capacity(size);
    front.resize(HEADER, 0);
    let mut shuffled = vec![0; block_size];
    // The size of a block, and what it is compressed to.
    let mut packed = vec![0; 4 + block::get_maximum_output_size(block_size)];
    for block in bytes.chunks(BLOCK) {
        let shuffled = &mut shuffled[..block.len()];
        shuffle(block, shuffled, element);
        let length = match block::compress_into(shuffled, &mut packed[4..]) {
            Ok(length) if length < block.len() => length,
            _ => {
                // What has its own size is not compressed.
                packed[4..][..block.len()].copy_from_slice(shuffled);
                block.len()
            }
        };
        packed[..4].copy_from_slice(&(length as u32).to_le_bytes());
        write(&packed[..4 + length])?;
        front.extend((size as u32).to_le_bytes());
        size += 4 + length;
    }
    front[..4].copy_from_slice(&beginning(element as u8));
    let numbers = [bytes.len(), block_size, size];
    for (field, number) in front[4..HEADER].chunks_exact_mut(4).zip(numbers) {
        field.copy_from_slice(&(number as u32).to_le_bytes());
    }
    Ok(front)
}

/// Blocks as `compress` has made them.
pub struct Blocks {
    element: usize,
    /// End of each block in the compressed bytes, after the end of what is in front of all.
    ends: Vec<usize>,
    shuffled: Vec<u8>,
}

impl Blocks {
    /// The blocks of some `bytes`, by what is in front of them. `size` is that of all compressed bytes. `None`
    /// if they are not those of `compress`.
    pub fn new(front: &[u8], bytes: usize, size: usize) -> Option<Self> {
        let block_size = BLOCK.min(bytes);
        let words: Vec<usize> = front[4..]
            .as_chunks()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word) as usize)
            .collect();
        let ends = [&words[3..], &[size]].concat();
        let element = front[3];
        let is_ours = front[..4] == beginning(element)
            && words[..3] == [bytes, block_size, size]
            && ends[0] == front.len()
            && ends.windows(2).all(|pair| pair[0] + 4 < pair[1]);
        is_ours.then(|| Self {
            element: element.into(),
            ends,
            shuffled: vec![0; block_size],
        })
    }

    /// Size of each block in the compressed bytes.
    pub fn sizes(&self) -> Vec<usize> {
        self.ends.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// Decompresses a block to as many bytes as it has. `None` if it is not that of `compress`.
    pub fn decompress(&mut self, packed: &[u8], block: &mut [u8]) -> Option<()> {
        let (length, stream) = packed.split_first_chunk()?;
        let shuffled = &mut self.shuffled[..block.len()];
        if u32::from_le_bytes(*length) as usize != stream.len() {
            return None;
        }
        if stream.len() == block.len() {
            shuffled.copy_from_slice(stream);
        } else if block::decompress_into(stream, shuffled).ok()? != block.len() {
            return None;
        }
        restore(shuffled, block, self.element);
        Some(())
    }
}

/// The parts of some bytes that are a block each.
pub fn blocks_of(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    bytes.chunks_mut(BLOCK)
}

/// Sorts the bytes of elements by their place in an element. What is less than an element stays behind.
fn shuffle(bytes: &[u8], shuffled: &mut [u8], element: usize) {
    match element {
        2 => shuffle_elements::<2>(bytes, shuffled),
        4 => shuffle_elements::<4>(bytes, shuffled),
        8 => shuffle_elements::<8>(bytes, shuffled),
        _ => shuffled.copy_from_slice(bytes),
    }
}

/// Undoes `shuffle`.
fn restore(shuffled: &[u8], bytes: &mut [u8], element: usize) {
    match element {
        2 => restore_elements::<2>(shuffled, bytes),
        4 => restore_elements::<4>(shuffled, bytes),
        8 => restore_elements::<8>(shuffled, bytes),
        _ => bytes.copy_from_slice(shuffled),
    }
}

fn shuffle_elements<const SIZE: usize>(bytes: &[u8], shuffled: &mut [u8]) {
    let (elements, rest) = bytes.as_chunks::<SIZE>();
    let (sorted, behind) = shuffled.split_at_mut(bytes.len() - rest.len());
    behind.copy_from_slice(rest);
    if elements.is_empty() {
        return;
    }
    for (place, row) in sorted.chunks_exact_mut(elements.len()).enumerate() {
        for (byte, element) in row.iter_mut().zip(elements) {
            *byte = element[place];
        }
    }
}

fn restore_elements<const SIZE: usize>(shuffled: &[u8], bytes: &mut [u8]) {
    let (elements, rest) = bytes.as_chunks_mut::<SIZE>();
    let (sorted, behind) = shuffled.split_at(shuffled.len() - rest.len());
    rest.copy_from_slice(behind);
    let count = elements.len();
    for (number, element) in elements.iter_mut().enumerate() {
        *element = std::array::from_fn(|place| sorted[place * count + number]);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn field(size: usize) -> Vec<u8> {
        let value = |n: usize| (n as f32 * 1e-3).sin().to_le_bytes();
        (0..size.div_ceil(4)).flat_map(value).take(size).collect()
    }

    fn compressed(bytes: &[u8], element: usize) -> Vec<u8> {
        let mut blocks = vec![];
        let write = |block: &[u8]| -> Result<(), Infallible> {
            blocks.extend_from_slice(block);
            Ok(())
        };
        let Ok(front) = compress(bytes, element, write);
        [front, blocks].concat()
    }

    fn decompressed(compressed: &[u8], size: usize) -> Option<Vec<u8>> {
        let front = compressed.get(..front_size(size))?;
        let mut blocks = Blocks::new(front, size, compressed.len())?;
        let mut bytes = vec![1; size];
        let mut rest = &compressed[front.len()..];
        for (block, size) in blocks_of(&mut bytes).zip(blocks.sizes()) {
            let (packed, behind) = rest.split_at(size);
            blocks.decompress(packed, block)?;
            rest = behind;
        }
        Some(bytes)
    }

    #[test]
    fn what_is_compressed_comes_back() {
        for element in [1, 2, 4, 8] {
            for size in [1, 3, 8, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5] {
                let bytes = field(size);
                let packed = compressed(&bytes, element);
                assert!(
                    decompressed(&packed, size).unwrap() == bytes,
                    "{element} {size}"
                );
                assert!(packed.len() <= front_size(size) + 4 * size.div_ceil(BLOCK) + size);
                assert_eq!(decompressed(&packed, size + 1), None);
            }
        }
        let bytes = field(1 << 20);
        assert!(compressed(&bytes, 4).len() < compressed(&bytes, 1).len() * 3 / 4);
        assert!(compressed(&vec![0; 1 << 20], 4).len() < 1 << 13);
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(
            size in 1..3000_usize, element in 1..10_usize, at in 0..4000_usize, new: u8
        ) {
            let mut packed = compressed(&field(size), element);
            let index = at % packed.len();
            packed[index] = new;
            let _ = decompressed(&packed, size);
            packed.truncate(index);
            prop_assert_eq!(decompressed(&packed, size), None);
        }
    }
}
