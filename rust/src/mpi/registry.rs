//! What the small numbers in a compiled program stand for.
//!
//! A compiled program names a communicator, a reduction operator or a status by an index into
//! these tables, and a data type by XLA's code for it. So programs are the same on every rank
//! and in every run, and a communicator that was freed is known to be.

use std::ffi::c_int;
use std::sync::{PoisonError, RwLock};

use super::abi::{Abi, Handle};
use crate::xla::{Error, Result};

/// A table that grows and whose entries can be replaced.
struct Table<T>(RwLock<Vec<Option<T>>>);

impl<T: Copy> Table<T> {
    const fn new() -> Self {
        Self(RwLock::new(Vec::new()))
    }

    fn get(&self, index: i64) -> Option<T> {
        let entries = self.0.read().unwrap_or_else(PoisonError::into_inner);
        usize::try_from(index)
            .ok()
            .and_then(|index| entries.get(index).copied())
            .flatten()
    }

    fn set(&self, index: usize, entry: Option<T>) {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if entries.len() <= index {
            entries.resize(index + 1, None);
        }
        entries[index] = entry;
    }
}

/// A communicator, with what does not change about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Communicator {
    handle: usize,
    pub rank: c_int,
    pub size: c_int,
}

impl Communicator {
    pub const fn new(handle: usize, rank: c_int, size: c_int) -> Self {
        Self { handle, rank, size }
    }

    pub fn handle<A: Abi>(&self) -> A::Comm {
        A::Comm::from_raw(self.handle)
    }
}

/// An MPI data type, and the bytes that an element takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datatype {
    handle: usize,
    pub size: usize,
}

impl Datatype {
    pub const fn new(handle: usize, size: usize) -> Self {
        Self { handle, size }
    }

    pub fn handle<A: Abi>(&self) -> A::Datatype {
        A::Datatype::from_raw(self.handle)
    }
}

/// The objects that compiled programs refer to.
pub struct Registry {
    communicators: Table<Communicator>,
    operators: Table<usize>,
    datatypes: Table<Datatype>,
    statuses: Table<usize>,
}

/// The registry of this process.
pub static REGISTRY: Registry = Registry::new();

impl Registry {
    const fn new() -> Self {
        Self {
            communicators: Table::new(),
            operators: Table::new(),
            datatypes: Table::new(),
            statuses: Table::new(),
        }
    }

    pub fn set_communicator(&self, index: usize, communicator: Communicator) {
        self.communicators.set(index, Some(communicator));
    }

    /// Forgets a communicator. Its index is never given to another one.
    pub fn free_communicator(&self, index: usize) {
        self.communicators.set(index, None);
    }

    pub fn set_operator(&self, index: usize, handle: usize) {
        self.operators.set(index, Some(handle));
    }

    /// Says which MPI data type holds elements of XLA's type `dtype`.
    pub fn set_datatype(&self, dtype: usize, datatype: Datatype) {
        self.datatypes.set(dtype, Some(datatype));
    }

    pub fn set_status(&self, index: usize, address: usize) {
        self.statuses.set(index, Some(address));
    }

    pub fn communicator(&self, index: i64) -> Result<Communicator> {
        self.communicators.get(index).ok_or_else(|| {
            Error::precondition(format!(
                "communicator {index} was freed, or is not one of this process: a compiled \
                 function can only be called while the communicator it was traced with exists"
            ))
        })
    }

    pub fn operator<A: Abi>(&self, index: i64) -> Result<A::Op> {
        let handle = self
            .operators
            .get(index)
            .ok_or_else(|| Error::precondition(format!("reduction operator {index} is unknown")))?;
        Ok(A::Op::from_raw(handle))
    }

    pub fn datatype(&self, dtype: i32) -> Result<Datatype> {
        self.datatypes
            .get(dtype.into())
            .ok_or_else(|| Error::invalid(format!("no MPI data type for XLA's data type {dtype}")))
    }

    /// Where MPI puts the status of a receive; a negative index ignores it.
    pub fn status<A: Abi>(&self, index: i64) -> Result<*mut A::Status> {
        let address = if index < 0 {
            A::STATUS_IGNORE
        } else {
            self.statuses
                .get(index)
                .ok_or_else(|| Error::precondition(format!("status {index} is unknown")))?
        };
        Ok(address as *mut A::Status)
    }
}
