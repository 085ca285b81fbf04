//! What this process called last: a ring of records, which every call writes.
//!
//! - `clock`: the time of a record.
//! - `os_thread`: the system's numbers of threads.
//! - `ring`: the records.
//! - `tables`: what is known of what they refer to.
//! - `describe`: a record in words.
//! - `reader`: all records, one after another.

mod clock;
mod describe;
pub mod os_thread;
mod reader;
mod ring;
mod tables;

pub use clock::{Instant, exactly_now, set_exact};
pub use describe::{NONBLOCKING, communicator_name, operator_name};
pub use reader::Reader;
pub use ring::{
    Array, Call, Operation, Progress, Record, Recording, Scope, begin, calls_on, in_progress, recent,
    record, recorded, set_capacity,
};
pub use tables::{
    CommunicatorFacts, Messages, call_site, call_sites_since, communicator_facts, communicators,
    is_nobody, set_call_site, set_communicator_facts, set_eager_line, set_messages, set_proc_null,
    world_rank,
};
