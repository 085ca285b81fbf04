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

/// A call of each operation: how its two lines begin, and what the first one says further.
fn logged_calls() -> Vec<(&'static str, CallFrame, &'static str, &'static str)> {
    let at_root = |comm| on(comm).ints(&[("op_number", SUM), ("root", 0)]);
    let counts = |call: CallFrame| call.list("counts", &[1, 2]);
    let both_counts = on(RANK_0).list("sendcounts", &[1, 2]);
    let both_counts = both_counts.list("recvcounts", &[1, 0]);
    vec![
        (
            "allgather",
            in_and_out(on(RANK_0), &[3], &[2, 3]),
            "r0 | ID | MPI_Allgather",
            " (3 items)",
        ),
        (
            "allgatherv",
            in_and_out(counts(on(RANK_0)), &[1, 3], &[3, 3]),
            "r0 | ID | MPI_Allgatherv",
            " (3 items)",
        ),
        (
            "allreduce",
            in_and_out(allreduce(RANK_1), &[2, 3], &[2, 3]),
            "r1 | ID | MPI_Allreduce",
            " with 6 items",
        ),
        (
            "alltoall",
            in_and_out(on(RANK_0), &[2, 5], &[2, 5]),
            "r0 | ID | MPI_Alltoall",
            " (5 items)",
        ),
        (
            "alltoallv",
            in_and_out(both_counts, &[3, 3], &[1, 3]),
            "r0 | ID | MPI_Alltoallv",
            " (9 items sent, 3 items received)",
        ),
        ("barrier", on(RANK_1), "r1 | ID | MPI_Barrier", ""),
        (
            "bcast",
            at_root(RANK_0).operand(floats(IN, &[7])),
            "r0 | ID | MPI_Bcast",
            " (7 items, root=0)",
        ),
        (
            "exscan",
            in_and_out(scan(RANK_0), &[3], &[3]),
            "r0 | ID | MPI_Exscan",
            " (3 items)",
        ),
        (
            "gather",
            at_root(RANK_1).operand(floats(IN, &[3])),
            "r1 | ID | MPI_Gather",
            " (3 items, root=0)",
        ),
        (
            "gatherv",
            counts(at_root(RANK_1)).operand(floats(IN, &[2, 3])),
            "r1 | ID | MPI_Gatherv",
            " (6 items, root=0)",
        ),
        (
            "recv",
            recv(-1),
            "r1 | ID | MPI_Recv",
            " <- -2 (tag -1, 5 items)",
        ),
        (
            "reduce",
            at_root(RANK_1).operand(floats(IN, &[3])),
            "r1 | ID | MPI_Reduce",
            " (3 items, root=0)",
        ),
        (
            "reduce_scatter",
            in_and_out(allreduce(RANK_0), &[2, 3], &[3]),
            "r0 | ID | MPI_Reduce_scatter_block",
            " (3 items)",
        ),
        (
            "reduce_scatterv",
            in_and_out(counts(allreduce(RANK_1)), &[3, 3], &[2, 3]),
            "r1 | ID | MPI_Reduce_scatter",
            " (6 items)",
        ),
        (
            "scan",
            in_and_out(scan(RANK_0), &[3], &[3]),
            "r0 | ID | MPI_Scan",
            " (3 items)",
        ),
        (
            "scatter",
            at_root(RANK_1).result(floats(OUT, &[3])),
            "r1 | ID | MPI_Scatter",
            " (3 items, root=0)",
        ),
        (
            "scatterv",
            counts(at_root(RANK_1)).result(floats(OUT, &[2, 3])),
            "r1 | ID | MPI_Scatterv",
            " (6 items, root=0)",
        ),
        (
            "send",
            send(),
            "r0 | ID | MPI_Send",
            " -> 1 (tag 9, 5 items)",
        ),
        (
            "sendrecv",
            in_and_out(sendrecv(-1), &[5], &[2, 3]),
            "r0 | ID | MPI_Sendrecv",
            " <- 3 (tag 4, 6 items) / -> 1 (tag 2, 5 items)",
        ),
    ]
}

#[test]
fn each_call_has_two_lines_in_the_log() {
    let _alone = alone();
    for (operation, call, who, what) in logged_calls() {
        assert_eq!(
            logged(operation, call),
            [format!("{who}{what}"), format!("{who} done with code 0")]
        );
    }
}

/// Fails when an operation was added that no test here calls.
#[test]
fn every_handler_is_called() {
    let called: BTreeSet<_> = logged_calls().iter().map(|call| call.0).collect();
    let handlers = ops::host_handlers::<Recorder>();
    assert_eq!(called, handlers.iter().map(|(name, _)| *name).collect());
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
