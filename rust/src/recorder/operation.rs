//! The declaration of an operation for its records, their comparison, and their diagnosis.

use std::sync::{LazyLock, OnceLock};

/// Largest number of attributes of a call that are kept.
pub(super) const ATTRIBUTES: usize = 7;

/// Processes of a communicator that take part in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The two ends of a message.
    Message,
    /// All of them, each with its neighbors in a topology.
    Neighbors,
    /// All of them together.
    All,
}

/// One of the two arrays in the record of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first operand.
    Sent,
    /// The first result.
    Received,
}

/// Arrays of a call that descriptions show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The first one that there is.
    First,
    /// The arrays that are received.
    Received,
    /// Both, or one if they are alike.
    Both,
    /// None: the first of several says little.
    Messages,
}

/// An operation, as its records refer to it. Where nothing else is declared, ranks that call it
/// together have to agree about the type and the size of what they send.
pub struct Operation {
    /// The name of the operation and of its handler.
    pub name: &'static str,
    /// The processes that take part.
    pub scope: Scope,
    /// Whether the operand, if there is one, is sent.
    pub sends: bool,
    /// Whether MPI lets the operand be where the result goes: by `MPI_IN_PLACE` (MPI-4.1 §6.2), by
    /// `MPI_Sendrecv_replace`, or as it does not look at it.
    pub is_in_place: bool,
    /// Whether the operation is only started, and the result is a ticket.
    pub is_nonblocking: bool,
    /// The array about whose type all ranks have to agree.
    pub agreed: Side,
    /// Whether they have to agree about its size, too.
    pub agrees_on_size: bool,
    /// Whether the array that is agreed about has the rows of all ranks, and not only of one.
    pub has_all_rows: bool,
    /// Whether each rank says how much it sends to each, and how much it expects.
    pub has_counts_of_pairs: bool,
    /// The arrays or messages that its records show.
    pub shown: Shown,
    /// The operations that a call may wait for, by the number in its attribute `started`.
    pub waits_for: Option<&'static LazyLock<Vec<&'static Self>>>,
    /// The rule of a meeting in Python: a sentence for users about the ranks that have to come there.
    pub rule: Option<&'static str>,
    /// Number of attributes that records keep: the first ones, in XLA's order, which every call has. No other
    /// is ever asked for.
    pub attribute_limit: usize,
    /// The names of these attributes.
    pub(super) attributes: OnceLock<Vec<String>>,
}

impl Operation {
    /// An operation that was never called.
    pub const fn new(name: &'static str, scope: Scope) -> Self {
        Self {
            name,
            scope,
            sends: true,
            is_in_place: false,
            is_nonblocking: false,
            agreed: Side::Sent,
            agrees_on_size: true,
            has_all_rows: false,
            has_counts_of_pairs: false,
            shown: Shown::First,
            waits_for: None,
            rule: None,
            attribute_limit: ATTRIBUTES,
            attributes: OnceLock::new(),
        }
    }

    /// The nonblocking form of the operation. Its results are not there to be compared.
    pub const fn nonblocking_form(&self, name: &'static str) -> Self {
        let mut form = Self::new(name, self.scope);
        form.is_nonblocking = true;
        form.agreed = self.agreed;
        form.agrees_on_size = self.agrees_on_size;
        form.has_all_rows = self.has_all_rows;
        form.shown = self.shown;
        form
    }

    /// Whether all processes of the communicator take part.
    #[inline(always)]
    pub fn is_collective(&self) -> bool {
        self.scope != Scope::Message
    }
}
