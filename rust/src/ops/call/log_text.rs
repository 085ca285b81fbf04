//! What the debug lines say of the elements of a call.

use std::ffi::c_int;

/// The elements that each rank sends or receives.
pub fn items(count: i64) -> String {
    format!("({count} items)")
}

/// The same where one rank has a part of its own.
pub fn items_and_root(count: i64, root: c_int) -> String {
    format!("({count} items, root={root})")
}
