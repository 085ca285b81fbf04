//! Call frames as XLA makes them, and what comes back.

#![allow(dead_code, reason = "each file of tests uses its own part")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use _core::error::Result;
use _core::mpi::{Communicator, REGISTRY, SizedDatatype};
use _core::xla::raw::*;
use _core::xla::{Frame, enter};

pub mod recorder;

pub const F16: c_int = XLA_FFI_DataType_F16;
pub const BF16: c_int = XLA_FFI_DataType_BF16;
pub const F32: c_int = 11;
pub const S32: c_int = 4;
pub const U8: c_int = XLA_FFI_DataType_U8;
pub const S64: c_int = XLA_FFI_DataType_S64;
pub const C64: c_int = XLA_FFI_DataType_C64;
pub const C128: c_int = XLA_FFI_DataType_C128;
pub const TOKEN: c_int = XLA_FFI_DataType_TOKEN;

/// Gives a number to a communicator of a stand-in for MPI, which takes any handle.
pub fn set_communicator(comm_number: usize, handle: usize, rank: c_int, size: c_int) {
    set_communicator_in_pieces(comm_number, (handle, rank, size), 0);
}

/// A communicator on which messages travel in pieces of some number of bytes.
pub fn set_communicator_in_pieces(
    comm_number: usize,
    (handle, rank, size): (usize, c_int, c_int),
    piece_bytes: usize,
) {
    // SAFETY: the stand-in takes it for such a communicator.
    let communicator = unsafe { Communicator::new(handle, rank, size, piece_bytes) };
    REGISTRY.set_communicator(comm_number, communicator);
}

/// Gives a number to a data type of a stand-in's.
pub fn set_datatype(dtype: c_int, handle: usize, size: usize) {
    // SAFETY: the stand-in takes it for such a type.
    REGISTRY.set_datatype(dtype as usize, unsafe { SizedDatatype::new(handle, size) });
}

/// Gives a number to an operator of a stand-in's.
pub fn set_operator(op_number: usize, handle: usize) {
    // SAFETY: the stand-in takes it for an operator.
    unsafe { REGISTRY.set_operator(op_number, handle) };
}

/// The outcome of a handler: nothing, or the code and the text of an error. Of an error of MPI's that
/// is the first line: the second one says which call it was, with numbers that other tests change.
pub type Outcome = std::result::Result<(), (XLA_FFI_Error_Code, String)>;

pub fn invalid(text: &str) -> Outcome {
    Err((XLA_FFI_Error_Code_INVALID_ARGUMENT, text.into()))
}

pub fn precondition(text: &str) -> Outcome {
    Err((XLA_FFI_Error_Code_FAILED_PRECONDITION, text.into()))
}

pub fn internal(text: &str) -> Outcome {
    Err((XLA_FFI_Error_Code_INTERNAL, text.into()))
}

/// Stands in for XLA's function: the error is a box with what it was made of.
unsafe extern "C" fn create_error(args: *mut XLA_FFI_Error_Create_Args) -> *mut XLA_FFI_Error {
    // SAFETY: the caller lends the arguments.
    let (args, message) = unsafe { (&*args, CStr::from_ptr((*args).message)) };
    assert!(args.struct_size >= size_of::<XLA_FFI_Error_Create_Args>());
    let error = (args.errc, message.to_str().unwrap().to_owned());
    Box::into_raw(Box::new(error)).cast()
}

/// Takes back what [`create_error`] gave.
pub fn outcome(error: *mut XLA_FFI_Error) -> Outcome {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: every error is a box of `create_error`'s.
    let (code, text) = *unsafe { Box::from_raw(error.cast::<(XLA_FFI_Error_Code, String)>()) };
    let (error, call) = text
        .split_once("\n  in ")
        .unwrap_or((&text, "a call on a communicator"));
    assert!(call.contains(" on "), "{text}");
    Err((code, error.to_owned()))
}

/// An operand or a result. Nothing is read or written at its address.
#[derive(Debug, Clone)]
pub struct Buffer {
    pub kind: c_int,
    pub is_null: bool,
    pub struct_size: usize,
    pub dtype: c_int,
    pub address: usize,
    pub dims: Vec<i64>,
    pub rank: i64,
}

pub fn buffer(dtype: c_int, address: usize, dims: &[i64]) -> Buffer {
    Buffer {
        kind: XLA_FFI_ArgType_BUFFER,
        is_null: false,
        struct_size: size_of::<XLA_FFI_Buffer>(),
        dtype,
        address,
        dims: dims.into(),
        rank: dims.len() as i64,
    }
}

pub fn token() -> Buffer {
    buffer(TOKEN, 0, &[])
}

impl Buffer {
    fn raw(&mut self) -> XLA_FFI_Buffer {
        XLA_FFI_Buffer {
            struct_size: self.struct_size,
            extension_start: ptr::null_mut(),
            dtype: self.dtype,
            data: self.address as *mut c_void,
            rank: self.rank,
            dims: self.dims.as_mut_ptr(),
        }
    }
}

/// A scalar attribute, which is the first of its values, or an array of all of them.
pub struct Attribute {
    pub kind: c_int,
    pub name: &'static str,
    pub dtype: c_int,
    pub values: Vec<i64>,
    pub is_null: bool,
}

pub fn attribute(name: &'static str, value: i64) -> Attribute {
    Attribute {
        kind: XLA_FFI_AttrType_SCALAR,
        name,
        dtype: S64,
        values: vec![value],
        is_null: false,
    }
}

pub fn array_attribute(name: &'static str, values: &[i64]) -> Attribute {
    Attribute {
        kind: XLA_FFI_AttrType_ARRAY,
        values: values.into(),
        ..attribute(name, 0)
    }
}

/// An attribute in XLA's structs.
enum Value {
    Scalar(XLA_FFI_Scalar),
    Array(XLA_FFI_Array),
}

impl Value {
    fn address(&mut self) -> *mut c_void {
        match self {
            Self::Scalar(scalar) => ptr::from_mut(scalar).cast(),
            Self::Array(array) => ptr::from_mut(array).cast(),
        }
    }
}

impl Attribute {
    fn value(&mut self) -> Value {
        let dtype = self.dtype;
        let data = match self.is_null {
            true => ptr::null_mut(),
            false => self.values.as_mut_ptr().cast(),
        };
        if self.kind == XLA_FFI_AttrType_ARRAY {
            let size = self.values.len();
            Value::Array(XLA_FFI_Array { dtype, size, data })
        } else {
            Value::Scalar(XLA_FFI_Scalar { dtype, value: data })
        }
    }
}

/// The arguments of a call, from which a frame is made.
#[derive(Default)]
pub struct CallFrame {
    pub operands: Vec<Buffer>,
    pub results: Vec<Buffer>,
    pub attributes: Vec<Attribute>,
}

impl CallFrame {
    pub fn operand(mut self, buffer: Buffer) -> Self {
        self.operands.push(buffer);
        self
    }

    pub fn result(mut self, buffer: Buffer) -> Self {
        self.results.push(buffer);
        self
    }

    pub fn attribute(mut self, attribute: Attribute) -> Self {
        self.attributes.push(attribute);
        self
    }

    /// Attributes that are 64-bit integers, as they should be.
    pub fn ints(mut self, attributes: &[(&'static str, i64)]) -> Self {
        let attributes = attributes
            .iter()
            .map(|(name, value)| attribute(name, *value));
        self.attributes.extend(attributes);
        self
    }

    /// An attribute that is an array of 64-bit integers.
    pub fn list(self, name: &'static str, values: &[i64]) -> Self {
        self.attribute(array_attribute(name, values))
    }

    /// Copies of an exchange of blocks (`blocks/one_call.py`), whose first `updated` results update
    /// operands. The lists: sent parts and received ones; the numbers, stages and rows of copies
    /// before and after the messages.
    pub fn with_copies(self, updated: i64, lists: [&[i64]; 8]) -> Self {
        let lists = lists.map(|list| [&[list.len() as i64], list].concat());
        self.list("with_copies", &[&[updated], &lists.concat()[..]].concat())
    }

    /// Lays the frame out in memory and lends it to `body`.
    pub fn lend<R>(mut self, body: impl FnOnce(&mut XLA_FFI_CallFrame) -> R) -> R {
        let api = XLA_FFI_Api {
            struct_size: size_of::<XLA_FFI_Api>(),
            extension_start: ptr::null_mut(),
            api_version: XLA_FFI_Api_Version {
                struct_size: size_of::<XLA_FFI_Api_Version>(),
                extension_start: ptr::null_mut(),
                major_version: 3,
                minor_version: 14,
            },
            internal_api: ptr::null(),
            XLA_FFI_Error_Create: Some(create_error),
            XLA_FFI_Error_GetMessage: ptr::null(),
            XLA_FFI_Error_Destroy: None,
            XLA_FFI_Handler_Register: ptr::null(),
            XLA_FFI_Stream_Get: None,
        };
        let mut arg_types: Vec<_> = self.operands.iter().map(|buffer| buffer.kind).collect();
        let mut arg_buffers: Vec<_> = self.operands.iter_mut().map(Buffer::raw).collect();
        let mut args = pointers(&self.operands, &mut arg_buffers);
        let mut ret_types: Vec<_> = self.results.iter().map(|buffer| buffer.kind).collect();
        let mut ret_buffers: Vec<_> = self.results.iter_mut().map(Buffer::raw).collect();
        let mut rets = pointers(&self.results, &mut ret_buffers);

        let attributes = &mut self.attributes;
        let mut attr_types: Vec<_> = attributes.iter().map(|attribute| attribute.kind).collect();
        let mut spans: Vec<_> = attributes
            .iter()
            .map(|attribute| XLA_FFI_ByteSpan {
                ptr: attribute.name.as_ptr().cast(),
                len: attribute.name.len(),
            })
            .collect();
        let mut names: Vec<_> = spans.iter_mut().map(ptr::from_mut).collect();
        let mut values: Vec<_> = attributes.iter_mut().map(Attribute::value).collect();
        let mut attrs: Vec<_> = values.iter_mut().map(Value::address).collect();

        let mut frame = XLA_FFI_CallFrame {
            struct_size: size_of::<XLA_FFI_CallFrame>(),
            extension_start: ptr::null_mut(),
            api: &raw const api,
            ctx: ptr::null_mut(),
            stage: XLA_FFI_ExecutionStage_EXECUTE,
            args: XLA_FFI_Args {
                struct_size: size_of::<XLA_FFI_Args>(),
                extension_start: ptr::null_mut(),
                size: args.len() as i64,
                types: arg_types.as_mut_ptr(),
                args: args.as_mut_ptr(),
            },
            rets: XLA_FFI_Rets {
                struct_size: size_of::<XLA_FFI_Rets>(),
                extension_start: ptr::null_mut(),
                size: rets.len() as i64,
                types: ret_types.as_mut_ptr(),
                rets: rets.as_mut_ptr(),
            },
            attrs: XLA_FFI_Attrs {
                struct_size: size_of::<XLA_FFI_Attrs>(),
                extension_start: ptr::null_mut(),
                size: attrs.len() as i64,
                types: attr_types.as_mut_ptr(),
                names: names.as_mut_ptr(),
                attrs: attrs.as_mut_ptr(),
            },
        };
        body(&mut frame)
    }

    /// Calls `handler`, as XLA does.
    pub fn run(self, handler: XLA_FFI_Handler) -> Outcome {
        // SAFETY: the frame lives through the call.
        self.lend(|frame| outcome(unsafe { handler(frame) }))
    }

    /// The result of `body` for the frame after `edit` has changed it.
    pub fn enter(
        self,
        edit: impl FnOnce(&mut XLA_FFI_CallFrame),
        body: impl FnOnce(&Frame) -> Result<()>,
    ) -> Outcome {
        self.lend(|frame| {
            edit(frame);
            // SAFETY: the frame lives through the call.
            outcome(unsafe { enter(frame, body) })
        })
    }
}

fn pointers(buffers: &[Buffer], raw: &mut [XLA_FFI_Buffer]) -> Vec<*mut c_void> {
    buffers
        .iter()
        .zip(raw)
        .map(|(buffer, raw)| match buffer.is_null {
            true => ptr::null_mut(),
            false => ptr::from_mut(raw).cast(),
        })
        .collect()
}
