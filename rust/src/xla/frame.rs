//! The safe view of a call frame.
//!
//! Everything a frame points to belongs to XLA and lives as long as the call. What is read is
//! checked first: the size that XLA says it filled, the number of buffers, the type of each
//! attribute. A frame that does not fit is an [`Error`], never a crash.

use std::ffi::{CString, c_void};
use std::io::{self, Write};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use super::arguments::Arguments;
use super::attributes::Attributes;
use super::buffer::{Buffer, ResultBuffer};
use super::checks::{check_bytes, check_size};
use super::raw::*;
use crate::error::{Error, ErrorKind, Result};

/// The call frame of one execution.
///
/// The decoding is inlined by force. The compiler would not, and a handler would take a fifth
/// longer (`cargo bench`).
pub struct Frame<'a> {
    pub(super) raw: &'a XLA_FFI_CallFrame,
    /// The operands.
    pub operands: Arguments<'a, Buffer<'a>>,
    /// The results.
    pub results: Arguments<'a, ResultBuffer<'a>>,
    /// The attributes.
    pub attributes: Attributes<'a>,
}

impl<'a> Frame<'a> {
    /// Wraps the frame of a call that XLA wants executed.
    ///
    /// # Safety
    /// It is XLA's: as long as its structs are the size that they say, all that they point to is what
    /// `c_api.h` says, and stays for `'a`.
    #[inline(always)]
    unsafe fn new(raw: &'a XLA_FFI_CallFrame) -> Result<Self> {
        check_size::<XLA_FFI_CallFrame>(raw.struct_size, "XLA_FFI_CallFrame")?;
        check_size::<XLA_FFI_Args>(raw.args.struct_size, "XLA_FFI_Args")?;
        check_size::<XLA_FFI_Rets>(raw.rets.struct_size, "XLA_FFI_Rets")?;
        check_size::<XLA_FFI_Attrs>(raw.attrs.struct_size, "XLA_FFI_Attrs")?;
        if raw.stage != XLA_FFI_ExecutionStage_EXECUTE {
            return Err(Error::invalid(format!(
                "called in stage {}, expected the execution stage",
                raw.stage
            )));
        }
        let (args, rets) = (&raw.args, &raw.rets);
        // SAFETY: the caller's promise (c_api.h: "length == size").
        unsafe {
            Ok(Self {
                raw,
                operands: Arguments::new(args.types, args.args, args.size)?,
                results: Arguments::new(rets.types, rets.rets, rets.size)?,
                attributes: Attributes::new(&raw.attrs)?,
            })
        }
    }

    /// The frame without its last operand and its last result, if they are the byte that orders
    /// calls on GPUs.
    pub fn without_order_byte(&self) -> Result<Self> {
        Ok(Self {
            operands: self.operands.without_order_byte()?,
            results: self.results.without_order_byte()?,
            ..*self
        })
    }

    /// The stream on which the device gets the arrays of this call ready, and uses the results.
    pub fn stream(&self) -> Result<*mut c_void> {
        // SAFETY: null, or XLA's function table.
        let api = unsafe { self.raw.api.as_ref() }
            .ok_or_else(|| Error::invalid("a frame without XLA's functions"))?;
        check_size::<XLA_FFI_Api>(api.struct_size, "XLA_FFI_Api")?;
        let get = api
            .XLA_FFI_Stream_Get
            .ok_or_else(|| Error::invalid("XLA has no function XLA_FFI_Stream_Get"))?;
        let mut args = XLA_FFI_Stream_Get_Args {
            struct_size: size_of::<XLA_FFI_Stream_Get_Args>(),
            extension_start: ptr::null_mut(),
            ctx: self.raw.ctx,
            stream: ptr::null_mut(),
        };
        // SAFETY: a function of XLA's, with the context of this call.
        let error = unsafe { get(&raw mut args) };
        if error.is_null() {
            return Ok(args.stream);
        }
        if let Some(destroy) = api.XLA_FFI_Error_Destroy {
            let mut args = XLA_FFI_Error_Destroy_Args {
                struct_size: size_of::<XLA_FFI_Error_Destroy_Args>(),
                extension_start: ptr::null_mut(),
                error,
            };
            // SAFETY: XLA gave the error away, and it is freed once.
            unsafe { destroy(&raw mut args) };
        }
        Err(Error::internal("XLA gave no stream to a call on a device"))
    }
}

/// Answers XLA's question for the handler's metadata, if that is what this call is.
///
/// The version reported is the framework's own: the handler looks at `struct_size` before it
/// reads anything, so it serves every version, while XLA wants to see one that it knows.
fn answer_metadata(frame: &XLA_FFI_CallFrame) -> Result<bool> {
    let mut next = frame.extension_start;
    let extension = loop {
        // SAFETY: null, or the next of the extensions, which outlive the call.
        match unsafe { next.as_ref() } {
            None => return Ok(false),
            Some(extension) if extension.type_ == XLA_FFI_Extension_Metadata => break extension,
            Some(other) => next = other.next,
        }
    };
    check_size::<XLA_FFI_Metadata_Extension>(extension.struct_size, "XLA_FFI_Metadata_Extension")?;
    // SAFETY: the type and the size say that it is a metadata extension; XLA lends it for
    // writing.
    let Some(metadata) = (unsafe {
        (*next.cast::<XLA_FFI_Metadata_Extension>())
            .metadata
            .as_mut()
    }) else {
        return Err(Error::invalid("metadata asked for, with no room for it"));
    };
    // XLA counts up to the end of the last field, without the padding behind it.
    check_bytes(
        metadata.struct_size,
        offset_of!(XLA_FFI_Metadata, traits) + size_of::<u32>(),
        "XLA_FFI_Metadata",
    )?;
    // SAFETY: `api` is null or XLA's function table.
    let version = unsafe { frame.api.as_ref() }.map_or((0, 1), |api| {
        let version = &api.api_version;
        (version.major_version, version.minor_version)
    });
    (
        metadata.api_version.major_version,
        metadata.api_version.minor_version,
    ) = version;
    // No trait is claimed: an MPI call can't be captured into a command buffer.
    metadata.traits = 0;
    Ok(true)
}

/// XLA's code for errors of a kind.
fn code_of(kind: ErrorKind) -> XLA_FFI_Error_Code {
    match kind {
        ErrorKind::Invalid => XLA_FFI_Error_Code_INVALID_ARGUMENT,
        ErrorKind::Precondition => XLA_FFI_Error_Code_FAILED_PRECONDITION,
        ErrorKind::Internal => XLA_FFI_Error_Code_INTERNAL,
    }
}

/// Hands an error over to XLA. Null means success, so a frame without an API table, in which
/// no error can be made, ends the process rather than pass for one.
fn report(frame: &XLA_FFI_CallFrame, error: &Error) -> *mut XLA_FFI_Error {
    let message = CString::new(error.message.replace('\0', " ")).unwrap_or_default();
    let mut args = XLA_FFI_Error_Create_Args {
        struct_size: size_of::<XLA_FFI_Error_Create_Args>(),
        extension_start: ptr::null_mut(),
        message: message.as_ptr(),
        errc: code_of(error.kind),
    };
    // SAFETY: `api` is null or XLA's function table.
    match unsafe { frame.api.as_ref() }.and_then(|api| api.XLA_FFI_Error_Create) {
        // SAFETY: XLA's function, with a message that outlives the call.
        Some(create) => unsafe { create(&raw mut args) },
        None => {
            let text = format!(
                "mpi4jax: {}, and XLA gave no way to say so\n",
                error.message
            );
            let _ = io::stderr().write_all(text.as_bytes());
            std::process::abort()
        }
    }
}

/// Runs a handler's body: answers metadata, decodes the frame, turns errors and panics into
/// XLA's errors.
///
/// # Safety
/// `frame` is a call frame that XLA lends for the duration of the call.
pub unsafe fn enter(
    frame: *mut XLA_FFI_CallFrame,
    body: impl FnOnce(&Frame) -> Result<()>,
) -> *mut XLA_FFI_Error {
    // SAFETY: the caller's promise.
    unsafe { enter_another(frame, |frame| body(frame).map(|()| ptr::null_mut())) }
}

/// Runs the body of a handler that calls another one, whose error it gives.
///
/// # Safety
/// `frame` is a call frame that XLA lends for the duration of the call.
#[inline(always)]
pub(super) unsafe fn enter_another(
    frame: *mut XLA_FFI_CallFrame,
    body: impl FnOnce(&Frame) -> Result<*mut XLA_FFI_Error>,
) -> *mut XLA_FFI_Error {
    // SAFETY: the caller's promise.
    let frame = unsafe { &*frame };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        if answer_metadata(frame)? {
            return Ok(ptr::null_mut());
        }
        // SAFETY: the caller's promise.
        body(&unsafe { Frame::new(frame) }?)
    }));
    match outcome {
        Ok(Ok(error)) => error,
        Ok(Err(error)) => report(frame, &error),
        Err(panic) => report(frame, &Error::of_panic(&*panic)),
    }
}
