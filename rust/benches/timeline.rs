//! How long it takes to merge traces.
//!
//! Run with `cargo bench --bench timeline`.

use std::fs;
use std::time::Instant;

use _core::timeline;

#[path = "../tests/common/traces.rs"]
mod traces;
use traces::{Folder, steps, write};

const RANKS: i32 = 4;
const STEPS: u64 = 500_000;

fn main() {
    let folder = Folder::new("bench");
    for rank in 0..RANKS {
        write(&folder, rank, RANKS, &steps(rank, RANKS, STEPS));
    }
    let output = folder.file("timeline");
    let calls = 2 * STEPS * RANKS as u64;
    for _ in 0..3 {
        let begin = Instant::now();
        let lines = timeline::merge(&folder.0, &output, 0.0..f64::INFINITY).unwrap();
        let seconds = begin.elapsed().as_secs_f64();
        let bytes = fs::metadata(&output).unwrap().len();
        let (time, size) = (seconds * 1e6 / calls as f64, bytes / calls);
        println!("{}: {time:.2} us and {size} bytes for a call", lines[0]);
    }
}
