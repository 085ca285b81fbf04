//! Datatypes (MPI-3.1 §4). Each is flattened to the blocks of equal basic elements that it selects.

use std::ffi::{c_char, c_int, c_longlong};
use std::sync::Arc;

use super::attributes::{self, Attributes};
use super::errors::{ARG, BUFFER, COUNT, Error, NO_MEM, Result, TRUNCATE, TYPE, count as counted};
use super::handles::{DATATYPE_NULL, State, UNDEFINED, state};
use super::memory::{self, In, Out};

/// Class of basic types, which decides what operations take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Signed,
    Unsigned,
    Float,
    Complex,
    Logical,
    Byte,
    /// Text and others without arithmetic.
    Other,
    /// Pairs of a value and its index, for `MPI_MINLOC` and `MPI_MAXLOC`.
    Pair,
}

/// Size of a basic type, which its handle has.
const fn size_in(handle: c_int) -> usize {
    (handle >> 8 & 0xff) as usize
}

macro_rules! basics {
    ($($kind:ident: $($name:tt = $handle:literal),*;)*) => {
        /// The basic types: their handles, names and kinds.
        const BASICS: &[(u32, &str, Kind)] =
            &[$($(($handle, concat!("MPI_", stringify!($name)), Kind::$kind)),*),*];
    };
}

basics! {
    Signed: CHAR = 0x4c000101, SIGNED_CHAR = 0x4c000118, SHORT = 0x4c000203, INT = 0x4c000405,
        LONG = 0x4c000807, LONG_LONG_INT = 0x4c000809, INT8_T = 0x4c000137, INT16_T = 0x4c000238,
        INT32_T = 0x4c000439, INT64_T = 0x4c00083a, AINT = 0x4c000843, OFFSET = 0x4c000844,
        COUNT = 0x4c000845, INTEGER = 0x4c00041b, INTEGER1 = 0x4c00012d, INTEGER2 = 0x4c00022f,
        INTEGER4 = 0x4c000430, INTEGER8 = 0x4c000831;
    Unsigned: UNSIGNED_CHAR = 0x4c000102, UNSIGNED_SHORT = 0x4c000204, UNSIGNED = 0x4c000406,
        UNSIGNED_LONG = 0x4c000808, UNSIGNED_LONG_LONG = 0x4c000819, UINT8_T = 0x4c00013b,
        UINT16_T = 0x4c00023c, UINT32_T = 0x4c00043d, UINT64_T = 0x4c00083e;
    Float: FLOAT = 0x4c00040a, DOUBLE = 0x4c00080b, REAL = 0x4c00041c,
        DOUBLE_PRECISION = 0x4c00081f, REAL2 = 0x4c000226, REAL4 = 0x4c000427, REAL8 = 0x4c000829,
        REAL16 = 0x4c00102b, LONG_DOUBLE = 0x4c00100c, C_FLOAT16 = 0x4c000246,
        BFLOAT16 = 0x4c00024c;
    Complex: C_FLOAT_COMPLEX = 0x4c000840, C_DOUBLE_COMPLEX = 0x4c001041, COMPLEX = 0x4c00081e,
        DOUBLE_COMPLEX = 0x4c001022, COMPLEX8 = 0x4c000828, COMPLEX16 = 0x4c00102a,
        CXX_FLOAT_COMPLEX = 0x4c000834, CXX_DOUBLE_COMPLEX = 0x4c001035, COMPLEX4 = 0x4c00042e,
        COMPLEX32 = 0x4c00202c, C_LONG_DOUBLE_COMPLEX = 0x4c002042,
        CXX_LONG_DOUBLE_COMPLEX = 0x4c002036;
    Logical: C_BOOL = 0x4c00013f, CXX_BOOL = 0x4c000133, LOGICAL = 0x4c00041d,
        LOGICAL1 = 0x4c000147, LOGICAL2 = 0x4c000248, LOGICAL4 = 0x4c000449,
        LOGICAL8 = 0x4c00084a;
    Byte: BYTE = 0x4c00010d;
    Other: WCHAR = 0x4c00040e, PACKED = 0x4c00010f, CHARACTER = 0x4c00011a,
        LB = 0x4c000010, UB = 0x4c000011,
        INTEGER16 = 0x4c001032, LOGICAL16 = 0x4c00104b;
    Pair: 2INT = 0x4c000816, 2INTEGER = 0x4c000820, 2REAL = 0x4c000821,
        2DOUBLE_PRECISION = 0x4c001023;
}

const INT: c_int = 0x4c00_0405;
/// The pairs in a C struct: their handles, names and types of values.
const PAIRS: &[(u32, &str, c_int)] = &[
    (0x8c00_0000, "MPI_FLOAT_INT", 0x4c00_040a),
    (0x8c00_0001, "MPI_DOUBLE_INT", 0x4c00_080b),
    (0x8c00_0002, "MPI_LONG_INT", 0x4c00_0807),
    (0x8c00_0003, "MPI_SHORT_INT", 0x4c00_0203),
    (0x8c00_0004, "MPI_LONG_DOUBLE_INT", 0x4c00_100c),
];

/// Equal basic elements, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub offset: isize,
    pub bytes: usize,
    /// The handle of the basic type.
    pub basic: c_int,
}

impl Block {
    /// Number of basic elements.
    fn elements(&self) -> usize {
        self.bytes / size_of_basic(self.basic)
    }
}

/// Where the elements of a type are.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    pub blocks: Vec<Block>,
    /// The bytes of all blocks.
    pub size: usize,
    pub lower: isize,
    pub extent: isize,
    alignment: usize,
    /// The basic type that this is, if it is one: a predefined type.
    pub basic: Option<(c_int, Kind)>,
}

/// Copies of a layout, from a displacement on.
pub type Part<'layout> = (isize, usize, &'layout Layout);

fn too_large() -> Error {
    Error::new(NO_MEM, "the datatype is larger than the memory")
}

impl Layout {
    fn basic(handle: c_int, kind: Kind) -> Self {
        let size = size_in(handle);
        let alignment = match kind {
            Kind::Complex | Kind::Pair => size / 2,
            _ => size.min(16),
        };
        let mut blocks = vec![Block {
            offset: 0,
            bytes: size,
            basic: handle,
        }];
        blocks.retain(|block| block.bytes > 0);
        let basic = Some((handle, kind));
        Self {
            blocks,
            size,
            lower: 0,
            extent: size as isize,
            alignment: alignment.max(1),
            basic,
        }
    }

    /// Parts in the order in which their elements are sent.
    pub fn of(parts: &[Part<'_>]) -> Result<Self> {
        let mut whole = Self {
            alignment: 1,
            ..Self::default()
        };
        let mut bounds: Option<(isize, isize)> = None;
        for &(displacement, count, part) in parts {
            let Some(last) = count.checked_sub(1) else {
                continue;
            };
            let at = |index: usize| {
                let offset = isize::try_from(index).ok()?.checked_mul(part.extent)?;
                offset.checked_add(displacement)
            };
            let ends = [0, last].map(|index| at(index).and_then(|at| at.checked_add(part.lower)));
            let [Some(first), Some(end)] = ends else {
                return Err(too_large());
            };
            let (low, high) = (first.min(end), first.max(end).checked_add(part.extent));
            let high = high.ok_or_else(too_large)?;
            bounds = Some(bounds.map_or((low, high), |(a, b)| (a.min(low), b.max(high))));
            let size = part
                .size
                .checked_mul(count)
                .and_then(|size| size.checked_add(whole.size));
            whole.size = size.ok_or_else(too_large)?;
            whole.alignment = whole.alignment.max(part.alignment);
            match part.dense() {
                Some(block) => whole.push(Block {
                    offset: block.offset + displacement,
                    bytes: block.bytes * count,
                    ..block
                })?,
                None => {
                    for index in 0..if part.blocks.is_empty() { 0 } else { count } {
                        let start = at(index).unwrap_or_default();
                        for block in &part.blocks {
                            whole.push(Block {
                                offset: block.offset + start,
                                ..*block
                            })?;
                        }
                    }
                }
            }
        }
        let (low, high) = bounds.unwrap_or_default();
        Ok(whole.resized(low, high - low))
    }

    /// The block, if copies of this layout are one block again.
    fn dense(&self) -> Option<Block> {
        match self.blocks[..] {
            [block] if block.bytes as isize == self.extent => Some(block),
            _ => None,
        }
    }

    fn push(&mut self, block: Block) -> Result<()> {
        if let Some(last) = self.blocks.last_mut()
            && last.basic == block.basic
            && last.offset + last.bytes as isize == block.offset
        {
            last.bytes += block.bytes;
        } else if block.bytes > 0 {
            self.blocks.try_reserve(1).map_err(|_| too_large())?;
            self.blocks.push(block);
        }
        Ok(())
    }

    /// A layout of the same elements with other bounds.
    fn resized(self, lower: isize, extent: isize) -> Self {
        Self {
            lower,
            extent,
            basic: None,
            ..self
        }
    }

    /// The extent up to the next element as in a C struct.
    fn padded(self) -> Self {
        let (lower, alignment) = (self.lower, self.alignment as isize);
        let extent = (self.extent + alignment - 1).div_euclid(alignment) * alignment;
        self.resized(lower, extent)
    }

    /// A part of a grid: for each dimension, from the fastest on, its size, the first element and the count.
    fn grid(old: &Self, dimensions: &[(usize, usize, usize)]) -> Result<Self> {
        let mut row = old.clone();
        for (size, start, count) in dimensions {
            let extent = row.extent;
            let part = (*start as isize * extent, *count, &row);
            let whole = isize::try_from(*size)
                .ok()
                .and_then(|size| size.checked_mul(extent));
            row = Self::of(&[part])?.resized(0, whole.ok_or_else(too_large)?);
        }
        Ok(row)
    }

    /// The first byte and the number of bytes up to the last.
    fn true_bounds(&self) -> (isize, isize) {
        let low = self
            .blocks
            .iter()
            .map(|block| block.offset)
            .min()
            .unwrap_or_default();
        let ends = self
            .blocks
            .iter()
            .map(|block| block.offset + block.bytes as isize);
        (low, ends.max().unwrap_or(low) - low)
    }

    /// Number of basic elements.
    fn element_count(&self) -> usize {
        self.blocks.iter().map(Block::elements).sum()
    }

    /// Number of basic elements in the first `bytes` of messages, if it is a whole number.
    fn elements(&self, bytes: usize) -> Option<usize> {
        if self.size == 0 {
            return Some(0);
        }
        let mut elements = bytes / self.size * self.element_count();
        let mut rest = bytes % self.size;
        for block in &self.blocks {
            let received = rest.min(block.bytes);
            if !received.is_multiple_of(size_of_basic(block.basic)) {
                return None;
            }
            elements += received / size_of_basic(block.basic);
            rest -= received;
        }
        Some(elements)
    }

    /// Number of bytes of the first `elements` basic elements.
    fn bytes_of(&self, elements: usize) -> usize {
        let whole = self.element_count();
        if whole == 0 {
            return 0;
        }
        let mut rest = elements % whole;
        let mut bytes = elements / whole * self.size;
        for block in &self.blocks {
            let elements = rest.min(block.elements());
            bytes += elements * size_of_basic(block.basic);
            rest -= elements;
        }
        bytes
    }
}

/// The bytes of a basic element.
pub fn size_of_basic(handle: c_int) -> usize {
    size_in(handle).max(1)
}

/// A buffer of the program's: an address, and a number of elements of a type.
#[derive(Clone, Debug)]
pub struct Data {
    pub address: usize,
    pub count: usize,
    pub layout: Arc<Layout>,
}

impl Data {
    /// The bytes of a message of all elements.
    pub fn bytes(&self) -> usize {
        self.layout.size * self.count
    }

    /// Where a number of bytes is in one piece, if they all are.
    fn dense(&self) -> Option<usize> {
        let block = match self.layout.blocks[..] {
            [block] if self.count == 1 => Some(block),
            _ => self.layout.dense(),
        };
        block.map(|block| self.address.wrapping_add_signed(block.offset))
    }

    /// Calls `each` with the address and the bytes of each block, in order.
    fn blocks(&self, mut each: impl FnMut(usize, Block) -> bool) {
        for index in 0..if self.layout.size == 0 { 0 } else { self.count } {
            let start = self
                .address
                .wrapping_add_signed(self.layout.extent * index as isize);
            for block in &self.layout.blocks {
                if !each(start.wrapping_add_signed(block.offset), *block) {
                    return;
                }
            }
        }
    }

    /// Takes the elements from a message, which may be shorter.
    pub fn unpack(&self, message: &[u8]) {
        let mut rest = &message[..message.len().min(self.bytes())];
        match self.dense() {
            Some(address) => memory::write(rest, address),
            None => self.blocks(|address, block| {
                let (piece, after) = rest.split_at(block.bytes.min(rest.len()));
                memory::write(piece, address);
                rest = after;
                !rest.is_empty()
            }),
        }
    }

    /// The message of all elements.
    pub fn message(&self) -> Vec<u8> {
        let mut message = Vec::new();
        match self.dense() {
            Some(address) => memory::read(address, self.bytes(), &mut message),
            None => self.blocks(|address, block| {
                memory::read(address, block.bytes, &mut message);
                true
            }),
        }
        message
    }

    /// Copies the elements to another buffer.
    pub fn copy_to(&self, to: &Self) -> Result<()> {
        let bytes = self.bytes();
        if bytes > to.bytes() {
            let expected = format!("at most {}, as in the receive buffer", to.bytes());
            return Err(Error::got(
                TRUNCATE,
                bytes,
                "the bytes of the send buffer",
                &expected,
            ));
        }
        match (self.dense(), to.dense()) {
            (Some(from), Some(to)) => memory::copy(from, to, bytes),
            _ => to.unpack(&self.message()),
        }
        Ok(())
    }

    /// A buffer of the same type, `displacement` extents further.
    pub fn part(&self, displacement: isize, count: c_int) -> Result<Self> {
        let address = self
            .address
            .wrapping_add_signed(self.layout.extent * displacement);
        Ok(Self {
            address,
            count: counted(count)?,
            layout: Arc::clone(&self.layout),
        })
    }
}

/// `MPI_IN_PLACE`.
pub const IN_PLACE: usize = usize::MAX;

impl State {
    /// The layout of a committed type.
    pub fn layout(&self, datatype: c_int) -> Result<Arc<Layout>> {
        let datatype = self.datatypes.get(datatype)?;
        if !datatype.is_committed {
            return Err(Error::new(TYPE, "got a datatype that is not committed"));
        }
        Ok(Arc::clone(&datatype.structure.layout))
    }

    /// The buffer that three arguments describe.
    pub fn data(&self, address: usize, count: c_int, datatype: c_int) -> Result<Data> {
        let data = Data {
            address,
            count: counted(count)?,
            layout: self.layout(datatype)?,
        };
        if address == IN_PLACE || address == 0 && data.bytes() > 0 && data.layout.basic.is_some() {
            let given = if address == 0 {
                "a null pointer"
            } else {
                "MPI_IN_PLACE"
            };
            return Err(Error::got(BUFFER, given, "a buffer", "an address"));
        }
        Ok(data)
    }
}

/// How a type was made, for `MPI_Type_get_contents`.
#[derive(Debug)]
struct Contents {
    combiner: c_int,
    integers: Vec<c_int>,
    addresses: Vec<isize>,
    types: Vec<Arc<Structure>>,
}

/// Structure of a type, which types that are made of it share.
#[derive(Debug)]
pub struct Structure {
    layout: Arc<Layout>,
    contents: Contents,
    /// The handle of a predefined type.
    handle: Option<c_int>,
}

/// A type that has a handle.
pub struct Datatype {
    structure: Arc<Structure>,
    is_committed: bool,
    name: String,
    pub attributes: Attributes,
}

mod combiner {
    use super::c_int;
    pub const NAMED: c_int = 1;
    pub const DUP: c_int = 2;
    pub const CONTIGUOUS: c_int = 3;
    pub const VECTOR: c_int = 4;
    pub const HVECTOR: c_int = 6;
    pub const INDEXED: c_int = 7;
    pub const HINDEXED: c_int = 9;
    pub const INDEXED_BLOCK: c_int = 10;
    pub const STRUCT: c_int = 12;
    pub const SUBARRAY: c_int = 13;
    pub const RESIZED: c_int = 18;
    pub const HINDEXED_BLOCK: c_int = 19;
}

/// The types that every program has.
pub fn predefined() -> Vec<(c_int, Datatype)> {
    let make = |handle: c_int, name: &str, layout| {
        let contents = Contents {
            combiner: combiner::NAMED,
            integers: Vec::new(),
            addresses: Vec::new(),
            types: Vec::new(),
        };
        let structure = Structure {
            layout: Arc::new(layout),
            contents,
            handle: Some(handle),
        };
        let datatype = Datatype {
            structure: Arc::new(structure),
            is_committed: true,
            name: name.into(),
            attributes: Attributes::default(),
        };
        (handle, datatype)
    };
    let basics = BASICS.iter().map(|(handle, name, kind)| {
        let handle = handle.cast_signed();
        make(handle, name, Layout::basic(handle, *kind))
    });
    let pairs = PAIRS.iter().map(|(handle, name, value)| {
        let [value, index] = [*value, INT].map(|handle| Layout::basic(handle, Kind::Signed));
        let parts = [(0, 1, &value), (value.extent, 1, &index)];
        let mut pair = Layout::of(&parts).expect("it is small").padded();
        pair.basic = Some((handle.cast_signed(), Kind::Pair));
        make(handle.cast_signed(), name, pair)
    });
    basics.chain(pairs).collect()
}

/// Adds a type that is made of others.
fn derive<const N: usize>(
    state: &mut State,
    combiner: c_int,
    integers: [&[c_int]; N],
    addresses: &[isize],
    types: &[c_int],
    layout: impl FnOnce(&[&Layout]) -> Result<Layout>,
) -> Result<c_int> {
    let types = types
        .iter()
        .map(|old| Ok(Arc::clone(&state.datatypes.get(*old)?.structure)));
    let types = types.collect::<Result<Vec<_>>>()?;
    let layouts: Vec<&Layout> = types.iter().map(|old| &*old.layout).collect();
    // No made type is a basic one, though it be a copy.
    let layout = Arc::new(Layout {
        basic: None,
        ..layout(&layouts)?
    });
    let contents = Contents {
        combiner,
        integers: integers.concat(),
        addresses: addresses.to_vec(),
        types,
    };
    Ok(state.datatypes.add(Datatype {
        structure: Arc::new(Structure {
            layout,
            contents,
            handle: None,
        }),
        is_committed: false,
        name: String::new(),
        attributes: Attributes::default(),
    }))
}

/// Blocks from their lengths, displacements and types.
fn indexed(
    lengths: impl Iterator<Item = c_int>,
    displacements: impl Iterator<Item = isize>,
    old: &[&Layout],
) -> Result<Layout> {
    // One type is that of all blocks.
    let parts = lengths.zip(displacements).zip(old.iter().cycle());
    let parts = parts.map(|((length, at), old)| Ok((at, counted(length)?, *old)));
    Layout::of(&parts.collect::<Result<Vec<_>>>()?)
}

/// Displacements in extents, in bytes.
fn in_bytes(displacements: &[c_int], old: &Layout) -> impl Iterator<Item = isize> {
    displacements.iter().map(|at| *at as isize * old.extent)
}

fn strided(count: c_int, length: c_int, stride: isize, old: &Layout) -> Result<Layout> {
    let displacements = (0..counted(count)?).map(|index| stride.wrapping_mul(index as isize));
    indexed(std::iter::repeat(length), displacements, &[old])
}

/// The dimensions of a grid from the fastest on.
fn in_order<T>(order: c_int, mut dimensions: Vec<T>) -> Result<Vec<T>> {
    match order {
        56 => dimensions.reverse(),
        57 => {}
        _ => {
            return Err(Error::got(
                ARG,
                order,
                "the order",
                "MPI_ORDER_C or MPI_ORDER_FORTRAN",
            ));
        }
    }
    Ok(dimensions)
}

/// The answer to a question about bounds in a C type that may be too small.
fn put_bounds<T: Copy + TryFrom<isize>>(
    (low, extent): (isize, isize),
    to: (Out<T>, Out<T>),
) -> Result<()> {
    let fit = |value| T::try_from(value).map_err(|_| too_large());
    to.0.put(fit(low)?)?;
    to.1.put(fit(extent)?)
}

fn structure(datatype: c_int) -> Result<Arc<Structure>> {
    Ok(Arc::clone(&state().datatypes.get(datatype)?.structure))
}

mpi! {
    MPI_Type_contiguous(count: c_int, old: c_int, new: Out<c_int>) => {
        let size = counted(count)?;
        new.put(derive(&mut state(), combiner::CONTIGUOUS, [&[count]], &[], &[old], |old| {
            Layout::of(&[(0, size, old[0])])
        })?)
    };
    MPI_Type_vector(count: c_int, length: c_int, stride: c_int, old: c_int, new: Out<c_int>) => {
        let integers = [count, length, stride];
        new.put(derive(&mut state(), combiner::VECTOR, [&integers], &[], &[old], |old| {
            strided(count, length, (stride as isize).wrapping_mul(old[0].extent), old[0])
        })?)
    };
    MPI_Type_create_hvector(
        count: c_int, length: c_int, stride: isize, old: c_int, new: Out<c_int>,
    ) => {
        new.put(derive(&mut state(), combiner::HVECTOR, [&[count, length]], &[stride], &[old], |old| {
            strided(count, length, stride, old[0])
        })?)
    };
    MPI_Type_indexed(
        count: c_int, lengths: In<c_int>, displacements: In<c_int>, old: c_int, new: Out<c_int>,
    ) => {
        let (lengths, displacements) = (lengths.all(count)?, displacements.all(count)?);
        let integers = [&[count], &lengths[..], &displacements];
        new.put(derive(&mut state(), combiner::INDEXED, integers, &[], &[old], |old| {
            let at = in_bytes(&displacements, old[0]);
            indexed(lengths.iter().copied(), at, old)
        })?)
    };
    MPI_Type_create_hindexed(
        count: c_int, lengths: In<c_int>, displacements: In<isize>, old: c_int, new: Out<c_int>,
    ) => {
        let (lengths, displacements) = (lengths.all(count)?, displacements.all(count)?);
        let integers = [&[count], &lengths[..]];
        new.put(derive(&mut state(), combiner::HINDEXED, integers, &displacements, &[old], |old| {
            let at = displacements.iter().copied();
            indexed(lengths.iter().copied(), at, old)
        })?)
    };
    MPI_Type_create_indexed_block(
        count: c_int, length: c_int, displacements: In<c_int>, old: c_int, new: Out<c_int>,
    ) => {
        let displacements = displacements.all(count)?;
        let integers = [&[count, length], &displacements[..]];
        new.put(derive(&mut state(), combiner::INDEXED_BLOCK, integers, &[], &[old], |old| {
            let at = in_bytes(&displacements, old[0]);
            indexed(std::iter::repeat(length), at, old)
        })?)
    };
    MPI_Type_create_hindexed_block(
        count: c_int, length: c_int, displacements: In<isize>, old: c_int, new: Out<c_int>,
    ) => {
        let at = displacements.all(count)?;
        let integers = [&[count, length][..]];
        new.put(derive(&mut state(), combiner::HINDEXED_BLOCK, integers, &at, &[old], |old| {
            indexed(std::iter::repeat(length), at.iter().copied(), old)
        })?)
    };
    MPI_Type_create_struct(
        count: c_int, lengths: In<c_int>, displacements: In<isize>, types: In<c_int>,
        new: Out<c_int>,
    ) => {
        let (lengths, types) = (lengths.all(count)?, types.all(count)?);
        let at = displacements.all(count)?;
        let integers = [&[count], &lengths[..]];
        new.put(derive(&mut state(), combiner::STRUCT, integers, &at, &types, |old| {
            Ok(indexed(lengths.iter().copied(), at.iter().copied(), old)?.padded())
        })?)
    };
    MPI_Type_create_subarray(
        ndims: c_int, sizes: In<c_int>, subsizes: In<c_int>, starts: In<c_int>, order: c_int,
        old: c_int, new: Out<c_int>,
    ) => {
        let [sizes, subsizes, starts] = [sizes.all(ndims)?, subsizes.all(ndims)?, starts.all(ndims)?];
        let dimensions = sizes.iter().zip(&subsizes).zip(&starts).map(|((size, part), start)| {
            if *part < 1 || *start < 0 || i64::from(*start) + i64::from(*part) > (*size).into() {
                let given = format!("{part} elements from {start}");
                return Err(Error::got(ARG, given, "a part of an array", &format!("a part of {size}")));
            }
            Ok((*size as usize, *start as usize, *part as usize))
        });
        let dimensions = in_order(order, dimensions.collect::<Result<_>>()?)?;
        let integers = [&[ndims], &sizes[..], &subsizes, &starts, &[order]];
        new.put(derive(&mut state(), combiner::SUBARRAY, integers, &[], &[old], |old| {
            Layout::grid(old[0], &dimensions)
        })?)
    };
    MPI_Type_create_resized(old: c_int, lower: isize, extent: isize, new: Out<c_int>) => {
        let bounds = [lower, extent];
        new.put(derive(&mut state(), combiner::RESIZED, [], &bounds, &[old], |old| {
            Ok(old[0].clone().resized(lower, extent))
        })?)
    };
    MPI_Type_dup(old: c_int, new: Out<c_int>) => {
        let made = derive(&mut state(), combiner::DUP, [], &[], &[old], |old| Ok(old[0].clone()))?;
        let attributes = {
            let mut state = state();
            let committed = state.datatypes.get(old)?.is_committed;
            state.datatypes.get_mut(made)?.is_committed = committed;
            state.datatypes.get(old)?.attributes.clone()
        };
        let copied = attributes.copied(old);
        match copied {
            Ok(attributes) => state().datatypes.get_mut(made)?.attributes = attributes,
            Err(error) => {
                let _ = state().datatypes.remove(made);
                return Err(error);
            }
        }
        new.put(made)
    };
    MPI_Type_commit(datatype: Out<c_int>) => {
        state().datatypes.get_mut(datatype.get()?)?.is_committed = true;
        Ok(())
    };
    MPI_Type_free(datatype: Out<c_int>) => {
        let handle = datatype.get()?;
        state().datatypes.check_made(handle)?;
        attributes::delete_all(handle, attributes::of_datatype(handle))?;
        state().datatypes.remove(handle)?;
        datatype.put(DATATYPE_NULL)
    };
    MPI_Type_size(datatype: c_int, size: Out<c_int>) => {
        size.put(c_int::try_from(structure(datatype)?.layout.size).unwrap_or(UNDEFINED))
    };
    MPI_Type_size_x(datatype: c_int, size: Out<c_longlong>) => {
        size.put(structure(datatype)?.layout.size as c_longlong)
    };
    MPI_Type_get_extent(datatype: c_int, lower: Out<isize>, extent: Out<isize>) => {
        let layout = &structure(datatype)?.layout;
        put_bounds((layout.lower, layout.extent), (lower, extent))
    };
    MPI_Type_get_extent_x(datatype: c_int, lower: Out<i64>, extent: Out<i64>) => {
        let layout = &structure(datatype)?.layout;
        put_bounds((layout.lower, layout.extent), (lower, extent))
    };
    MPI_Type_get_true_extent(datatype: c_int, lower: Out<isize>, extent: Out<isize>) => {
        put_bounds(structure(datatype)?.layout.true_bounds(), (lower, extent))
    };
    MPI_Type_get_true_extent_x(datatype: c_int, lower: Out<i64>, extent: Out<i64>) => {
        put_bounds(structure(datatype)?.layout.true_bounds(), (lower, extent))
    };
    MPI_Type_get_envelope(
        datatype: c_int, integers: Out<c_int>, addresses: Out<c_int>, types: Out<c_int>,
        combiner: Out<c_int>,
    ) => {
        let Contents { combiner: how, integers: i, addresses: a, types: t } =
            &structure(datatype)?.contents;
        integers.put(i.len() as c_int)?;
        addresses.put(a.len() as c_int)?;
        types.put(t.len() as c_int)?;
        combiner.put(*how)
    };
    MPI_Type_get_contents(
        datatype: c_int, max_integers: c_int, max_addresses: c_int, max_types: c_int,
        integers: Out<c_int>, addresses: Out<isize>, types: Out<c_int>,
    ) => {
        let found = structure(datatype)?;
        let Contents { combiner: how, integers: i, addresses: a, types: t } = &found.contents;
        if *how == combiner::NAMED {
            return Err(Error::new(TYPE, "got a predefined datatype, which is not made of others"));
        }
        let room = [max_integers, max_addresses, max_types].map(|room| room.max(0) as usize);
        let needed = [i.len(), a.len(), t.len()];
        if needed.iter().zip(room).any(|(needed, room)| *needed > room) {
            let given = format!("{room:?}");
            return Err(Error::got(ARG, given, "the lengths of arrays", &format!("{needed:?}")));
        }
        integers.put_all(i)?;
        addresses.put_all(a)?;
        let mut state = state();
        for (index, old) in t.iter().enumerate() {
            let handle = old.handle.unwrap_or_else(|| {
                state.datatypes.add(Datatype {
                    structure: Arc::clone(old),
                    is_committed: false,
                    name: String::new(),
                    attributes: Attributes::default(),
                })
            });
            types.put_at(index, handle)?;
        }
        Ok(())
    };
    MPI_Type_get_name(datatype: c_int, name: Out<c_char>, length: Out<c_int>) => {
        length.put(name.put_text(&state().datatypes.get(datatype)?.name, 128)?)
    };
    MPI_Type_set_name(datatype: c_int, name: memory::Text) => {
        let name = name.read()?;
        state().datatypes.get_mut(datatype)?.name = name;
        Ok(())
    };
    MPI_Type_match_size(class: c_int, size: c_int, datatype: Out<c_int>) => {
        let found: u32 = match (class, size) {
            (1, 4) => 0x4c00_0427,
            (1, 8) => 0x4c00_0829,
            (1, 16) => 0x4c00_102b,
            (2, 1) => 0x4c00_012d,
            (2, 2) => 0x4c00_022f,
            (2, 4) => 0x4c00_0430,
            (2, 8) => 0x4c00_0831,
            (3, 8) => 0x4c00_0828,
            (3, 16) => 0x4c00_102a,
            (3, 32) => 0x4c00_202c,
            _ => return Err(Error::got(ARG, size, "a size", "one of a type of that class")),
        };
        datatype.put(found.cast_signed())
    };
    MPI_Get_count(status: In<super::requests::Status>, datatype: c_int, count: Out<c_int>) => {
        let (bytes, size) = (status.at(0)?.bytes(), structure(datatype)?.layout.size);
        count.put(match (bytes, size) {
            (0, _) => 0,
            (_, 0) => UNDEFINED,
            _ if bytes % size != 0 => UNDEFINED,
            _ => c_int::try_from(bytes / size).unwrap_or(UNDEFINED),
        })
    };
    MPI_Get_elements(status: In<super::requests::Status>, datatype: c_int, count: Out<c_int>) => {
        let elements = structure(datatype)?.layout.elements(status.at(0)?.bytes());
        count.put(elements.and_then(|count| count.try_into().ok()).unwrap_or(UNDEFINED))
    };
    MPI_Get_elements_x(
        status: In<super::requests::Status>, datatype: c_int, count: Out<c_longlong>,
    ) => {
        let elements = structure(datatype)?.layout.elements(status.at(0)?.bytes());
        count.put(elements.map_or(UNDEFINED.into(), |count| count as c_longlong))
    };
    MPI_Status_set_elements(
        status: Out<super::requests::Status>, datatype: c_int, count: c_int,
    ) => {
        let bytes = structure(datatype)?.layout.bytes_of(counted(count)?);
        status.put(status.get()?.with_bytes(bytes))
    };
    MPI_Status_set_elements_x(
        status: Out<super::requests::Status>, datatype: c_int, count: c_longlong,
    ) => {
        let expected = "0 or more";
        let elements = usize::try_from(count);
        let elements = elements.map_err(|_| Error::got(COUNT, count, "a count", expected))?;
        let bytes = structure(datatype)?.layout.bytes_of(elements);
        status.put(status.get()?.with_bytes(bytes))
    };
    MPI_Pack_size(count: c_int, datatype: c_int, comm: c_int, size: Out<c_int>) on comm => {
        let bytes = counted(count)? * state().layout(datatype)?.size;
        size.put(c_int::try_from(bytes).unwrap_or(UNDEFINED))
    };
    MPI_Pack(
        from: usize, count: c_int, datatype: c_int, to: usize, size: c_int,
        position: Out<c_int>, comm: c_int,
    ) on comm => {
        let data = state().data(from, count, datatype)?;
        position.put(pack(&data, to, size as isize, position.get()? as isize)? as c_int)
    };
    MPI_Unpack(
        from: usize, size: c_int, position: Out<c_int>, to: usize, count: c_int,
        datatype: c_int, comm: c_int,
    ) on comm => {
        let data = state().data(to, count, datatype)?;
        position.put(unpack(from, size as isize, position.get()? as isize, &data)? as c_int)
    };
}

/// Address in a packed buffer from which on there is room for `bytes`.
fn packed(address: usize, size: isize, position: isize, bytes: usize) -> Result<usize> {
    if address == 0 && bytes > 0 {
        return Err(memory::null());
    }
    if position < 0 || bytes as isize > size.saturating_sub(position) {
        let expected = format!("room for {bytes} bytes");
        let given = format!("{size} bytes from {position} on");
        return Err(Error::got(TRUNCATE, given, "a packed buffer", &expected));
    }
    Ok(address.wrapping_add_signed(position))
}

fn pack(data: &Data, to: usize, size: isize, position: isize) -> Result<isize> {
    memory::write(&data.message(), packed(to, size, position, data.bytes())?);
    Ok(position + data.bytes() as isize)
}

fn unpack(from: usize, size: isize, position: isize, data: &Data) -> Result<isize> {
    let mut message = Vec::new();
    memory::read(
        packed(from, size, position, data.bytes())?,
        data.bytes(),
        &mut message,
    );
    data.unpack(&message);
    Ok(position + data.bytes() as isize)
}
