//! The system's numbers of threads.

use std::cell::Cell;

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
