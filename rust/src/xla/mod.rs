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

pub use frame::{Buffer, Frame, enter};
pub use raw::XLA_FFI_Handler as Handler;
