//! The types of `sequence_lock`, which a test has from elsewhere.

pub use std::sync::atomic::{AtomicU64, fence};
