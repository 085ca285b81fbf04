//! The debug lines of every operation.

use std::collections::BTreeSet;

use _core::{log, ops};

mod common;
use common::recorder::*;
use common::*;

/// The lines of one call, with its id and its seconds, which differ each time, taken out after a
/// look at their form.
fn logged(operation: &str, call: CallFrame) -> Vec<String> {
    let lines = logged_lines_of(|| drop(run(operation, call)));
    let id = lines[0].split(" | ").nth(1).unwrap().to_owned();
    assert_eq!(id.len(), 8, "{lines:?}");
    assert!(
        id.bytes()
            .all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase()),
        "{lines:?}"
    );
    lines
        .iter()
        .map(|line| without_seconds(&line.replace(&format!(" | {id} | "), " | ID | ")))
        .collect()
}

/// Cuts `(1.23e-05s)` off the end of a line, where there is one.
fn without_seconds(line: &str) -> String {
    let Some((rest, seconds)) = line.split_once(" done with code ") else {
        return line.to_owned();
    };
    let (code, seconds) = seconds.split_once(' ').unwrap();
    let form: String = seconds
        .chars()
        .map(|character| {
            if character.is_ascii_digit() {
                '9'
            } else {
                character
            }
        })
        .collect();
    assert!(
        ["(9.99e-99s)", "(9.99e+99s)"].contains(&form.as_str()),
        "{line}"
    );
    format!("{rest} done with code {code}")
}

/// How the two lines of [`a_call_of_each`] begin, and what the first one says further.
fn lines_of_each() -> Vec<(&'static str, &'static str)> {
    vec![
        ("r0 | ID | MPI_Allgather", " (3 items)"),
        ("r0 | ID | MPI_Allgatherv", " (3 items)"),
        ("r1 | ID | MPI_Allreduce", " with 6 items"),
        ("r0 | ID | MPI_Alltoall", " (5 items)"),
        (
            "r0 | ID | MPI_Alltoallv",
            " (9 items sent, 3 items received)",
        ),
        ("r1 | ID | MPI_Barrier", ""),
        ("r0 | ID | MPI_Bcast", " (7 items, root=0)"),
        (
            "r0 | ID | MPI_Waitall",
            " <- 0 (tag 3, 3 items), <- 1 (tag 2, 5 items) / -> 1 (tag 2, 5 items), -> 0 (tag 3, \
             3 items)",
        ),
        ("r0 | ID | MPI_Exscan", " (3 items)"),
        ("r1 | ID | MPI_Gather", " (3 items, root=0)"),
        ("r1 | ID | MPI_Gatherv", " (6 items, root=0)"),
        ("r0 | ID | MPI_Neighbor_allgather", " (3 items)"),
        ("r1 | ID | MPI_Neighbor_allgatherv", " (6 items)"),
        ("r0 | ID | MPI_Neighbor_alltoall", " (5 items)"),
        (
            "r1 | ID | MPI_Neighbor_alltoallv",
            " (9 items sent, 15 items received)",
        ),
        ("r1 | ID | MPI_Recv", " <- -2 (tag -1, 5 items)"),
        ("r1 | ID | MPI_Reduce", " (3 items, root=0)"),
        ("r0 | ID | MPI_Reduce_scatter_block", " (3 items)"),
        ("r1 | ID | MPI_Reduce_scatter", " (6 items)"),
        ("r0 | ID | MPI_Scan", " (3 items)"),
        ("r1 | ID | MPI_Scatter", " (3 items, root=0)"),
        ("r1 | ID | MPI_Scatterv", " (6 items, root=0)"),
        ("r0 | ID | MPI_Send", " -> 1 (tag 9, 5 items)"),
        (
            "r0 | ID | MPI_Sendrecv",
            " <- 3 (tag 4, 6 items) / -> 1 (tag 2, 5 items)",
        ),
    ]
}

#[test]
fn each_call_has_two_lines_in_the_log() {
    let _alone = alone();
    let expected = lines_of_each();
    assert_eq!(a_call_of_each().len(), expected.len());
    for ((operation, call), (prefix, text)) in a_call_of_each().into_iter().zip(expected) {
        assert_eq!(
            logged(operation, call),
            [
                format!("{prefix}{text}"),
                format!("{prefix} done with code 0")
            ]
        );
    }
}

/// Fails when an operation was added that no test here calls.
#[test]
fn every_handler_is_called() {
    let mut called: BTreeSet<String> = a_call_of_each()
        .iter()
        .map(|call| call.0.to_owned())
        .collect();
    // In row_counts.rs, and by an MPI that answers in tests/mpi.
    for operation in ["allgatherv", "alltoallv"] {
        called.extend([format!("{operation}_counts"), format!("{operation}_rows")]);
    }
    // In nonblocking.rs.
    called.extend(ops::nonblocking_names().into_iter().map(str::to_owned));
    called.insert("wait".to_owned());
    // On ranks that compare values, in tests/mpi.
    called.insert("shared".to_owned());
    // In local.rs.
    let local = [
        "concatenate",
        "copy",
        "copy_transposed",
        "in_order",
        "order",
        "split",
    ];
    called.extend(local.map(str::to_owned));
    let handlers = ops::host_handlers::<Recorder>().into_iter();
    // Those for computed numbers call the others.
    let names = handlers.map(|(name, _)| name.trim_end_matches("_computed").to_owned());
    assert_eq!(called, names.collect());
}

#[test]
fn the_log_has_the_code_of_an_error() {
    let _alone = alone();
    let lines = raising("MPI_Send", 6, || logged("send", send()));
    assert_eq!(
        lines,
        [
            "r0 | ID | MPI_Send -> 1 (tag 9, 5 items)",
            "r0 | ID | MPI_Send done with code 6",
        ]
    );
}

/// Fails when a call pays for a log that nobody asked for.
#[test]
fn nothing_is_logged_by_default() {
    let _alone = alone();
    assert!(!log::is_enabled());
    assert_eq!(lines_of(|| drop(called("send", send()))), [""; 0]);
}
