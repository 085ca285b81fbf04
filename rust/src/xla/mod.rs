//! XLA's side of a call: what it hands to a handler, checked before anything is read.

mod frame;
#[allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
pub mod raw;

pub use frame::{Buffer, Frame, enter};
pub use raw::XLA_FFI_Handler as Handler;

/// Why a call failed, in XLA's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub code: raw::XLA_FFI_Error_Code,
    pub message: String,
}

impl Error {
    /// The call itself is wrong: its buffers or attributes are not what the operation takes.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self {
            code: raw::XLA_FFI_Error_Code_INVALID_ARGUMENT,
            message: message.into(),
        }
    }

    /// The call is right, but what it refers to is gone or was never there.
    pub fn precondition(message: impl Into<String>) -> Self {
        Self {
            code: raw::XLA_FFI_Error_Code_FAILED_PRECONDITION,
            message: message.into(),
        }
    }

    /// The call was made, and failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self {
            code: raw::XLA_FFI_Error_Code_INTERNAL,
            message: message.into(),
        }
    }
}

pub type Result<T> = std::result::Result<T, Error>;
