//! Traces of processes that never ran.

use std::fs;
use std::path::PathBuf;

use _core::trace::{Entry, NONE, header};
use zerocopy::IntoBytes;

/// The number of `MPI_COMM_WORLD`.
const WORLD: i32 = 1;
const OPERATIONS: [&str; 6] = ["allreduce", "bcast", "send", "recv", "sendrecv", "wait"];

/// A folder of its own for each test.
pub struct Folder(pub PathBuf);

impl Folder {
    /// A new one.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mpi4jax-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A call.
pub fn entry(operation: &str, begin: u64) -> Entry {
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

/// A file of calls.
pub fn calls(entries: &[Entry]) -> Vec<u8> {
    [&header(), entries.as_bytes()].concat()
}

/// The file that a process writes besides its calls. Its clock is ahead by some nanoseconds.
pub fn facts(rank: i32, size: i32, ahead: i64) -> String {
    let names: Vec<_> = OPERATIONS.iter().map(|name| format!("{name:?}")).collect();
    let names = names.join(",");
    format!(
        "{{\"kind\":\"process\",\"rank\":{rank},\"size\":{size},\"run\":\"r\",\"host\":\"host\",\
         \"boot\":null,\"started\":1,\"operations\":[{names}],\"operators\":[\"SUM\"],\
         \"dtypes\":{{\"11\":[\"float32\",4]}},\"proc_null\":-2}}\n\
         {{\"kind\":\"clock\",\"at\":0,\"offset\":{ahead},\"error\":0}}\n\
         {{\"kind\":\"site\",\"number\":7,\"line\":\"a.py:{rank} in step\"}}\n\
         {{\"kind\":\"communicator\",\"number\":1,\"name\":\"MPI.COMM_WORLD\",\
         \"members\":[[0,1,{size}]],\"copies\":[]}}\n\
         {{\"kind\":\"compile\",\"name\":\"step\",\"begin\":5,\"end\":9}}\n\
         {{\"kind\":\"clock\",\"at\":90000,\"offset\":{ahead},\"error\":0}}\n\
         {{\"kind\":\"end\",\"at\":9,\"calls\":1,\"lost\":0}}\n"
    )
}

/// Writes the files of a process.
pub fn write(folder: &Folder, rank: i32, size: i32, entries: &[Entry]) {
    let name = format!("rank-{rank}");
    fs::write(folder.file(&format!("{name}.json")), facts(rank, size, 0)).unwrap();
    fs::write(folder.file(&format!("{name}.calls")), calls(entries)).unwrap();
}

/// A ring of messages, and a sum of all.
pub fn steps(rank: i32, size: i32, count: u64) -> Vec<Entry> {
    let step = |index: u64| {
        let begin = 100_000 * index + rank as u64;
        let shift = Entry {
            dest: (rank + 1) % size,
            source: (rank + size - 1) % size,
            send_tag: 1,
            recv_tag: -1,
            ..entry("sendrecv", begin)
        };
        let sum = Entry {
            sequence: index,
            op: 0,
            ..entry("allreduce", begin + 50_000)
        };
        [shift, sum]
    };
    (1..=count).flat_map(step).collect()
}
