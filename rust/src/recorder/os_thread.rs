//! The system's numbers of threads.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::lock::lock;

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// The number of the calling thread, or 0 where the system has none for it.
#[inline(always)]
pub fn current() -> u32 {
    CURRENT.with(|known| match known.get() {
        0 => ask(known),
        thread => thread,
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
static CORE_THREADS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Says that the calling thread is one of the core, which does nothing for the program.
pub fn claim() {
    lock(&CORE_THREADS).insert(current());
}

/// Whether a thread is one of the core.
pub fn is_own(thread: u32) -> bool {
    lock(&CORE_THREADS).contains(&thread)
}
