//! The sleep of the progress thread. While it does not sleep, ringing costs one load.
//!
//! `tests/loom.rs` tries all orders of this file's steps, with `super::sync` from loom.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

use super::sync::{AtomicBool, Condvar, MutexGuard};

/// Wakes one thread.
pub struct Bell {
    /// Whether the thread waits to be told.
    pub is_asleep: AtomicBool,
    pub news: Condvar,
}

impl Bell {
    /// Wakes the thread if it sleeps: after the news are where it looks, and its lock is free.
    pub fn ring(&self) {
        if self.is_asleep.load(SeqCst) {
            self.news.notify_one();
        }
    }

    /// Sleeps until there are news.
    pub fn sleep<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        has_news: impl Fn(&T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.is_asleep.store(true, SeqCst);
        while !has_news(&guard) {
            let woken = self.news.wait(guard);
            guard = woken.unwrap_or_else(PoisonError::into_inner);
        }
        self.is_asleep.store(false, SeqCst);
        guard
    }
}
