//! Which communicators of several processes are one, after the fact.
//!
//! Each process numbers its communicators by itself. Copies are told apart by their lineage, others
//! by their names, if all processes gave the same ones, and else by the order of their first use.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::group::Run;

/// A communicator of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the process. The first ones stand for the same in all processes.
    pub number: i64,
    /// Its name.
    pub name: String,
    /// Its members.
    pub members: Vec<Run>,
    /// The copies that lead to it from `MPI_COMM_WORLD`, if it is one: the place, and how many there
    /// are.
    pub copies: Option<Vec<(u32, u32)>>,
}

/// The communicators with these numbers are the same in all processes: the default communicator,
/// `MPI_COMM_WORLD` and `MPI_COMM_SELF`.
const FIXED: i64 = 3;

#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Fixed(&'a [Run], i64),
    Copy(&'a [Run], Vec<u32>),
    Name(&'a [Run], &'a str),
    Place(&'a [Run], usize),
}

fn places(path: &[(u32, u32)]) -> Vec<u32> {
    path.iter().map(|(place, _)| *place).collect()
}

/// Whether processes know the same copies of each communicator.
fn copies_agree(tables: &[Vec<Entry>]) -> bool {
    let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
    let paths = tables
        .iter()
        .flatten()
        .filter_map(|entry| entry.copies.as_ref());
    for path in paths {
        for (length, (_, of)) in path.iter().enumerate() {
            if known.entry(places(&path[..length])).or_insert(*of) != of {
                return false;
            }
        }
    }
    true
}

/// Gives each communicator a number that is the same in all processes, in the order of the tables.
pub fn identify(tables: &[Vec<Entry>]) -> Vec<Vec<usize>> {
    let by_lineage = copies_agree(tables);
    let is_copy = |entry: &Entry| by_lineage && entry.copies.is_some();
    let is_other = |entry: &&Entry| entry.number >= FIXED && !is_copy(entry);
    // The names that each process has for other communicators of a group.
    let mut names: BTreeMap<&[Run], BTreeSet<Vec<&str>>> = BTreeMap::new();
    for table in tables {
        let mut own: BTreeMap<&[Run], Vec<&str>> = BTreeMap::new();
        for entry in table.iter().filter(is_other) {
            own.entry(&entry.members).or_default().push(&entry.name);
        }
        for (members, mut own) in own {
            own.sort_unstable();
            names.entry(members).or_default().insert(own);
        }
    }
    let have_names = |entry: &Entry| {
        let of_all = &names[&entry.members[..]];
        let is_unique = |names: &Vec<&str>| names.windows(2).all(|pair| pair[0] != pair[1]);
        of_all.len() == 1 && of_all.iter().all(is_unique)
    };
    let mut numbers: HashMap<Key, usize> = HashMap::new();
    let mut number = |key| {
        let next = numbers.len();
        *numbers.entry(key).or_insert(next)
    };
    let mut identified = Vec::new();
    for table in tables {
        let mut used: HashMap<&[Run], usize> = HashMap::new();
        let mut own = Vec::new();
        for entry in table {
            let members = &entry.members[..];
            own.push(match &entry.copies {
                _ if entry.number < FIXED => number(Key::Fixed(members, entry.number)),
                Some(path) if by_lineage => number(Key::Copy(members, places(path))),
                _ if have_names(entry) => number(Key::Name(members, &entry.name)),
                _ => {
                    let place = used.entry(members).or_default();
                    *place += 1;
                    number(Key::Place(members, *place))
                }
            });
        }
        identified.push(own);
    }
    identified
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORLD: Run = Run {
        first: 0,
        stride: 1,
        count: 2,
    };

    fn entry(number: i64, name: &str, copy: Option<(u32, u32)>) -> Entry {
        Entry {
            number,
            name: name.into(),
            members: vec![WORLD],
            copies: copy.map(|copy| vec![copy]),
        }
    }

    /// The communicators of rank 0, by the places of those of rank 1.
    fn pairs(one: Vec<Entry>, other: Vec<Entry>) -> Vec<Option<usize>> {
        let found = identify(&[one, other]);
        let place = |number| found[1].iter().position(|other| other == number);
        found[0].iter().map(place).collect()
    }

    #[test]
    fn fixed_numbers_stand_for_the_same() {
        let table = || vec![entry(0, "COMM_WORLD", Some((1, 2))), entry(1, "w", None)];
        assert_eq!(pairs(table(), table()), [Some(0), Some(1)]);
    }

    #[test]
    fn copies_are_told_apart_by_their_lineage() {
        let one = vec![entry(3, "a", Some((2, 3))), entry(4, "b", Some((3, 3)))];
        let other = vec![entry(3, "c", Some((3, 3))), entry(4, "d", Some((2, 3)))];
        assert_eq!(pairs(one.clone(), other), [Some(1), Some(0)]);
        // Unless they began to count at different times.
        let other = vec![entry(3, "c", Some((1, 2))), entry(4, "d", Some((2, 2)))];
        assert_eq!(pairs(one, other), [Some(0), Some(1)]);
    }

    #[test]
    fn others_are_told_apart_by_names_that_all_use() {
        let named = |names: [&str; 2]| vec![entry(3, names[0], None), entry(4, names[1], None)];
        let pairs = |one, other| pairs(named(one), named(other));
        let (in_order, crossed) = ([Some(0), Some(1)], [Some(1), Some(0)]);
        assert_eq!(pairs(["rows", "columns"], ["columns", "rows"]), crossed);
        assert_eq!(pairs(["of rank 0", "b"], ["of rank 1", "b"]), in_order);
        assert_eq!(pairs(["same", "same"], ["same", "same"]), in_order);
    }
}
