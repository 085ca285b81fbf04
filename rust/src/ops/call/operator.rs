//! The reduction operator of a call.

use super::Call;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::mpi::half_float::{self, Format};
use crate::mpi::{Abi, PredefinedOp, REGISTRY};
use crate::xla::raw::{self, XLA_FFI_DataType};

/// The reduction operator, as MPI gets it.
pub struct Operator<A: Abi> {
    pub handle: A::Op,
    /// Whether MPI itself defines it. Others are C functions that take the count as an int.
    pub is_predefined: bool,
}

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// The reduction operator, as it is for elements of XLA's type `dtype`.
    pub fn operator(&self, dtype: XLA_FFI_DataType) -> Result<Operator<A>> {
        let op_id = self.number("op_number")?;
        let predefined = PredefinedOp::from_number(op_id);
        if let (Some(op), Some(format)) = (predefined, half_float_of(dtype)) {
            return self.half_float_operator(op, format, dtype);
        }
        Ok(Operator {
            handle: REGISTRY.operator::<A>(op_id)?,
            is_predefined: predefined.is_some(),
        })
    }

    /// The operator that does for 16-bit floats what MPI's own does for others.
    fn half_float_operator(
        &self,
        op: PredefinedOp,
        format: Format,
        dtype: XLA_FFI_DataType,
    ) -> Result<Operator<A>> {
        let made = half_float::operator::<A>(op, format, |function| {
            let mut handle = REGISTRY.operator::<A>(op.number())?;
            // SAFETY: the function is one of MPI's form; it is commutative.
            let code = unsafe { (self.functions.op_create)(function, 1, &raw mut handle) };
            self.check("MPI_Op_create", code).map(|()| handle)
        });
        let made = made.ok_or_else(|| {
            Error::invalid(format!(
                "reduction operator {} is not for elements of XLA type {dtype}",
                op.number()
            ))
        })?;
        made.map(|handle| Operator {
            handle,
            is_predefined: false,
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
