//! Operations that send and receive messages.
//!
//! - `point_to_point`: one message, or one each way.
//! - `exchange`: any number of messages.
//! - `neighborhood`: messages between the neighbors in a topology.

pub mod exchange;
pub mod neighborhood;
pub mod point_to_point;
