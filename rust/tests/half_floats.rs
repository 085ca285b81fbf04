//! Reductions of 16-bit floats, on an MPI that only records what it is asked.

use _core::mpi::PredefinedOp;

mod common;
use common::recorder::*;
use common::*;

/// A reduction of this operator's number on elements of 16 bits, or of 32.
fn reduction(op_number: i64, dtype: i32) -> CallFrame {
    on(RANK_0)
        .ints(&[("op_number", op_number)])
        .operand(buffer(dtype, IN as usize, &[3]))
        .result(buffer(dtype, IN as usize, &[3]))
}

/// The handle of the operator that a reduction passes, and whether it was made for that.
fn operator_of(call: CallFrame) -> (i64, bool) {
    let (outcome, mut calls) = run("allreduce", call);
    assert_eq!(outcome, Ok(()));
    let (_, arguments) = calls.pop().unwrap();
    let commutative = ("MPI_Op_create", vec![1]);
    assert!(calls.iter().all(|call| *call == commutative), "{calls:?}");
    (arguments[4], calls.len() == 1)
}

/// The result of an operator for one pair of elements, as MPI calls it.
fn reduced(op: i64, left: u16, right: u16) -> u16 {
    let (mut input, mut inout, mut len, mut datatype) = (left, right, 1, std::ptr::null_mut());
    // SAFETY: both vectors have one element.
    unsafe {
        function_of(op).unwrap()(
            std::ptr::from_mut(&mut input).cast(),
            std::ptr::from_mut(&mut inout).cast(),
            &raw mut len,
            &raw mut datatype,
        );
    }
    inout
}

/// The one test that uses them: they are made once for the whole process.
#[test]
fn half_floats_have_operators_of_their_own_made_once() {
    let operators = [
        PredefinedOp::Sum,
        PredefinedOp::Prod,
        PredefinedOp::Max,
        PredefinedOp::Min,
    ];
    // Two and a half, in both formats.
    let values = [(F16, 0x4000, 0x3800), (BF16, 0x4000, 0x3f00)];
    // Two and a half, one, two, a half.
    let expected = [
        (F16, [0x4100, 0x3c00, 0x4000, 0x3800]),
        (BF16, [0x4020, 0x3f80, 0x4000, 0x3f00]),
    ];
    let mut handles = vec![];
    for ((dtype, two, half), (_, expected)) in values.into_iter().zip(expected) {
        for (op, expected) in operators.into_iter().zip(expected) {
            let (handle, was_made) = operator_of(reduction(op.number(), dtype));
            assert!(was_made);
            assert_eq!(reduced(handle, two, half), expected);
            assert_eq!(operator_of(reduction(op.number(), dtype)), (handle, false));
            assert!(!handles.contains(&handle));
            handles.push(handle);
        }
    }
}

#[test]
fn half_floats_have_no_other_operators_of_mpi() {
    for (op, dtype) in [(PredefinedOp::Land, F16), (PredefinedOp::NoOp, BF16)] {
        let op_number = op.number();
        assert_eq!(
            refused("allreduce", reduction(op_number, dtype)),
            invalid(&format!(
                "reduction operator {op_number} is not for elements of XLA type {dtype}"
            ))
        );
    }
}

#[test]
fn half_floats_may_have_operators_that_users_made() {
    assert_eq!(
        operator_of(reduction(USER_MADE, BF16)),
        (USER_MADE_HANDLE, false)
    );
}

#[test]
fn other_types_have_the_operators_of_mpi() {
    for op in PredefinedOp::ALL {
        assert_eq!(
            operator_of(reduction(op.number(), F32)),
            (handle_of(*op), false)
        );
    }
}

/// As integers, which is what MPI moves them as.
#[test]
fn half_floats_are_moved() {
    for dtype in [F16, BF16] {
        let call =
            on(RANK_0)
                .ints(&[("dest", 1), ("tag", 9)])
                .operand(buffer(dtype, IN as usize, &[5]));
        assert_eq!(
            called("send", call),
            ("MPI_Send", vec![IN, 5, SHORT, 1, 9, COMM[0]])
        );
    }
}
