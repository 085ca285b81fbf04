//! The types of `growing_list`, which a test has from elsewhere.

pub use std::sync::OnceLock;
