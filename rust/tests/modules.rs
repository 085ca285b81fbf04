//! Modules import one way: what a file imports never leads back to it, and neither does what a
//! folder or a top-level module imports. The sources are read for this, as the compiler allows
//! cycles.

// Miri lends no files.
#![cfg(not(miri))]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;
use std::slice;

/// Sources by their path below `src`.
type Sources = BTreeMap<String, String>;
/// The files or modules from which each one imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn sources_of_the_core() -> Sources {
    fn read(folder: &Path, prefix: &str, sources: &mut Sources) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let name = format!("{prefix}{name}");
            if path.is_dir() {
                read(&path, &format!("{name}/"), sources);
            } else if name.ends_with(".rs") {
                sources.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut sources = Sources::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    read(&folder, "", &mut sources);
    sources
}

/// Words and signs, without comments and what is in quotes. `::` is one sign.
fn tokens(source: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let end_of_quotes = |quote: char| {
            let mut is_escaped = false;
            let end = rest[1..].find(|character| {
                let ends = character == quote && !is_escaped;
                is_escaped = character == '\\' && !is_escaped;
                ends
            });
            end.map_or(rest.len(), |end| end + 2)
        };
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            end_of_quotes('"')
        } else if first == '\'' {
            // A character, or the tick of a lifetime.
            let second = rest.chars().nth(1);
            match rest.chars().nth(2) {
                _ if second == Some('\\') => end_of_quotes('\''),
                Some('\'') => end_of_quotes('\''),
                _ => 1,
            }
        } else if is_word(first) {
            let length = rest.find(|character| !is_word(character));
            let length = length.unwrap_or(rest.len());
            tokens.push(&rest[..length]);
            length
        } else if rest.starts_with("::") {
            tokens.push("::");
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(&rest[..first.len_utf8()]);
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// The path of the module that a file is.
fn module_of(file: &str) -> Vec<&str> {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    match path {
        "lib" => vec![],
        path => path.split('/').collect(),
    }
}

/// The paths, from the crate's root on, that begin at the first of these tokens in this module.
fn paths<'a>(tokens: &[&'a str], module: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut path = module.to_vec();
    let mut rest = tokens;
    loop {
        match rest.first() {
            Some(&"crate") => path.clear(),
            Some(&"super") => drop(path.pop()),
            Some(&"self") => (),
            Some(&"{") => return members(&rest[1..], &path),
            Some(name) => path.push(name),
            None => return vec![path],
        }
        match rest.get(1) {
            Some(&"::") => rest = &rest[2..],
            _ => return vec![path],
        }
    }
}

/// The paths in a list in braces, which begins at the first of these tokens.
fn members<'a>(tokens: &[&'a str], module: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut members = Vec::new();
    let mut depth = 0;
    let mut begins = true;
    for (index, token) in tokens.iter().enumerate() {
        if begins && depth == 0 && !["}", ","].contains(token) {
            members.extend(paths(&tokens[index..], module));
        }
        begins = *token == ",";
        match *token {
            "{" => depth += 1,
            "}" if depth == 0 => break,
            "}" => depth -= 1,
            _ => (),
        }
    }
    members
}

/// The paths in a file that lead to modules of the crate's, from its root on.
fn paths_in<'a>(file: &'a str, source: &'a str) -> Vec<Vec<&'a str>> {
    let tokens = tokens(source);
    let is = |index: usize, token| tokens.get(index) == Some(&token);
    let mut module = module_of(file);
    let mut children = BTreeSet::new();
    // The depths at which modules within the file end.
    let mut ends = Vec::new();
    let mut depth = 0;
    let mut imported = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let begins = index == 0 || !is(index - 1, "::");
        match *token {
            "mod" if is(index + 2, ";") => drop(children.insert(tokens[index + 1])),
            "mod" if is(index + 2, "{") => {
                module.push(tokens[index + 1]);
                ends.push(depth);
            }
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if ends.last() == Some(&depth) {
                    ends.pop();
                    module.pop();
                }
            }
            "crate" | "super" | "self" if begins && is(index + 1, "::") => {
                imported.extend(paths(&tokens[index..], &module));
            }
            child if begins && is(index + 1, "::") && children.contains(child) => {
                imported.extend(paths(&tokens[index..], &module_of(file)));
            }
            _ => (),
        }
    }
    imported
}

/// The imports of each file from other files.
fn imports_of_files(sources: &Sources) -> Imports {
    let mut files: BTreeMap<_, _> = sources
        .keys()
        .map(|file| (module_of(file), file.clone()))
        .collect();
    for (file, source) in sources {
        // The crate's root has the macros of all files.
        for definition in tokens(source).windows(3) {
            if definition[..2] == ["macro_rules", "!"] {
                let path = vec![definition[2]];
                files.entry(path).or_insert_with(|| file.clone());
            }
        }
    }
    let file_of = |path: &[&str]| {
        let mut prefixes = (0..=path.len()).rev().map(|length| &path[..length]);
        prefixes.find_map(|prefix| files.get(prefix)).cloned()
    };
    sources
        .iter()
        .map(|(file, source)| {
            let mut imports: BTreeSet<_> = paths_in(file, source)
                .iter()
                .filter_map(|path| file_of(path))
                .collect();
            imports.remove(file);
            (file.clone(), imports)
        })
        .collect()
}

/// The imports of the members of a folder from each other: its files, `mod` among them, and the folders
/// in it. The members of the crate's root are the top-level modules, and `lib`.
fn imports_in_folder(files: &Imports, folder: &[&str]) -> Imports {
    let member = |file: &str| -> Option<String> {
        let path = module_of(file);
        let name = match path.strip_prefix(folder)? {
            [] if folder.is_empty() => "lib",
            [] => "mod",
            [name, ..] => name,
        };
        Some(name.to_owned())
    };
    let mut members = Imports::new();
    for (file, imports) in files {
        let Some(name) = member(file) else { continue };
        let others = imports.iter().filter_map(|other| member(other));
        let others: Vec<_> = others.filter(|other| *other != name).collect();
        members.entry(name).or_default().extend(others);
    }
    members
}

/// The imports of each top-level module from others.
fn imports_of_modules(files: &Imports) -> Imports {
    imports_in_folder(files, &[])
}

/// The path of each folder that has files, but for that of the root.
fn folders(sources: &Sources) -> BTreeSet<Vec<&str>> {
    let folder = |file: &'_ String| file.rsplit_once('/').map_or(0, |(folder, _)| folder.len());
    let mut folders = BTreeSet::new();
    for file in sources.keys() {
        let path: Vec<_> = file[..folder(file)].split('/').collect();
        folders.extend((1..=path.len()).map(|length| path[..length].to_vec()));
    }
    folders.remove(&vec![""]);
    folders
}

/// The shortest way from one to another.
fn way(imports: &Imports, from: &str, to: &str) -> Option<Vec<String>> {
    let mut ways = VecDeque::from([vec![from.to_owned()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        let last = way.last().unwrap();
        if last == to {
            return Some(way);
        }
        for next in &imports[last] {
            if seen.insert(next.clone()) {
                ways.push_back([&way[..], slice::from_ref(next)].concat());
            }
        }
    }
    None
}

/// Cycles among imports, as `a -> b -> a`: the shortest ones, until each member of any is in one.
fn cycles(imports: &Imports) -> Vec<String> {
    let mut cycles = Vec::new();
    for (from, others) in imports {
        for other in others {
            if let Some(back) = way(imports, other, from) {
                cycles.push([slice::from_ref(from), &back].concat());
            }
        }
    }
    cycles.sort_by_key(Vec::len);
    let mut members = BTreeSet::new();
    cycles.retain(|cycle: &Vec<String>| {
        let before = members.len();
        members.extend(cycle.clone());
        members.len() > before
    });
    cycles.into_iter().map(|cycle| cycle.join(" -> ")).collect()
}

#[test]
fn files_import_one_way() {
    let cycles = cycles(&imports_of_files(&sources_of_the_core()));
    assert!(cycles.is_empty(), "{cycles:#?}");
}

#[test]
fn top_level_modules_import_one_way() {
    let files = imports_of_files(&sources_of_the_core());
    let cycles = cycles(&imports_of_modules(&files));
    assert!(cycles.is_empty(), "{cycles:#?}");
}

/// Fails when two folders import from each other, or a file from one of the folders beside it and
/// that from the file, which is no cycle of files.
#[test]
fn folders_import_one_way() {
    let sources = sources_of_the_core();
    let files = imports_of_files(&sources);
    for folder in folders(&sources) {
        let cycles = cycles(&imports_in_folder(&files, &folder));
        assert!(cycles.is_empty(), "in {folder:?}: {cycles:#?}");
    }
}

/// Fails when operations get more `unsafe` blocks: MPI is called in `mpi/calls`.
#[test]
fn operations_have_few_unsafe_blocks() {
    const MOST: usize = 9;
    let sources = sources_of_the_core();
    let operations = sources.iter().filter(|(file, _)| file.starts_with("ops/"));
    let blocks = operations.map(|(_, source)| {
        let tokens = tokens(source);
        let blocks = tokens.windows(2).filter(|pair| *pair == ["unsafe", "{"]);
        blocks.count()
    });
    let count: usize = blocks.sum();
    assert!(count <= MOST, "{count} blocks");
}

/// Fails when a function of MPI's is called from its table, as `(functions.int.send)(...)`, by a file
/// outside `mpi/`.
#[test]
fn mpi_is_called_in_its_own_folder() {
    let sources = sources_of_the_core();
    let table = tokens(&sources["mpi/functions.rs"]);
    let functions: BTreeSet<_> = table
        .windows(3)
        .filter(|tokens| tokens[1] == "=" && tokens[2].starts_with("MPI_"))
        .map(|tokens| tokens[0])
        .collect();
    assert!(functions.contains("wait") && functions.contains("allreduce"));
    let callers = |within: bool| {
        let files = sources.iter().filter(move |(file, _)| {
            let is_in_folder = file.starts_with("mpi/");
            is_in_folder == within
        });
        let calls = files.filter(|(_, source)| {
            tokens(source).windows(4).any(|tokens| {
                let [".", function, ")", "("] = tokens else {
                    return false;
                };
                functions.contains(function)
            })
        });
        calls.map(|(file, _)| file.clone()).collect::<Vec<_>>()
    };
    assert!(callers(true).contains(&"mpi/calls/communicators.rs".to_owned()));
    assert_eq!(callers(false), [""; 0]);
}

/// Fails when a module imports from one that `lib.rs` lists behind it, or is not in the list.
#[test]
fn the_order_is_the_one_that_the_crate_states() {
    let sources = sources_of_the_core();
    let mut imports = imports_of_modules(&imports_of_files(&sources));
    imports.remove("lib");
    let mut before = BTreeSet::new();
    for line in sources["lib.rs"].lines() {
        let Some(item) = line.strip_prefix("//! - ") else {
            continue;
        };
        let name = item.split('`').nth(1).unwrap();
        let own = imports
            .remove(name)
            .unwrap_or_else(|| panic!("no module {name}"));
        let behind: Vec<_> = own.difference(&before).collect();
        assert!(behind.is_empty(), "{name} imports from {behind:?}");
        before.insert(name.to_owned());
    }
    assert!(imports.is_empty(), "not in the list: {:?}", imports.keys());
}

/// A crate of these files, by their path below `src`.
fn crate_of(files: &[(&str, &str)]) -> Sources {
    let owned = |(file, text): &(&str, &str)| (file.to_string(), text.to_string());
    files.iter().map(owned).collect()
}

#[test]
fn every_way_to_write_an_import_is_seen() {
    for text in [
        "use crate::a::one::Thing;",
        "use super::one::{self, Thing};",
        "use crate::{log, a::{two, one}};",
        "fn f() { super::one::f() }",
        "mod tests { use super::super::one::*; }",
        "macro_rules! m { () => { $crate::a::one::f() } }",
        "fn f() { crate::of_one!() }",
        "fn f<'a>(_: &'a str) -> char { crate::a::one::f(); '\"' }",
    ] {
        let sources = crate_of(&[
            ("lib.rs", ""),
            ("log.rs", ""),
            ("a/mod.rs", ""),
            (
                "a/one.rs",
                "use super::two; macro_rules! of_one { () => { () } }",
            ),
            ("a/two.rs", text),
        ]);
        assert_eq!(
            cycles(&imports_of_files(&sources)),
            ["a/one.rs -> a/two.rs -> a/one.rs"],
            "{text}"
        );
    }
}

#[test]
fn what_is_no_import_is_not_seen() {
    for text in [
        "// crate::a::one::f()",
        "/* crate::a::one::f() */",
        "const TEXT: &str = \"\\\" super::one::f()\";",
        "pub(crate) struct One; pub(super) struct Two;",
        "mod one { pub fn f() {} } fn f() { self::one::f() }",
        "use other::a::one::f;",
    ] {
        let sources = crate_of(&[
            ("lib.rs", ""),
            ("a/one.rs", "use super::two;"),
            ("a/two.rs", text),
        ]);
        assert_eq!(cycles(&imports_of_files(&sources)), [""; 0], "{text}");
    }
}

/// A parent that hands on its children's names imports from them.
#[test]
fn children_may_not_import_from_a_parent_that_hands_them_on() {
    let files = imports_of_files(&crate_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod one; pub use one::Thing; pub struct Other;"),
        ("a/one.rs", "use super::Other;"),
        ("b.rs", "use crate::a::Thing;"),
    ]));
    assert_eq!(cycles(&files), ["a/mod.rs -> a/one.rs -> a/mod.rs"]);
    assert_eq!(cycles(&imports_of_modules(&files)), [""; 0]);
}

/// No file of these is in a cycle.
#[test]
fn modules_may_not_import_from_each_other() {
    let files = imports_of_files(&crate_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod one; mod two;"),
        ("a/one.rs", "use crate::b::Thing;"),
        ("a/two.rs", "pub struct Other;"),
        ("b.rs", "use crate::a::two::Other;"),
    ]));
    assert_eq!(cycles(&files), [""; 0]);
    assert_eq!(cycles(&imports_of_modules(&files)), ["a -> b -> a"]);
}

#[test]
fn folders_in_a_folder_may_not_import_from_each_other() {
    let sources = crate_of(&[
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod b; mod c;"),
        ("a/b/mod.rs", "mod one; mod two;"),
        ("a/b/one.rs", "use crate::a::c::Thing;"),
        ("a/b/two.rs", "pub struct Other;"),
        ("a/c.rs", "use super::b::two::Other;"),
    ]);
    let files = imports_of_files(&sources);
    assert_eq!(cycles(&files), [""; 0]);
    assert_eq!(folders(&sources), [vec!["a"], vec!["a", "b"]].into());
    assert_eq!(cycles(&imports_in_folder(&files, &["a"])), ["b -> c -> b"]);
    assert_eq!(cycles(&imports_in_folder(&files, &["a", "b"])), [""; 0]);
}
