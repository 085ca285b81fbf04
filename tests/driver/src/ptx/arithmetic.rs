//! Arithmetic of instructions, on the bits of registers.

use super::instruction::{Instruction, Kind, Type};

/// The lowest bits of a value.
pub fn cut(value: u64, bits: u32) -> u64 {
    match bits {
        64 => value,
        _ => value & ((1 << bits) - 1),
    }
}

fn signed(value: u64, bits: u32) -> i128 {
    let unused = 64 - bits;
    i128::from((value << unused).cast_signed() >> unused)
}

/// An integer with its sign.
fn integer(value: u64, of: Type) -> i128 {
    match of.kind {
        Kind::Signed => signed(value, of.bits),
        _ => i128::from(cut(value, of.bits)),
    }
}

pub fn float(value: u64, of: Type) -> f64 {
    match (of.kind, of.bits) {
        (_, 64) => f64::from_bits(value),
        (_, 32) => f64::from(f32::from_bits(value as u32)),
        (Kind::Brain, _) => f64::from(f32::from_bits((value as u32) << 16)),
        _ => half(value as u16),
    }
}

fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1F), f64::from(bits & 0x3FF));
    match exponent {
        0 => sign * fraction * 2f64.powi(-24),
        0x1F if fraction == 0.0 => sign * f64::INFINITY,
        0x1F => f64::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    }
}

/// The bits of a float, rounded to the nearest that the type has.
pub fn bits(value: f64, of: Type) -> u64 {
    match (of.kind, of.bits) {
        (_, 64) => value.to_bits(),
        (_, 32) => u64::from((value as f32).to_bits()),
        (Kind::Brain, _) => brain_bits(value as f32),
        _ => half_bits(value),
    }
}

fn brain_bits(value: f32) -> u64 {
    if value.is_nan() {
        return 0x7FFF;
    }
    let bits = value.to_bits();
    u64::from((bits.wrapping_add(0x7FFF + (bits >> 16 & 1))) >> 16)
}

fn half_bits(value: f64) -> u64 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let size = value.abs();
    if size.is_nan() {
        return 0x7FFF;
    }
    // Where the numbers are as far apart as in the highest range below.
    let exponent = (size.log2().floor() as i32).clamp(-14, 16);
    let steps = (size / 2f64.powi(exponent - 10)).round_ties_even() as u64;
    match exponent {
        16.. => sign | 0x7C00,
        _ => {
            sign | (((exponent + 14) as u64) << 10)
                .wrapping_add(steps)
                .min(0x7C00)
        }
    }
}

/// The result of an instruction on values, None if it computes nothing of the kind.
pub fn compute(instruction: &Instruction, values: &[u64]) -> Option<u64> {
    let of = *instruction.types.first()?;
    let name = instruction.name.as_str();
    match name {
        "cvt" => convert(instruction, values[0]),
        "setp" => Some(compare(instruction, values)?.into()),
        "selp" => Some(if values[2] & 1 == 1 {
            values[0]
        } else {
            values[1]
        }),
        "mov" | "cvta" => Some(values[0]),
        _ if of.is_float() => of_floats(instruction, of, values),
        _ => Some(cut(
            of_integers(instruction, of, values)?,
            result_bits(instruction, of),
        )),
    }
}

fn result_bits(instruction: &Instruction, of: Type) -> u32 {
    match instruction.has("wide") {
        true => 2 * of.bits,
        false => of.bits,
    }
}

fn of_floats(instruction: &Instruction, of: Type, values: &[u64]) -> Option<u64> {
    let [a, b, c] = [0, 1, 2].map(|index| values.get(index).map_or(0.0, |v| float(*v, of)));
    let is_double = of.bits == 64;
    let value = match instruction.name.as_str() {
        "add" => a + b,
        "sub" => a - b,
        "mul" => a * b,
        "div" => a / b,
        "fma" | "mad" if is_double => a.mul_add(b, c),
        // A product of two short floats is exact here.
        "fma" | "mad" if of.bits == 32 => f64::from((a as f32).mul_add(b as f32, c as f32)),
        "fma" | "mad" => a * b + c,
        "neg" => -a,
        "abs" => a.abs(),
        "max" | "min" if a.is_nan() || b.is_nan() => nan_or_other(instruction, a, b),
        "max" => {
            if a == b && b.is_sign_positive() {
                b
            } else {
                a.max(b)
            }
        }
        "min" => {
            if a == b && b.is_sign_negative() {
                b
            } else {
                a.min(b)
            }
        }
        "sqrt" => a.sqrt(),
        "rsqrt" => 1.0 / a.sqrt(),
        "rcp" => 1.0 / a,
        "ex2" => a.exp2(),
        "lg2" => a.log2(),
        "sin" => a.sin(),
        "cos" => a.cos(),
        "tanh" => a.tanh(),
        "copysign" => b.copysign(a),
        _ => return None,
    };
    Some(bits(value, of))
}

fn nan_or_other(instruction: &Instruction, a: f64, b: f64) -> f64 {
    match instruction.has("NaN") {
        true => f64::NAN,
        false => {
            if a.is_nan() {
                b
            } else {
                a
            }
        }
    }
}

fn of_integers(instruction: &Instruction, of: Type, values: &[u64]) -> Option<u64> {
    let [a, b, c] = [0, 1, 2].map(|index| values.get(index).copied().unwrap_or(0));
    let [x, y] = [a, b].map(|value| integer(value, of));
    let low = |value: i128| value as u64;
    let product = || -> Option<i128> {
        let whole = x.wrapping_mul(y);
        let whole = match of.kind {
            Kind::Signed => whole,
            _ => (x.cast_unsigned())
                .wrapping_mul(y.cast_unsigned())
                .cast_signed(),
        };
        match instruction.has("hi") {
            true => Some(match of.kind {
                Kind::Signed => whole >> of.bits,
                _ => (whole.cast_unsigned() >> of.bits).cast_signed(),
            }),
            false => Some(whole),
        }
    };
    let shift = (b & 0xFFFF_FFFF).min(64) as u32;
    Some(match instruction.name.as_str() {
        "add" => low(x + y),
        "sub" => low(x - y),
        "mul" => low(product()?),
        "mad" => low(product()?).wrapping_add(c),
        "div" => low(x.checked_div(y).unwrap_or(-1)),
        "rem" => low(x.checked_rem(y).unwrap_or(x)),
        "neg" => low(-x),
        "abs" => low(x.abs()),
        "max" => low(x.max(y)),
        "min" => low(x.min(y)),
        "and" => a & b,
        "or" => a | b,
        "xor" => a ^ b,
        "not" => !a,
        "shl" => {
            if shift >= of.bits {
                0
            } else {
                a << shift
            }
        }
        "shr" => low(x >> shift.min(of.bits)),
        "popc" => u64::from(cut(a, of.bits).count_ones()),
        "clz" => u64::from(cut(a, of.bits).leading_zeros() - (64 - of.bits)),
        "brev" => a.reverse_bits() >> (64 - of.bits),
        "shf" => funnel(instruction, a, b, c),
        "prmt" => permute(a, b, c),
        "bfe" => extract(of, a, b, c),
        "bfi" => insert(of, values),
        "lop3" => by_table(values),
        _ => return None,
    })
}

fn funnel(instruction: &Instruction, low: u64, high: u64, count: u64) -> u64 {
    let both = cut(high, 32) << 32 | cut(low, 32);
    let count = match instruction.has("wrap") {
        true => count & 31,
        false => cut(count, 32).min(32),
    };
    match instruction.has("l") {
        true => cut(both << count >> 32, 32),
        false => cut(both >> count, 32),
    }
}

fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let both = cut(b, 32) << 32 | cut(a, 32);
    (0..4).fold(0, |result, index| {
        let choice = selector >> (4 * index) & 0xF;
        let byte = both >> (8 * (choice & 7)) & 0xFF;
        let byte = match choice & 8 {
            0 => byte,
            _ => {
                if byte >> 7 == 1 {
                    0xFF
                } else {
                    0
                }
            }
        };
        result | byte << (8 * index)
    })
}

fn extract(of: Type, value: u64, start: u64, length: u64) -> u64 {
    let (start, length) = (start & 0xFF, (length & 0xFF) as u32);
    if length == 0 || start >= u64::from(of.bits) {
        return 0;
    }
    let length = length.min(of.bits - start as u32);
    match of.kind {
        Kind::Signed => signed(value >> start, length) as u64,
        _ => cut(value >> start, length),
    }
}

fn insert(of: Type, values: &[u64]) -> u64 {
    let (start, length) = (values[2] & 0xFF, (values[3] & 0xFF) as u32);
    if length == 0 || start >= u64::from(of.bits) {
        return values[1];
    }
    let mask = cut(u64::MAX, length.min(of.bits)) << start;
    values[1] & !mask | values[0] << start & mask
}

fn by_table(values: &[u64]) -> u64 {
    (0..32).fold(0, |result, position| {
        let bit = |index: usize| values[index] >> position & 1;
        let row = bit(0) << 2 | bit(1) << 1 | bit(2);
        result | (values[3] >> row & 1) << position
    })
}

fn convert(instruction: &Instruction, value: u64) -> Option<u64> {
    let [to, from] = instruction.types[..] else {
        return None;
    };
    if !from.is_float() {
        let integer = integer(value, from);
        return Some(match to.is_float() {
            true if to.bits == 32 => u64::from((integer as f32).to_bits()),
            true => bits(integer as f64, to),
            false if instruction.has("sat") => {
                cut(integer.clamp(lowest(to), highest(to)) as u64, to.bits)
            }
            false => cut(integer as u64, to.bits),
        });
    }
    let mut value = float(value, from);
    value = match () {
        () if instruction.has("rni") => value.round_ties_even(),
        () if instruction.has("rzi") => value.trunc(),
        () if instruction.has("rmi") => value.floor(),
        () if instruction.has("rpi") => value.ceil(),
        () => value,
    };
    if to.is_float() {
        let value = match instruction.has("sat") {
            true if value.is_nan() => 0.0,
            true => value.clamp(0.0, 1.0),
            false => value,
        };
        return Some(bits(value, to));
    }
    let integer = if value.is_nan() { 0 } else { value as i128 };
    Some(cut(integer.clamp(lowest(to), highest(to)) as u64, to.bits))
}

fn lowest(of: Type) -> i128 {
    match of.kind {
        Kind::Signed => -(1 << (of.bits - 1)),
        _ => 0,
    }
}

fn highest(of: Type) -> i128 {
    match of.kind {
        Kind::Signed => (1 << (of.bits - 1)) - 1,
        _ => (1 << of.bits) - 1,
    }
}

/// `setp`: a comparison, and what is done with another predicate.
fn compare(instruction: &Instruction, values: &[u64]) -> Option<bool> {
    let of = *instruction.types.last()?;
    let comparison = instruction.modes.first()?.as_str();
    let outcome = match of.is_float() {
        true => compare_floats(comparison, float(values[0], of), float(values[1], of))?,
        false => {
            let is_unsigned = ["lo", "ls", "hi", "hs"].contains(&comparison);
            let kind = if is_unsigned { Kind::Unsigned } else { of.kind };
            let of = Type { kind, ..of };
            compare_integers(comparison, integer(values[0], of), integer(values[1], of))?
        }
    };
    let Some(other) = values.get(2) else {
        return Some(outcome);
    };
    let other = other & 1 == 1;
    match () {
        () if instruction.has("and") => Some(outcome && other),
        () if instruction.has("or") => Some(outcome || other),
        () if instruction.has("xor") => Some(outcome != other),
        () => None,
    }
}

fn compare_integers(comparison: &str, a: i128, b: i128) -> Option<bool> {
    Some(match comparison {
        "eq" => a == b,
        "ne" => a != b,
        "lt" | "lo" => a < b,
        "le" | "ls" => a <= b,
        "gt" | "hi" => a > b,
        "ge" | "hs" => a >= b,
        _ => return None,
    })
}

fn compare_floats(comparison: &str, a: f64, b: f64) -> Option<bool> {
    let is_unordered = a.is_nan() || b.is_nan();
    Some(match comparison {
        "eq" => a == b,
        "ne" => !is_unordered && a != b,
        "lt" => a < b,
        "le" => a <= b,
        "gt" => a > b,
        "ge" => a >= b,
        "equ" => is_unordered || a == b,
        "neu" => a != b,
        "ltu" => is_unordered || a < b,
        "leu" => is_unordered || a <= b,
        "gtu" => is_unordered || a > b,
        "geu" => is_unordered || a >= b,
        "num" => !is_unordered,
        "nan" => is_unordered,
        _ => return None,
    })
}

/// The value that an atomic operation leaves in memory.
pub fn atomic(instruction: &Instruction, of: Type, old: u64, values: &[u64]) -> Option<u64> {
    let operation = instruction
        .modes
        .iter()
        .find_map(|mode| match mode.as_str() {
            "add" | "min" | "max" | "and" | "or" | "xor" => Some(mode.as_str()),
            "exch" | "cas" => Some(mode.as_str()),
            _ => None,
        })?;
    match operation {
        "exch" => Some(values[0]),
        "cas" => Some(if old == cut(values[0], of.bits) {
            values[1]
        } else {
            old
        }),
        _ => {
            let plain = Instruction {
                guard: None,
                name: operation.to_owned(),
                modes: Vec::new(),
                types: vec![of],
                operands: Vec::new(),
            };
            compute(&plain, &[old, values[0]])
        }
    }
}
