//! The data types and operators of the MPI that moves bytes, and the buffers that consist of them.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use _core::mpi::{IntHandles, PredefinedOp, UserFunction};

/// What an element is to an operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Element {
    Float,
    Int,
    Long,
    Byte,
    Short,
}

impl Element {
    pub const ALL: [Self; 5] = [Self::Float, Self::Int, Self::Long, Self::Byte, Self::Short];

    pub fn size(self) -> usize {
        match self {
            Self::Float | Self::Int => 4,
            Self::Long => 8,
            Self::Short => 2,
            Self::Byte => 1,
        }
    }

    /// The handle of the predefined type, like one of MPICH's.
    pub fn handle(self) -> c_int {
        0x4c00_0400 + self as c_int
    }
}

/// A data type: the bytes that an item of it has, by their offsets.
pub struct Datatype {
    pub element: Element,
    parts: Vec<Range<isize>>,
    extent: isize,
}

impl Datatype {
    pub fn predefined(element: Element) -> Self {
        let size = element.size() as isize;
        Self {
            element,
            parts: vec![Range {
                start: 0,
                end: size,
            }],
            extent: size,
        }
    }

    /// Items one behind the other: each displacement, with the number of items there.
    pub fn of(items: &[(isize, c_int, Arc<Self>)]) -> Self {
        let mut parts = Vec::new();
        let mut extent = 0;
        for (start, count, datatype) in items {
            for index in 0..*count as isize {
                let start = start + index * datatype.extent;
                let moved = datatype.parts.iter();
                parts.extend(moved.map(|part| start + part.start..start + part.end));
                extent = extent.max(start + datatype.extent);
            }
        }
        Self {
            element: items[0].2.element,
            parts: joined(parts),
            extent,
        }
    }

    /// The bytes of an item, without the gaps.
    pub fn size(&self) -> usize {
        let sizes = self.parts.iter().map(|part| part.end - part.start);
        sizes.sum::<isize>() as usize
    }
}

/// Ranges, of which those that touch are one.
fn joined(ranges: impl IntoIterator<Item = Range<isize>>) -> Vec<Range<isize>> {
    let mut all: Vec<Range<isize>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => all.push(range),
        }
    }
    all
}

/// A number of items at an address.
#[derive(Clone)]
pub struct Part {
    address: usize,
    count: usize,
    pub datatype: Arc<Datatype>,
}

impl Part {
    pub fn new(address: *const c_void, count: usize, datatype: Arc<Datatype>) -> Self {
        Self {
            address: address as usize,
            count,
            datatype,
        }
    }

    /// Some of as many items, `first` items further.
    pub fn items(&self, first: usize, count: usize) -> Self {
        let start = first as isize * self.datatype.extent;
        Self {
            address: self.address.wrapping_add_signed(start),
            count,
            datatype: Arc::clone(&self.datatype),
        }
    }

    /// The addresses of its bytes.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let items = (0..self.count as isize).flat_map(|index| {
            let start = index * self.datatype.extent;
            let parts = self.datatype.parts.iter();
            parts.map(move |part| start + part.start..start + part.end)
        });
        let absolute = |offset: isize| self.address.wrapping_add_signed(offset);
        let ranges = joined(items).into_iter();
        let ranges = ranges.map(|range| absolute(range.start)..absolute(range.end));
        ranges.filter(|range| !range.is_empty()).collect()
    }

    pub fn bytes(&self) -> usize {
        self.count * self.datatype.size()
    }

    /// Reads its bytes.
    pub fn pack(&self) -> Vec<u8> {
        let mut packed = Vec::with_capacity(self.bytes());
        for range in self.ranges() {
            let start = ptr::with_exposed_provenance::<u8>(range.start);
            // SAFETY: who passed the buffer vouches for its bytes until the request is done.
            packed.extend_from_slice(unsafe { std::slice::from_raw_parts(start, range.len()) });
        }
        packed
    }

    /// Writes as many bytes as there are, and have room.
    pub fn unpack(&self, mut bytes: &[u8]) {
        for range in self.ranges() {
            let (now, later) = bytes.split_at(range.len().min(bytes.len()));
            let start = ptr::with_exposed_provenance_mut::<u8>(range.start);
            // SAFETY: who passed the buffer vouches for its bytes until the request is done.
            unsafe { ptr::copy(now.as_ptr(), start, now.len()) };
            bytes = later;
        }
    }
}

/// A reduction operator.
#[derive(Clone, Copy)]
pub enum Operator {
    Predefined(PredefinedOp),
    UserMade(UserFunction<IntHandles>),
}

/// What two numbers become.
fn combine_numbers<T: PartialOrd + std::ops::Add<Output = T> + std::ops::Mul<Output = T>>(
    op: PredefinedOp,
    left: T,
    right: T,
) -> T {
    match op {
        PredefinedOp::Sum => left + right,
        PredefinedOp::Prod => left * right,
        PredefinedOp::Max if left > right => left,
        PredefinedOp::Min if left < right => left,
        PredefinedOp::Max | PredefinedOp::Min => right,
        _ => unimplemented!("no test reduces with {}", op.name()),
    }
}

impl Operator {
    /// Reduces the elements of `left` into those of `right`, as `MPI_Reduce_local` does.
    pub fn combine(self, element: Element, left: &[u8], right: &mut [u8]) {
        let size = element.size();
        match self {
            Self::Predefined(op) => {
                for (left, right) in left.chunks_exact(size).zip(right.chunks_exact_mut(size)) {
                    combine_one(op, element, left, right);
                }
            }
            Self::UserMade(function) => {
                // Aligned as elements are.
                let mut operands = [aligned(left), aligned(right)];
                let (mut count, mut datatype) = ((left.len() / size) as c_int, element.handle());
                let [invec, inoutvec] = &mut operands;
                // SAFETY: both have `count` elements, and the function is one of MPI's form.
                unsafe {
                    function.unwrap()(
                        invec.as_mut_ptr().cast(),
                        inoutvec.as_mut_ptr().cast(),
                        &raw mut count,
                        &raw mut datatype,
                    );
                }
                let bytes = operands[1].iter().flat_map(|word| word.to_ne_bytes());
                let count = right.len();
                right.copy_from_slice(&bytes.take(count).collect::<Vec<_>>());
            }
        }
    }
}

fn aligned(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    words.collect()
}

fn combine_one(op: PredefinedOp, element: Element, left: &[u8], right: &mut [u8]) {
    macro_rules! numbers {
        ($type:ty) => {{
            let [first, second] =
                [&*left, &*right].map(|bytes| <$type>::from_ne_bytes(bytes.try_into().unwrap()));
            right.copy_from_slice(&combine_numbers(op, first, second).to_ne_bytes());
        }};
    }
    match element {
        Element::Float => numbers!(f32),
        Element::Int => numbers!(i32),
        Element::Long => numbers!(i64),
        Element::Byte => numbers!(u8),
        Element::Short => numbers!(u16),
    }
}
