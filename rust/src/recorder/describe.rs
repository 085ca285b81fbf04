//! A record in words: `allreduce #41 (SUM, float32[3]) on COMM_WORLD`.

use std::fmt;

use super::operation::{Operation, Shown, Side};
use super::ring::{Array, Record};
use super::tables::{
    Message, Messages, call_site, communicator_facts, is_proc_null, line_in_progress, messages,
};
use crate::mpi::PredefinedOp;
use crate::xla::data_type_name;

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}[{}]", data_type_name(self.dtype), self.count)
    }
}

impl Record {
    /// The name of the operation, with the operation that a call waits for. A call that users have not made is
    /// named by its purpose.
    pub fn name(&self) -> String {
        let name = self.operation.name;
        if self.facts.structure.is_some_and(|hash| hash != 0) {
            return "comparison of trees".to_owned();
        }
        self.started().map_or_else(
            || name.to_owned(),
            |started| format!("{name} for {}", started.name),
        )
    }

    /// The array about which all ranks have to agree, if there is one here.
    pub fn agreed(&self) -> Option<Array> {
        match self.operation.agreed {
            Side::Sent => self.sent,
            Side::Received => self.received,
        }
    }

    /// The operation that the call waits for, if it waits for one that another call has started.
    pub fn started(&self) -> Option<&'static Operation> {
        let operations = self.operation.waits_for?;
        let index = usize::try_from(self.facts.started?).ok()?;
        operations.get(index).copied()
    }

    /// The number of the communicator.
    pub fn communicator(&self) -> i64 {
        self.facts.communicator.unwrap_or(-1)
    }

    /// The name of the communicator for users.
    pub fn communicator_name(&self) -> String {
        communicator_name(self.communicator())
    }

    /// The Python line of the call: `None` if it is not known, empty for an eager call whose line
    /// was not told.
    pub fn line(&self) -> Option<String> {
        let site = self.facts.call_site?;
        match self.end {
            None => line_in_progress(site),
            Some(_) => call_site(site),
        }
    }

    /// The messages that the call sends and receives.
    pub fn messages(&self) -> Messages {
        let facts = &self.facts;
        let site = facts.call_site;
        let of_site = site.and_then(|site| messages(site, self.end.is_none()));
        of_site.unwrap_or_else(|| {
            let message = |rank: Option<i64>, tag: Option<i64>| {
                let (tag, bytes) = (tag.unwrap_or(-1), 0);
                let message = rank.map(|rank| Message { rank, tag, bytes });
                message.into_iter().collect()
            };
            Messages {
                sent: message(facts.dest, facts.send_tag),
                received: message(facts.source, facts.recv_tag),
            }
        })
    }

    /// The arguments of the call, in words.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = Vec::new();
        words.extend(self.facts.operator.map(operator_name));
        words.extend(self.facts.root.map(|root| format!("root {root}")));
        let messages = self.messages();
        let to = messages.sent.into_iter().map(|message| ("to", message));
        let from = messages
            .received
            .into_iter()
            .map(|message| ("from", message));
        let all: Vec<_> = to.chain(from).collect();
        words.extend(all.iter().take(MAX_MESSAGES).map(|(way, message)| {
            let (peer, tag) = (peer(message.rank), describe_tag(message.tag));
            format!("{way} {peer} with {tag}")
        }));
        if all.len() > MAX_MESSAGES {
            words.push(format!("{} more messages", all.len() - MAX_MESSAGES));
        }
        // What differs between processes by design is that of this one.
        let arrays: Vec<Array> = match (self.operation.shown, self.sent, self.received) {
            (Shown::Messages, ..) => Vec::new(),
            (Shown::Both, Some(sent), Some(received)) if sent != received => vec![sent, received],
            (Shown::Received, _, Some(received)) => vec![received],
            (_, sent, received) => sent.or(received).into_iter().collect(),
        };
        words.extend(arrays.iter().map(ToString::to_string));
        words
    }
}

/// Largest number of messages of a call that are listed.
const MAX_MESSAGES: usize = 8;

fn describe_tag(tag: i64) -> String {
    if tag >= 0 {
        format!("tag {tag}")
    } else {
        "any tag".into()
    }
}

/// The name for users of the communicator with this number.
pub fn communicator_name(comm_number: i64) -> String {
    communicator_facts(comm_number)
        .map_or_else(|| format!("communicator {comm_number}"), |facts| facts.name)
}

/// The name of a reduction operator.
pub fn operator_name(op_number: i64) -> String {
    PredefinedOp::from_number(op_number).map_or_else(
        || format!("operator {op_number}"),
        |op| op.name().to_owned(),
    )
}

/// The process at the other end of a message, in words.
fn peer(rank: i64) -> String {
    if rank >= 0 {
        rank.to_string()
    } else if is_proc_null(rank) {
        "nobody".into()
    } else {
        "anyone".into()
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.name())?;
        if self.operation.rule.is_some() {
            return Ok(());
        }
        if self.sequence > 0 {
            write!(f, " #{}", self.sequence)?;
        }
        let arguments = self.arguments();
        if !arguments.is_empty() {
            write!(f, " ({})", arguments.join(", "))?;
        }
        write!(f, " on {}", self.communicator_name())
    }
}
