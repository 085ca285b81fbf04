//! A list for the tables of the registry.
//!
//! `tests/loom.rs` tries all orders of this file's steps, with `super::sync` from loom.

use super::sync::OnceLock;

/// A list that grows while others read it, without a lock: every call looks into several.
///
/// Bucket number n has 2^n slots. A bucket never moves, nor does a slot.
pub struct GrowingList<T>([OnceLock<Box<[T]>>; 32]);

impl<T: Default> Default for GrowingList<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default> GrowingList<T> {
    /// A list without slots.
    pub const fn new() -> Self {
        Self([const { OnceLock::new() }; 32])
    }

    /// The bucket that a slot is in, and its offset there.
    fn locate(index: usize) -> (usize, usize) {
        let bucket = (index + 1).ilog2() as usize;
        (bucket, index + 1 - (1 << bucket))
    }

    /// The slot at an index, if there are that many.
    pub fn get(&self, index: i64) -> Option<&T> {
        let (bucket, offset) = Self::locate(usize::try_from(index).ok()?);
        self.0.get(bucket)?.get()?.get(offset)
    }

    /// The slot at an index. The list has it from now on.
    pub fn get_or_grow(&self, index: usize) -> &T {
        let (bucket, offset) = Self::locate(index);
        let slots = self.0[bucket].get_or_init(|| (0..1 << bucket).map(|_| T::default()).collect());
        &slots[offset]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_list_has_a_slot_for_every_index() {
        let list = GrowingList::<AtomicUsize>::new();
        for index in 0..1000 {
            list.get_or_grow(index).store(index + 1, Ordering::Relaxed);
        }
        for index in 0..1000 {
            let value = list.get(index as i64).unwrap().load(Ordering::Relaxed);
            assert_eq!(value, index + 1);
        }
        assert!(list.get(-1).is_none());
        assert!(list.get(1 << 20).is_none());
        assert!(list.get(i64::MAX).is_none());
    }
}
