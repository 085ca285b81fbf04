//! The operations whose counts are arrays, on an MPI that only records what it is asked.

mod common;
use _core::xla::raw::{XLA_FFI_DataType_S32, XLA_FFI_DataType_S64};
use common::recorder::*;
use common::*;

/// Counts as a program has them in an operand.
fn counts(values: &'static [i32]) -> Buffer {
    let address = values.as_ptr() as usize;
    buffer(XLA_FFI_DataType_S32, address, &[values.len() as i64])
}

fn long_counts(values: &'static [i64]) -> Buffer {
    let address = values.as_ptr() as usize;
    buffer(XLA_FFI_DataType_S64, address, &[values.len() as i64])
}

/// Of rows of five floats, in arrays that have room for more.
fn alltoallv(sent: Buffer, received: Buffer) -> CallFrame {
    on(RANK_0)
        .operand(floats(IN, &[9, 5]))
        .operand(sent)
        .operand(received)
        .result(floats(OUT, &[7, 5]))
}

fn allgatherv(counts: Buffer) -> CallFrame {
    on(RANK_1)
        .operand(floats(IN, &[4, 5]))
        .operand(counts)
        .result(floats(OUT, &[9, 5]))
}

#[test]
fn alltoallv_sends_the_rows_that_the_counts_say() {
    let (sent, received) = ([5, 15, 0, 5], [10, 0, 0, 10]);
    for call in [
        alltoallv(counts(&[1, 3]), counts(&[2, 0])),
        alltoallv(long_counts(&[1, 3]), long_counts(&[2, 0])),
    ] {
        assert_eq!(
            called("alltoallv_rows", call),
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
}

#[test]
fn allgatherv_receives_the_rows_that_the_counts_say() {
    let lists = [5, 10, 0, 5];
    assert_eq!(
        called("allgatherv_rows", allgatherv(counts(&[1, 2]))),
        (
            "MPI_Allgatherv",
            [&[IN, 10, FLOAT, OUT], &lists[..], &[FLOAT, COMM[1]]].concat()
        )
    );
}

#[test]
fn arrays_have_room_for_the_rows() {
    assert_eq!(
        refused(
            "alltoallv_rows",
            alltoallv(counts(&[9, 1]), counts(&[2, 0]))
        ),
        invalid("an array of shape [9, 5] has not the 10 rows that the call says")
    );
    assert_eq!(
        refused(
            "alltoallv_rows",
            alltoallv(counts(&[1, 3]), counts(&[7, 1]))
        ),
        invalid("an array of shape [7, 5] has not the 8 rows that the call says")
    );
    assert_eq!(
        refused("allgatherv_rows", allgatherv(counts(&[1, 5]))),
        invalid("an array of shape [4, 5] has not the 5 rows that the call says")
    );
}

#[test]
fn each_rank_has_a_count() {
    assert_eq!(
        refused("allgatherv_rows", allgatherv(counts(&[1, 1, 1]))),
        invalid("an operand is [1, 1, 1], expected a number of rows for each of 2 ranks")
    );
    assert_eq!(
        refused(
            "alltoallv_rows",
            alltoallv(counts(&[1, -1]), counts(&[2, 0]))
        ),
        invalid("an operand is [1, -1], expected a number of rows for each of 2 ranks")
    );
    let call = on(RANK_0).ints(&[("rows", 1), ("capacity", 1)]);
    assert_eq!(
        refused("alltoallv_counts", in_and_out(call, &[2], &[2])),
        invalid("counts of XLA type 11, expected integers of 32 or 64 bits")
    );
    let call = on(RANK_0).ints(&[("rows", 1), ("capacity", 1)]);
    let call = call.operand(counts(&[1])).result(counts(&[0, 0]));
    assert_eq!(
        refused("alltoallv_counts", call),
        invalid("1 counts for 2 ranks")
    );
    let call = on(RANK_0).ints(&[("rows", 1), ("capacity", 1)]);
    let call = call.operand(counts(&[1, 1])).result(counts(&[0, 0]));
    assert_eq!(
        refused("allgatherv_counts", call),
        invalid("2 counts of one rank")
    );
}
