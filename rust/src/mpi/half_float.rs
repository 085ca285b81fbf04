//! Reductions of 16-bit floats, which MPI has no data types for.
//!
//! MPI moves them as 16-bit integers and reduces them with operators that are made here, one
//! for each of its own operators and each format. A pair is added, multiplied or compared in
//! single precision and rounded to nearest even, so that each result is the float that is
//! nearest to the exact one.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::OnceLock;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::abi::Abi;
use super::functions::UserFunction;
use super::operators::PredefinedOp;
use super::types::{Handle, Types};
use crate::error::Result;

/// A way to keep a float in 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// IEEE 754's binary16: 5 bits of exponent and 10 of fraction.
    Float16,
    /// The upper half of a single: 8 bits of exponent and 7 of fraction.
    Bfloat16,
}

/// The operation of an operator on a pair, one element of each of MPI's two vectors.
trait Combiner {
    fn combine(input: f32, inout: f32) -> f32;

    /// The instruction that combines eight pairs, of which it takes `inout` first.
    #[cfg(target_arch = "x86_64")]
    const COMBINE_AVX: unsafe fn(__m256, __m256) -> __m256;
}

macro_rules! combiner {
    ($name:ident, |$input:ident, $inout:ident| $combined:expr, $avx:ident) => {
        struct $name;

        impl Combiner for $name {
            #[inline(always)]
            fn combine($input: f32, $inout: f32) -> f32 {
                $combined
            }

            #[cfg(target_arch = "x86_64")]
            const COMBINE_AVX: unsafe fn(__m256, __m256) -> __m256 = $avx;
        }
    };
}

combiner!(Sum, |input, inout| inout + input, _mm256_add_ps);
combiner!(Product, |input, inout| inout * input, _mm256_mul_ps);

// Where either is a NaN, no comparison holds and `input` is taken: so do MPICH and Open MPI with
// floats. Whether a NaN shows in the result depends on the order of the ranks.
combiner!(
    Maximum,
    |input, inout| if inout > input { inout } else { input },
    _mm256_max_ps
);
combiner!(
    Minimum,
    |input, inout| if inout < input { inout } else { input },
    _mm256_min_ps
);

/// A float in one of the formats.
trait HalfFloat: Copy {
    /// Combines each element of `input` with the one of `inout`, where the result goes.
    fn fold<C: Combiner>(input: &[Self], inout: &mut [Self]);

    /// Combines vectors with the instructions of processors of the last ten years, in a fraction of
    /// the time (`cargo bench --bench half`).
    ///
    /// # Safety
    /// The processor has AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn fold_avx2<C: Combiner>(input: &[Self], inout: &mut [Self]);
}

impl HalfFloat for bf16 {
    #[inline(always)]
    fn fold<C: Combiner>(input: &[Self], inout: &mut [Self]) {
        for (input, inout) in input.iter().zip(inout) {
            *inout = round(C::combine(widen(*input), widen(*inout)));
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn fold_avx2<C: Combiner>(input: &[Self], inout: &mut [Self]) {
        Self::fold::<C>(input, inout);
    }
}

#[inline(always)]
fn widen(float: bf16) -> f32 {
    f32::from_bits(u32::from(float.to_bits()) << 16)
}

/// To the nearest float, or the even one of two. The crate's own function has branches, with which
/// the compiler makes no vectors of the loop.
#[inline(always)]
fn round(float: f32) -> bf16 {
    let bits = float.to_bits();
    let is_odd = bits >> 16 & 1;
    let rounded = bits.wrapping_add(0x7fff + is_odd) >> 16;
    // Rounded, a NaN could become an infinity.
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if float.is_nan() { quiet } else { rounded } as u16)
}

/// Number of float16 that are widened at a time: they stay in the first cache.
const CHUNK: usize = 256;

impl HalfFloat for f16 {
    fn fold<C: Combiner>(input: &[Self], inout: &mut [Self]) {
        let (mut left, mut right) = ([0.0; CHUNK], [0.0; CHUNK]);
        for (input, inout) in input.chunks(CHUNK).zip(inout.chunks_mut(CHUNK)) {
            let (left, right) = (&mut left[..input.len()], &mut right[..input.len()]);
            input.convert_to_f32_slice(left);
            inout.convert_to_f32_slice(right);
            for (left, right) in left.iter().zip(right.iter_mut()) {
                *right = C::combine(*left, *right);
            }
            inout.convert_from_f32_slice(right);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn fold_avx2<C: Combiner>(input: &[Self], inout: &mut [Self]) {
        let (mut inputs, mut inouts) = (input.chunks_exact(8), inout.chunks_exact_mut(8));
        for (input, inout) in inputs.by_ref().zip(inouts.by_ref()) {
            // SAFETY: both addresses are of eight elements, and need not be aligned.
            unsafe {
                let left = _mm256_cvtph_ps(_mm_loadu_si128(input.as_ptr().cast()));
                let right = _mm256_cvtph_ps(_mm_loadu_si128(inout.as_ptr().cast()));
                let combined = C::COMBINE_AVX(right, left);
                let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(combined);
                _mm_storeu_si128(inout.as_mut_ptr().cast(), rounded);
            }
        }
        Self::fold::<C>(inputs.remainder(), inouts.into_remainder());
    }
}

/// The operator in the form in which MPI calls it (MPI-4.1 §6.9.5).
unsafe extern "C" fn reduce<A: Types, F: HalfFloat, C: Combiner>(
    input: *mut c_void,
    inout: *mut c_void,
    len: *mut c_int,
    _datatype: *mut A::Datatype,
) {
    // SAFETY: MPI lends the number.
    let len = usize::try_from(unsafe { *len }).unwrap_or(0);
    if len == 0 {
        return;
    }
    // SAFETY: MPI lends two vectors of `len` elements that do not overlap.
    let (input, inout) = unsafe {
        (
            slice::from_raw_parts(input.cast::<F>(), len),
            slice::from_raw_parts_mut(inout.cast::<F>(), len),
        )
    };
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        // SAFETY: the processor was asked.
        unsafe { F::fold_avx2::<C>(input, inout) };
        return;
    }
    F::fold::<C>(input, inout);
}

/// The function that reduces floats of this format as MPI's own operator does others, if they have it.
pub fn function<A: Types>(op: PredefinedOp, format: Format) -> UserFunction<A> {
    match format {
        Format::Float16 => function_of::<A, f16>(op),
        Format::Bfloat16 => function_of::<A, bf16>(op),
    }
}

fn function_of<A: Types, F: HalfFloat>(op: PredefinedOp) -> UserFunction<A> {
    match op {
        PredefinedOp::Sum => Some(reduce::<A, F, Sum>),
        PredefinedOp::Prod => Some(reduce::<A, F, Product>),
        PredefinedOp::Max => Some(reduce::<A, F, Maximum>),
        PredefinedOp::Min => Some(reduce::<A, F, Minimum>),
        _ => None,
    }
}

/// The operators that were made for one format, in the order of MPI's own. They are never freed.
type Made = [OnceLock<Result<usize>>; PredefinedOp::ALL.len()];

/// The operator that reduces floats of this format as MPI's own does others, if they have it. The
/// first call makes it with `create`: MPI need not be initialised before.
pub fn operator<A: Abi>(
    op: PredefinedOp,
    format: Format,
    create: impl FnOnce(UserFunction<A>) -> Result<A::Op>,
) -> Option<Result<A::Op>> {
    static FLOAT16: Made = [const { OnceLock::new() }; PredefinedOp::ALL.len()];
    static BFLOAT16: Made = [const { OnceLock::new() }; PredefinedOp::ALL.len()];
    let made = match format {
        Format::Float16 => &FLOAT16,
        Format::Bfloat16 => &BFLOAT16,
    };
    let function = function::<A>(op, format)?;
    let handle = made[op as usize]
        .get_or_init(|| create(Some(function)).map(Handle::into_raw))
        .clone();
    Some(handle.map(A::Op::from_raw))
}

#[cfg(test)]
mod tests {
    use super::super::abi::IntHandles;
    use super::*;

    /// The result of an operator for two vectors, as MPI calls it.
    fn reduced<F: HalfFloat>(op: PredefinedOp, input: &[F], inout: &[F]) -> Vec<F> {
        assert_eq!(input.len(), inout.len());
        let function = function_of::<IntHandles, F>(op).unwrap();
        let (mut input, mut inout) = (input.to_vec(), inout.to_vec());
        let (mut len, mut datatype) = (input.len() as c_int, 0);
        // SAFETY: the vectors have `len` elements.
        unsafe {
            function(
                input.as_mut_ptr().cast(),
                inout.as_mut_ptr().cast(),
                &raw mut len,
                &raw mut datatype,
            );
        }
        inout
    }

    fn f16s(values: &[f32]) -> Vec<f16> {
        values.iter().copied().map(f16::from_f32).collect()
    }

    fn bf16s(values: &[f32]) -> Vec<bf16> {
        values.iter().copied().map(bf16::from_f32).collect()
    }

    fn reduced_f16s(op: PredefinedOp, input: &[f32], inout: &[f32]) -> Vec<f16> {
        reduced(op, &f16s(input), &f16s(inout))
    }

    fn reduced_bf16s(op: PredefinedOp, input: &[f32], inout: &[f32]) -> Vec<bf16> {
        reduced(op, &bf16s(input), &bf16s(inout))
    }

    const INF: f32 = f32::INFINITY;

    /// All values are tried, but for some by Miri, which takes a thousand times as long.
    const STEP: usize = if cfg!(miri) { 997 } else { 1 };

    #[test]
    fn operators_give_the_values_of_their_names() {
        let (left, right) = (&[1.5, -2.0, 0.0, INF], &[2.0, 8.0, -3.0, 1.0]);
        for (op, expected) in [
            (PredefinedOp::Sum, [3.5, 6.0, -3.0, INF]),
            (PredefinedOp::Prod, [3.0, -16.0, 0.0, INF]),
            (PredefinedOp::Max, [2.0, 8.0, 0.0, INF]),
            (PredefinedOp::Min, [1.5, -2.0, -3.0, 1.0]),
        ] {
            assert_eq!(reduced_f16s(op, left, right), f16s(&expected));
            assert_eq!(reduced_bf16s(op, left, right), bf16s(&expected));
        }
    }

    #[test]
    fn there_are_no_other_operators() {
        let of_floats = [
            PredefinedOp::Sum,
            PredefinedOp::Prod,
            PredefinedOp::Max,
            PredefinedOp::Min,
        ];
        for op in PredefinedOp::ALL {
            let functions = [
                function_of::<IntHandles, f16>(*op),
                function_of::<IntHandles, bf16>(*op),
            ];
            let are_some = functions.map(|function| function.is_some());
            assert_eq!(are_some, [of_floats.contains(op); 2], "{op:?}");
        }
    }

    /// Halfway between two floats, the even one is taken; above, the next one.
    #[test]
    fn sums_are_rounded_to_nearest_even() {
        // From 256 on, a bfloat16 has steps of 2, and from 2048 on a float16.
        let sums = reduced_bf16s(PredefinedOp::Sum, &[1.0, 3.0, 1.0], &[256.0, 256.0, 258.0]);
        assert_eq!(sums, bf16s(&[256.0, 260.0, 260.0]));
        let sums = reduced_f16s(PredefinedOp::Sum, &[1.0, 3.0, 1.5], &[2048.0; 3]);
        assert_eq!(sums, f16s(&[2048.0, 2052.0, 2050.0]));
        // Rounded twice, or towards zero, this would be 1.
        let just_above_half = reduced_bf16s(PredefinedOp::Sum, &[0.00390625 + 0.00006], &[1.0]);
        assert_eq!(just_above_half[0].to_f32(), 1.0078125);
    }

    #[test]
    fn what_is_too_large_is_infinite() {
        let largest = [bf16::MAX.to_f32(), -bf16::MAX.to_f32()];
        let sums = reduced_bf16s(PredefinedOp::Sum, &largest, &largest);
        assert_eq!(sums, bf16s(&[INF, -INF]));
        let products = reduced_f16s(PredefinedOp::Prod, &[65504.0, -65504.0], &[2.0, 2.0]);
        assert_eq!(products, f16s(&[INF, -INF]));
    }

    #[test]
    fn what_is_too_small_is_subnormal_or_zero() {
        let smallest = f16::MIN_POSITIVE_SUBNORMAL.to_f32();
        let products = reduced_f16s(PredefinedOp::Prod, &[smallest; 2], &[0.5, 3.0]);
        assert_eq!(products, f16s(&[0.0, 3.0 * smallest]));
        let smallest = bf16::MIN_POSITIVE_SUBNORMAL.to_f32();
        let products = reduced_bf16s(PredefinedOp::Prod, &[smallest; 2], &[0.5, 3.0]);
        assert_eq!(products, bf16s(&[0.0, 3.0 * smallest]));
    }

    /// Also one with all bits set, which rounding would make a zero, and one whose only bit is
    /// rounded away, which would be an infinity.
    #[test]
    fn not_a_number_stays_not_a_number() {
        let quietest = f32::from_bits(0x7f80_0001);
        for nan in [f32::NAN, f32::from_bits(u32::MAX), quietest, -quietest] {
            assert!(round(nan).is_nan(), "{nan:?}");
        }
        for op in [PredefinedOp::Sum, PredefinedOp::Prod] {
            let (left, right) = (&[f32::NAN, 1.0], &[1.0, f32::NAN]);
            let nans = reduced_bf16s(op, left, right);
            assert!(nans.into_iter().all(bf16::is_nan));
            let nans = reduced_f16s(op, left, right);
            assert!(nans.into_iter().all(f16::is_nan));
        }
        assert!(reduced_bf16s(PredefinedOp::Sum, &[INF], &[-INF])[0].is_nan());
    }

    /// As MPICH and Open MPI have it for floats: what compares false is the first vector's.
    #[test]
    fn comparisons_with_not_a_number_take_the_first_vector() {
        // Of nine, eight are compared at once and the ninth by itself.
        let (nans, ones) = ([f32::NAN; 9], [1.0; 9]);
        for op in [PredefinedOp::Max, PredefinedOp::Min] {
            let first = reduced_bf16s(op, &nans, &ones);
            assert!(first.into_iter().all(bf16::is_nan));
            let first = reduced_f16s(op, &nans, &ones);
            assert!(first.into_iter().all(f16::is_nan));
            assert_eq!(reduced_bf16s(op, &ones, &nans), bf16s(&ones));
            assert_eq!(reduced_f16s(op, &ones, &nans), f16s(&ones));
        }
    }

    /// `reduce` asks the processor at run time only for what the compiler may not take for granted.
    /// With `-C target-cpu=native`, say, it would not ask, and older processors would stop there.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn no_instructions_are_taken_for_granted() {
        let assumed = [cfg!(target_feature = "avx2"), cfg!(target_feature = "f16c")];
        assert_eq!(assumed, [false, false]);
    }

    /// Equal bits, or both not a number.
    fn assert_same(left: f32, right: f32) {
        let are_nan = left.is_nan() && right.is_nan();
        assert!(
            left.to_bits() == right.to_bits() || are_nan,
            "{left} {right}"
        );
    }

    /// The crate `half` converts slices with F16C and with aarch64's instructions, where the
    /// processor has them; its functions for constants are portable.
    #[test]
    fn slices_are_converted_as_by_portable_code() {
        let halves: Vec<f16> = (0..=u16::MAX).step_by(STEP).map(f16::from_bits).collect();
        let mut widened = vec![0.0; halves.len()];
        halves.convert_to_f32_slice(&mut widened);
        for (half, widened) in halves.into_iter().zip(widened) {
            assert_same(half.to_f32_const(), widened);
        }
        let sample = (0..=u32::MAX).step_by(1009 * STEP);
        let floats: Vec<f32> = sample.map(f32::from_bits).collect();
        let mut rounded = vec![f16::ZERO; floats.len()];
        rounded.convert_from_f32_slice(&floats);
        for (float, rounded) in floats.into_iter().zip(rounded) {
            assert_same(
                f16::from_f32_const(float).to_f32_const(),
                rounded.to_f32_const(),
            );
        }
    }

    /// Every float with another one, as here and in portable code.
    #[test]
    fn processors_reduce_alike() {
        fn check<F: HalfFloat, C: Combiner>(
            op: PredefinedOp,
            from_bits: fn(u16) -> F,
            widen: fn(F) -> f32,
            round: fn(f32) -> F,
        ) {
            let input: Vec<F> = (0..=u16::MAX).step_by(STEP).map(from_bits).collect();
            let other = |bits: u16| from_bits(bits.wrapping_mul(40503));
            let inout: Vec<F> = (0..=u16::MAX).step_by(STEP).map(other).collect();
            let mut folded = inout.clone();
            F::fold::<C>(&input, &mut folded);
            let results = reduced(op, &input, &inout).into_iter().zip(folded);
            for ((results, input), inout) in results.zip(input).zip(inout) {
                let portable = widen(round(C::combine(widen(input), widen(inout))));
                assert_same(widen(results.0), portable);
                assert_same(widen(results.1), portable);
            }
        }
        macro_rules! check_all {
            ($float:ident) => {{
                let (widen, round) = ($float::to_f32_const, $float::from_f32_const);
                check::<$float, Sum>(PredefinedOp::Sum, $float::from_bits, widen, round);
                check::<$float, Product>(PredefinedOp::Prod, $float::from_bits, widen, round);
                check::<$float, Maximum>(PredefinedOp::Max, $float::from_bits, widen, round);
                check::<$float, Minimum>(PredefinedOp::Min, $float::from_bits, widen, round);
            }};
        }
        check_all!(f16);
        check_all!(bf16);
    }

    /// Every bfloat16 and float16, times one, is what it was.
    #[test]
    fn conversions_are_exact() {
        fn check<F: HalfFloat + Into<f32>>(unit: F, from_bits: fn(u16) -> F) {
            let all: Vec<F> = (0..=u16::MAX).step_by(STEP).map(from_bits).collect();
            let same = reduced(PredefinedOp::Prod, &vec![unit; all.len()], &all);
            for (before, after) in all.into_iter().zip(same) {
                assert_same(before.into(), after.into());
            }
        }
        check(f16::ONE, f16::from_bits);
        check(bf16::ONE, bf16::from_bits);
    }

    /// Compares with the conversion of the crate `half`, on a sample of all floats.
    #[test]
    fn rounding_is_that_of_the_crate() {
        for float in (0..=u32::MAX).step_by(1009 * STEP).map(f32::from_bits) {
            let (ours, theirs) = (round(float), bf16::from_f32(float));
            assert_eq!(ours.to_bits(), theirs.to_bits(), "{float:e}");
        }
    }

    /// Chunks, and eights, end in the middle of a vector, or of none.
    #[test]
    fn vectors_have_any_length() {
        for len in [0, 1, 7, 8, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5] {
            let left: Vec<f32> = (0..len).map(|n| (n % 100) as f32).collect();
            let right = vec![2.0; len];
            let expected: Vec<f32> = left.iter().map(|n| n + 2.0).collect();
            let sum = reduced_bf16s(PredefinedOp::Sum, &left, &right);
            assert_eq!(sum, bf16s(&expected), "{len}");
            let sum = reduced_f16s(PredefinedOp::Sum, &left, &right);
            assert_eq!(sum, f16s(&expected), "{len}");
        }
    }
}
