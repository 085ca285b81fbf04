//! A call of each collective operation, and what it gives.

use super::mpi::*;
use super::values;
use crate::common::recorder::SUM;
use crate::common::*;

/// A call of one process.
pub struct Case {
    pub operation: &'static str,
    ints: Vec<(&'static str, i64)>,
    lists: Vec<(&'static str, Vec<i64>)>,
    /// The values of the operand, and how many rows they are.
    operand: Option<(Vec<f32>, usize)>,
    /// How many values the result has, and how many rows they are.
    result: Option<(usize, usize)>,
    /// The content of the result afterwards, if that is defined.
    expected: Option<Vec<f32>>,
}

impl Case {
    fn new(operation: &'static str) -> Self {
        Self {
            operation,
            ints: Vec::new(),
            lists: Vec::new(),
            operand: None,
            result: None,
            expected: None,
        }
    }

    fn with(mut self, name: &'static str, value: usize) -> Self {
        self.ints.push((name, value as i64));
        self
    }

    fn with_op(self) -> Self {
        self.with("op_number", SUM as usize)
    }

    fn with_list(mut self, name: &'static str, values: impl Iterator<Item = usize>) -> Self {
        let values = values.map(|value| value as i64);
        self.lists.push((name, values.collect()));
        self
    }

    fn operand(mut self, values: Vec<f32>, rows: usize) -> Self {
        self.operand = Some((values, rows));
        self
    }

    fn operand_if(self, is_there: bool, values: Vec<f32>, rows: usize) -> Self {
        if is_there {
            self.operand(values, rows)
        } else {
            self
        }
    }

    /// The result, of which it is known what comes.
    fn gives(mut self, expected: Vec<f32>, rows: usize) -> Self {
        self.result = Some((expected.len(), rows));
        self.expected = Some(expected);
        self
    }

    fn gives_if(self, is_there: bool, expected: Vec<f32>, rows: usize) -> Self {
        if is_there {
            self.gives(expected, rows)
        } else {
            self
        }
    }

    fn frame(&self, rank: Rank) -> CallFrame {
        let call = rank.on().ints(&self.ints);
        let lists = self.lists.iter();
        let call = lists.fold(call, |call, (name, values)| call.list(name, values));
        match &self.operand {
            Some((values, count)) => call.operand(rows(values, *count)),
            None => call,
        }
    }

    /// Calls the operation, and looks at what it gives.
    pub fn run(self, rank: Rank) {
        let mut result = vec![-1.0; self.result.map_or(0, |result| result.0)];
        let mut call = self.frame(rank);
        if let Some((_, count)) = self.result {
            call = call.result(rows_mut(&mut result, count));
        }
        rank.succeed(self.operation, call);
        self.check(&result, rank);
    }

    /// Starts its nonblocking form.
    pub fn start(self, rank: Rank) -> Started {
        let arrays = self
            .result
            .map_or(Vec::new(), |(count, _)| vec![F32.into(), count as i64]);
        let ticket = rank.start(
            &format!("i{}", self.operation),
            self.frame(rank).list("arrays", &arrays),
        );
        Started { case: self, ticket }
    }

    fn check(&self, result: &[f32], rank: Rank) {
        if let Some(expected) = &self.expected {
            assert_eq!(
                result, expected,
                "{} on {} of {}",
                self.operation, rank.rank, rank.size
            );
        }
    }
}

/// A nonblocking call.
pub struct Started {
    case: Case,
    ticket: Ticket,
}

impl Started {
    /// Waits for it, and looks at what it gives.
    pub fn wait(self, rank: Rank) {
        let mut result = vec![-1.0; self.case.result.map_or(0, |result| result.0)];
        let mut results = Vec::new();
        if self.case.result.is_some() {
            results.push(&mut result[..]);
        }
        assert_eq!(
            rank.wait(&self.ticket, &mut results),
            Ok(()),
            "{}",
            self.case.operation
        );
        self.case.check(&result, rank);
    }
}

fn sum_of(ranks: impl Iterator<Item = usize>, count: usize) -> Vec<f32> {
    ranks.fold(vec![0.0; count], |sum, rank| {
        let own = values(rank, count);
        sum.iter().zip(own).map(|(sum, own)| sum + own).collect()
    })
}

/// The part of a list that a process has.
fn part(all: &[f32], first: usize, count: usize) -> Vec<f32> {
    all[first..first + count].to_vec()
}

/// A call of each operation, with `count` values in a block.
pub fn cases(rank: Rank, root: usize, count: usize) -> Vec<Case> {
    let Rank { rank, size, .. } = rank;
    let is_root = rank == root;
    let own = values(rank, count);
    let all = || {
        (0..size)
            .flat_map(|rank| values(rank, count))
            .collect::<Vec<_>>()
    };
    let own_of_all = values(rank, size * count);
    let roots = values(root, size * count);
    let sum = sum_of(0..size, count);
    let rows_of = |rank: usize| rank + 1;
    let rows_before = |rank: usize| rank * (rank + 1) / 2;
    let all_rows = rows_before(size);
    let counts = || (0..size).map(rows_of);
    let own_rows = values(rank, rows_of(rank) * count);
    let gathered: Vec<_> = (0..size)
        .flat_map(|rank| values(rank, rows_of(rank) * count))
        .collect();
    let sent_rows = |from: usize, to: usize| (from + 2 * to) % 3;
    let sent_before = |from: usize, to: usize| (0..to).map(|to| sent_rows(from, to)).sum::<usize>();
    let sent_of = |from: usize| values(from, sent_before(from, size) * count);
    let exchanged: Vec<_> = (0..size)
        .flat_map(|from| {
            part(
                &sent_of(from),
                sent_before(from, rank) * count,
                sent_rows(from, rank) * count,
            )
        })
        .collect();
    let received_rows = exchanged.len() / count;
    let mut exscan = Case::new("exscan")
        .with_op()
        .with("reverse", 0)
        .operand(own.clone(), 1);
    exscan = exscan.gives(sum_of(0..rank, count), 1);
    if rank == 0 {
        exscan.expected = None;
    }
    let left = (rank + size - 1) % size;
    let mut cases = vec![
        Case::new("allgather")
            .operand(own.clone(), 1)
            .gives(all(), size),
        Case::new("allgatherv")
            .with_list("counts", counts())
            .operand(own_rows.clone(), rows_of(rank))
            .gives(gathered.clone(), all_rows),
        Case::new("allreduce")
            .with_op()
            .operand(own.clone(), 1)
            .gives(sum.clone(), 1),
        Case::new("alltoall")
            .operand(own_of_all.clone(), size)
            .gives(
                (0..size)
                    .flat_map(|from| part(&values(from, size * count), rank * count, count))
                    .collect(),
                size,
            ),
        Case::new("barrier"),
        exscan,
        Case::new("gather")
            .with("root", root)
            .operand(own.clone(), 1)
            .gives_if(is_root, all(), size),
        Case::new("gatherv")
            .with("root", root)
            .with_list("counts", counts())
            .operand(own_rows, rows_of(rank))
            .gives_if(is_root, gathered, all_rows),
        Case::new("neighbor_allgather")
            .operand(own.clone(), 1)
            .gives(values(left, count), 1),
        Case::new("neighbor_alltoall")
            .with("backwards", 0)
            .operand(own.clone(), 1)
            .gives(values(left, count), 1),
        Case::new("neighbor_allgatherv")
            .with_list("counts", [rows_of(left)].into_iter())
            .operand(values(rank, rows_of(rank) * count), rows_of(rank))
            .gives(values(left, rows_of(left) * count), rows_of(left)),
        Case::new("neighbor_alltoallv")
            .with("backwards", 0)
            .with_list("sendcounts", [rows_of(rank)].into_iter())
            .with_list("recvcounts", [rows_of(left)].into_iter())
            .operand(values(rank, rows_of(rank) * count), rows_of(rank))
            .gives(values(left, rows_of(left) * count), rows_of(left)),
        Case::new("reduce")
            .with_op()
            .with("root", root)
            .operand(own.clone(), 1)
            .gives_if(is_root, sum, 1),
        Case::new("reduce_scatter")
            .with_op()
            .operand(own_of_all, size)
            .gives(part(&sum_of(0..size, size * count), rank * count, count), 1),
        Case::new("reduce_scatterv")
            .with_op()
            .with_list("counts", counts())
            .operand(values(rank, all_rows * count), all_rows)
            .gives(
                part(
                    &sum_of(0..size, all_rows * count),
                    rows_before(rank) * count,
                    rows_of(rank) * count,
                ),
                rows_of(rank),
            ),
        Case::new("scan")
            .with_op()
            .with("reverse", 0)
            .operand(own.clone(), 1)
            .gives(sum_of(0..rank + 1, count), 1),
        Case::new("scan")
            .with_op()
            .with("reverse", 1)
            .operand(own, 1)
            .gives(sum_of(rank..size, count), 1),
        Case::new("scatter")
            .with("root", root)
            .operand_if(is_root, roots.clone(), size)
            .gives(part(&roots, rank * count, count), 1),
        Case::new("scatterv")
            .with("root", root)
            .with_list("counts", counts())
            .operand_if(is_root, values(root, all_rows * count), all_rows)
            .gives(
                part(
                    &values(root, all_rows * count),
                    rows_before(rank) * count,
                    rows_of(rank) * count,
                ),
                rows_of(rank),
            ),
    ];
    cases.push(
        Case::new("alltoallv")
            .with_list("sendcounts", (0..size).map(|to| sent_rows(rank, to)))
            .with_list("recvcounts", (0..size).map(|from| sent_rows(from, rank)))
            .operand(sent_of(rank), sent_before(rank, size))
            .gives(exchanged, received_rows),
    );
    cases
}

/// `bcast`, which has no result on root unless it is nonblocking.
pub fn bcast(rank: Rank, root: usize, count: usize, has_result: bool) -> Case {
    Case::new("bcast")
        .with("root", root)
        .operand(values(rank.rank, count), 1)
        .gives_if(has_result || rank.rank != root, values(root, count), 1)
}
