//! An operator for 16-bit floats that MPI could not make. A file of its own, as operators are made
//! once for a process.

use _core::ops;

mod common;
use common::recorder::*;
use common::*;

/// Fails when a reduction goes on with an operator that is none.
#[test]
fn an_operator_that_could_not_be_made_is_an_error_of_every_call() {
    ops::set_raise_on_error(true);
    let call = || {
        on(RANK_0)
            .ints(&[("op_number", SUM)])
            .operand(buffer(BF16, IN as usize, &[3]))
            .result(buffer(BF16, IN as usize, &[3]))
    };
    let error = internal("r0 | MPI_Op_create returned error code 9: number 9 is wrong");
    let (outcome, calls) = failing("MPI_Op_create", 9, || run("allreduce", call()));
    assert_eq!(
        (outcome, calls),
        (error.clone(), vec![("MPI_Op_create", vec![1])])
    );
    assert_eq!(refused("allreduce", call()), error);
}
