//! The reduction operator of a call.

use super::Call;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::mpi::calls::{Mpi, Operator};
use crate::mpi::half_float::Format;
use crate::mpi::{Abi, PredefinedOp};
use crate::xla::raw::{self, XLA_FFI_DataType};

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// The reduction operator for elements of XLA's type `dtype`.
    pub fn operator(&self, dtype: XLA_FFI_DataType) -> Result<Operator<A>> {
        let op_id = self.number("op_number")?;
        let predefined = PredefinedOp::from_number(op_id);
        let (Some(op), Some(format)) = (predefined, half_float_of(dtype)) else {
            return Mpi::operator(op_id);
        };
        let operator = self
            .mpi
            .half_float_operator(op, format, |error| self.error(error));
        operator.unwrap_or_else(|| {
            Err(Error::invalid(format!(
                "reduction operator {op_id} is not for elements of XLA type {dtype}"
            )))
        })
    }
}

/// The format of XLA's type `dtype`, if it is one of 16-bit floats.
fn half_float_of(dtype: XLA_FFI_DataType) -> Option<Format> {
    match dtype {
        raw::XLA_FFI_DataType_F16 => Some(Format::Float16),
        raw::XLA_FFI_DataType_BF16 => Some(Format::Bfloat16),
        _ => None,
    }
}
