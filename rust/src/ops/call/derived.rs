//! Data types made for one call: many elements as one, where MPI can't count the elements.

use std::ffi::c_int;

use super::Call;
use super::counts::Count;
use crate::error::{Error, Result};
use crate::mpi::{Abi, Datatype};

/// A data type made of others (MPI-4.1 §5.1.2). It goes with this value.
struct Derived<'c, A: Abi, M> {
    call: &'c Call<'c, A, M>,
    handle: A::Datatype,
}

impl<A: Abi, M> Drop for Derived<'_, A, M> {
    fn drop(&mut self) {
        // SAFETY: the type was made, and is freed once.
        let code = unsafe { (self.call.functions.type_free)(&raw mut self.handle) };
        // Where errors raise, this one does not: the call itself went well, or has raised.
        let _ = self.call.check("MPI_Type_free", code);
    }
}

/// Elements that one call of MPI sends or receives: `count` of `datatype`.
pub struct TypedCount<'c, A: Abi, M> {
    pub count: Count,
    pub datatype: A::Datatype,
    _derived: Option<Derived<'c, A, M>>,
}

impl<'a, A: Abi, M> Call<'a, A, M> {
    /// `count` elements for one call of MPI, as one of a derived type where they are too many.
    pub fn typed_count(&'a self, count: i64, datatype: Datatype) -> Result<TypedCount<'a, A, M>> {
        if !self.counting.takes(count) {
            return self.typed_count_at(0, count, datatype);
        }
        Ok(TypedCount {
            count: Count(count),
            datatype: datatype.handle::<A>(),
            _derived: None,
        })
    }

    /// `count` elements, not none, as one of a derived type, which has them where element `first`
    /// of an array is.
    #[cold]
    pub fn typed_count_at(
        &'a self,
        first: i64,
        count: i64,
        element: Datatype,
    ) -> Result<TypedCount<'a, A, M>> {
        let derived = self.derive(first, count, element)?;
        Ok(TypedCount {
            count: Count(1),
            datatype: derived.handle,
            _derived: Some(derived),
        })
    }

    /// A data type of elements, which may be more than an int counts: chunks and a rest.
    fn derive(&'a self, first: i64, count: i64, element: Datatype) -> Result<Derived<'a, A, M>> {
        let length = count.min(self.counting.limit);
        let (chunks, rest) = (count / length, count % length);
        let Ok(chunks) = c_int::try_from(chunks) else {
            return Err(Error::invalid(format!(
                "{count} elements are more than MPI has data types for"
            )));
        };
        let bytes = |elements: i64| elements as isize * element.size as isize;
        let displacements = [bytes(first), bytes(first + count - rest)];
        let element = element.handle::<A>();
        let chunk = self.contiguous(length as c_int, element)?;
        let lengths = [chunks, rest as c_int];
        let types = [chunk.handle, element];
        let derived = self.make("MPI_Type_create_struct", element, |new| {
            // SAFETY: the three lists have two members.
            unsafe {
                (self.functions.type_create_struct)(
                    2,
                    lengths.as_ptr(),
                    displacements.as_ptr(),
                    types.as_ptr(),
                    new,
                )
            }
        });
        drop(chunk);
        let derived = derived?;
        let mut handle = derived.handle;
        // SAFETY: the type was just made. Committed, it has the same handle.
        let code = unsafe { (self.functions.type_commit)(&raw mut handle) };
        self.check("MPI_Type_commit", code)?;
        Ok(derived)
    }

    fn contiguous(&'a self, count: c_int, element: A::Datatype) -> Result<Derived<'a, A, M>> {
        self.make("MPI_Type_contiguous", element, |new| {
            // SAFETY: MPI makes a type of one that there is.
            unsafe { (self.functions.type_contiguous)(count, element, new) }
        })
    }

    /// Makes a data type with `body`, which MPI gives in place of `element`.
    fn make(
        &'a self,
        function: &'static str,
        element: A::Datatype,
        body: impl FnOnce(*mut A::Datatype) -> c_int,
    ) -> Result<Derived<'a, A, M>> {
        let mut handle = element;
        let code = body(&raw mut handle);
        self.check(function, code)?;
        Ok(Derived { call: self, handle })
    }
}
