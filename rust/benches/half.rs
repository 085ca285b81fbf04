//! The cost of a reduction of 16-bit floats, beside one of 32-bit floats as MPI does it.
//!
//!     cargo bench --bench half
//!
//! prints the picoseconds per element, and how many times those of float32 they are.

use std::ffi::c_int;
use std::hint::black_box;
use std::time::Instant;

use _core::mpi::half_float::{self, Format};
use _core::mpi::{IntHandles, PredefinedOp};

const ROUNDS: usize = 31;

/// The shortest of several rounds, in picoseconds per element.
fn picoseconds(elements: usize, mut call: impl FnMut()) -> f64 {
    let calls = (4 << 20) / elements;
    (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..calls {
                call();
            }
            start.elapsed().as_secs_f64() * 1e12 / (calls * elements) as f64
        })
        .fold(f64::INFINITY, f64::min)
}

/// The loop that MPI has for floats, as a C compiler translates it.
#[inline(never)]
fn add(input: &[f32], inout: &mut [f32]) {
    for (input, inout) in input.iter().zip(inout) {
        *inout += input;
    }
}

fn main() {
    // In the first cache, in the second, and beyond.
    for elements in [1 << 10, 1 << 15, 1 << 20] {
        let (input, mut inout) = (vec![1.0; elements], vec![1.0; elements]);
        let float32 = picoseconds(elements, || add(black_box(&input), black_box(&mut inout)));
        println!("{elements} float32 {float32:.0}");
        for (format, name) in [(Format::Bfloat16, "bfloat16"), (Format::Float16, "float16")] {
            for op in PredefinedOp::ALL {
                let Some(function) = half_float::function::<IntHandles>(*op, format) else {
                    continue;
                };
                // Any number will do that is one in both formats.
                let (mut input, mut inout) = (vec![0x3c00u16; elements], vec![0x3c00; elements]);
                let (mut len, mut datatype) = (elements as c_int, 0);
                let time = picoseconds(elements, || {
                    // SAFETY: the vectors have `len` elements.
                    unsafe {
                        black_box(function)(
                            input.as_mut_ptr().cast(),
                            inout.as_mut_ptr().cast(),
                            &raw mut len,
                            &raw mut datatype,
                        );
                    }
                });
                let ratio = time / float32;
                let operator = op.name();
                println!("{elements} {name} {operator} {time:.0} ({ratio:.1} times)");
            }
        }
    }
}
