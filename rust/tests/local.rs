//! Handlers that call no MPI.

mod common;
use common::recorder::*;
use common::*;

fn array(numbers: &mut [f32], dims: &[i64]) -> Buffer {
    floats(numbers.as_mut_ptr() as i64, dims)
}

#[test]
fn arrays_are_concatenated_along_their_last_axis() {
    let (mut a, mut b, mut none) = ([1.0, 2.0, 4.0, 5.0], [3.0, 6.0], []);
    let mut whole = [0.0; 6];
    let call = CallFrame::default()
        .operand(array(&mut a, &[2, 2]))
        .operand(array(&mut none, &[2, 0]))
        .operand(array(&mut b, &[2, 1]));
    let call = call.result(array(&mut whole, &[2, 3]));
    assert_eq!(run("concatenate", call), (Ok(()), vec![]));
    assert_eq!(whole, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}

#[test]
fn an_array_is_split_along_its_last_axis() {
    let mut whole = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let (mut a, mut b) = ([0.0; 4], [0.0; 2]);
    let call = CallFrame::default().operand(array(&mut whole, &[2, 3]));
    let call = call
        .result(array(&mut a, &[2, 2]))
        .result(array(&mut b, &[2, 1]));
    assert_eq!(run("split", call), (Ok(()), vec![]));
    assert_eq!(a, [1.0, 2.0, 4.0, 5.0]);
    assert_eq!(b, [3.0, 6.0]);
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let whole = || CallFrame::default().operand(floats(IN, &[2, 3]));
    for (dims, text) in [
        (
            vec![2],
            "an array of shape [2] is no part of one of shape [2, 3]",
        ),
        (
            vec![3, 3],
            "an array of shape [3, 3] is no part of one of shape [2, 3]",
        ),
        (vec![2, 2], "parts with 2 elements are not an array with 3"),
    ] {
        let call = whole().result(floats(OUT, &dims));
        assert_eq!(refused("split", call), invalid(text));
    }
    let call = CallFrame::default().operand(floats(IN, &[]));
    assert_eq!(
        refused("split", call.result(floats(OUT, &[]))),
        invalid("an array without axes has no parts")
    );
}

#[test]
fn a_result_takes_the_memory_of_its_operand() {
    let call = |result| {
        let operand = floats(IN, &[3]);
        CallFrame::default()
            .operand(operand)
            .result(floats(result, &[3]))
    };
    assert_eq!(run("in_order", call(IN)), (Ok(()), vec![]));
    assert_eq!(
        refused("in_order", call(OUT)),
        invalid("XLA has given a result memory of its own that is to take its operand's")
    );
}
