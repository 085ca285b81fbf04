//! What this process called last: a ring of records, which every call writes.
//!
//! - `clock`: the time of a record.
//! - `ring`: the records.
//! - `tables`: what is known of what they refer to.
//! - `describe`: a record in words.

mod clock;
mod describe;
mod ring;
mod tables;

pub use clock::{Instant, exactly_now, set_exact};
pub use describe::operator_name;
pub use ring::{Array, Operation, Record, Recording, begin, calls_on, record, recorded};
pub use tables::{
    CommunicatorFacts, all_communicator_facts, call_site, communicator_facts, is_nobody,
    set_call_site, set_communicator_facts, set_proc_null,
};
