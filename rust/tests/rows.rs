//! The operations that deal out rows, on an MPI that only records what it is asked.

mod common;
use common::recorder::*;
use common::*;

#[test]
fn allgatherv_receives_the_rows_of_each_rank() {
    let call = on(RANK_1)
        .list("counts", &[1, 2])
        .operand(floats(IN, &[2, 5]))
        .result(floats(OUT, &[3, 5]));
    let lists = [5, 10, 0, 5];
    assert_eq!(
        called("allgatherv", call),
        (
            "MPI_Allgatherv",
            [&[IN, 10, FLOAT, OUT], &lists[..], &[FLOAT, COMM[1]]].concat()
        )
    );
}

/// All but one rank may have nothing.
#[test]
fn allgatherv_takes_no_rows() {
    let call = on(RANK_0)
        .list("counts", &[0, 2])
        .operand(floats(IN, &[0]))
        .result(floats(OUT, &[2]));
    assert_eq!(
        called("allgatherv", call),
        (
            "MPI_Allgatherv",
            vec![IN, 0, FLOAT, OUT, 0, 2, 0, 0, FLOAT, COMM[0]]
        )
    );
}

#[test]
fn alltoallv_sends_rows_to_each_rank() {
    let call = on(RANK_0)
        .list("sendcounts", &[1, 3])
        .list("recvcounts", &[2, 0])
        .operand(floats(IN, &[4, 5]))
        .result(floats(OUT, &[2, 5]));
    let (sent, received) = ([5, 15, 0, 5], [10, 0, 0, 10]);
    assert_eq!(
        called("alltoallv", call),
        (
            "MPI_Alltoallv",
            [
                &[IN],
                &sent[..],
                &[FLOAT, OUT],
                &received,
                &[FLOAT, COMM[0]]
            ]
            .concat()
        )
    );
}

#[test]
fn gatherv_receives_on_root_only() {
    let gatherv = |comm| on(comm).list("counts", &[1, 2]).ints(&[("root", 1)]);
    let on_root = gatherv(RANK_1)
        .operand(floats(IN, &[2, 5]))
        .result(floats(OUT, &[3, 5]));
    assert_eq!(
        called("gatherv", on_root),
        (
            "MPI_Gatherv",
            vec![IN, 10, FLOAT, OUT, 5, 10, 0, 5, FLOAT, 1, COMM[1]]
        )
    );
    let elsewhere = gatherv(RANK_0).operand(floats(IN, &[1, 5]));
    assert_eq!(
        called("gatherv", elsewhere),
        (
            "MPI_Gatherv",
            vec![IN, 5, FLOAT, 0, 5, 10, 0, 5, FLOAT, 1, COMM[0]]
        )
    );
}

#[test]
fn reduce_scatterv_receives_rows_of_the_reduction() {
    let call = on(RANK_1)
        .list("counts", &[1, 2])
        .ints(&[("op_number", SUM)]);
    assert_eq!(
        called("reduce_scatterv", in_and_out(call, &[3, 5], &[2, 5])),
        (
            "MPI_Reduce_scatter",
            vec![IN, OUT, 5, 10, FLOAT, SUM_HANDLE, COMM[1]]
        )
    );
}

/// MPICH looks at the addresses where there is nothing to receive, too.
#[test]
fn reduce_scatterv_of_no_rows_is_not_in_place() {
    let call = on(RANK_1)
        .list("counts", &[1, 0])
        .ints(&[("op_number", SUM)])
        .operand(floats(IN, &[1, 5]))
        .result(floats(IN, &[0, 5]));
    let (function, arguments) = called("reduce_scatterv", call);
    assert_eq!((function, arguments[0]), ("MPI_Reduce_scatter", IN));
    assert!(![0, IN].contains(&arguments[1]));
}

#[test]
fn scatterv_sends_on_root_only() {
    let scatterv = |comm| on(comm).list("counts", &[1, 2]).ints(&[("root", 0)]);
    let on_root = scatterv(RANK_0)
        .operand(floats(IN, &[3, 5]))
        .result(floats(OUT, &[1, 5]));
    assert_eq!(
        called("scatterv", on_root),
        (
            "MPI_Scatterv",
            vec![IN, 5, 10, 0, 5, FLOAT, OUT, 5, FLOAT, 0, COMM[0]]
        )
    );
    let elsewhere = || scatterv(RANK_1).result(floats(OUT, &[2, 5]));
    // An operand elsewhere is not read.
    for call in [elsewhere(), elsewhere().operand(floats(IN, &[3, 5]))] {
        assert_eq!(
            called("scatterv", call),
            (
                "MPI_Scatterv",
                vec![0, 5, 10, 0, 5, FLOAT, OUT, 10, FLOAT, 0, COMM[1]]
            )
        );
    }
}

/// Rank 0's part of calls in which the ranks have one and two rows.
fn vector_call(
    operation: &str,
    counts: &[i64],
    own: Buffer,
    all: Buffer,
) -> (Outcome, Vec<Recorded>) {
    let call = match operation {
        "alltoallv" => on(RANK_0)
            .list("sendcounts", counts)
            .list("recvcounts", &[0, 1])
            .operand(all)
            .result(own),
        "reduce_scatterv" | "scatterv" => {
            on(RANK_0).list("counts", counts).operand(all).result(own)
        }
        _ => on(RANK_0).list("counts", counts).operand(own).result(all),
    };
    run(operation, call.ints(&[("op_number", SUM), ("root", 0)]))
}

const VECTOR_OPERATIONS: [&str; 5] = [
    "allgatherv",
    "alltoallv",
    "gatherv",
    "reduce_scatterv",
    "scatterv",
];

#[test]
fn counts_must_be_one_for_each_rank() {
    for operation in VECTOR_OPERATIONS {
        let name = match operation {
            "alltoallv" => "sendcounts",
            _ => "counts",
        };
        for counts in [&[][..], &[1], &[1, 1, 1], &[4, -1]] {
            let (own, all) = (floats(IN, &[1, 5]), floats(OUT, &[3, 5]));
            let text = format!(
                "attribute `{name}` is {counts:?}, expected a number of rows for each of 2 ranks"
            );
            assert_eq!(
                vector_call(operation, counts, own, all),
                (invalid(&text), vec![]),
                "{operation}"
            );
        }
    }
}

/// MPI would read or write past the end of an array.
#[test]
fn arrays_must_have_the_rows_of_the_counts() {
    let text = |dims: &[i64], rows| {
        invalid(&format!(
            "an array of shape {dims:?} has not the {rows} rows that the call says"
        ))
    };
    for operation in VECTOR_OPERATIONS {
        for dims in [&[2, 5][..], &[4, 5], &[]] {
            let (own, all) = (floats(IN, &[1, 5]), floats(OUT, dims));
            let (outcome, calls) = vector_call(operation, &[1, 2], own, all);
            assert_eq!((outcome, calls), (text(dims, 3), vec![]), "{operation}");
        }
        for dims in [&[2, 5][..], &[0, 5], &[]] {
            let (own, all) = (floats(IN, dims), floats(OUT, &[3, 5]));
            let (outcome, calls) = vector_call(operation, &[1, 2], own, all);
            assert_eq!((outcome, calls), (text(dims, 1), vec![]), "{operation}");
        }
    }
}

#[test]
fn rows_must_be_alike() {
    for operation in VECTOR_OPERATIONS {
        for (all, text) in [
            (floats(OUT, &[3, 4]), "[3, 4] of XLA type 11"),
            (floats(OUT, &[3, 5, 1]), "[3, 5, 1] of XLA type 11"),
            (buffer(S64, OUT as usize, &[3, 5]), "[3, 5] of XLA type 5"),
        ] {
            let own = floats(IN, &[1, 5]);
            let (outcome, calls) = vector_call(operation, &[1, 2], own, all);
            let (first, second) = match operation {
                "alltoallv" | "reduce_scatterv" => (text, "[1, 5] of XLA type 11"),
                _ => ("[1, 5] of XLA type 11", text),
            };
            let text = format!("arrays do not match: rows of {first} are not those of {second}");
            assert_eq!((outcome, calls), (invalid(&text), vec![]), "{operation}");
        }
    }
}

/// Sums that overflow are no way around the checks.
#[test]
fn absurd_counts_are_refused() {
    for counts in [[i64::MAX, i64::MAX], [1, i64::MAX]] {
        let (own, all) = (floats(IN, &[counts[0], 5]), floats(OUT, &[3, 5]));
        let (outcome, calls) = vector_call("gatherv", &counts, own, all);
        assert_eq!(
            (outcome, calls),
            (
                invalid(
                    "an array of shape [3, 5] has not the 9223372036854775807 rows that the call \
                     says"
                ),
                vec![]
            )
        );
    }
}
