//! XLA's side of a call: what it hands to a handler, checked before anything is read.

mod computed;
mod data_types;
mod frame;
#[expect(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "the names are XLA's, and its header says what they are"
)]
pub mod raw;

pub use computed::{ComputedNumbers, computed_position, enter_computed};
pub use data_types::{data_type_name, data_type_size};
pub use frame::{Buffer, BufferFacts, Frame, ResultBuffer, count_of, enter, hash};
pub use raw::XLA_FFI_Handler as Handler;
