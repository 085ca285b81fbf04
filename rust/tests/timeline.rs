//! The timeline of a run, made of what processes that never ran could have written.

// Miri lends no files.
#![cfg(not(miri))]

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use _core::timeline;
use _core::trace::{Entry, SIZE};

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "common/random.rs"]
mod random;
use random::Random;
#[path = "common/traces.rs"]
mod traces;
use traces::{Folder, calls, facts, steps, write};

const ALL: Range<f64> = 0.0..f64::INFINITY;

fn merge(folder: &Folder) -> Result<Vec<String>, String> {
    timeline::merge(&folder.0, &folder.file("timeline"), ALL).map_err(|error| error.to_string())
}

#[test]
fn all_calls_and_messages_of_many_processes() {
    const SIZE: i32 = 64;
    let folder = Folder::new("many");
    for rank in 0..SIZE {
        write(&folder, rank, SIZE, &steps(rank, SIZE, 500));
    }
    let lines = merge(&folder).unwrap();
    assert_eq!(lines[0], "64000 calls of 64 processes, 32000 messages");
    assert_eq!(
        lines[1..],
        [
            "rank 0: its clock is that of the timeline",
            "ranks 1-63: times are right to 0.0 µs, after correcting a drift of +0.00 µs per second"
        ]
    );
}

/// A thread that is stopped while its call begins has an earlier place in the file than calls that other
/// threads began meanwhile.
#[test]
fn calls_that_began_before_those_ahead_of_them() {
    let folder = Folder::new("stopped");
    for rank in 0..2 {
        let mut calls = steps(rank, 2, 4000);
        let mut late = Random(7 + rank as u64);
        // Every second call is a sum. Messages are sent before they arrive, whatever is stopped.
        for position in (1..calls.len() - 4).step_by(2) {
            if late.below(10) == 0 {
                calls[position].begin = calls[position + 4].begin;
                calls[position].end = calls[position + 4].end;
            }
        }
        write(&folder, rank, 2, &calls);
    }
    assert_eq!(
        merge(&folder).unwrap()[0],
        "16000 calls of 2 processes, 8000 messages"
    );
}

/// The memory, the files that are open, and the lines do not grow with the ranks; the time
/// does as they do.
#[test]
fn ten_thousand_processes() {
    const SIZE: i32 = 10_000;
    let folder = Folder::new("thousands");
    for rank in 0..SIZE {
        write(&folder, rank, SIZE, &steps(rank, SIZE, 2));
    }
    let begin = Instant::now();
    let lines = merge(&folder).unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    assert_eq!(lines[0], "40000 calls of 10000 processes, 20000 messages");
    assert!(lines.len() < 40, "{} lines", lines.len());
    // A limit for what takes forever.
    assert!(seconds < 60.0, "{seconds} s");
}

#[test]
fn what_is_not_one_run_is_not_merged() {
    let folder = Folder::new("runs");
    let error = merge(&folder).unwrap_err();
    assert!(
        error.ends_with("has no trace: no file is called rank-0.json"),
        "{error}"
    );
    for rank in 0..3 {
        write(&folder, rank, 3, &steps(rank, 3, 1));
    }
    for rank in 0..2 {
        write(&folder, rank, 2, &steps(rank, 2, 1));
    }
    let path = |rank: i32| folder.file(&format!("rank-{rank}.json"));
    let text = format!(
        "{}: is of another run (3 processes) than {} (2 processes)",
        path(2).display(),
        path(0).display()
    );
    assert_eq!(merge(&folder).unwrap_err(), text);
    fs::remove_file(path(2)).unwrap();
    assert!(merge(&folder).is_ok());
    let other = facts(1, 2, 0).replace("\"run\":\"r\"", "\"run\":\"s\"");
    fs::write(path(1), other).unwrap();
    let error = merge(&folder).unwrap_err();
    assert!(error.contains("is of another run"), "{error}");
    fs::rename(path(0), path(1)).unwrap();
    let error = merge(&folder).unwrap_err();
    assert!(
        error.ends_with("lacks rank-0.json, whose clock is that of the others"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let folder = Folder::new("wrong");
    let good = steps(0, 1, 3);
    write(&folder, 0, 1, &good);
    assert!(merge(&folder).is_ok());
    let calls_path = folder.file("rank-0.calls");
    let json_path = folder.file("rank-0.json");
    fs::remove_file(folder.file("timeline")).unwrap();
    let with = |change: &dyn Fn(&mut Entry)| {
        let mut entries = good.clone();
        change(&mut entries[2]);
        calls(&entries)
    };
    let mut of_others = calls(&good);
    of_others[8..16].copy_from_slice(&(SIZE as u64).to_ne_bytes());
    for bytes in [b"something else, of some length".to_vec(), of_others] {
        fs::write(&calls_path, bytes).unwrap();
        let reason = "is not a file of this version of mpi4jax";
        let text = format!("{}: {reason}", calls_path.display());
        assert_eq!(merge(&folder).unwrap_err(), text);
    }
    for (bytes, offset, reason) in [
        (with(&|call| call.operation = 99), 192, "operation 99 of 6"),
        (
            with(&|call| call.end = 1),
            192,
            "a call that ends 199999 ns before it begins",
        ),
        (
            with(&|call| call.begin = 0),
            192,
            "a call from 0 ns to 220000 ns",
        ),
        (with(&|call| call.sent = -5), 192, "an array of -5 elements"),
    ] {
        fs::write(&calls_path, bytes).unwrap();
        let text = format!("{}, byte {offset}: {reason}", calls_path.display());
        assert_eq!(merge(&folder).unwrap_err(), text);
    }
    write(&folder, 0, 1, &good);
    let text = facts(0, 1, 0);
    let second = text.find('\n').unwrap() + 1;
    for (from, to, offset, reason) in [
        (
            "\"error\":0",
            "\"error\":-1",
            second,
            "a time that can't be",
        ),
        (
            "\"offset\"",
            "\"off\"",
            second,
            "not a line of a trace: missing field `offset`",
        ),
        (
            "{\"kind\":\"clock\"",
            "",
            second,
            "not a line of a trace: expected value",
        ),
        (
            "[[0,1,1]]",
            "[[0,1,-1]]",
            text.find("{\"kind\":\"communicator\"").unwrap(),
            "ranks that can't be",
        ),
        (
            "\"begin\":5",
            "\"begin\":50",
            text.find("{\"kind\":\"compile\"").unwrap(),
            "from 50 ns to 9 ns",
        ),
    ] {
        fs::write(&json_path, text.replacen(from, to, 1)).unwrap();
        let text = format!("{}, byte {offset}: {reason}", json_path.display());
        assert_eq!(merge(&folder).unwrap_err(), text);
    }
    // Nothing is left of what was begun.
    let names: Vec<_> = fs::read_dir(&folder.0).unwrap().collect();
    assert_eq!(names.len(), 2);
}

/// Where anything is changed, the trace is merged, or one line says what is wrong.
#[test]
fn anything_may_be_corrupted() {
    let folder = Folder::new("corrupted");
    let mut random = Random(1);
    let text = facts(1, 2, 5);
    let bytes = calls(&steps(1, 2, 20));
    let mut errors = 0;
    for _ in 0..2000 {
        write(&folder, 0, 2, &steps(0, 2, 20));
        let is_text = random.below(2) == 0;
        let mut content = if is_text {
            text.clone().into_bytes()
        } else {
            bytes.clone()
        };
        for _ in 0..=random.below(3) {
            let offset = random.below(content.len());
            match random.below(4) {
                0 => content.truncate(offset.max(1)),
                1 => {
                    let end = (offset + random.below(40)).min(content.len());
                    content.drain(offset..end);
                }
                2 => content[offset] = b"0123456789-\"{}[],:\n\xff"[random.below(20)],
                _ => content[offset] ^= 1 << random.below(8),
            }
            if content.is_empty() {
                break;
            }
        }
        let (json, calls) = if is_text {
            (&content, &bytes)
        } else {
            (&text.clone().into(), &content)
        };
        fs::write(folder.file("rank-1.json"), json).unwrap();
        fs::write(folder.file("rank-1.calls"), calls).unwrap();
        let _ = fs::remove_file(folder.file("timeline"));
        if let Err(error) = merge(&folder) {
            errors += 1;
            assert_eq!(error.lines().count(), 1, "{error}");
            assert!(error.starts_with(folder.0.to_str().unwrap()), "{error}");
            assert!(!folder.file("timeline").exists());
        }
        assert!(!folder.file("timeline.part").exists());
    }
    assert!(errors > 400, "{errors}");
}

#[test]
fn where_it_is_written() {
    let folder = Folder::new("output");
    write(&folder, 0, 1, &steps(0, 1, 1));
    let failed = |path: &Path| {
        timeline::merge(&folder.0, path, ALL)
            .unwrap_err()
            .to_string()
    };
    let text = |path: &Path, reason: &str| format!("{}: {reason}", path.display());
    assert_eq!(
        failed(&folder.0),
        text(&folder.0, "is a folder, expected a file")
    );
    for name in ["rank-0.json", "rank-0.calls"] {
        let input = folder.file(name);
        let before = fs::read(&input).unwrap();
        let reason = "is a part of the trace, expected another file";
        assert_eq!(failed(&input), text(&input, reason));
        assert_eq!(fs::read(&input).unwrap(), before);
    }
    let nowhere = folder.file("nothing").join("timeline");
    assert_eq!(
        failed(&nowhere),
        text(&nowhere, "No such file or directory (os error 2)")
    );
    let read_only = folder.file("kept");
    fs::write(&read_only, "text").unwrap();
    let mut permissions = fs::metadata(&read_only).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&read_only, permissions).unwrap();
    assert_eq!(failed(&read_only), text(&read_only, "is read-only"));
    assert_eq!(fs::read(&read_only).unwrap(), b"text");
    // What is no file is written itself.
    assert!(timeline::merge(&folder.0, Path::new("/dev/null"), ALL).is_ok());
    assert_eq!(
        failed(Path::new("/dev/full")),
        "/dev/full: No space left on device (os error 28)"
    );
}
