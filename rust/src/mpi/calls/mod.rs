//! MPI's functions, as safe ones: with [buffers](super::buffers) that are as long as MPI reads and
//! writes, and communicators and operators that there are.
//!
//! Each takes an int or a large count, and a data type made for the call where MPI can't count the
//! elements. A collective one is called in its blocking or its nonblocking form.
//!
//! - `caller`: one call, in its two forms, with what is done around it.
//! - `counts`, `derived`, `layout`: counts and data types, and how many elements each rank has.
//! - `collectives`, `rows`, `messages`, `communicators`: the functions. `exchange`: messages in flight
//!   at the same time. `names`: texts that other processes look up.

mod caller;
mod collectives;
mod communicators;
mod counts;
mod derived;
mod exchange;
mod layout;
mod messages;
mod names;
mod outcome;
mod rows;

pub use caller::{CallWrapper, Caller, Mpi, Operator, Owner, free_communicator};
pub use collectives::BcastBuffer;
pub use counts::set_count_limit;
pub use exchange::{Incoming, Outgoing, PeerBuffer};
pub use layout::{Layout, Part, sum};
pub use names::{NameHandles, NameService};
pub use outcome::{CallError, Outcome, check};
