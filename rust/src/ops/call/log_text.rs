//! The elements of a call, as debug lines have them.

use std::ffi::c_int;

/// The elements that each rank sends or receives.
pub fn items(count: i64) -> String {
    format!("({count} items)")
}

/// The elements of a call with a root.
pub fn items_and_root(count: i64, root: c_int) -> String {
    format!("({count} items, root={root})")
}
