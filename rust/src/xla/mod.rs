//! XLA's side of a call: what it hands to a handler, checked before anything is read.

mod frame;
#[expect(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "the names are XLA's, and its header says what they are"
)]
pub mod raw;

pub use frame::{Buffer, Frame, enter, hash};
pub use raw::XLA_FFI_Handler as Handler;

/// The name that JAX has for a data type of XLA's.
pub fn data_type_name(dtype: raw::XLA_FFI_DataType) -> &'static str {
    // The order is that of XLA_FFI_DataType in XLA's c_api.h.
    const NAMES: [&str; 19] = [
        "nothing",
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "?",
        "?",
        "complex64",
        "bfloat16",
        "token",
        "complex128",
    ];
    usize::try_from(dtype)
        .ok()
        .and_then(|index| NAMES.get(index).copied())
        .unwrap_or("?")
}
