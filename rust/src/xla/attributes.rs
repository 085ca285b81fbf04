//! The attributes of a call: integers and lists of integers, by their names.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};

use super::checks::slice;
use super::raw::*;
use crate::error::{Error, Result};

/// The attributes of a call, in the order of their names.
#[derive(Clone, Copy)]
pub struct Attributes<'a> {
    kinds: &'a [c_int],
    names: &'a [*mut XLA_FFI_ByteSpan],
    /// XLA's structs for the attributes.
    pub(super) structs: &'a [*mut c_void],
}

/// An attribute as XLA has it.
pub(super) enum Attribute<'a> {
    Scalar(&'a XLA_FFI_Scalar),
    Array(&'a XLA_FFI_Array),
    /// One of another kind, or null.
    Other,
}

impl Attribute<'_> {
    /// The integer that a scalar is, if it is one of 64 bits.
    #[inline(always)]
    fn integer(&self) -> Option<i64> {
        match self {
            Self::Scalar(scalar) if scalar.dtype == XLA_FFI_DataType_S64 => {
                // SAFETY: the type says that it is an i64. XLA promises no alignment.
                Some(unsafe { scalar.value.cast::<i64>().read_unaligned() })
            }
            _ => None,
        }
    }

    /// The elements of a list, or the one integer of a scalar, if these have 64 bits.
    pub(super) fn integers(&self) -> impl Iterator<Item = i64> {
        let (start, size) = match self {
            Self::Array(array) if array.dtype == XLA_FFI_DataType_S64 && !array.data.is_null() => {
                (array.data.cast::<i64>(), array.size)
            }
            _ => (std::ptr::null_mut(), 0),
        };
        // SAFETY: the array has that many elements. XLA promises no alignment.
        let elements = (0..size).map(move |index| unsafe { start.add(index).read_unaligned() });
        elements.chain(self.integer())
    }
}

impl<'a> Attributes<'a> {
    /// # Safety
    /// Each list has as many elements as it says or is null, each struct is null or of its kind, and all
    /// stay for `'a`.
    #[inline(always)]
    pub(super) unsafe fn new(raw: &XLA_FFI_Attrs) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(Self {
                kinds: slice(raw.types, raw.size, "attribute types")?,
                names: slice(raw.names, raw.size, "attribute names")?,
                structs: slice(raw.attrs, raw.size, "attributes")?,
            })
        }
    }

    /// All attributes, each with its kind.
    #[inline(always)]
    pub(super) fn all(&self) -> impl Iterator<Item = (c_int, Attribute<'a>)> {
        let all = self.kinds.iter().zip(self.structs);
        all.map(|(kind, structure)| {
            // SAFETY: null, or the struct for its kind.
            let attribute = unsafe {
                if *kind == XLA_FFI_AttrType_SCALAR {
                    let scalar = structure.cast::<XLA_FFI_Scalar>();
                    scalar.as_ref().map(Attribute::Scalar)
                } else if *kind == XLA_FFI_AttrType_ARRAY {
                    let array = structure.cast::<XLA_FFI_Array>();
                    array.as_ref().map(Attribute::Array)
                } else {
                    None
                }
            };
            (*kind, attribute.unwrap_or(Attribute::Other))
        })
    }

    /// Shows the first attributes as integers, with their indices: a list as a hash of its elements, and any
    /// other attribute that is no integer as 0.
    #[inline(always)]
    pub fn see_integers(&self, count: usize, mut see: impl FnMut(usize, i64)) {
        for (index, (_, attribute)) in self.all().take(count).enumerate() {
            let integer = match attribute {
                Attribute::Array(_) => hash(attribute.integers()) as i64,
                _ => attribute.integer().unwrap_or(0),
            };
            see(index, integer);
        }
    }

    /// The names of all attributes.
    pub fn names(&self) -> Vec<String> {
        let name = |span: &*mut XLA_FFI_ByteSpan| {
            // SAFETY: null, or a span of `len` bytes of XLA's.
            unsafe {
                let span = span.as_ref()?;
                let bytes = slice(span.ptr.cast::<u8>(), span.len as i64, "a name").ok()?;
                Some(String::from_utf8_lossy(bytes).into_owned())
            }
        };
        let names = self.names.iter();
        names.map(|span| name(span).unwrap_or_default()).collect()
    }

    /// The attribute called `name`, which must be of this kind.
    #[inline(always)]
    fn find(&self, name: &str, kind: c_int, expected: &str) -> Result<Option<Attribute<'a>>> {
        for (span, (actual, attribute)) in self.names.iter().zip(self.all()) {
            // SAFETY: null, or a span of XLA's.
            let Some(span) = (unsafe { span.as_ref() }) else {
                return Err(Error::invalid("an attribute without a name"));
            };
            // SAFETY: each name is a span of `len` bytes.
            if !unsafe { is_called(span, name) } {
                continue;
            }
            if actual != kind {
                return Err(Error::invalid(format!(
                    "attribute `{name}` has kind {actual}, expected {expected}"
                )));
            }
            return match attribute {
                Attribute::Other => Err(Error::invalid(format!("attribute `{name}` is null"))),
                attribute => Ok(Some(attribute)),
            };
        }
        Ok(None)
    }

    /// The 64-bit integer called `name`.
    #[inline(always)]
    pub fn integer(&self, name: &str) -> Result<i64> {
        let attribute = self.find(name, XLA_FFI_AttrType_SCALAR, "a scalar")?;
        let attribute = attribute.ok_or_else(|| missing(name))?;
        attribute
            .integer()
            .ok_or_else(|| no_integer(name, &attribute))
    }

    /// The C int called `name`: MPI takes ints for ranks and tags.
    pub fn int(&self, name: &str) -> Result<c_int> {
        let value = self.integer(name)?;
        c_int::try_from(value).map_err(|_| {
            Error::invalid(format!(
                "attribute `{name}` is {value}, not an int of MPI's"
            ))
        })
    }

    /// The list of 64-bit integers called `name`.
    pub fn integers(&self, name: &str) -> Result<Cow<'a, [i64]>> {
        self.optional_integers(name)?.ok_or_else(|| missing(name))
    }

    /// The list of 64-bit integers called `name`, if there is an attribute of the name.
    pub fn optional_integers(&self, name: &str) -> Result<Option<Cow<'a, [i64]>>> {
        let attribute = self.find(name, XLA_FFI_AttrType_ARRAY, "an array")?;
        let Some(Attribute::Array(array)) = attribute else {
            return Ok(None);
        };
        if array.dtype != XLA_FFI_DataType_S64 {
            return Err(Error::invalid(format!(
                "attribute `{name}` has elements of type {}, expected 64-bit integers",
                array.dtype
            )));
        }
        if array.data.is_null() && array.size > 0 {
            return Err(Error::invalid(format!(
                "attribute `{name}` has {} elements at the null address",
                array.size
            )));
        }
        let start = array.data.cast::<i64>();
        if start.is_aligned() {
            // SAFETY: its elements are i64, and they are there.
            let integers = unsafe { slice(start, array.size as i64, name)? };
            return Ok(Some(Cow::Borrowed(integers)));
        }
        Ok(Some(Attribute::Array(array).integers().collect()))
    }
}

#[cold]
fn missing(name: &str) -> Error {
    Error::invalid(format!("attribute `{name}` is missing"))
}

#[cold]
fn no_integer(name: &str, attribute: &Attribute) -> Error {
    let dtype = match attribute {
        Attribute::Scalar(scalar) => scalar.dtype,
        _ => 0,
    };
    Error::invalid(format!(
        "attribute `{name}` has type {dtype}, expected a 64-bit integer"
    ))
}

/// Whether the name in `span` is `name`.
///
/// # Safety
/// If its pointer is not null, `span` has `len` bytes.
unsafe fn is_called(span: &XLA_FFI_ByteSpan, name: &str) -> bool {
    if span.len != name.len() || span.ptr.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(span.ptr.cast::<u8>(), span.len) };
    // Names are short: a loop is over before memcmp has begun.
    bytes.iter().eq(name.as_bytes())
}

/// A hash of integers, the same in all processes: FNV-1a
/// (<http://www.isthe.com/chongo/tech/comp/fnv/>), each mixed in as a whole.
pub fn hash(integers: impl IntoIterator<Item = i64>) -> u64 {
    let mix = |hash: u64, integer: i64| (hash ^ integer as u64).wrapping_mul(0x0100_0000_01b3);
    integers.into_iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
