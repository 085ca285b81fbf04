//! The file that all calls are written to.

// Miri lends no files.
#![cfg(not(miri))]

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use _core::recorder;
use _core::trace::{self, Entry, NONE};

mod common;
use common::recorder::*;
use common::*;

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("mpi4jax-{}-{name}", std::process::id()))
}

/// The entries of a file.
fn read(path: &Path) -> Vec<Entry> {
    trace::read(path, 0, usize::from(u16::MAX)).unwrap()
}

fn entries(path: &PathBuf) -> Vec<Entry> {
    let entries = read(path);
    fs::remove_file(path).unwrap();
    entries
}

fn names() -> Vec<String> {
    a_call_of_each()
        .iter()
        .map(|(name, _)| (*name).into())
        .collect()
}

#[test]
fn each_call_is_in_the_file() {
    let _alone = alone();
    let path = file("each");
    trace::start(&path, names()).unwrap();
    for (name, call) in a_call_of_each() {
        drop(run(name, call));
    }
    let summary = trace::stop().unwrap();
    let count = names().len() as u16;
    assert_eq!((summary.count, summary.lost), (count.into(), 0));
    let entries = entries(&path);
    let numbers: Vec<_> = entries.iter().map(|entry| entry.operation).collect();
    assert_eq!(numbers, (0..count).collect::<Vec<u16>>());
    assert!(entries.iter().all(|entry| entry.begin <= entry.end));
    assert!(entries.is_sorted_by_key(|entry| entry.begin));

    let sendrecv = entries.last().unwrap();
    let expected = Entry {
        communicator: 0,
        dest: 1,
        source: 3,
        send_tag: 2,
        recv_tag: 4,
        sent: 5,
        received: 6,
        sent_type: F32 as u8,
        received_type: F32 as u8,
        op: NONE,
        root: NONE,
        call_site: 0,
        sequence: 0,
        in_flight: 0,
        operation: count - 1,
        begin: sendrecv.begin,
        end: sendrecv.end,
    };
    assert_eq!(*sendrecv, expected);
    let entry_of = |name: &str| entries[names().iter().position(|known| known == name).unwrap()];
    let bcast = entry_of("bcast");
    assert_eq!((bcast.root, bcast.op, bcast.dest), (0, SUM as i32, NONE));
    assert_eq!((bcast.sent, bcast.received_type), (7, 0));
    let send = entry_of("send");
    assert_eq!((send.dest, send.send_tag, send.sequence), (1, 9, 0));
    assert!(trace::stop().is_none());
}

/// Fails if calls overwrite what is not written yet: they are faster than the file.
#[test]
fn nothing_is_lost_however_fast_calls_are() {
    const CALLS: i32 = 20_000;
    let _alone = alone();
    let path = file("fast");
    trace::start(&path, names()).unwrap();
    for tag in 0..CALLS {
        let call = on(RANK_0).ints(&[("dest", 1), ("tag", tag.into())]);
        drop(run("send", call.operand(floats(IN, &[1]))));
    }
    let summary = trace::stop().unwrap();
    assert_eq!((summary.count, summary.lost), (CALLS as u64, 0));
    let tags: Vec<_> = entries(&path).iter().map(|entry| entry.send_tag).collect();
    assert_eq!(tags, (0..CALLS).collect::<Vec<_>>());
}

static MAY_END: AtomicBool = AtomicBool::new(false);

/// Fails if calls wait for one that is not over: it may be waiting for them.
#[test]
fn a_long_call_keeps_no_others_waiting() {
    const CALLS: usize = 3000;
    let _alone = alone();
    let path = file("long");
    trace::start(&path, names()).unwrap();
    MAY_END.store(false, Ordering::Release);
    let before = recorder::recorded().end;
    let long = thread::spawn(|| {
        let see = || {
            while !MAY_END.load(Ordering::Acquire) {
                thread::yield_now();
            }
        };
        seeing(see, || drop(run("barrier", on(RANK_1))));
    });
    while recorder::recorded().end == before {
        thread::yield_now();
    }
    for _ in 0..CALLS {
        drop(run("send", send()));
    }
    MAY_END.store(true, Ordering::Release);
    long.join().unwrap();
    let summary = trace::stop().unwrap();
    assert_eq!((summary.count, summary.lost), (CALLS as u64 + 1, 0));
    assert_eq!(entries(&path).len(), CALLS + 1);
}

#[test]
fn a_file_that_cannot_be_made() {
    let _alone = alone();
    let path = file("no folder").join("rank-0.calls");
    assert!(trace::start(&path, names()).is_err());
    assert!(trace::stop().is_none());
}

/// Fails if a long call comes after those that began later.
#[test]
fn calls_are_in_the_order_in_which_they_began() {
    let _alone = alone();
    let path = file("order");
    trace::start(&path, names()).unwrap();
    MAY_END.store(false, Ordering::Release);
    let before = recorder::recorded().end;
    let long = thread::spawn(|| {
        let see = || {
            while !MAY_END.load(Ordering::Acquire) {
                thread::yield_now();
            }
        };
        seeing(see, || drop(run("barrier", on(RANK_1))));
    });
    while recorder::recorded().end == before {
        thread::yield_now();
    }
    for _ in 0..3000 {
        drop(run("send", send()));
    }
    trace::flush();
    let unfinished = read(&path);
    assert!(unfinished.len() > 1000, "it waits for the long call");
    assert_eq!(unfinished[0].end, 0);
    MAY_END.store(true, Ordering::Release);
    long.join().unwrap();
    trace::stop().unwrap();
    let entries = entries(&path);
    assert_eq!(entries.len(), 3001);
    assert!(entries.is_sorted_by_key(|entry| entry.begin));
    assert!(entries[0].end > entries[1000].end);
}

/// Fails if each call waits for a disk that hangs, and not one of them.
#[test]
fn a_disk_that_hangs() {
    const CALLS: u64 = 4000;
    let _alone = alone();
    // A pipe takes some calls, and no more until it is read.
    let path = file("pipe");
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let mut options = fs::OpenOptions::new();
    let mut pipe = options.read(true).write(true).open(&path).unwrap();
    trace::start(&path, names()).unwrap();
    let (send_end, end) = mpsc::channel();
    thread::spawn(move || {
        for _ in 0..CALLS {
            drop(run("send", send()));
        }
        send_end.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(200)).unwrap();
    thread::spawn(move || std::io::copy(&mut pipe, &mut std::io::sink()));
    let summary = trace::stop().unwrap();
    assert_eq!(summary.count + summary.lost, CALLS);
    assert!(summary.lost > 0, "{summary:?}");
    fs::remove_file(&path).unwrap();
}

/// Calls that were written stay, the rest is counted, and the program goes on.
#[test]
fn a_disk_that_is_full() {
    let _alone = alone();
    // A device that takes nothing.
    assert!(trace::start(Path::new("/dev/full"), names()).is_err());
    assert!(trace::stop().is_none());
    let path = file("full");
    trace::start(&path, names()).unwrap();
    drop(run("send", send()));
    let written = trace::flush().unwrap();
    assert_eq!((written.count, written.lost), (1, 0));
    trace::give_up("a test");
    for _ in 0..3 {
        drop(run("send", send()));
    }
    let summary = trace::stop().unwrap();
    assert_eq!((summary.count, summary.lost), (1, 3));
    assert_eq!(entries(&path).len(), 1);
}
