//! The facts of a call that its attributes state, by type.

/// The arguments of a call, as far as they are known: numbers of objects, ranks, tags, and hashes of lists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallFacts {
    /// The number of the communicator.
    pub communicator: Option<i64>,
    /// The number of the call in its program.
    pub call_site: Option<i64>,
    /// The number of the reduction operator.
    pub operator: Option<i64>,
    /// The rank of the root.
    pub root: Option<i64>,
    /// The rank that a message is sent to.
    pub dest: Option<i64>,
    /// The rank that a message is received from.
    pub source: Option<i64>,
    /// The tag of the message that is sent.
    pub send_tag: Option<i64>,
    /// The tag of the message that is received.
    pub recv_tag: Option<i64>,
    /// The number of the status, or a negative one.
    pub status: Option<i64>,
    /// The index of the operation that a call waits for, among the nonblocking ones.
    pub started: Option<i64>,
    /// The hash of the row counts of all ranks.
    pub counts: Option<i64>,
    /// The hash of the tree of arrays that is passed next, or 0.
    pub structure: Option<i64>,
}

impl CallFacts {
    /// The facts in attributes of these names and values.
    pub(super) fn of(attributes: impl Iterator<Item = (&'static str, i64)>) -> Self {
        let mut facts = Self::default();
        for (name, value) in attributes {
            let value = Some(value);
            match name {
                "comm_number" => facts.communicator = value,
                "call_site" => facts.call_site = value,
                "op_number" => facts.operator = value,
                "root" => facts.root = value,
                "dest" => facts.dest = value,
                "source" => facts.source = value,
                "sendtag" => facts.send_tag = value,
                "recvtag" => facts.recv_tag = value,
                "tag" => (facts.send_tag, facts.recv_tag) = (value, value),
                "status_number" => facts.status = value,
                "started" => facts.started = value,
                "counts" => facts.counts = value,
                "structure" => facts.structure = value,
                _ => (),
            }
        }
        facts
    }
}
