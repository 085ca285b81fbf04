//! The list behind the tables of the registry.
//!
//! `tests/loom.rs` tries all orders of this file's steps, with loom's types as `super::sync`.

use super::sync::OnceLock;

/// A list that grows while other threads read it, without a lock, as every call reads several lists.
///
/// Bucket n has 2^n slots. Buckets and slots never move.
pub struct GrowingList<T>([OnceLock<Box<[T]>>; 32]);

impl<T: Default> Default for GrowingList<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default> GrowingList<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Self([const { OnceLock::new() }; 32])
    }

    /// The bucket of a slot, and the slot's offset in the bucket.
    fn locate(index: usize) -> (usize, usize) {
        let bucket = (index + 1).ilog2() as usize;
        (bucket, index + 1 - (1 << bucket))
    }

    /// The slot at an index, or `None` beyond the end.
    pub fn get(&self, index: i64) -> Option<&T> {
        let (bucket, offset) = Self::locate(usize::try_from(index).ok()?);
        self.0.get(bucket)?.get()?.get(offset)
    }

    /// The slot at an index, which is added if missing.
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
