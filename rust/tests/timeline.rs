//! The timeline of a run, made of what processes that never ran could have written.

// Miri lends no files.
#![cfg(not(miri))]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use _core::timeline::merge;
use _core::trace::{Entry, NONE, header};

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "common/random.rs"]
mod random;
use random::Random;

const ALL: std::ops::Range<f64> = 0.0..f64::INFINITY;
/// The number of `MPI_COMM_WORLD`.
const WORLD: i32 = 1;
const OPERATIONS: [&str; 6] = ["allreduce", "bcast", "send", "recv", "sendrecv", "wait"];

/// A folder of its own for each test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mpi4jax-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn merge(&self) -> Result<Vec<String>, String> {
        merge(&self.0, &self.file("timeline"), ALL).map_err(|error| error.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn entry(operation: &str, begin: u64) -> Entry {
    let operation = OPERATIONS.iter().position(|known| *known == operation);
    Entry {
        begin,
        end: begin + 20_000,
        call_site: 7,
        sent: 3,
        received: 3,
        sequence: 0,
        in_flight: 0,
        communicator: WORLD,
        op: NONE,
        root: NONE,
        dest: NONE,
        source: NONE,
        send_tag: NONE,
        recv_tag: NONE,
        sent_type: 11,
        received_type: 11,
        operation: operation.unwrap() as u16,
    }
}

fn calls(entries: &[Entry]) -> Vec<u8> {
    let bytes = entries.iter().flat_map(|entry| entry.to_bytes());
    header().into_iter().chain(bytes).collect()
}

/// What a process writes besides its calls. Its clock is ahead by so many nanoseconds.
fn facts(rank: i32, size: i32, ahead: i64) -> String {
    let names: Vec<_> = OPERATIONS.iter().map(|name| format!("{name:?}")).collect();
    let names = names.join(",");
    format!(
        "{{\"kind\":\"process\",\"rank\":{rank},\"size\":{size},\"run\":\"r\",\"host\":\"host\",\
         \"boot\":null,\"started\":1,\"operations\":[{names}],\"operators\":[\"SUM\"],\
         \"dtypes\":{{\"11\":[\"float32\",4]}},\"nobody\":-2}}\n\
         {{\"kind\":\"clock\",\"at\":0,\"offset\":{ahead},\"error\":0}}\n\
         {{\"kind\":\"site\",\"number\":7,\"line\":\"a.py:{rank} in step\"}}\n\
         {{\"kind\":\"communicator\",\"number\":1,\"name\":\"MPI.COMM_WORLD\",\
         \"members\":[[0,1,{size}]],\"copies\":[]}}\n\
         {{\"kind\":\"compile\",\"name\":\"step\",\"begin\":5,\"end\":9}}\n\
         {{\"kind\":\"clock\",\"at\":90000,\"offset\":{ahead},\"error\":0}}\n\
         {{\"kind\":\"end\",\"at\":9,\"calls\":1,\"lost\":0}}\n"
    )
}

fn write(folder: &Folder, rank: i32, size: i32, entries: &[Entry]) {
    let name = format!("rank-{rank}");
    fs::write(folder.file(&format!("{name}.json")), facts(rank, size, 0)).unwrap();
    fs::write(folder.file(&format!("{name}.calls")), calls(entries)).unwrap();
}

/// A ring of messages, and a sum of all.
fn steps(rank: i32, size: i32, count: u64) -> Vec<Entry> {
    let step = |number: u64| {
        let begin = 100_000 * number + rank as u64;
        let shift = Entry {
            dest: (rank + 1) % size,
            source: (rank + size - 1) % size,
            send_tag: 1,
            recv_tag: -1,
            ..entry("sendrecv", begin)
        };
        let sum = Entry {
            sequence: number,
            op: 0,
            ..entry("allreduce", begin + 50_000)
        };
        [shift, sum]
    };
    (1..=count).flat_map(step).collect()
}

#[test]
fn all_calls_and_messages_of_many_processes() {
    const SIZE: i32 = 64;
    let folder = Folder::new("many");
    for rank in 0..SIZE {
        write(&folder, rank, SIZE, &steps(rank, SIZE, 500));
    }
    let lines = folder.merge().unwrap();
    assert_eq!(lines[0], "64000 calls of 64 processes, 32000 messages");
    assert_eq!(
        lines[1..],
        [
            "rank 0: its clock is that of the timeline",
            "ranks 1-63: times are right to 0.0 µs, after correcting a drift of +0.00 µs per second"
        ]
    );
}

/// What is in memory, the files that are open, and the lines do not grow with the ranks; the time
/// does as they do.
#[test]
fn ten_thousand_processes() {
    const SIZE: i32 = 10_000;
    let folder = Folder::new("thousands");
    for rank in 0..SIZE {
        write(&folder, rank, SIZE, &steps(rank, SIZE, 2));
    }
    let begin = Instant::now();
    let lines = folder.merge().unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    assert_eq!(lines[0], "40000 calls of 10000 processes, 20000 messages");
    assert!(lines.len() < 40, "{} lines", lines.len());
    // A limit for what takes forever.
    assert!(seconds < 60.0, "{seconds} s");
}

#[test]
fn what_is_not_one_run_is_not_merged() {
    let folder = Folder::new("runs");
    let error = folder.merge().unwrap_err();
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
    assert_eq!(folder.merge().unwrap_err(), text);
    fs::remove_file(path(2)).unwrap();
    assert!(folder.merge().is_ok());
    let other = facts(1, 2, 0).replace("\"run\":\"r\"", "\"run\":\"s\"");
    fs::write(path(1), other).unwrap();
    let error = folder.merge().unwrap_err();
    assert!(error.contains("is of another run"), "{error}");
    fs::rename(path(0), path(1)).unwrap();
    let error = folder.merge().unwrap_err();
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
    assert!(folder.merge().is_ok());
    let calls_path = folder.file("rank-0.calls");
    let json_path = folder.file("rank-0.json");
    fs::remove_file(folder.file("timeline")).unwrap();
    let with = |change: &dyn Fn(&mut Entry)| {
        let mut entries = good.clone();
        change(&mut entries[2]);
        calls(&entries)
    };
    for (bytes, offset, what) in [
        (
            b"something else, of some length".to_vec(),
            0,
            "is not a file of this version of mpi4jax",
        ),
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
        let text = format!("{}, byte {offset}: {what}", calls_path.display());
        assert_eq!(folder.merge().unwrap_err(), text);
    }
    write(&folder, 0, 1, &good);
    let text = facts(0, 1, 0);
    let second = text.find('\n').unwrap() + 1;
    for (from, to, offset, what) in [
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
        let text = format!("{}, byte {offset}: {what}", json_path.display());
        assert_eq!(folder.merge().unwrap_err(), text);
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
            let place = random.below(content.len());
            match random.below(4) {
                0 => content.truncate(place.max(1)),
                1 => {
                    let end = (place + random.below(40)).min(content.len());
                    content.drain(place..end);
                }
                2 => content[place] = b"0123456789-\"{}[],:\n\xff"[random.below(20)],
                _ => content[place] ^= 1 << random.below(8),
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
        if let Err(error) = folder.merge() {
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
    let failed = |path: &Path| merge(&folder.0, path, ALL).unwrap_err().to_string();
    let text = |path: &Path, what: &str| format!("{}: {what}", path.display());
    assert_eq!(
        failed(&folder.0),
        text(&folder.0, "is a folder, expected a file")
    );
    for name in ["rank-0.json", "rank-0.calls"] {
        let input = folder.file(name);
        let before = fs::read(&input).unwrap();
        let what = "is a part of the trace, expected another file";
        assert_eq!(failed(&input), text(&input, what));
        assert_eq!(fs::read(&input).unwrap(), before);
    }
    let nowhere = folder.file("nothing").join("timeline");
    assert_eq!(
        failed(&nowhere),
        text(&nowhere, "No such file or directory (os error 2)")
    );
    let kept = folder.file("kept");
    fs::write(&kept, "text").unwrap();
    let mut permissions = fs::metadata(&kept).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&kept, permissions).unwrap();
    assert_eq!(failed(&kept), text(&kept, "is read-only"));
    assert_eq!(fs::read(&kept).unwrap(), b"text");
    // What is no file is written itself.
    assert!(merge(&folder.0, Path::new("/dev/null"), ALL).is_ok());
    assert_eq!(
        failed(Path::new("/dev/full")),
        "/dev/full: No space left on device (os error 28)"
    );
}
