//! The system's numbers of threads.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// The number of the calling thread, or 0 where the system has none for it.
#[inline(always)]
pub fn current() -> u32 {
    CURRENT.with(|known| match known.get() {
        0 => ask(known),
        number => number,
    })
}

#[cold]
#[inline(never)]
fn ask(known: &Cell<u32>) -> u32 {
    #[cfg(target_os = "linux")]
    // SAFETY: it only returns a number.
    known.set(unsafe { libc::gettid() } as u32);
    known.get()
}

/// The threads of the core.
static OWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Says that the calling thread is one of the core, which does nothing for the program.
pub fn claim() {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    own.insert(current());
}

/// Whether a thread is one of the core.
pub fn is_own(thread: u32) -> bool {
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    own.contains(&thread)
}
