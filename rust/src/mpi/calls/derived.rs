//! Data types made for one call: many elements as one, where MPI can't count the elements.

use std::ffi::c_int;

use super::counts::{Count, Counting};
use super::outcome::{CallError, check};
use crate::error::Error;
use crate::mpi::abi::Abi;
use crate::mpi::functions::Functions;
use crate::mpi::registry::SizedDatatype;

/// A data type made of others (MPI-4.1 §5.1.2). It goes with this value.
struct Derived<A: Abi> {
    functions: &'static Functions<A>,
    handle: A::Datatype,
}

impl<A: Abi> Derived<A> {
    /// Makes a data type with `body`, which MPI gives in place of `element`.
    fn make(
        functions: &'static Functions<A>,
        function: &'static str,
        element: A::Datatype,
        body: impl FnOnce(*mut A::Datatype) -> c_int,
    ) -> Result<Self, CallError> {
        let mut handle = element;
        check(functions, function, body(&raw mut handle))?;
        Ok(Self { functions, handle })
    }

    fn contiguous(
        functions: &'static Functions<A>,
        count: c_int,
        element: A::Datatype,
    ) -> Result<Self, CallError> {
        Self::make(functions, "MPI_Type_contiguous", element, |new| {
            // SAFETY: MPI makes a type of one that there is.
            unsafe { (functions.type_contiguous)(count, element, new) }
        })
    }
}

impl<A: Abi> Drop for Derived<A> {
    fn drop(&mut self) {
        // SAFETY: the type was made, and is freed once. An error would be one of the core's own.
        unsafe { (self.functions.type_free)(&raw mut self.handle) };
    }
}

/// Elements that one call of MPI sends or receives: `count` of `datatype`.
pub struct TypedCount<A: Abi> {
    pub(super) count: Count,
    pub(super) datatype: A::Datatype,
    _derived: Option<Derived<A>>,
}

impl<A: Abi> TypedCount<A> {
    /// `count` elements, as one of a derived type where they are too many.
    #[inline(always)]
    pub(super) fn new(
        counting: &Counting<A>,
        count: i64,
        datatype: SizedDatatype,
    ) -> Result<Self, CallError> {
        if !counting.takes(count) {
            return Self::at(counting, 0, count, datatype);
        }
        Ok(Self {
            count: Count(count),
            datatype: datatype.handle::<A>(),
            _derived: None,
        })
    }

    /// `count` elements, not none, as one of a derived type, which has them where element `first`
    /// of an array is: chunks and a rest.
    #[cold]
    pub(super) fn at(
        counting: &Counting<A>,
        first: i64,
        count: i64,
        element: SizedDatatype,
    ) -> Result<Self, CallError> {
        let functions = counting.functions;
        let length = count.min(counting.limit);
        let (chunks, rest) = (count / length, count % length);
        let chunks = c_int::try_from(chunks).map_err(|_| {
            Error::invalid(format!(
                "{count} elements are more than MPI has data types for"
            ))
        })?;
        let bytes = |elements: i64| elements as isize * element.size as isize;
        let displacements = [bytes(first), bytes(first + count - rest)];
        let element = element.handle::<A>();
        let chunk = Derived::contiguous(functions, length as c_int, element)?;
        let lengths = [chunks, rest as c_int];
        let types = [chunk.handle, element];
        let derived = Derived::make(functions, "MPI_Type_create_struct", element, |new| {
            // SAFETY: the three lists have two members.
            unsafe {
                let (lengths, displacements) = (lengths.as_ptr(), displacements.as_ptr());
                (functions.type_create_struct)(2, lengths, displacements, types.as_ptr(), new)
            }
        });
        drop(chunk);
        let derived = derived?;
        let mut handle = derived.handle;
        // SAFETY: the type was just made. Committed, it has the same handle.
        let code = unsafe { (functions.type_commit)(&raw mut handle) };
        check(functions, "MPI_Type_commit", code)?;
        Ok(Self {
            count: Count(1),
            datatype: derived.handle,
            _derived: Some(derived),
        })
    }
}
