//! The processes of a communicator.

use serde::{Deserialize, Serialize};

use crate::xla::hash;

/// Ranks that follow each other at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RankRun {
    /// The first rank.
    pub first: i32,
    /// The distance from each to the next.
    pub stride: i32,
    /// Number of ranks.
    pub count: i32,
}

impl RankRun {
    fn get(&self, index: i32) -> i32 {
        self.first + index * self.stride
    }
}

/// Ranks in `MPI_COMM_WORLD`, in the order of their ranks in a communicator. There may be thousands,
/// so they are kept as runs. A process that does not belong to `MPI_COMM_WORLD` has a negative rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group(Vec<RankRun>);

impl FromIterator<i32> for Group {
    fn from_iter<I: IntoIterator<Item = i32>>(ranks: I) -> Self {
        let mut runs: Vec<RankRun> = Vec::new();
        for rank in ranks {
            match runs.last_mut() {
                Some(run) if run.count == 1 => {
                    run.stride = rank - run.first;
                    run.count = 2;
                }
                Some(run) if run.get(run.count) == rank => run.count += 1,
                _ => runs.push(RankRun {
                    first: rank,
                    stride: 0,
                    count: 1,
                }),
            }
        }
        Self(runs)
    }
}

impl From<Vec<RankRun>> for Group {
    fn from(runs: Vec<RankRun>) -> Self {
        Self(runs)
    }
}

impl Group {
    /// The ranks as runs.
    pub fn runs(&self) -> &[RankRun] {
        &self.0
    }

    /// Number of ranks.
    pub fn len(&self) -> usize {
        self.0.iter().map(|run| run.count as usize).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All ranks.
    pub fn iter(&self) -> impl Iterator<Item = i32> {
        let ranks = |run: &RankRun| {
            let run = *run;
            (0..run.count).map(move |index| run.get(index))
        };
        self.0.iter().flat_map(ranks)
    }

    /// The rank in `MPI_COMM_WORLD` of the process with a rank in the communicator.
    pub fn get(&self, rank: i64) -> Option<i32> {
        let mut index = i32::try_from(rank).ok().filter(|index| *index >= 0)?;
        for run in &self.0 {
            if index < run.count {
                return Some(run.get(index));
            }
            index -= run.count;
        }
        None
    }

    /// A hash, which all processes compute alike.
    pub fn hash(&self) -> u64 {
        hash(self.0.iter().flat_map(|run| {
            let RankRun {
                first,
                stride,
                count,
            } = *run;
            [first, stride, count].map(i64::from)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_back_in_their_order() {
        for (ranks, runs) in [
            (vec![], 0),
            (vec![7], 1),
            ((0..1000).collect(), 1),
            ((0..1000).rev().step_by(3).collect(), 1),
            (vec![0, 1, 5, 9, 13, 2], 3),
            (vec![3, 3, 3, 0], 2),
            (vec![0, -5, -5], 2),
        ] {
            let group: Group = ranks.iter().copied().collect();
            assert_eq!(group.iter().collect::<Vec<_>>(), ranks);
            assert_eq!((group.len(), group.runs().len()), (ranks.len(), runs));
            for (index, rank) in ranks.iter().enumerate() {
                assert_eq!(group.get(index as i64), Some(*rank));
            }
            assert_eq!(group.get(ranks.len() as i64), None);
            assert_eq!(group.get(-1), None);
        }
    }

    #[test]
    fn equal_groups_have_equal_hashes() {
        let hash = |ranks: &[i32]| ranks.iter().copied().collect::<Group>().hash();
        assert_eq!(hash(&[0, 2, 4]), hash(&[0, 2, 4]));
        assert_ne!(hash(&[0, 2, 4]), hash(&[4, 2, 0]));
        assert_ne!(hash(&[0, 1]), hash(&[0, 1, 2]));
    }
}
