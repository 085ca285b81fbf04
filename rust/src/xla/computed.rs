//! Calls with numbers that their program has computed, as the ranks of messages.
//!
//! A program that is equal in all processes can't have its rank in an attribute. It has an operand of
//! numbers, and an attribute, or an element of a list, that is `i64::MIN + n` stands for the number
//! with index `n`. From the frame of such a call, that of an ordinary one is made here, with the
//! numbers in its attributes. So all that reads attributes sees the numbers, and ordinary calls do
//! not pay for it.

use std::ptr;

use zerocopy::IntoBytes;

use super::attributes::Attribute;
use super::buffer::Buffer;
use super::frame::{Frame, enter_another};
use super::raw::*;
use crate::error::{Error, Result};

/// The integer that stands for the first number. Those for the others follow.
const FIRST: i64 = i64::MIN;
/// The end of the integers that stand for numbers. All ranks and tags are larger, and so is a hash,
/// but for one in 2^44.
const END: i64 = FIRST + (1 << 20);

/// The index of the number for which an integer stands, if it stands for one.
pub fn computed_position(integer: i64) -> Option<usize> {
    (integer < END).then(|| integer.wrapping_sub(FIRST) as usize)
}

/// The numbers of a call.
pub struct ComputedNumbers {
    /// The numbers.
    pub numbers: Vec<i32>,
    /// The index of their operand among all that XLA passes, tokens included.
    operand: usize,
}

/// An attribute with numbers in place of what stands for them.
struct Resolved {
    /// The index of the attribute.
    index: usize,
    /// Whether it is a list, and not a scalar.
    is_list: bool,
    /// Its elements, or its one value.
    integers: Vec<i64>,
}

/// Runs the handler of an ordinary call with numbers that the program has computed, which `read` takes
/// from the frame.
///
/// # Safety
/// `frame` is a call frame that XLA lends for the duration of the call, and `handler` takes such.
pub unsafe fn enter_computed(
    frame: *mut XLA_FFI_CallFrame,
    read: impl FnOnce(&Frame) -> Result<ComputedNumbers>,
    handler: XLA_FFI_Handler,
) -> *mut XLA_FFI_Error {
    let body = |frame: &Frame| {
        let numbers = read(frame)?;
        // SAFETY: the frame is lent for the time of the call.
        frame.with_numbers(&numbers, |frame| unsafe { handler(frame) })
    };
    // SAFETY: the caller's promise.
    unsafe { enter_another(frame, body) }
}

impl Frame<'_> {
    /// The numbers that the program has computed: the last operand, which `load` copies from the memory
    /// of the call's arrays.
    pub fn computed_numbers(
        &self,
        load: impl FnOnce(&Buffer, &mut [u8]) -> Result<()>,
    ) -> Result<ComputedNumbers> {
        let Some((operand, array)) = self.operands.last()? else {
            return Err(Error::invalid("a call without its computed numbers"));
        };
        let is_list = array.dtype == XLA_FFI_DataType_S32 && array.dims.len() == 1;
        if !is_list || array.count < 1 || array.address.is_null() {
            return Err(Error::invalid(format!(
                "computed numbers of shape {:?} and XLA type {}, expected 32-bit integers along \
                 one axis",
                array.dims, array.dtype
            )));
        }
        let mut numbers = vec![0; array.count as usize];
        load(&array, numbers.as_mut_bytes())?;
        Ok(ComputedNumbers { numbers, operand })
    }

    /// Lends the frame of the ordinary call that this one stands for: without the operand of numbers,
    /// and with the numbers in the attributes.
    pub fn with_numbers<R>(
        &self,
        numbers: &ComputedNumbers,
        body: impl FnOnce(&mut XLA_FFI_CallFrame) -> R,
    ) -> Result<R> {
        let raw = self.raw;
        let (args, rets, attrs) = (&raw.args, &raw.rets, &raw.attrs);
        let mut kinds = self.operands.kinds.to_vec();
        let mut operands = self.operands.structs.to_vec();
        let mut attributes = self.attributes.structs.to_vec();
        kinds.remove(numbers.operand);
        operands.remove(numbers.operand);
        let resolved = self.resolved(&numbers.numbers)?;
        let mut structs: Vec<_> = resolved.iter().map(Resolved::as_xla_has_it).collect();
        for (Resolved { index, is_list, .. }, (scalar, array)) in resolved.iter().zip(&mut structs)
        {
            attributes[*index] = match is_list {
                true => ptr::from_mut(array).cast(),
                false => ptr::from_mut(scalar).cast(),
            };
        }
        Ok(body(&mut XLA_FFI_CallFrame {
            struct_size: size_of::<XLA_FFI_CallFrame>(),
            args: XLA_FFI_Args {
                struct_size: size_of::<XLA_FFI_Args>(),
                size: operands.len() as i64,
                types: kinds.as_mut_ptr(),
                args: operands.as_mut_ptr(),
                ..*args
            },
            rets: XLA_FFI_Rets {
                struct_size: size_of::<XLA_FFI_Rets>(),
                ..*rets
            },
            attrs: XLA_FFI_Attrs {
                struct_size: size_of::<XLA_FFI_Attrs>(),
                attrs: attributes.as_mut_ptr(),
                ..*attrs
            },
            ..*raw
        }))
    }

    /// The attributes that have something that stands for a number, with the numbers.
    fn resolved(&self, numbers: &[i32]) -> Result<Vec<Resolved>> {
        let mut resolved = Vec::new();
        for (index, (_, attribute)) in self.attributes.all().enumerate() {
            let mut integers: Vec<i64> = attribute.integers().collect();
            let mut has_numbers = false;
            for integer in &mut integers {
                if let Some(position) = computed_position(*integer) {
                    *integer = self.number_at(position, numbers, index)?;
                    has_numbers = true;
                }
            }
            if has_numbers {
                resolved.push(Resolved {
                    index,
                    is_list: matches!(attribute, Attribute::Array(_)),
                    integers,
                });
            }
        }
        Ok(resolved)
    }

    /// The number for which something in an attribute stands.
    fn number_at(&self, position: usize, numbers: &[i32], attribute: usize) -> Result<i64> {
        if let Some(computed) = numbers.get(position) {
            return Ok((*computed).into());
        }
        let names = self.attributes.names();
        Err(Error::invalid(format!(
            "attribute `{}` is computed number {position} of {}",
            names.get(attribute).map_or("", String::as_str),
            numbers.len()
        )))
    }
}

impl Resolved {
    /// The structs of XLA for the attribute: as a scalar, and as a list. They last as long as this does.
    fn as_xla_has_it(&self) -> (XLA_FFI_Scalar, XLA_FFI_Array) {
        let (dtype, size) = (XLA_FFI_DataType_S64, self.integers.len());
        let data = self.integers.as_ptr().cast_mut().cast();
        let scalar = XLA_FFI_Scalar { dtype, value: data };
        (scalar, XLA_FFI_Array { dtype, size, data })
    }
}
