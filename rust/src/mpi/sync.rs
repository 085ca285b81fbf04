//! The synchronization types of `growing_list`, which `tests/loom.rs` replaces by loom's.

pub use std::sync::OnceLock;
