//! XLA's side of a call: what it hands to a handler, checked before anything is read.
//!
//! - `frame`: the frame of a call, and the handlers' way into the core. `checks`: what XLA's structs say.
//! - `arguments`, `attributes`: what a frame has. `buffer`: its arrays. `data_types`: their types.
//! - `computed`: calls with numbers that their program has computed.
//! - `raw`: XLA's declarations.

mod arguments;
mod attributes;
mod buffer;
mod checks;
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

pub use attributes::hash;
pub use buffer::{Buffer, BufferFacts, ResultBuffer, count_of};
pub use computed::{ComputedNumbers, computed_position, enter_computed};
pub use data_types::{data_type_name, data_type_size};
pub use frame::{Frame, enter};
pub use raw::XLA_FFI_Handler as Handler;
