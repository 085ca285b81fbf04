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

/// A copy from one operand to one result: places and starts, and loops of sizes and steps.
fn copies(numbers: &[&[i64]]) -> Vec<i64> {
    let copies = numbers.iter().map(|numbers| {
        let (ends, loops) = numbers.split_at(4);
        [ends, &[loops.len() as i64 / 3], loops].concat()
    });
    copies.flatten().collect()
}

#[test]
fn parts_are_copied() {
    let mut x = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]; // 2 x 3
    let (mut row, mut columns) = ([0.0; 3], [0.0; 4]);
    let call = CallFrame::default()
        .operand(array(&mut x, &[2, 3]))
        .result(array(&mut row, &[3]))
        .result(array(&mut columns, &[2, 2]))
        .ints(&[("updated", 0)]);
    let numbers = copies(&[
        &[0, 3, 0, 0, 3, 1, 1],
        &[0, 0, 1, 0, 2, 3, 1],
        &[0, 1, 1, 2, 2, 3, 1],
    ]);
    let outcome = run("copy", call.list("copies", &numbers));
    assert_eq!(outcome, (Ok(()), vec![]));
    assert_eq!(row, [3.0, 4.0, 5.0]);
    assert_eq!(columns, [0.0, 3.0, 1.0, 4.0]);
}

#[test]
fn parts_of_operands_are_replaced_in_order() {
    let (mut x, mut y) = ([0.0; 8], [1.0, 2.0]); // 2 x 2 x 2
    let call = CallFrame::default()
        .operand(array(&mut x, &[2, 2, 2]))
        .operand(array(&mut y, &[2]))
        .result(array(&mut x, &[2, 2, 2]))
        .ints(&[("updated", 1)]);
    let numbers = copies(&[
        // One element everywhere, a plane of another one, and one element.
        &[0, 0, 0, 0, 8, 0, 1],
        &[0, 1, 0, 1, 2, 0, 4, 2, 0, 2],
        &[0, 0, 0, 7],
    ]);
    let outcome = run("copy", call.list("copies", &numbers));
    assert_eq!(outcome, (Ok(()), vec![]));
    assert_eq!(x, [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 1.0]);
}

#[test]
fn parts_of_a_result_are_copied_within() {
    let (mut x, mut y) = ([0.0, 0.0, 3.0, 4.0, 0.0], [2.0]);
    let call = CallFrame::default()
        .operand(array(&mut x, &[5]))
        .operand(array(&mut y, &[1]))
        .result(array(&mut x, &[5]))
        .ints(&[("updated", 1)]);
    // The operand first, then what is in the result by then.
    let numbers = copies(&[&[0, 0, 0, 1], &[1, 3, 0, 0], &[1, 1, 0, 4]]);
    let outcome = run("copy", call.list("copies", &numbers));
    assert_eq!(outcome, (Ok(()), vec![]));
    assert_eq!(x, [4.0, 2.0, 3.0, 4.0, 2.0]);
}

/// Copies from one array to another, whose rows are on different pages or close together.
#[test]
fn independent_copies_are_those_one_after_another() {
    const ROWS: usize = 40;
    for (width, ghosts) in [(7, 1), (7, 2), (1100, 1), (1100, 2), (1100, 20)] {
        let slab = (ROWS * ghosts) as i64;
        let (row, own, last) = (width as i64, ghosts as i64, (width - 2 * ghosts) as i64);
        let loops = |steps: [i64; 2]| [ROWS as i64, steps[0], steps[1], ghosts as i64, 1, 1];
        let copy = |ends: [i64; 4], steps| [&ends[..], &loops(steps)].concat();
        // Both edges into slabs, and from there into a field.
        let packed = [
            copy([0, own, 0, 0], [row, own]),
            copy([0, last, 0, slab], [row, own]),
        ];
        let unpacked = [
            copy([0, 0, 0, last + own], [own, row]),
            copy([0, slab, 0, 0], [own, row]),
        ];
        let field = |n: usize| {
            (0..ROWS * width)
                .map(|i| (i * n) as f32)
                .collect::<Vec<_>>()
        };
        let made = |stages: &[i64]| {
            let (mut field, mut slabs, mut result) =
                (field(1), vec![0.0; 2 * ROWS * ghosts], field(2));
            let dims = &[ROWS as i64, width as i64][..];
            let call = |from, to, numbers: &[Vec<i64>]| {
                let numbers: Vec<_> = numbers.iter().map(Vec::as_slice).collect();
                let call = CallFrame::default().operand(from).result(to);
                let call = call
                    .ints(&[("updated", 0)])
                    .list("copies", &copies(&numbers));
                run("copy", call.list("stages", stages))
            };
            let done = (Ok(()), vec![]);
            let to = array(&mut slabs, &[2 * slab]);
            assert_eq!(call(array(&mut field, dims), to, &packed), done);
            let from = array(&mut slabs, &[2 * slab]);
            assert_eq!(call(from, array(&mut result, dims), &unpacked), done);
            result
        };
        let result = made(&[2]);
        assert_eq!(result, made(&[1, 1]));
        for (index, value) in result.iter().enumerate() {
            let (row, column) = (index / width, index % width);
            // The ghosts at one edge are what is beside those at the other one.
            let from = match column {
                _ if column < ghosts => row * width + width - 2 * ghosts + column,
                _ if column >= width - ghosts => row * width + column + 2 * ghosts - width,
                _ => 2 * index,
            };
            assert_eq!(*value, from as f32, "{width} {ghosts} {index}");
        }
    }
}

#[test]
fn stages_have_all_copies() {
    for stages in [&[2][..], &[], &[-1, 2], &[1, 1]] {
        let call = CallFrame::default()
            .operand(floats(IN, &[4]))
            .result(floats(OUT, &[4]))
            .ints(&[("updated", 0)])
            .list("copies", &copies(&[&[0, 0, 0, 0]]));
        assert_eq!(
            refused("copy", call.list("stages", stages)),
            invalid(&format!("1 copies are not stages of {stages:?}"))
        );
    }
}

#[test]
fn copies_are_given_back_from_the_last_to_the_first() {
    let (mut x, mut y) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [10.0, 20.0]); // 2 x 3
    let call = CallFrame::default()
        .operand(array(&mut x, &[2, 3]))
        .operand(array(&mut y, &[2]))
        .result(array(&mut x, &[2, 3]))
        .result(array(&mut y, &[2]));
    // The middle column would go to y, and the first of y to the last element.
    let numbers = copies(&[&[0, 1, 1, 0, 2, 3, 1], &[1, 0, 0, 5]]);
    let outcome = run("copy_transposed", call.list("copies", &numbers));
    assert_eq!(outcome, (Ok(()), vec![]));
    assert_eq!(x, [1.0, 18.0, 3.0, 4.0, 25.0, 0.0]);
    assert_eq!(y, [0.0; 2]);
}

#[test]
fn complex_numbers_are_given_back() {
    for (dtype, bytes) in [(C64, 4), (C128, 8)] {
        let (mut floats, mut doubles) = ([1.0_f32, 2.0, 3.0, 4.0], [1.0_f64, 2.0, 3.0, 4.0]);
        let address = match bytes {
            4 => floats.as_mut_ptr() as usize,
            _ => doubles.as_mut_ptr() as usize,
        };
        let call = CallFrame::default()
            .operand(buffer(dtype, address, &[2]))
            .result(buffer(dtype, address, &[2]));
        let call = call.list("copies", &copies(&[&[0, 0, 0, 1]]));
        assert_eq!(run("copy_transposed", call), (Ok(()), vec![]));
        match bytes {
            4 => assert_eq!(floats, [4.0, 6.0, 0.0, 0.0]),
            _ => assert_eq!(doubles, [4.0, 6.0, 0.0, 0.0]),
        }
    }
}

#[test]
fn what_can_not_be_given_back_is_refused() {
    let call = |dtype, address| {
        CallFrame::default()
            .operand(buffer(dtype, IN as usize, &[2]))
            .result(buffer(dtype, address as usize, &[2]))
            .list("copies", &copies(&[&[0, 0, 0, 1]]))
    };
    assert_eq!(
        refused("copy_transposed", call(BF16, IN)),
        invalid("numbers of XLA type 16 can't be added")
    );
    assert_eq!(
        refused("copy_transposed", call(F32, OUT)),
        invalid("XLA has given a result memory of its own that is to take its operand's")
    );
    let call = call(F32, IN).result(buffer(F32, IN as usize, &[2]));
    assert_eq!(
        refused("copy_transposed", call),
        invalid("2 results for 1 operands")
    );
}

#[test]
fn copies_that_do_not_fit_are_refused() {
    let outcome = |updated: i64, numbers: &[i64]| {
        let call = CallFrame::default().operand(floats(IN, &[4]));
        let call = call
            .result(floats(OUT, &[2, 2]))
            .ints(&[("updated", updated)]);
        refused("copy", call.list("copies", numbers))
    };
    let loops = "[4, 1, 1] from element 1 are not in an array of shape";
    for (numbers, text) in [
        (&[0, 1, 0, 0, 1, 4, 1, 1][..], format!("{loops} [4]")),
        (&[0, 0, 0, 1, 1, 4, 1, 1], format!("{loops} [2, 2]")),
        (
            &[0, -1, 0, 0, 0],
            "[] from element -1 are not in an array of shape [4]".into(),
        ),
        (
            &[0, 0, 0, 0, 1, 0, 1, 1],
            "[0, 1, 1] from element 0 are not in an array of shape [4]".into(),
        ),
        (
            &[0, 0, 0, 0, 1, i64::MAX, i64::MAX, 1],
            format!(
                "[{0}, {0}, 1] from element 0 are not in an array of shape [4]",
                i64::MAX
            ),
        ),
        (&[1, 0, 0, 0, 0], "there is no array 1".into()),
        (&[0, 0, -1, 0, 0], "there is no array -1".into()),
        (
            &[0, 0, 0, 0, 2, 1, 1, 1],
            "[1, 1, 1] are not the loops of 2 axes".into(),
        ),
        (&[0, 0, 0], "[0, 0, 0] are not copies".into()),
    ] {
        assert_eq!(outcome(0, numbers), invalid(&text));
    }
    assert_eq!(
        outcome(2, &[]),
        invalid("2 of 1 operands can't be updated by 1 results")
    );
    assert_eq!(
        outcome(1, &[]),
        invalid("XLA has given a result memory of its own that is to take its operand's")
    );
    let call = CallFrame::default().operand(floats(IN, &[4]));
    let call = call.result(buffer(BF16, OUT as usize, &[4]));
    let call = call
        .ints(&[("updated", 0)])
        .list("copies", &[0, 0, 0, 0, 0]);
    assert_eq!(
        refused("copy", call),
        invalid("XLA type 11 can't be copied to XLA type 16")
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

#[test]
fn the_order_of_calls_has_no_data() {
    let byte = || buffer(U8, 0, &[1]);
    let to_byte = CallFrame::default().operand(token()).result(byte());
    let to_token = CallFrame::default().operand(byte()).result(token());
    assert_eq!(run("order", to_byte), (Ok(()), vec![]));
    assert_eq!(run("order", to_token), (Ok(()), vec![]));
}

/// A list of rows, of which some are in no array.
const ROWS: [i32; 5] = [2, 0, -1, 3, 1];

fn list(rows: &[i32]) -> Buffer {
    buffer(4, rows.as_ptr() as usize, &[rows.len() as i64])
}

/// The numbers of a copy over listed rows: how many loops are outside, and the lists.
fn no_list() -> [i64; 2] {
    [-1, 0]
}

#[test]
fn listed_rows_are_copied() {
    for width in [1, 2, 20] {
        let mut x: Vec<f32> = (1..=3 * width).map(|i| i as f32).collect();
        let mut message = vec![-1.0; 5 * width];
        let mut back = vec![0.0; 3 * width];
        let columns = width as i64;
        let loops = [5, columns, columns, columns, 1, 1];
        let loops = if width == 1 { &loops[..3] } else { &loops };
        let call = CallFrame::default()
            .operand(array(&mut x, &[3, columns]))
            .operand(list(&ROWS))
            .result(array(&mut message, &[5, columns]))
            .ints(&[("updated", 0)])
            .list("copies", &copies(&[&[&[0, 0, 0, 0], loops].concat()]))
            .list("rows", &[&[0, 0, 3], &no_list()[..]].concat());
        assert_eq!(run("copy", call), (Ok(()), vec![]));
        // What is in no array is read as zeros.
        let row = |n: usize| x[n * width..(n + 1) * width].to_vec();
        let zeros = vec![0.0; width];
        let expected = [row(2), row(0), zeros.clone(), zeros, row(1)].concat();
        assert_eq!(message, expected);

        // And written nowhere.
        let call = CallFrame::default()
            .operand(array(&mut back, &[3, columns]))
            .operand(array(&mut message, &[5, columns]))
            .operand(list(&ROWS))
            .result(array(&mut back, &[3, columns]))
            .ints(&[("updated", 1)])
            .list("copies", &copies(&[&[&[0, 0, 0, 0], loops].concat()]))
            .list("rows", &[&[0], &no_list()[..], &[0, 3]].concat());
        assert_eq!(run("copy", call), (Ok(()), vec![]));
        assert_eq!(back, x);
    }
}

#[test]
fn listed_rows_are_given_back() {
    // Row 1 has been copied twice.
    let rows = [1, 1, 5, 0];
    for width in [1, 2, 20] {
        let (mut x, mut message) = (vec![10.0; 3 * width], vec![1.0; 4 * width]);
        let columns = width as i64;
        let loops = [4, columns, columns, columns, 1, 1];
        let call = CallFrame::default()
            .operand(array(&mut x, &[3, columns]))
            .operand(array(&mut message, &[4, columns]))
            .operand(list(&rows))
            .result(array(&mut x, &[3, columns]))
            .result(array(&mut message, &[4, columns]))
            .list("copies", &copies(&[&[&[0, 0, 1, 0], &loops[..]].concat()]))
            .list("rows", &[&[0, 0, 3], &no_list()[..]].concat());
        assert_eq!(run("copy_transposed", call), (Ok(()), vec![]));
        assert_eq!(
            x,
            [vec![11.0; width], vec![12.0; width], vec![10.0; width]].concat()
        );
        assert_eq!(message, vec![0.0; 4 * width]);
    }
}

/// Fails if a copy changes the rows that it goes over, after it has looked whether they are there.
#[test]
fn lists_of_rows_are_not_written() {
    let (mut x, mut rows) = ([7_i32; 4], [0, 1, 2, 3]);
    let ints = |numbers: &mut [i32; 4]| buffer(S32, numbers.as_mut_ptr() as usize, &[4]);
    let call = CallFrame::default()
        .operand(ints(&mut x))
        .operand(ints(&mut rows))
        .result(ints(&mut rows))
        .ints(&[("updated", 0)])
        .list("copies", &copies(&[&[0, 0, 0, 0, 4, 1, 1]]))
        .list("rows", &[0, -1, 0, 0, 4]);
    let text = "a list of rows is in memory of a result";
    assert_eq!(refused("copy", call), invalid(text));
    assert_eq!(rows, [0, 1, 2, 3]);
}

#[test]
fn lists_that_do_not_fit_are_refused() {
    let (mut x, mut message) = ([0.0; 6], [0.0; 10]);
    let mut call = |count: i64, numbers: &[i64], table: Option<Buffer>| {
        let frame = CallFrame::default().operand(array(&mut x, &[3, 2]));
        let frame = match table {
            Some(table) => frame.operand(table),
            None => frame,
        };
        let frame = frame
            .result(array(&mut message, &[5, 2]))
            .ints(&[("updated", 0)])
            .list("copies", &copies(&[&[0, 0, 0, 0, count, 2, 2, 2, 1, 1]]))
            .list("rows", numbers);
        refused("copy", frame)
    };
    let too_long = buffer(S32, ROWS.as_ptr() as usize, &[1 << 62]);
    let not_aligned = buffer(S32, ROWS.as_ptr() as usize + 1, &[5]);
    for table in [None, Some(too_long), Some(not_aligned)] {
        assert_eq!(
            call(5, &[0, 0, 3, -1, 0], table),
            invalid("the last operand is not a list of rows")
        );
    }
    let negative = buffer(S32, ROWS.as_ptr() as usize, &[-5]);
    assert_eq!(
        call(5, &[0, 0, 3, -1, 0], Some(negative)),
        invalid("operand 1 has shape [-5], expected no negative size")
    );
    for (numbers, text) in [
        ([0, 1, 3, -1, 0], "5 rows from 1 are not in a list of 5"),
        ([7, 0, 3, -1, 0], "-1 rows from 0 are not in a list of 5"),
        (
            [0, 0, 4, -1, 0],
            "[4, 2, 2, 2, 1, 1] from element 0 are not in an array of shape [3, 2]",
        ),
    ] {
        assert_eq!(call(5, &numbers, Some(list(&ROWS))), invalid(text));
    }
}
