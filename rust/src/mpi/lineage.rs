//! The lineages of communicators: which copy of which communicator each of them is.
//!
//! MPI has no name for a communicator that all its ranks share, and each of them numbers its handles
//! for itself. But `MPI_Comm_dup` is collective: the n-th copy of a communicator is the n-th on all
//! ranks. An attribute of `MPI_COMM_WORLD`, which MPI passes on to copies (MPI-4.1 §7.7.2), counts
//! them.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Mutex, OnceLock};

use super::abi::Abi;
use super::functions::Functions;
use crate::lock::lock;

/// The copies that lead from `MPI_COMM_WORLD` to a communicator: at each step the index among the
/// copies, from 1, and how many of them this process knows.
pub type CopyPath = Vec<(u32, u32)>;

/// The indices of the copies on a path.
pub fn indices(path: &[(u32, u32)]) -> Vec<u32> {
    path.iter().map(|(index, _)| *index).collect()
}

/// How many copies of each communicator processes know. Those that do not know the same number may
/// have begun to count at different times, so that their indices mean different copies.
#[derive(Default)]
pub struct CopyCounts(HashMap<Vec<u32>, u32>);

impl CopyCounts {
    /// Adds the counts on a path. Gives whether they are those of the paths before.
    pub fn add(&mut self, path: &[(u32, u32)]) -> bool {
        path.iter().enumerate().all(|(length, (_, count))| {
            let original = indices(&path[..length]);
            self.0.entry(original).or_insert(*count) == count
        })
    }
}

/// The number of the lineage of a communicator. `MPI_COMM_WORLD` has the first one.
pub type Lineage = usize;

/// A communicator: the one that it is a copy of, its index among those copies, and how many copies
/// there are of itself.
#[derive(Default)]
struct Node {
    parent: Lineage,
    index: u32,
    copies: u32,
}

static NODES: Mutex<Vec<Node>> = Mutex::new(Vec::new());
static KEYVAL: OnceLock<c_int> = OnceLock::new();

/// Adds a copy of a communicator, if its own lineage is known.
fn add_copy(nodes: &mut Vec<Node>, parent: Lineage) -> Option<Lineage> {
    let original = nodes.get_mut(parent)?;
    original.copies += 1;
    let index = original.copies;
    let copies = 0;
    nodes.push(Node {
        parent,
        index,
        copies,
    });
    Some(nodes.len() - 1)
}

/// Follows all copies of `MPI_COMM_WORLD`, and theirs, from now on.
///
/// # Safety
/// `world` is the handle of `MPI_COMM_WORLD`.
pub unsafe fn follow_copies<A: Abi>(functions: &Functions<A>, world: A::Comm) {
    unsafe extern "C" fn copy<A: Abi>(
        _: A::Comm,
        _: c_int,
        _: *mut c_void,
        value: *mut c_void,
        copied: *mut c_void,
        flag: *mut c_int,
    ) -> c_int {
        let lineage = add_copy(&mut lock(&NODES), value.addr());
        // SAFETY: MPI lends both. The attribute of the copy is an address (MPI-4.1 §7.7.2).
        unsafe {
            *flag = lineage.is_some().into();
            if let Some(lineage) = lineage {
                *copied.cast::<*mut c_void>() = ptr::without_provenance_mut(lineage);
            }
        }
        0
    }
    unsafe extern "C" fn delete<A: Abi>(
        _: A::Comm,
        _: c_int,
        _: *mut c_void,
        _: *mut c_void,
    ) -> c_int {
        0
    }
    KEYVAL.get_or_init(|| {
        lock(&NODES).push(Node::default());
        let mut keyval = 0;
        // SAFETY: both functions live for good, and the key may be written. The attribute of
        // MPI_COMM_WORLD is its lineage, 0.
        unsafe {
            (functions.comm_create_keyval)(
                Some(copy::<A>),
                Some(delete::<A>),
                &raw mut keyval,
                ptr::null_mut(),
            );
            (functions.comm_set_attr)(world, keyval, ptr::null_mut());
        }
        keyval
    });
}

/// The lineage of a communicator, if it is a copy that was followed.
///
/// # Safety
/// MPI knows the handle.
pub unsafe fn lineage_of<A: Abi>(functions: &Functions<A>, comm: A::Comm) -> Option<Lineage> {
    let keyval = *KEYVAL.get()?;
    let mut value: *mut c_void = ptr::null_mut();
    let mut flag = 0;
    // SAFETY: MPI writes the attribute, an address, and whether there is one.
    let code =
        unsafe { (functions.comm_get_attr)(comm, keyval, (&raw mut value).cast(), &raw mut flag) };
    (code == 0 && flag != 0).then(|| value.addr())
}

/// The copies that lead from `MPI_COMM_WORLD` to a communicator.
pub fn path(lineage: Lineage) -> CopyPath {
    let nodes = lock(&NODES);
    let mut path = Vec::new();
    let mut at = lineage;
    while let Some(node) = nodes.get(at).filter(|_| at != 0) {
        path.push((node.index, nodes[node.parent].copies));
        at = node.parent;
    }
    path.reverse();
    path
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

    #[test]
    fn copies_of_copies_have_a_path() {
        let first = {
            let mut nodes = lock(&NODES);
            nodes.push(Node::default());
            let first = add_copy(&mut nodes, 0).unwrap();
            add_copy(&mut nodes, 0).unwrap();
            add_copy(&mut nodes, first).unwrap();
            assert_eq!(add_copy(&mut nodes, 99), None);
            first
        };
        assert_eq!(path(0), []);
        assert_eq!(path(first), [(1, 2)]);
        assert_eq!(path(first + 2), [(1, 2), (1, 1)]);
    }
}
