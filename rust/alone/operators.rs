//! Reduction operations (MPI-3.1 §5.9).

use std::ffi::{c_int, c_void};
use std::ptr;

use super::datatypes::{Data, Kind, size_of_basic};
use super::errors::{Error, OP, Result};
use super::handles::{OP_NULL, State, state};
use super::memory::{self, Out};

type Function = extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut c_int);

macro_rules! known {
    ($($name:ident)*) => {
        /// MPI's operations, in the order of their handles.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Known {
            $($name,)*
        }

        const ALL: &[Known] = &[$(Known::$name),*];
    };
}

known!(
    Max Min Sum Product And BitAnd Or BitOr Xor BitXor MinLocation MaxLocation Replace Nothing
);

/// An operation: MPI's, or a function of the program's.
#[derive(Clone, Copy)]
pub enum Operator {
    Known(Known),
    Own { function: Function, commutes: bool },
}

/// The operations that every program has.
pub fn predefined() -> Vec<(c_int, Operator)> {
    let operators = ALL.iter().map(|known| Operator::Known(*known));
    (0x5800_0001..).zip(operators).collect()
}

impl Known {
    /// Whether the operation is defined for these elements.
    fn takes(self, kind: Kind) -> bool {
        use Kind::{Byte, Complex, Float, Logical, Pair, Signed, Unsigned};
        match self {
            Self::Max | Self::Min => matches!(kind, Signed | Unsigned | Float),
            Self::Sum | Self::Product => {
                matches!(kind, Signed | Unsigned | Float | Complex)
            }
            Self::And | Self::Or | Self::Xor => matches!(kind, Signed | Unsigned | Logical),
            Self::BitAnd | Self::BitOr | Self::BitXor => matches!(kind, Signed | Unsigned | Byte),
            Self::MinLocation | Self::MaxLocation => kind == Pair,
            Self::Replace | Self::Nothing => true,
        }
    }
}

/// Numbers as they are in memory.
trait Number: Copy + PartialOrd {
    fn of(bytes: &[u8]) -> Self;
    fn put(self, bytes: &mut [u8]);
    fn reduce(self, other: Self, known: Known) -> Self;
}

macro_rules! numbers {
    ($($type:ident: $this:ident $other:ident => { $($special:tt)* };)*) => {$(
        impl Number for $type {
            fn of(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().expect("it is as long"))
            }

            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }

            fn reduce(self, $other: Self, known: Known) -> Self {
                let $this = self;
                match known {
                    Known::Max => if $this > $other { $this } else { $other },
                    Known::Min => if $this < $other { $this } else { $other },
                    $($special)*
                    _ => $other,
                }
            }
        }
    )*};
}

macro_rules! integers {
    ($($type:ident)*) => {
        numbers! {$(
            $type: this other => {
                Known::Sum => this.wrapping_add(other),
                Known::Product => this.wrapping_mul(other),
                Known::BitAnd => this & other,
                Known::BitOr => this | other,
                Known::BitXor => this ^ other,
                Known::And => (this != 0 && other != 0).into(),
                Known::Or => (this != 0 || other != 0).into(),
                Known::Xor => ((this != 0) != (other != 0)).into(),
            };
        )*}
    };
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64);
numbers! {
    f32: this other => {
        Known::Sum => this + other,
        Known::Product => this * other,
    };
    f64: this other => {
        Known::Sum => this + other,
        Known::Product => this * other,
    };
}

/// Reduces elements of one type: `of` is the first operand, `into` the second and the result.
fn each<T: Number>(of: &[u8], into: &mut [u8], known: Known) {
    let size = size_of::<T>();
    for (of, into) in of.chunks_exact(size).zip(into.chunks_exact_mut(size)) {
        T::of(of).reduce(T::of(into), known).put(into);
    }
}

fn each_complex<T>(of: &[u8], into: &mut [u8], known: Known)
where
    T: Number + std::ops::Add<Output = T> + std::ops::Mul<Output = T> + std::ops::Sub<Output = T>,
{
    let half = size_of::<T>();
    for (of, into) in of
        .chunks_exact(2 * half)
        .zip(into.chunks_exact_mut(2 * half))
    {
        let [a, b] = [T::of(&of[..half]), T::of(&of[half..])];
        let [c, d] = [T::of(&into[..half]), T::of(&into[half..])];
        let [real, imaginary] = if known == Known::Sum {
            [a + c, b + d]
        } else {
            [a * c - b * d, a * d + b * c]
        };
        real.put(&mut into[..half]);
        imaginary.put(&mut into[half..]);
    }
}

/// Of two pairs the one with the larger or smaller value, and of equal values the smaller index.
fn each_pair<T: Number, I: Number>(of: &[u8], into: &mut [u8], known: Known) {
    let (value, size) = (size_of::<T>(), size_of::<T>() + size_of::<I>());
    for (of, into) in of.chunks_exact(size).zip(into.chunks_exact_mut(size)) {
        let [first, second] = [T::of(&of[..value]), T::of(&into[..value])];
        let is_better = if known == Known::MinLocation {
            first < second
        } else {
            first > second
        };
        if is_better {
            into.copy_from_slice(of);
        } else if first == second {
            let index = I::of(&of[value..]).reduce(I::of(&into[value..]), Known::Min);
            index.put(&mut into[value..]);
        }
    }
}

/// Reduces messages of elements of a predefined type.
fn reduce(
    known: Known,
    (basic, kind): (c_int, Kind),
    size: usize,
    of: &[u8],
    into: &mut [u8],
) -> Result<()> {
    match known {
        Known::Replace => {
            into.copy_from_slice(of);
            return Ok(());
        }
        Known::Nothing => return Ok(()),
        _ => {}
    }
    let function = match (kind, size) {
        (Kind::Signed, 1) => each::<i8>,
        (Kind::Signed, 2) => each::<i16>,
        (Kind::Signed | Kind::Logical, 4) => each::<i32>,
        (Kind::Signed | Kind::Logical, 8) => each::<i64>,
        (Kind::Unsigned | Kind::Byte | Kind::Logical, 1) => each::<u8>,
        (Kind::Unsigned | Kind::Logical, 2) => each::<u16>,
        (Kind::Unsigned, 4) => each::<u32>,
        (Kind::Unsigned, 8) => each::<u64>,
        (Kind::Float, 4) => each::<f32>,
        (Kind::Float, 8) => each::<f64>,
        (Kind::Complex, 8) => each_complex::<f32>,
        (Kind::Complex, 16) => each_complex::<f64>,
        (Kind::Pair, _) => match basic.cast_unsigned() {
            0x8c00_0000 => each_pair::<f32, i32>,
            0x8c00_0001 => each_pair::<f64, i32>,
            0x8c00_0002 => each_pair::<i64, i32>,
            0x8c00_0003 => each_pair::<i16, i32>,
            0x4c00_0816 | 0x4c00_0820 => each_pair::<i32, i32>,
            0x4c00_0821 => each_pair::<f32, f32>,
            0x4c00_1023 => each_pair::<f64, f64>,
            _ => return Err(unavailable()),
        },
        _ => return Err(unavailable()),
    };
    function(of, into, known);
    Ok(())
}

fn unavailable() -> Error {
    Error::new(
        OP,
        "reductions of long or half floats are not available without an MPI library",
    )
}

impl State {
    /// The operation, if it takes elements of this type.
    pub fn operator(&self, op: c_int, data: &Data) -> Result<Operator> {
        let found = *self.operators.get(op)?;
        if let Operator::Known(known) = found
            && !data.layout.basic.is_some_and(|(_, kind)| known.takes(kind))
        {
            let given = format!("{op:#x}");
            return Err(Error::got(
                OP,
                given,
                "the operation",
                "one that the datatype has",
            ));
        }
        Ok(found)
    }
}

mpi! {
    MPI_Op_create(function: Option<Function>, commute: c_int, op: Out<c_int>) => {
        let function = function.ok_or_else(memory::null)?;
        op.put(state().operators.add(Operator::Own { function, commutes: commute != 0 }))
    };
    MPI_Op_free(op: Out<c_int>) => {
        let mut state = state();
        let handle = op.get()?;
        state.operators.check_made(handle)?;
        state.operators.remove(handle)?;
        op.put(OP_NULL)
    };
    MPI_Op_commutative(op: c_int, commutes: Out<c_int>) => {
        commutes.put(match state().operators.get(op)? {
            Operator::Known(known) => (*known != Known::Replace).into(),
            Operator::Own { commutes, .. } => (*commutes).into(),
        })
    };
    MPI_Reduce_local(of: usize, into: usize, count: c_int, datatype: c_int, op: c_int) => {
        let (of, into, operator) = {
            let state = state();
            let of = state.data(of, count, datatype)?;
            let into = state.data(into, count, datatype)?;
            let operator = state.operator(op, &of)?;
            (of, into, operator)
        };
        match operator {
            Operator::Own { function, .. } => {
                let address = |data: &Data| ptr::with_exposed_provenance_mut(data.address);
                let (mut count, mut datatype) = (count, datatype);
                function(address(&of), address(&into), &raw mut count, &raw mut datatype);
            }
            Operator::Known(known) => {
                let mut result = into.message();
                let basic = into.layout.basic.unwrap_or((datatype, Kind::Other));
                let size = match basic.1 {
                    Kind::Pair => into.layout.size,
                    _ => size_of_basic(basic.0),
                };
                reduce(known, basic, size, &of.message(), &mut result)?;
                into.unpack(&result);
            }
        }
        Ok(())
    };
}
