//! All orders in which threads can take their steps, by loom:
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom`.

#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;

/// The types that the core has from std.
mod sync {
    pub use loom::sync::atomic::AtomicBool;
    pub use loom::sync::{Condvar, Mutex, MutexGuard};
}
#[path = "../src/ops/flights/bell.rs"]
mod bell;

use bell::Bell;
use sync::{AtomicBool, Condvar, Mutex};

/// Fails, by a deadlock, if what was begun while the thread went to sleep wakes it in no order.
#[test]
fn no_news_are_lost() {
    loom::model(|| {
        let shared = Arc::new((
            Mutex::new(0),
            Bell {
                is_asleep: AtomicBool::new(false),
                news: Condvar::new(),
            },
        ));
        let starts = (0..2).map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (news, bell) = &*shared;
                *news.lock().unwrap() += 1;
                bell.ring();
            })
        });
        let threads: Vec<_> = starts.collect();
        let (news, bell) = &*shared;
        let mut seen = 0;
        while seen < 2 {
            let mut guard = bell.sleep(news.lock().unwrap(), |news| *news > 0);
            seen += std::mem::take(&mut *guard);
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
