//! All orders in which threads can take their steps, by loom:
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom`.

#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;

/// The types that the core has from std.
mod sync {
    use std::sync::atomic::Ordering::{Acquire, Release};

    use loom::cell::UnsafeCell;
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
    pub use loom::sync::{Condvar, Mutex, MutexGuard};

    /// Loom has none: this one orders no more than std's does.
    pub struct OnceLock<T>(std::sync::OnceLock<Once<T>>);

    struct Once<T> {
        is_set: AtomicBool,
        lock: Mutex<()>,
        value: UnsafeCell<Option<T>>,
    }

    // SAFETY: the value is written once, with the lock, and read after that.
    unsafe impl<T: Send + Sync> Sync for Once<T> {}

    impl<T> OnceLock<T> {
        pub const fn new() -> Self {
            Self(std::sync::OnceLock::new())
        }

        /// Loom's types are not made in constants: a test calls this before it starts threads.
        fn once(&self) -> &Once<T> {
            self.0.get_or_init(|| Once {
                is_set: AtomicBool::new(false),
                lock: Mutex::new(()),
                value: UnsafeCell::new(None),
            })
        }

        pub fn get(&self) -> Option<&T> {
            let once = self.once();
            // SAFETY: nobody writes to what is set.
            let value = |value: *const Option<T>| unsafe { (*value).as_ref() };
            let is_set = once.is_set.load(Acquire);
            is_set.then(|| once.value.with(value)).flatten()
        }

        pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            let once = self.once();
            let _lock = once.lock.lock().unwrap();
            if self.get().is_none() {
                // SAFETY: nobody reads it before it is set.
                once.value
                    .with_mut(|value| unsafe { *value = Some(make()) });
                once.is_set.store(true, Release);
            }
            self.get().unwrap()
        }
    }
}
#[path = "../src/ops/flights/bell.rs"]
mod bell;
#[path = "../src/mpi/growing_list.rs"]
mod growing_list;
#[path = "../src/recorder/sequence_lock.rs"]
mod sequence_lock;

use std::sync::atomic::Ordering::Relaxed;

use bell::Bell;
use growing_list::GrowingList;
use sequence_lock::SequenceLock;
use sync::{AtomicBool, AtomicU64, Condvar, Mutex};

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

/// A record of two numbers, both the id of its call.
#[derive(Default)]
struct Record {
    lock: SequenceLock,
    numbers: [AtomicU64; 2],
}

impl Record {
    /// Records a call, and says whether there was room.
    fn write(&self, id: u64) -> bool {
        let is_claimed = self.lock.claim();
        if is_claimed {
            for cell in &self.numbers {
                cell.store(id, Relaxed);
            }
            self.lock.publish(id);
            self.lock.finish(id);
        }
        is_claimed
    }

    /// Fails if the record of a call has the number of another one.
    fn check(&self, id: u64) {
        let numbers = || self.numbers.each_ref().map(|cell| cell.load(Relaxed));
        let copy = self.lock.read(id, |_| Some(numbers()));
        assert!(copy.is_none_or(|numbers| numbers == [id; 2]), "{copy:?}");
    }
}

/// Fails if two calls write the same record at once, or if a reader gets a part of each.
#[test]
fn a_record_is_of_one_call() {
    loom::model(|| {
        let record = Arc::new(Record::default());
        let writers = [1, 2].map(|id| {
            let record = Arc::clone(&record);
            thread::spawn(move || record.write(id))
        });
        for id in [1, 2] {
            record.check(id);
        }
        let written = writers.map(|writer| writer.join().unwrap());
        assert!(written.contains(&true));
        for id in [1, 2] {
            record.check(id);
        }
    });
}

/// Fails if the record of a call in progress is overwritten, or is not said to be in progress.
#[test]
fn a_call_in_progress_keeps_its_record() {
    loom::model(|| {
        let record = Arc::new(Record::default());
        assert!(record.lock.claim());
        for cell in &record.numbers {
            cell.store(1, Relaxed);
        }
        record.lock.publish(1);
        let writer = {
            let record = Arc::clone(&record);
            thread::spawn(move || record.write(2))
        };
        assert_eq!(record.lock.in_progress(), Some(1));
        record.check(1);
        assert!(record.lock.has(1));
        record.lock.finish(1);
        let is_written = writer.join().unwrap();
        assert_eq!(record.lock.has(2), is_written);
        record.check(if is_written { 2 } else { 1 });
    });
}

/// Fails if two threads that need a slot get one each, or if a reader gets one before it is there.
#[test]
fn a_slot_is_one_for_all_threads() {
    const INDEX: usize = 1;
    loom::model(|| {
        let list = Arc::new(GrowingList::<AtomicU64>::new());
        let value = || list.get(INDEX as i64).map(|slot| slot.load(Relaxed));
        assert_eq!(value(), None);
        let writers = [1, 2].map(|amount| {
            let list = Arc::clone(&list);
            thread::spawn(move || list.get_or_grow(INDEX).fetch_add(amount, Relaxed))
        });
        assert!(value().is_none_or(|value| value <= 3));
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(value(), Some(3));
    });
}
