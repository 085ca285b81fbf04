//! The last calls of this process: a ring of records, which every call writes.
//!
//! - `ring`: the records. `sequence_lock`: who may write and read one. `clock`, `os_thread`: their times and threads.
//! - `operation`: what an operation is. `facts`: the arguments of a call.
//! - `tables`: communicators, call sites and messages, to which records refer by numbers.
//! - `group`: the processes of a communicator. `identify`: which communicators of several processes
//!   are one.
//! - `describe`: a record in words.
//! - `reader`: all records, one after another.
//! - `meeting`: records of waits in Python.

mod clock;
mod describe;
mod facts;
mod group;
mod identify;
mod meeting;
mod operation;
pub mod os_thread;
mod reader;
mod ring;
mod sequence_lock;
mod sync;
mod tables;

pub use clock::{Instant, exactly_now, set_exact};
pub use describe::{communicator_name, operator_name};
pub use facts::CallFacts;
pub use group::{Group, RankRun};
pub use identify::{CommunicatorEntry, identify};
pub use meeting::{begin_meeting, end_meeting, meetings_of};
pub use operation::{Operation, Scope, Shown, Side};
pub use reader::Reader;
pub use ring::{
    Array, Awaited, Record, Recordable, Recording, begin, calls_on, in_progress, recent, record,
    recorded, set_capacity,
};
pub use tables::{
    CommunicatorFacts, DEFAULT_COMMUNICATOR, Identity, Message, Messages, call_site,
    call_sites_since, communicator_facts, communicators, find_line, has_foreign_handlers,
    is_default_shared, is_proc_null, messages, set_call_site, set_communicator_facts,
    set_computed_ranks, set_eager_line, set_foreign_handlers, set_line_finder, set_messages,
    set_proc_null, share_default, world_rank,
};
