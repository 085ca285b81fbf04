//! Sets of ranks, in words: `ranks 0-3, 7`.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::recorder::Group;

/// A set of ranks. It is shown as ranges, as there may be thousands.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Group", into = "Group")]
pub struct Ranks(BTreeSet<i32>);

impl From<Group> for Ranks {
    fn from(group: Group) -> Self {
        group.iter().collect()
    }
}

impl From<Ranks> for Group {
    fn from(ranks: Ranks) -> Self {
        ranks.iter().collect()
    }
}

impl FromIterator<i32> for Ranks {
    fn from_iter<I: IntoIterator<Item = i32>>(ranks: I) -> Self {
        Self(ranks.into_iter().collect())
    }
}

impl Ranks {
    /// Number of ranks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranks, in order.
    pub fn iter(&self) -> impl Iterator<Item = i32> {
        self.0.iter().copied()
    }

    /// The first one.
    pub fn first(&self) -> Option<i32> {
        self.0.first().copied()
    }

    /// Adds other ranks.
    pub fn extend(&mut self, ranks: impl IntoIterator<Item = i32>) {
        self.0.extend(ranks);
    }

    /// Whether this is one of them.
    pub fn contains(&self, rank: i32) -> bool {
        self.0.contains(&rank)
    }

    /// "rank 1 is" or "ranks 0, 2 are".
    pub fn with_verb(&self, singular: &str, plural: &str) -> String {
        format!("{self} {}", if self.len() == 1 { singular } else { plural })
    }
}

/// The first and the last of each run of ranks that follow one another.
fn runs(ranks: impl Iterator<Item = i32>) -> Vec<(i32, i32)> {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    runs
}

/// More runs than this are not listed.
const MAX_RUNS: usize = 8;

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let runs = runs(self.iter());
        let words: Vec<String> = runs
            .iter()
            .take(MAX_RUNS)
            .map(|(first, last)| match last - first {
                0 => first.to_string(),
                1 => format!("{first}, {last}"),
                _ => format!("{first}-{last}"),
            })
            .collect();
        let plural = if self.len() == 1 { "" } else { "s" };
        write!(f, "rank{plural} {}", words.join(", "))?;
        if runs.len() > MAX_RUNS {
            write!(f, ", ... ({} in all)", self.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_short() {
        let text = |ranks: &[i32]| ranks.iter().copied().collect::<Ranks>().to_string();
        assert_eq!(text(&[3]), "rank 3");
        assert_eq!(text(&[0, 2, 3]), "ranks 0, 2, 3");
        assert_eq!(text(&[5, 0, 1, 2, 3, 7]), "ranks 0-3, 5, 7");
        let odd: Vec<i32> = (0..100).map(|n| 2 * n + 1).collect();
        assert_eq!(
            text(&odd),
            "ranks 1, 3, 5, 7, 9, 11, 13, 15, ... (100 in all)"
        );
    }
}
