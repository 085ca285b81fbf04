//! Identification, after the fact, of communicators that are one in several processes.
//!
//! Each process numbers its communicators by itself. Copies are told apart by their lineage, others
//! by their names, if all processes gave the same ones, and else by the order of their first use.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::group::RankRun;
use crate::mpi::{CopyCounts, CopyPath, indices};

/// A communicator of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommunicatorEntry {
    /// Its number in the process. The first ones stand for the same in all processes.
    pub comm_number: i64,
    /// Its name.
    pub name: String,
    /// Its members.
    pub members: Vec<RankRun>,
    /// The copies that lead to it from `MPI_COMM_WORLD`, if it is one.
    pub copies: Option<CopyPath>,
}

/// The communicators with these numbers are the same in all processes: the default communicator,
/// `MPI_COMM_WORLD` and `MPI_COMM_SELF`.
const FIXED: i64 = 3;

#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Fixed(&'a [RankRun], i64),
    Copy(&'a [RankRun], Vec<u32>),
    Name(&'a [RankRun], &'a str),
    FirstUse(&'a [RankRun], usize),
}

/// Gives each communicator a number that is the same in all processes, in the order of the tables.
pub fn identify(tables: &[Vec<CommunicatorEntry>]) -> Vec<Vec<usize>> {
    let mut counts = CopyCounts::default();
    let mut paths = tables
        .iter()
        .flatten()
        .filter_map(|entry| entry.copies.as_ref());
    let by_lineage = paths.all(|path| counts.add(path));
    let is_copy = |entry: &CommunicatorEntry| by_lineage && entry.copies.is_some();
    let is_other = |entry: &&CommunicatorEntry| entry.comm_number >= FIXED && !is_copy(entry);
    // The names that each process has for other communicators of a group.
    let mut names: BTreeMap<&[RankRun], BTreeSet<Vec<&str>>> = BTreeMap::new();
    for table in tables {
        let mut names_here: BTreeMap<&[RankRun], Vec<&str>> = BTreeMap::new();
        for entry in table.iter().filter(is_other) {
            names_here
                .entry(&entry.members)
                .or_default()
                .push(&entry.name);
        }
        for (members, mut names_here) in names_here {
            names_here.sort_unstable();
            names.entry(members).or_default().insert(names_here);
        }
    }
    let have_names = |entry: &CommunicatorEntry| {
        let of_all = &names[&entry.members[..]];
        let is_unique = |names: &Vec<&str>| names.windows(2).all(|pair| pair[0] != pair[1]);
        of_all.len() == 1 && of_all.iter().all(is_unique)
    };
    let mut ids: HashMap<Key, usize> = HashMap::new();
    let mut id_of = |key| {
        let next = ids.len();
        *ids.entry(key).or_insert(next)
    };
    let mut identified = Vec::new();
    for table in tables {
        let mut used: HashMap<&[RankRun], usize> = HashMap::new();
        let mut table_ids = Vec::new();
        for entry in table {
            let members = &entry.members[..];
            table_ids.push(id_of(match &entry.copies {
                _ if entry.comm_number < FIXED => Key::Fixed(members, entry.comm_number),
                Some(path) if by_lineage => Key::Copy(members, indices(path)),
                _ if have_names(entry) => Key::Name(members, &entry.name),
                _ => {
                    let count = used.entry(members).or_default();
                    *count += 1;
                    Key::FirstUse(members, *count)
                }
            }));
        }
        identified.push(table_ids);
    }
    identified
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORLD: RankRun = RankRun {
        first: 0,
        stride: 1,
        count: 2,
    };

    fn entry(comm_number: i64, name: &str, copy: Option<(u32, u32)>) -> CommunicatorEntry {
        CommunicatorEntry {
            comm_number,
            name: name.into(),
            members: vec![WORLD],
            copies: copy.map(|copy| vec![copy]),
        }
    }

    /// For each communicator of rank 0, the index of the one of rank 1 that is the same.
    fn pairs(of_0: Vec<CommunicatorEntry>, of_1: Vec<CommunicatorEntry>) -> Vec<Option<usize>> {
        let ids = identify(&[of_0, of_1]);
        let index = |id| ids[1].iter().position(|other| other == id);
        ids[0].iter().map(index).collect()
    }

    #[test]
    fn fixed_numbers_stand_for_the_same() {
        let table = || vec![entry(0, "COMM_WORLD", Some((1, 2))), entry(1, "w", None)];
        assert_eq!(pairs(table(), table()), [Some(0), Some(1)]);
    }

    #[test]
    fn copies_are_told_apart_by_their_lineage() {
        let of_0 = vec![entry(3, "a", Some((2, 3))), entry(4, "b", Some((3, 3)))];
        let of_1 = vec![entry(3, "c", Some((3, 3))), entry(4, "d", Some((2, 3)))];
        assert_eq!(pairs(of_0.clone(), of_1), [Some(1), Some(0)]);
        // Unless they began to count at different times.
        let of_1 = vec![entry(3, "c", Some((1, 2))), entry(4, "d", Some((2, 2)))];
        assert_eq!(pairs(of_0, of_1), [Some(0), Some(1)]);
    }

    #[test]
    fn others_are_told_apart_by_names_that_all_use() {
        let named = |names: [&str; 2]| vec![entry(3, names[0], None), entry(4, names[1], None)];
        let pairs = |of_0, of_1| pairs(named(of_0), named(of_1));
        let (in_order, crossed) = ([Some(0), Some(1)], [Some(1), Some(0)]);
        assert_eq!(pairs(["rows", "columns"], ["columns", "rows"]), crossed);
        assert_eq!(pairs(["of rank 0", "b"], ["of rank 1", "b"]), in_order);
        assert_eq!(pairs(["same", "same"], ["same", "same"]), in_order);
    }
}
