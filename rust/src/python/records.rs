//! The records of calls, and the objects that they refer to.

use pyo3::prelude::*;

use crate::recorder::{self, Identity, RankRun};

/// Says which Python line the calls with this `call_site` come from: an empty one if they are eager.
#[pyfunction]
pub fn set_call_site(site: i64, line: &str) {
    recorder::set_call_site(site, line);
}

/// Says which Python line the eager call that begins now comes from: of a program with these call
/// sites, or, without any, of one that is not known.
#[pyfunction]
#[pyo3(signature = (line, sites=Vec::new()))]
pub fn set_eager_line(line: &str, sites: Vec<i64>) {
    recorder::set_eager_line(line, &sites);
}

/// Says which messages calls with this `call_site` send and receive, each by rank, tag and bytes.
#[pyfunction]
pub fn set_messages(site: i64, sent: Vec<(i64, i64, u64)>, received: Vec<(i64, i64, u64)>) {
    let message = |(rank, tag, bytes)| recorder::Message { rank, tag, bytes };
    let messages = recorder::Messages {
        sent: sent.into_iter().map(message).collect(),
        received: received.into_iter().map(message).collect(),
    };
    recorder::set_messages(site, messages);
}

/// The operation of a call, its sequence number among the collective calls on the communicator (or
/// 0), the name of that, its arguments, its line, the seconds since it began, and those that it took
/// if it is over.
type RecentCall = (
    &'static str,
    u64,
    String,
    Vec<String>,
    Option<String>,
    f64,
    Option<f64>,
);

/// The last calls of this process, the oldest first.
#[pyfunction]
pub fn recent_calls() -> Vec<RecentCall> {
    let now = recorder::exactly_now();
    recorder::recent()
        .into_iter()
        // Users have made no call there.
        .filter(|call| call.operation.rule.is_none())
        .map(|call| {
            (
                call.operation.name,
                call.sequence,
                call.communicator_name(),
                call.arguments(),
                call.line(),
                now.seconds_since(call.begin),
                call.end.map(|end| end.seconds_since(call.begin)),
            )
        })
        .collect()
}

/// The call sites that have become known after the first `count`, with their lines.
#[pyfunction]
pub fn call_sites(count: usize) -> Vec<(i64, String)> {
    recorder::call_sites_since(count)
}

/// A communicator: its number, its name, its members as runs of first, stride and count, and, if it
/// is a copy of `MPI_COMM_WORLD`, the copies that lead to it, each as index and number of copies.
type CommunicatorTuple = (i64, String, Vec<(i32, i32, i32)>, Option<Vec<(u32, u32)>>);

/// All communicators of this process.
#[pyfunction]
pub fn communicators() -> Vec<CommunicatorTuple> {
    recorder::communicators()
        .into_iter()
        // Others stand for meetings.
        .filter(|(comm_number, _)| *comm_number >= 0)
        .map(|(comm_number, facts)| {
            let path = match &facts.identity {
                Identity::Copy(lineage) => Some(lineage.path()),
                _ => None,
            };
            let runs = facts.group.runs().iter();
            let members = runs.map(|run| (run.first, run.stride, run.count)).collect();
            (comm_number, facts.name, members, path)
        })
        .collect()
}

/// Gives the communicators of several processes numbers that are the same in all of them.
#[pyfunction]
pub fn identify_communicators(tables: Vec<Vec<CommunicatorTuple>>) -> Vec<Vec<usize>> {
    let run = |(first, stride, count)| RankRun {
        first,
        stride,
        count,
    };
    let entry = |(comm_number, name, members, copies): CommunicatorTuple| {
        let members = members.into_iter().map(run).collect();
        recorder::CommunicatorEntry {
            comm_number,
            name,
            members,
            copies,
        }
    };
    let table = |table: Vec<CommunicatorTuple>| table.into_iter().map(entry).collect();
    let tables: Vec<Vec<_>> = tables.into_iter().map(table).collect();
    recorder::identify(&tables)
}

/// Records that this rank waits for the others of `members`, which are ranks in `MPI_COMM_WORLD`, in a call
/// of mpi4py's. `rule` is a sentence about who has to come there. Gives the number of the call, for
/// [`end_meeting`].
#[pyfunction]
pub fn begin_meeting(name: &str, rule: &str, members: Vec<i32>) -> u64 {
    recorder::begin_meeting(name, rule, members.into_iter().collect())
}

/// Records that it does not wait any more.
#[pyfunction]
pub fn end_meeting(call: u64) {
    recorder::end_meeting(call);
}
