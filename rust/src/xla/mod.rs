//! XLA's side of a call: what it hands to a handler, checked before anything is read.

mod frame;
#[allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
pub mod raw;

pub use frame::{Buffer, Frame, enter};
pub use raw::XLA_FFI_Handler as Handler;
