//! The lineages of communicators: which copy of which communicator a communicator is.
//!
//! MPI gives a communicator no name that is the same on all ranks: each rank numbers its handles for
//! itself. But `MPI_Comm_dup` is collective, so the n-th copy of a communicator is the n-th on all ranks.
//! An attribute of `MPI_COMM_WORLD`, which MPI passes on to copies (MPI-4.1 §7.7.2), counts the copies.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::abi::Abi;
use super::functions::Functions;
use crate::lock::lock;

/// The path of copies from `MPI_COMM_WORLD` to a communicator: for each step the copy's index, from 1, and
/// the number of copies that this process has counted.
pub type CopyPath = Vec<(u32, u32)>;

/// The indices of the copies on a path.
pub fn indices(path: &[(u32, u32)]) -> Vec<u32> {
    path.iter().map(|(index, _)| *index).collect()
}

/// The number of copies of each communicator, which processes compare. Processes with different numbers
/// may have begun to count at different times, so that their indices mean different copies.
#[derive(Default)]
pub struct CopyCounts(HashMap<Vec<u32>, u32>);

impl CopyCounts {
    /// Adds the counts on a path, and returns whether they agree with earlier paths.
    pub fn add(&mut self, path: &[(u32, u32)]) -> bool {
        path.iter().enumerate().all(|(length, (_, count))| {
            let original = indices(&path[..length]);
            self.0.entry(original).or_insert(*count) == count
        })
    }
}

/// The lineage of a communicator. It lives as long as the communicator, a copy of it, or a reference to
/// the lineage.
#[derive(Debug, Clone)]
pub struct Lineage(Arc<Node>);

/// A communicator in the tree of copies: its original, its index among the original's copies, and the
/// number of its own copies.
#[derive(Debug, Default)]
struct Node {
    /// `None` for `MPI_COMM_WORLD`.
    original: Option<Lineage>,
    index: u32,
    copies: AtomicU32,
}

impl PartialEq for Lineage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Lineage {}

impl Lineage {
    fn of_world() -> Self {
        Self(Arc::default())
    }

    /// The lineage of the next copy.
    fn of_copy(&self) -> Self {
        Self(Arc::new(Node {
            original: Some(self.clone()),
            index: self.0.copies.fetch_add(1, Ordering::Relaxed) + 1,
            copies: AtomicU32::new(0),
        }))
    }

    /// Whether the communicator is `MPI_COMM_WORLD`.
    pub fn is_world(&self) -> bool {
        self.0.original.is_none()
    }

    /// The path of copies from `MPI_COMM_WORLD` to the communicator.
    pub fn path(&self) -> CopyPath {
        let mut path = Vec::new();
        let mut copy = self;
        while let Some(original) = &copy.0.original {
            path.push((copy.0.index, original.0.copies.load(Ordering::Relaxed)));
            copy = original;
        }
        path.reverse();
        path
    }

    /// The lineage as the value of the communicator's attribute.
    fn into_attribute(self) -> *mut c_void {
        Arc::into_raw(self.0).cast_mut().cast()
    }

    /// The lineage in an attribute, which keeps its own reference.
    ///
    /// # Safety
    /// The value comes from an attribute that is not deleted meanwhile.
    unsafe fn of_attribute(value: *mut c_void) -> Self {
        // SAFETY: made by `into_attribute`, for the attribute and for this.
        unsafe {
            Arc::increment_strong_count(value.cast::<Node>());
            Self::from_attribute(value)
        }
    }

    /// The lineage taken out of a deleted attribute.
    ///
    /// # Safety
    /// The value comes from an attribute that is being deleted.
    unsafe fn from_attribute(value: *mut c_void) -> Self {
        // SAFETY: made by `into_attribute`.
        Self(unsafe { Arc::from_raw(value.cast()) })
    }
}

impl Drop for Node {
    /// Frees a chain of originals in a loop: recursion could overflow the stack.
    fn drop(&mut self) {
        let mut original = self.original.take();
        while let Some(mut node) = original.and_then(|Lineage(node)| Arc::into_inner(node)) {
            original = node.original.take();
        }
    }
}

/// The key of the attribute, once copies are counted.
static KEYVAL: Mutex<Option<c_int>> = Mutex::new(None);

unsafe extern "C" fn copy<A: Abi>(
    _: A::Comm,
    _: c_int,
    _: *mut c_void,
    value: *mut c_void,
    copied: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: MPI lends `value`, `copied` and `flag`. An attribute is an address (MPI-4.1 §7.7.2).
    unsafe {
        let lineage = Lineage::of_attribute(value).of_copy();
        *copied.cast::<*mut c_void>() = lineage.into_attribute();
        *flag = 1;
    }
    0
}

unsafe extern "C" fn delete<A: Abi>(
    _: A::Comm,
    _: c_int,
    value: *mut c_void,
    _: *mut c_void,
) -> c_int {
    // SAFETY: MPI is deleting the attribute.
    drop(unsafe { Lineage::from_attribute(value) });
    0
}

/// Starts to count the copies of `MPI_COMM_WORLD`, their copies, and so on. If MPI refuses the attribute,
/// no communicator has a lineage.
///
/// # Safety
/// `world` is the handle of `MPI_COMM_WORLD`.
pub unsafe fn follow_copies<A: Abi>(functions: &Functions<A>, world: A::Comm) {
    let mut followed = lock(&KEYVAL);
    if followed.is_some() {
        return;
    }
    let mut keyval = 0;
    let (copy, delete) = (Some(copy::<A> as _), Some(delete::<A> as _));
    // SAFETY: both functions live for good, and the key may be written.
    let code =
        unsafe { (functions.comm_create_keyval)(copy, delete, &raw mut keyval, ptr::null_mut()) };
    if code != 0 {
        return;
    }
    let value = Lineage::of_world().into_attribute();
    // SAFETY: the attributes with this key are lineages.
    if unsafe { (functions.comm_set_attr)(world, keyval, value) } == 0 {
        *followed = Some(keyval);
    }
}

/// The lineage of a communicator: `None` unless `MPI_COMM_WORLD` or a counted copy.
///
/// # Safety
/// MPI knows the handle.
pub unsafe fn lineage_of<A: Abi>(functions: &Functions<A>, comm: A::Comm) -> Option<Lineage> {
    let keyval = (*lock(&KEYVAL))?;
    let mut value: *mut c_void = ptr::null_mut();
    let mut flag = 0;
    // SAFETY: MPI writes the attribute, an address, and the flag.
    let code =
        unsafe { (functions.comm_get_attr)(comm, keyval, (&raw mut value).cast(), &raw mut flag) };
    // SAFETY: the attributes with this key are lineages, and the caller keeps the communicator.
    (code == 0 && flag != 0).then(|| unsafe { Lineage::of_attribute(value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_began_to_count_later_are_found_out() {
        let mut counts = CopyCounts::default();
        assert!(counts.add(&[(1, 2), (1, 1)]));
        assert!(counts.add(&[(2, 2)]));
        assert!(!counts.add(&[(1, 2), (2, 3)]));
    }

    type A = crate::mpi::abi::IntHandles;

    /// The attribute of a copy, made as MPI makes it.
    fn copied(value: *mut c_void) -> *mut c_void {
        let (mut attribute, mut flag) = (ptr::null_mut::<c_void>(), 0);
        let copied = (&raw mut attribute).cast();
        // SAFETY: as MPI calls it.
        let code = unsafe { copy::<A>(0, 0, ptr::null_mut(), value, copied, &raw mut flag) };
        assert_eq!((code, flag), (0, 1));
        attribute
    }

    fn freed(value: *mut c_void) {
        // SAFETY: as MPI calls it.
        assert_eq!(unsafe { delete::<A>(0, 0, value, ptr::null_mut()) }, 0);
    }

    fn lineage(value: *mut c_void) -> Lineage {
        // SAFETY: the tests have no other values.
        unsafe { Lineage::of_attribute(value) }
    }

    #[test]
    fn copies_of_copies_have_a_path() {
        let world = Lineage::of_world().into_attribute();
        let first = copied(world);
        let second = copied(world);
        let third = copied(first);
        assert!(lineage(world).is_world());
        assert_eq!(lineage(world).path(), []);
        assert_eq!(lineage(first).path(), [(1, 2)]);
        // Even after the communicators on the path are freed.
        [first, second, world].into_iter().for_each(freed);
        assert_eq!(lineage(third).path(), [(1, 2), (1, 1)]);
        freed(third);
    }

    /// Fails if a freed copy leaves memory behind.
    #[test]
    fn a_freed_copy_is_forgotten() {
        let world = Lineage::of_world().into_attribute();
        let value = copied(world);
        let known = Arc::downgrade(&lineage(value).0);
        assert_eq!(known.strong_count(), 1);
        freed(value);
        assert_eq!(known.strong_count(), 0);
        assert_eq!(lineage(copied(world)).path(), [(2, 2)]);
    }

    /// Fails with a stack overflow if lineages are freed recursively.
    #[test]
    fn copies_of_copies_are_forgotten() {
        const COPIES: usize = if cfg!(miri) { 10 } else { 100_000 };
        let mut last = Lineage::of_world();
        let world = Arc::downgrade(&last.0);
        (0..COPIES).for_each(|_| last = last.of_copy());
        drop(last);
        assert_eq!(world.strong_count(), 0);
    }
}
