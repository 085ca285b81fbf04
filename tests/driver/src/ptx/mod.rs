//! Kernels in PTX, the text that XLA makes, and what it takes to run them on the host.
//!
//! `text` cuts a module into statements, `instruction` reads one of them, `arithmetic` computes,
//! and `machine` runs the threads of a kernel.

mod arithmetic;
mod instruction;
mod machine;
mod text;

pub use machine::{Memory, run};
pub use text::{Kernel, read};
