//! The comparing of collective calls.
//!
//! Ranks reduce a hash of what they have to agree about. Only if that differs, they tell each other
//! more. They do so on a communicator of its own, so that a rank that is elsewhere is not taken for
//! one that calls something else.

use std::ffi::c_int;

use serde::{Deserialize, Serialize};

use super::call::Call;
use super::check::{byte_type, number_type, world_rank};
use crate::diagnosis::{
    self, Note, Notes, Ranks, Running, Scene, State, agreed, disagreement_in_words, listed, rows_of,
};
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::mpi::{Abi, Companion, PredefinedOp, REGISTRY};
use crate::recorder::{Array, Record, Scope};
use crate::xla::hash;

/// What a rank tells the others when they do not agree.
#[derive(Serialize, Deserialize)]
struct Statement {
    rank: i32,
    call: diagnosis::Call,
    /// The elements in a row of its array, if it has any.
    row: Option<i64>,
    /// What others send that this rank does not expect.
    complaints: Vec<String>,
}

/// A hash of what all ranks have to agree about.
fn claim(record: &Record) -> i64 {
    let name = record.operation.name.bytes().map(i64::from);
    let agreed = agreed(record).flat_map(|(aspect, value)| [aspect as i64, value]);
    hash(name.chain([record.sequence as i64]).chain(agreed)) as i64
}

impl<A: Abi, M: Memory> Call<'_, A, M> {
    /// Has the ranks compare what they are about to call. If it does not fit, it is an error on all
    /// of them.
    pub(super) fn check_collective(&self, record: &Record) -> Result<()> {
        if self.communicator.size == 1 {
            return Ok(());
        }
        let comm = self.companion(Companion::Check)?;
        let claim = claim(record);
        let row = self.row(record)?;
        // Largest and smallest at once: an inversion of all bits turns the order round.
        let unknown = i64::MIN;
        let [most, least, widest, narrowest] = self.largest(
            comm,
            [
                claim,
                !claim,
                row.unwrap_or(unknown),
                row.map_or(unknown, |row| !row),
            ],
        )?;
        let rows_differ = widest != unknown && widest != !narrowest;
        if most != !least || rows_differ {
            return Err(self.disagree(comm, record, row, Vec::new())?);
        }
        if record.operation.name == "alltoallv" {
            return self.refuse_if_any(record, self.complaints(comm, record)?);
        }
        Ok(())
    }

    /// If any rank complains, it is an error on all of them.
    pub(super) fn refuse_if_any(&self, record: &Record, complaints: Vec<String>) -> Result<()> {
        let comm = self.companion(Companion::Check)?;
        let [count] = self.largest(comm, [complaints.len() as i64])?;
        if count > 0 {
            return Err(self.disagree(comm, record, None, complaints)?);
        }
        Ok(())
    }

    /// The elements in a row of the array that a rank has, where ranks have so many rows each.
    fn row(&self, record: &Record) -> Result<Option<i64>> {
        if record.attribute("counts").is_none() || record.operation.scope != Scope::All {
            return Ok(None);
        }
        let counts = self.ints("counts")?;
        let own = counts.get(self.communicator.rank as usize).copied();
        let (array, rows) = match record.operation.name {
            "scatterv" => (record.received, own),
            "reduce_scatterv" => (record.sent, Some(counts.iter().sum())),
            _ => (record.sent, own),
        };
        let elements = array.map_or(0, |array| array.count);
        Ok(rows.filter(|rows| *rows > 0).map(|rows| elements / rows))
    }

    /// What other ranks send that this one does not expect.
    fn complaints(&self, comm: A::Comm, record: &Record) -> Result<Vec<String>> {
        let size = self.communicator.size as usize;
        let elements = |name: &str, array: Option<Array>| -> Result<Vec<i64>> {
            let mut counts = self.ints(name)?;
            // A list of another length is an error of its own, later.
            counts.resize(size, 0);
            let rows = counts.iter().sum::<i64>().max(1);
            let row = array.map_or(0, |array| array.count) / rows;
            Ok(counts.into_iter().map(|count| count * row).collect())
        };
        let sent = elements("sendcounts", record.sent)?;
        let expected = elements("recvcounts", record.received)?;
        let mut coming = vec![0; size];
        let datatype = number_type()?.handle::<A>();
        // SAFETY: both lists have a number for each rank.
        let code = unsafe {
            (self.functions.int.alltoall)(
                sent.as_ptr().cast(),
                1,
                datatype,
                coming.as_mut_ptr().cast(),
                1,
                datatype,
                comm,
            )
        };
        self.check("MPI_Alltoall", code)?;
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

    /// The largest of the numbers of all ranks.
    fn largest<const N: usize>(&self, comm: A::Comm, own: [i64; N]) -> Result<[i64; N]> {
        let mut largest = [0; N];
        let datatype = number_type()?.handle::<A>();
        let max = REGISTRY.operator::<A>(PredefinedOp::Max.number())?;
        // SAFETY: both arrays have so many numbers.
        let code = unsafe {
            (self.functions.int.allreduce)(
                own.as_ptr().cast(),
                largest.as_mut_ptr().cast(),
                N as c_int,
                datatype,
                max,
                comm,
            )
        };
        self.check("MPI_Allreduce", code)?;
        Ok(largest)
    }

    /// Tells all ranks what each of them has, and makes an error of it.
    #[cold]
    fn disagree(
        &self,
        comm: A::Comm,
        record: &Record,
        row: Option<i64>,
        complaints: Vec<String>,
    ) -> Result<Error> {
        let statements = self.statements(comm, record, row, complaints)?;
        let mut report =
            vec!["mpi4jax: a call that does not fit on all ranks (MPI4JAX_CHECK)".to_owned()];
        let mut notes = Notes::default();
        for Statement { rank, call, .. } in &statements {
            let running = Running {
                calls: vec![call.clone()],
                ..Running::default()
            };
            notes.add(*rank, Note::new(State::Running(Box::new(running))), []);
        }
        report.extend(rows_of(&notes, statements.len() as i32));
        report.extend(findings(&notes, &statements));
        Ok(self.refuse(report, Some(comm)))
    }

    /// What all ranks say about themselves.
    fn statements(
        &self,
        comm: A::Comm,
        record: &Record,
        row: Option<i64>,
        complaints: Vec<String>,
    ) -> Result<Vec<Statement>> {
        let mut call = diagnosis::Call::new(record);
        // All of them are on this communicator, whatever each of them knows of it.
        call.communicator.kind = diagnosis::Kind::Default;
        let own = Statement {
            rank: world_rank(record, self.communicator.rank),
            call,
            row,
            complaints,
        };
        let mut own = serde_json::to_vec(&own).map_err(unreadable)?;
        let [length] = self.largest(comm, [own.len() as i64])?;
        // JSON may end in spaces.
        own.resize(length as usize, b' ');
        let mut all = vec![0; own.len() * self.communicator.size as usize];
        let datatype = byte_type()?.handle::<A>();
        // SAFETY: `own` has so many bytes, and `all` has so many for each rank.
        let code = unsafe {
            (self.functions.int.allgather)(
                own.as_ptr().cast(),
                length as c_int,
                datatype,
                all.as_mut_ptr().cast(),
                length as c_int,
                datatype,
                comm,
            )
        };
        self.check("MPI_Allgather", code)?;
        all.chunks_exact(own.len())
            .map(|bytes| serde_json::from_slice(bytes).map_err(unreadable))
            .collect()
    }
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::internal(format!("what ranks tell each other is not JSON: {error}"))
}

/// What does not fit, in words.
fn findings(notes: &Notes, statements: &[Statement]) -> Vec<String> {
    let size = statements.iter().map(|one| one.rank + 1).max().unwrap_or(0);
    let scene = Scene::new(notes, size, &[]);
    let collectives = scene.collectives();
    let disagreements = collectives.filter_map(|(one, _)| disagreement_in_words(&scene, one));
    let mut found: Vec<String> = disagreements.collect();
    found.extend(statements.iter().flat_map(|one| one.complaints.clone()));
    if found.is_empty() {
        let by_row = |row: i64| -> Ranks {
            let have = statements.iter().filter(|one| one.row == Some(row));
            have.map(|one| one.rank).collect()
        };
        let mut rows: Vec<i64> = statements.iter().filter_map(|one| one.row).collect();
        rows.sort_unstable();
        rows.dedup();
        let sides = rows.iter().map(|row| {
            let ranks = by_row(*row);
            format!("{} rows of {row} elements", ranks.with_verb("has", "have"))
        });
        found.push(format!("{}.", listed(&sides.collect::<Vec<_>>())));
    }
    found
}
