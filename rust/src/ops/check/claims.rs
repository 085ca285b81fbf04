//! The comparing of collective calls.
//!
//! Ranks reduce a hash of what they have to agree about. Only if that differs, they tell each other
//! more. They do so on a communicator of its own, so that a rank that is elsewhere is not taken for
//! one that calls something else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{byte_type, number_type, table_width, world_rank};
use crate::diagnosis::{
    self, Note, Notes, Ranks, Running, Snapshot, State, agreed, describe_disagreement, listed,
    rows_of,
};
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::mpi::calls::{CallError, Mpi};
use crate::mpi::{Abi, Companion, PredefinedOp, RecvBuffer, SendBuffer};
use crate::ops::call::Call;
use crate::recorder::{Array, Record, Scope};
use crate::xla::hash;

/// The statement of a rank to the others when they do not agree.
#[derive(Serialize, Deserialize)]
struct Statement {
    rank: i32,
    call: diagnosis::CallNote,
    /// The elements in a row of its array, if it has any.
    row: Option<i64>,
    /// Messages of others that this rank does not expect, in words.
    complaints: Vec<String>,
}

/// The claim of a rank: a hash of all that the ranks have to agree about.
fn claim(record: &Record) -> i64 {
    let name = record.operation.name.bytes().map(i64::from);
    let agreed = agreed(record).flat_map(|(aspect, value)| [aspect as i64, value]);
    hash(name.chain([record.sequence as i64]).chain(agreed)) as i64
}

/// The ranks that make a call, as they compare it: on a communicator of its own, so that a rank that
/// is elsewhere is not taken for one that calls something else.
pub struct Comparison<'a, A: Abi> {
    /// MPI on the communicator.
    pub mpi: &'a Mpi<A>,
    /// Makes an error of a failed call.
    pub fail: &'a dyn Fn(CallError) -> Error,
}

impl<A: Abi> Comparison<'_, A> {
    /// The report, if the ranks do not agree. `row` is the number of elements in a row of this rank's array,
    /// if that has any.
    pub fn disagreement(&self, record: &Record, row: Option<i64>) -> Result<Option<Vec<String>>> {
        let claim = claim(record);
        // The ranks agree if their largest and their smallest claim are equal. One reduction finds both,
        // as `!x` is `-x - 1`, which falls where `x` rises: the largest `!x` is that of the smallest `x`.
        // Of three ranks with the claims 7, 7 and 3, the pairs `[x, !x]` are [7, -8], [7, -8] and
        // [3, -4], and the largest of each [7, -4]: the smallest claim is !-4 = 3, and not 7.
        //
        // A rank without rows gives the smallest number for `row` and for `!row`, which no reduction
        // picks while another rank has rows: of 5, none and 5, the largest are [5, -6], and !-6 = 5.
        let unknown = i64::MIN;
        let [most, least, widest, narrowest] = self.largest([
            claim,
            !claim,
            row.unwrap_or(unknown),
            row.map_or(unknown, |row| !row),
        ])?;
        let rows_differ = widest != unknown && widest != !narrowest;
        if most == !least && !rows_differ {
            return Ok(None);
        }
        self.report(record, row, Vec::new()).map(Some)
    }

    /// The report, if any rank complains.
    fn complaint(&self, record: &Record, complaints: Vec<String>) -> Result<Option<Vec<String>>> {
        let [count] = self.largest([complaints.len() as i64])?;
        (count > 0)
            .then(|| self.report(record, None, complaints))
            .transpose()
    }

    /// The largest of the numbers of all ranks.
    fn largest<const N: usize>(&self, own: [i64; N]) -> Result<[i64; N]> {
        let mut largest = [0; N];
        let datatype = number_type()?;
        let max = Mpi::operator(PredefinedOp::Max.number())?;
        let recv = RecvBuffer::of(&mut largest, datatype);
        let send = SendBuffer::of(&own, datatype);
        self.mpi.blocking(self.fail).allreduce(send, recv, &max)?;
        Ok(largest)
    }

    /// The report, from the statements of all ranks.
    #[cold]
    fn report(
        &self,
        record: &Record,
        row: Option<i64>,
        complaints: Vec<String>,
    ) -> Result<Vec<String>> {
        let statements = self.statements(record, row, complaints)?;
        let notes = notes_of(&statements);
        let title = "mpi4jax: a call that does not fit on all ranks (MPI4JAX_CHECK)";
        let mut report = titled(title, &notes, &statements);
        report.extend(findings(&notes, &statements));
        Ok(report)
    }

    /// The report on a value that is not the same on all ranks, with what each of them has found.
    #[cold]
    fn report_on_value(&self, record: &Record, finding: String) -> Result<Vec<String>> {
        let statements = self.statements(record, None, Vec::new())?;
        let title = "mpi4jax: a value that is not the same on all ranks (MPI4JAX_CHECK)";
        let mut report = titled(title, &notes_of(&statements), &statements);
        report.push(finding);
        Ok(report)
    }

    /// The statements of all ranks.
    fn statements(
        &self,
        record: &Record,
        row: Option<i64>,
        complaints: Vec<String>,
    ) -> Result<Vec<Statement>> {
        let mut call = diagnosis::CallNote::new(record);
        // All of them are on this communicator, whatever each of them knows of it.
        call.communicator.kind = diagnosis::CommunicatorKind::Default;
        let own = Statement {
            rank: world_rank(record, self.mpi.rank()),
            call,
            row,
            complaints,
        };
        let mut own = serde_json::to_vec(&own).map_err(unreadable)?;
        let [length] = self.largest([own.len() as i64])?;
        // JSON may end in spaces.
        own.resize(length as usize, b' ');
        let mut all = vec![0; own.len() * self.mpi.size() as usize];
        let send = SendBuffer::of(&own[..], byte_type()?);
        let recv = RecvBuffer::of(&mut all[..], byte_type()?);
        self.mpi.blocking(self.fail).allgather(send, recv)?;
        all.chunks_exact(own.len())
            .map(|bytes| serde_json::from_slice(bytes).map_err(unreadable))
            .collect()
    }
}

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// Compares what the ranks are about to call. If that does not fit, it is an error on all of them.
    pub fn check_collective(&self, record: &Record) -> Result<()> {
        if self.communicator.size == 1 {
            return Ok(());
        }
        let row = self.row(record)?;
        let mpi = self.refuse_if(|ranks| ranks.disagreement(record, row))?;
        if record.operation.has_counts_of_pairs {
            return self.refuse_if_any(record, self.complaints(&mpi, record)?);
        }
        Ok(())
    }

    /// If any rank complains, it is an error on all of them.
    pub fn refuse_if_any(&self, record: &Record, complaints: Vec<String>) -> Result<()> {
        self.refuse_if(|ranks| ranks.complaint(record, complaints))?;
        Ok(())
    }

    /// Compares what the ranks call: it is an error on all of them if there is a report. Gives the
    /// communicator on which they do so.
    fn refuse_if(
        &self,
        compare: impl FnOnce(&Comparison<A>) -> Result<Option<Vec<String>>>,
    ) -> Result<Mpi<A>> {
        let mpi = self.mpi.on(&self.companion(Companion::Check)?);
        let report = compare(&Comparison {
            mpi: &mpi,
            fail: &|error| self.error(error),
        })?;
        match report {
            Some(report) => Err(self.refuse(report, Some(&mpi))),
            None => Ok(mpi),
        }
    }

    /// Refuses a value, which all ranks have found not to be the same on all of them.
    #[cold]
    pub fn refuse_value(&self, record: &Record, finding: String) -> Result<()> {
        self.refuse_if(|ranks| ranks.report_on_value(record, finding).map(Some))?;
        Ok(())
    }

    /// Number of elements in a row of this rank's array, where the call says how many rows each rank has.
    fn row(&self, record: &Record) -> Result<Option<i64>> {
        if record.facts.counts.is_none() || record.operation.scope != Scope::All {
            return Ok(None);
        }
        let counts = self.ints("counts")?;
        let own = counts.get(self.communicator.rank as usize).copied();
        let rows = match record.operation.has_all_rows {
            true => Some(counts.iter().sum()),
            false => own,
        };
        let elements = record.agreed().map_or(0, |array| array.count);
        Ok(rows.filter(|rows| *rows > 0).map(|rows| elements / rows))
    }

    /// Messages of other ranks that this one does not expect, in words.
    fn complaints(&self, mpi: &Mpi<A>, record: &Record) -> Result<Vec<String>> {
        let size = self.communicator.size as usize;
        let elements = |name: &str, array: Option<Array>| -> Result<Vec<i64>> {
            let mut counts = self.ints(name)?.into_owned();
            // A list of another length is an error of its own, later.
            counts.resize(size, 0);
            let rows = counts.iter().sum::<i64>().max(1);
            let row = array.map_or(0, |array| array.count) / rows;
            Ok(counts.into_iter().map(|count| count * row).collect())
        };
        let sent = elements("sendcounts", record.sent)?;
        let expected = elements("recvcounts", record.received)?;
        let mut coming = vec![0i64; size];
        let send = SendBuffer::of(&sent[..], number_type()?);
        let recv = RecvBuffer::of(&mut coming[..], number_type()?);
        let caller = mpi.blocking(|error| self.error(error));
        caller.alltoall(send, recv, 1)?;
        let own = world_rank(record, self.communicator.rank);
        let differing = coming.iter().zip(&expected).enumerate();
        let differing = differing.filter(|(_, (coming, expected))| coming != expected);
        Ok(differing
            .map(|(rank, (coming, expected))| {
                let rank = world_rank(record, rank as i32);
                format!(
                    "rank {rank} sends {coming} elements to rank {own}, which expects {expected}."
                )
            })
            .collect())
    }
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::internal(format!("what ranks tell each other is not JSON: {error}"))
}

/// What each rank does, from the statements.
fn notes_of(statements: &[Statement]) -> Notes {
    let mut notes = Notes::default();
    for Statement { rank, call, .. } in statements {
        let running = Running {
            calls: vec![call.clone()],
            ..Running::default()
        };
        notes.add(*rank, Note::new(State::Running(Box::new(running))), []);
    }
    notes
}

/// The begin of a report: its title, and a table of what the ranks do.
fn titled(title: &str, notes: &Notes, statements: &[Statement]) -> Vec<String> {
    let mut report = vec![title.to_owned()];
    report.extend(rows_of(notes, statements.len() as i32, table_width()));
    report
}

/// The differences between the ranks, in words.
fn findings(notes: &Notes, statements: &[Statement]) -> Vec<String> {
    let sizes = statements.iter().map(|statement| statement.rank + 1);
    let size = sizes.max().unwrap_or(0);
    let snapshot = Snapshot::new(notes, size, &[]);
    let collectives = snapshot.collectives();
    let disagreements =
        collectives.filter_map(|(collective, _)| describe_disagreement(&snapshot, collective));
    let mut findings: Vec<String> = disagreements.collect();
    let complaints = statements.iter().map(|statement| &statement.complaints);
    findings.extend(complaints.flatten().cloned());
    if findings.is_empty() {
        let mut by_row: BTreeMap<i64, Ranks> = BTreeMap::new();
        for Statement { rank, row, .. } in statements {
            if let Some(row) = row {
                by_row.entry(*row).or_default().extend([*rank]);
            }
        }
        let sides = by_row.iter().map(|(row, ranks)| {
            format!("{} rows of {row} elements", ranks.with_verb("has", "have"))
        });
        findings.push(format!("{}.", listed(&sides.collect::<Vec<_>>())));
    }
    findings
}
