//! What the small numbers in a compiled program stand for.
//!
//! A compiled program names a communicator, a reduction operator or a status by an index into
//! these tables, and a data type by XLA's code for it. So programs are the same on every rank
//! and in every run, and a communicator that was freed is known to be.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::abi::Abi;
use super::types::Handle;
use crate::error::{Error, Result};

/// A list that grows while others read it, without a lock: every call looks into several.
///
/// Block number n has 2^n slots. A block never moves, nor does a slot.
struct Table<T>([OnceLock<Box<[T]>>; 32]);

impl<T: Default> Table<T> {
    const fn new() -> Self {
        Self([const { OnceLock::new() }; 32])
    }

    /// The block that a slot is in, and its place there.
    fn place(index: usize) -> (usize, usize) {
        let block = (index + 1).ilog2() as usize;
        (block, index + 1 - (1 << block))
    }

    fn get(&self, index: i64) -> Option<&T> {
        let (block, offset) = Self::place(usize::try_from(index).ok()?);
        self.0.get(block)?.get()?.get(offset)
    }

    fn get_or_grow(&self, index: usize) -> &T {
        let (block, offset) = Self::place(index);
        let slots = self.0[block].get_or_init(|| (0..1 << block).map(|_| T::default()).collect());
        &slots[offset]
    }
}

/// A communicator, with what does not change about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Communicator {
    handle: usize,
    pub rank: c_int,
    pub size: c_int,
    /// How many bytes of an array travel at once, where all processes do it so; else 0.
    chunk: usize,
}

impl Communicator {
    pub const fn new(handle: usize, rank: c_int, size: c_int, chunk: usize) -> Self {
        Self {
            handle,
            rank,
            size,
            chunk,
        }
    }

    /// How many elements of so many bytes travel at once.
    pub fn chunk(&self, size: usize) -> i64 {
        match self.chunk {
            0 => i64::MAX,
            chunk => (chunk / size).max(1) as i64,
        }
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

/// The place of a communicator, which it has for itself also when it is gone.
#[derive(Default)]
struct CommunicatorSlot {
    communicator: OnceLock<Communicator>,
    /// The handle of a communicator of the same processes, with their ranks in reverse order.
    reversed: OnceLock<usize>,
    is_freed: AtomicBool,
}

/// The objects that compiled programs refer to.
pub struct Registry {
    communicators: Table<CommunicatorSlot>,
    operators: Table<OnceLock<usize>>,
    datatypes: Table<OnceLock<Datatype>>,
    statuses: Table<AtomicUsize>,
}

/// The registry of this process.
pub static REGISTRY: Registry = Registry::new();

#[cold]
fn gone(communicator: i64) -> Error {
    Error::precondition(format!(
        "communicator {communicator} was freed, or is not one of this process: a compiled \
         function can only be called while the communicator it was traced with exists"
    ))
}

/// An index is for one object only, in all programs that hold it.
fn set_once<T>(slot: &OnceLock<T>, value: T) {
    assert!(slot.set(value).is_ok(), "an index was given out twice");
}

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
        let slot = self.communicators.get_or_grow(index);
        set_once(&slot.communicator, communicator);
    }

    /// Forgets a communicator. Its index is never given to another one. What is left to free is
    /// the reversed one, if there was one.
    pub fn free_communicator<A: Abi>(&self, index: usize) -> Option<A::Comm> {
        let slot = self.communicators.get_or_grow(index);
        let was_freed = slot.is_freed.swap(true, Ordering::AcqRel);
        let reversed = slot.reversed.get().filter(|_| !was_freed)?;
        Some(A::Comm::from_raw(*reversed))
    }

    /// Where the handle of the reversed communicator is kept.
    pub fn reversed(&self, index: i64) -> Result<&OnceLock<usize>> {
        self.communicator_slot(index).map(|slot| &slot.reversed)
    }

    pub fn set_operator(&self, index: usize, handle: usize) {
        set_once(self.operators.get_or_grow(index), handle);
    }

    /// Says which MPI data type holds elements of XLA's type `dtype`.
    pub fn set_datatype(&self, dtype: usize, datatype: Datatype) {
        set_once(self.datatypes.get_or_grow(dtype), datatype);
    }

    /// Says where the status with this index is. It may move.
    pub fn set_status(&self, index: usize, address: usize) {
        let slot = self.statuses.get_or_grow(index);
        slot.store(address, Ordering::Release);
    }

    pub fn communicator(&self, index: i64) -> Result<Communicator> {
        let slot = self.communicator_slot(index)?;
        slot.communicator.get().copied().ok_or_else(|| gone(index))
    }

    fn communicator_slot(&self, index: i64) -> Result<&CommunicatorSlot> {
        self.communicators
            .get(index)
            .filter(|slot| !slot.is_freed.load(Ordering::Acquire))
            .ok_or_else(|| gone(index))
    }

    pub fn operator<A: Abi>(&self, index: i64) -> Result<A::Op> {
        let handle = self
            .operators
            .get(index)
            .and_then(OnceLock::get)
            .ok_or_else(|| Error::precondition(format!("reduction operator {index} is unknown")))?;
        Ok(A::Op::from_raw(*handle))
    }

    pub fn datatype(&self, dtype: i32) -> Result<Datatype> {
        self.datatypes
            .get(dtype.into())
            .and_then(OnceLock::get)
            .copied()
            .ok_or_else(|| Error::invalid(format!("no MPI data type for XLA's data type {dtype}")))
    }

    /// Where MPI puts the status of a receive; a negative index ignores it.
    pub fn status<A: Abi>(&self, index: i64) -> Result<*mut A::Status> {
        let address = if index < 0 {
            A::STATUS_IGNORE
        } else {
            self.statuses
                .get(index)
                .map(|slot| slot.load(Ordering::Acquire))
                .filter(|address| *address != 0)
                .ok_or_else(|| Error::precondition(format!("status {index} is unknown")))?
        };
        Ok(address as *mut A::Status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_slot_for_every_index() {
        let table = Table::<AtomicUsize>::new();
        for index in 0..1000 {
            table.get_or_grow(index).store(index + 1, Ordering::Relaxed);
        }
        for index in 0..1000 {
            let value = table.get(index as i64).unwrap().load(Ordering::Relaxed);
            assert_eq!(value, index + 1);
        }
        assert!(table.get(-1).is_none());
        assert!(table.get(1 << 20).is_none());
        assert!(table.get(i64::MAX).is_none());
    }
}
