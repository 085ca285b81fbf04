//! Reads the files that processes write beside their calls: the objects that numbers in a call stand
//! for, how long JAX compiled and Python dispatched, and how clocks compare.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::clocks::{ClockComparison, Clocks, MAX_NANOSECONDS};
use super::error::{Result, TimelineError};
use super::rules::Pattern;
use crate::diagnosis::Ranks;
use crate::recorder::{self, CommunicatorEntry, Group, Message, Messages, RankRun};
use crate::trace::{Entry, NONE};
use crate::xla::computed_position;

/// A line of a file.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Process(Beginning),
    Site {
        number: i64,
        line: String,
        sent: Option<Vec<Message>>,
        received: Option<Vec<Message>>,
    },
    Communicator {
        number: i32,
        name: String,
        members: Vec<(i32, i32, i32)>,
        copies: Option<Vec<(u32, u32)>>,
    },
    Clock(ClockComparison),
    Compile(Span),
    Eager(Span),
    End {
        lost: Option<u64>,
    },
}

#[derive(Debug, Clone, Deserialize)]
struct Beginning {
    rank: i32,
    size: i32,
    run: String,
    host: String,
    boot: Option<String>,
    started: u64,
    #[serde(flatten)]
    facts: RunFacts,
}

/// The facts that all processes of a run share.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(super) struct RunFacts {
    /// The names of the operations, by their numbers.
    pub(super) operations: Vec<String>,
    /// The names of the reduction operators, by their numbers.
    pub(super) operators: Vec<String>,
    /// The names of data types, and their bytes.
    pub(super) dtypes: BTreeMap<String, (String, i64)>,
    /// `MPI_PROC_NULL`.
    pub(super) proc_null: i64,
}

impl RunFacts {
    /// The name of the operation of a call.
    pub(super) fn operation(&self, entry: &Entry) -> &str {
        &self.operations[usize::from(entry.operation)]
    }

    /// The pattern of a collective call.
    pub(super) fn pattern(&self, entry: &Entry) -> Pattern {
        Pattern::of(self.operation(entry))
    }

    /// Whether a call may send or receive messages, rather than being a collective call of all processes.
    pub(super) fn has_messages(&self, entry: &Entry) -> bool {
        entry.sequence == 0 || self.pattern(entry) == Pattern::Neighborhood
    }

    /// The name of a data type, and the bytes of `count` elements.
    pub(super) fn array(&self, dtype: u8, count: i64) -> (&str, i64) {
        let known = self.dtypes.get(&dtype.to_string());
        known.map_or(("?", 0), |(name, size)| {
            (&name[..], count.saturating_mul(*size))
        })
    }
}

/// A call in a program.
#[derive(Debug)]
struct Site {
    line: Arc<str>,
    /// Its messages, if it may have several.
    messages: Option<Messages>,
}

/// A communicator.
#[derive(Debug)]
pub(super) struct IdentifiedCommunicator {
    pub(super) name: String,
    /// A number that is the same in all of its processes, and no other communicator's.
    pub(super) key: usize,
    pub(super) members: Group,
}

/// A time in which a process did something else than MPI.
#[derive(Debug, Deserialize)]
pub(super) struct Span {
    /// Whether Python dispatched a call, or else JAX compiled.
    #[serde(skip)]
    pub(super) is_eager: bool,
    pub(super) name: String,
    pub(super) begin: i64,
    pub(super) end: i64,
}

/// A process of the run.
#[derive(Debug)]
pub(super) struct Process {
    /// The file.
    pub(super) path: PathBuf,
    pub(super) rank: i32,
    pub(super) host: String,
    pub(super) clocks: Clocks,
    started: u64,
    has_spans: bool,
    sites: HashMap<i64, Site>,
    communicators: HashMap<i32, IdentifiedCommunicator>,
    /// Number of calls that are not in the file, or None if the process did not get to its end.
    lost: Option<u64>,
}

/// All processes of a run, by rank, and what they share.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) facts: RunFacts,
    pub(super) processes: Vec<Process>,
}

/// Shows the lines of a file, each with the offset at which it begins.
fn for_each_line(path: &Path, mut see: impl FnMut(u64, Line) -> Result<()>) -> Result<()> {
    let failed = |error| TimelineError::of(path, error);
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let mut text = Vec::new();
    let mut offset = 0;
    loop {
        text.clear();
        let length = file.read_until(b'\n', &mut text).map_err(failed)?;
        // A process that was killed has not finished its last one.
        if text.pop() != Some(b'\n') {
            return Ok(());
        }
        let line = serde_json::from_slice(&text)
            .map_err(|error| TimelineError::at(path, offset, reason(&error)))?;
        see(offset, line)?;
        offset += length as u64;
    }
}

/// Error text for a line that is not part of a trace, without the position within the line.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    format!("not a line of a trace: {text}")
}

/// The file of a process, as it was read.
struct Reading {
    process: Process,
    beginning: Beginning,
    comparisons: Vec<ClockComparison>,
    communicators: Vec<CommunicatorEntry>,
}

impl Reading {
    fn new(path: &Path, texts: &mut HashMap<String, Arc<str>>) -> Result<Self> {
        let mut beginning = None;
        let mut comparisons = Vec::new();
        let mut communicators = Vec::new();
        let mut sites = HashMap::new();
        let mut has_spans = false;
        let mut lost = None;
        for_each_line(path, |offset, line| {
            match line {
                Line::Process(facts) => beginning = Some(facts),
                Line::Site {
                    number,
                    line,
                    sent,
                    received,
                } => {
                    let text = texts.entry(line).or_insert_with_key(|line| line[..].into());
                    let messages = sent.zip(received);
                    let site = Site {
                        line: text.clone(),
                        messages: messages.map(|(sent, received)| Messages { sent, received }),
                    };
                    sites.insert(number, site);
                }
                Line::Communicator {
                    number,
                    name,
                    members,
                    copies,
                } => {
                    let members = runs(&members)
                        .ok_or_else(|| TimelineError::at(path, offset, "ranks that can't be"))?;
                    communicators.push(CommunicatorEntry {
                        comm_number: number.into(),
                        name,
                        members,
                        copies,
                    });
                }
                Line::Clock(comparison) if comparison.is_plausible() => {
                    comparisons.push(comparison);
                }
                Line::Clock(_) => {
                    return Err(TimelineError::at(path, offset, "a time that can't be"));
                }
                Line::Compile(_) | Line::Eager(_) => has_spans = true,
                Line::End { lost: count } => lost = count,
            }
            Ok(())
        })?;
        let beginning: Beginning =
            beginning.ok_or_else(|| TimelineError::of(path, "the file has no beginning"))?;
        if beginning.started >= MAX_NANOSECONDS {
            return Err(TimelineError::of(
                path,
                format!("it started at {} ns", beginning.started),
            ));
        }
        Ok(Self {
            process: Process {
                path: path.into(),
                rank: beginning.rank,
                host: beginning.host.clone(),
                clocks: Clocks::default(),
                started: beginning.started,
                has_spans,
                sites,
                communicators: HashMap::new(),
                lost,
            },
            beginning,
            comparisons,
            communicators,
        })
    }

    /// Checks that the process is of the same run as rank 0.
    fn check_run(&self, root: &Self) -> Result<()> {
        let path = &self.process.path;
        let Beginning {
            rank, size, run, ..
        } = &self.beginning;
        let root_beginning = &root.beginning;
        let expected_name = format!("rank-{rank}.json");
        if path
            .file_name()
            .is_none_or(|name| name != &expected_name[..])
        {
            return Err(TimelineError::of(path, format!("is of rank {rank}")));
        }
        if (run, size) != (&root_beginning.run, &root_beginning.size) || rank >= size {
            return Err(TimelineError::of(
                path,
                format!(
                    "is of another run ({} processes) than {} ({} processes)",
                    size,
                    root.process.path.display(),
                    root_beginning.size
                ),
            ));
        }
        if self.beginning.facts != root_beginning.facts {
            return Err(TimelineError::of(
                path,
                "is of another version of mpi4jax than that of rank 0",
            ));
        }
        Ok(())
    }
}

/// The members of a communicator, if these can be.
fn runs(members: &[(i32, i32, i32)]) -> Option<Vec<RankRun>> {
    members
        .iter()
        .map(|&(first, stride, count)| {
            let last = stride
                .checked_mul(count.checked_sub(1)?)?
                .checked_add(first)?;
            let is_real = count > 0 && last < i32::MAX;
            is_real.then_some(RankRun {
                first,
                stride,
                count,
            })
        })
        .collect()
}

impl Run {
    /// Reads what all processes wrote besides their calls.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let paths = paths(folder)?;
        let mut texts = HashMap::new();
        let mut readings: Vec<Reading> = Vec::new();
        for path in paths.values() {
            let reading = Reading::new(path, &mut texts)?;
            reading.check_run(readings.first().unwrap_or(&reading))?;
            readings.push(reading);
        }
        let tables: Vec<_> = readings
            .iter_mut()
            .map(|reading| std::mem::take(&mut reading.communicators))
            .collect();
        let keys = recorder::identify(&tables);
        let root = readings[0].beginning.clone();
        let identified = tables.into_iter().zip(keys);
        let processes = readings
            .into_iter()
            .zip(identified)
            .map(|(reading, (table, keys))| {
                let boot = reading.beginning.boot;
                let have_same_boot = boot.is_some() && boot == root.boot;
                Process {
                    clocks: Clocks::new(reading.comparisons, have_same_boot),
                    communicators: communicators(table, keys),
                    ..reading.process
                }
            })
            .collect();
        Ok(Self {
            facts: root.facts,
            processes,
        })
    }

    /// All files of the run.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.processes
            .iter()
            .flat_map(|process| [process.path.clone(), process.path.with_extension("calls")])
    }

    /// When the first process started.
    pub(super) fn started(&self) -> i64 {
        let started = |process: &Process| process.clocks.shifted(process.started);
        self.processes.iter().map(started).min().unwrap_or(0)
    }

    /// How exact the times are, line by line.
    pub(super) fn about(&self) -> Vec<String> {
        let of_each: Vec<_> = self.processes.iter().map(Process::about).collect();
        if of_each.len() <= MAX_LINES {
            return self
                .processes
                .iter()
                .zip(of_each)
                .map(|(process, about)| {
                    format!("rank {} on {}: {about}", process.rank, process.host)
                })
                .collect();
        }
        // By the text about the ranks, those with incomplete files first.
        let mut ranks: BTreeMap<(bool, String), Ranks> = BTreeMap::new();
        for (process, about) in self.processes.iter().zip(of_each) {
            let with_text = ranks.entry((process.lost != Some(0), about)).or_default();
            with_text.extend([process.rank]);
        }
        let mut kinds: Vec<_> = ranks.into_iter().collect();
        kinds.sort_by_key(|((is_incomplete, _), ranks)| (!is_incomplete, ranks.first()));
        let mut lines: Vec<_> = kinds
            .iter()
            .take(MAX_LINES)
            .map(|((_, about), ranks)| format!("{ranks}: {about}"))
            .collect();
        let untold = kinds.iter().skip(MAX_LINES);
        let untold: usize = untold.map(|(_, ranks)| ranks.len()).sum();
        if untold != 0 {
            let errors = self.processes.iter().filter_map(|each| each.clocks.error());
            let worst = errors.max().unwrap_or(0) as f64 / 1e3;
            lines.push(format!(
                "and {untold} more; the worst times are right to {worst:.1} µs"
            ));
        }
        lines
    }
}

/// Largest number of lines about the processes.
const MAX_LINES: usize = 16;

/// The files of a run, by rank.
fn paths(folder: &Path) -> Result<BTreeMap<u32, PathBuf>> {
    let failed = |error| TimelineError::of(folder, error);
    let mut paths = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let rank = name
            .and_then(|name| name.strip_prefix("rank-")?.strip_suffix(".json"))
            .and_then(|rank| rank.parse().ok());
        if let Some(rank) = rank {
            paths.insert(rank, path);
        }
    }
    match paths.first_key_value() {
        Some((0, _)) => Ok(paths),
        Some(_) => Err(TimelineError::of(
            folder,
            "lacks rank-0.json, whose clock is that of the others",
        )),
        None => Err(TimelineError::of(
            folder,
            "has no trace: no file is called rank-0.json",
        )),
    }
}

fn communicators(
    table: Vec<CommunicatorEntry>,
    keys: Vec<usize>,
) -> HashMap<i32, IdentifiedCommunicator> {
    table
        .into_iter()
        .zip(keys)
        .map(|(entry, key)| {
            let communicator = IdentifiedCommunicator {
                name: entry.name,
                key,
                members: entry.members.into(),
            };
            (entry.comm_number as i32, communicator)
        })
        .collect()
}

impl Process {
    /// The Python line of a call, or nothing.
    pub(super) fn line(&self, entry: &Entry) -> &str {
        let site = self.sites.get(&entry.call_site);
        site.map_or("", |site| &site.line)
    }

    /// The messages of a call that may have several.
    pub(super) fn several_messages(&self, entry: &Entry) -> Option<&Messages> {
        self.sites.get(&entry.call_site)?.messages.as_ref()
    }

    /// The messages of a call, but for those with `MPI_PROC_NULL`, and with ranks that the program has
    /// computed, which are not known.
    pub(super) fn messages(&self, entry: &Entry, facts: &RunFacts) -> Messages {
        let is_real = |message: &Message| {
            ![NONE.into(), facts.proc_null].contains(&message.rank)
                && computed_position(message.rank).is_none()
        };
        let real = |messages: &[Message]| messages.iter().copied().filter(is_real).collect();
        if let Some(Messages { sent, received }) = self.several_messages(entry) {
            return Messages {
                sent: real(sent),
                received: real(received),
            };
        }
        let message = |rank: i32, tag: i32| Message {
            rank: rank.into(),
            tag: tag.into(),
            bytes: 0,
        };
        Messages {
            sent: real(&[message(entry.dest, entry.send_tag)]),
            received: real(&[message(entry.source, entry.recv_tag)]),
        }
    }

    /// The communicator of a call.
    pub(super) fn communicator(&self, entry: &Entry) -> Option<&IdentifiedCommunicator> {
        self.communicators.get(&entry.communicator)
    }

    /// Shows the spans in which the process did something else than MPI, with the times of rank 0's
    /// clock.
    pub(super) fn for_each_span(&self, mut see: impl FnMut(Span) -> Result<()>) -> Result<()> {
        if !self.has_spans {
            return Ok(());
        }
        for_each_line(&self.path, |offset, line| {
            let (is_eager, span) = match line {
                Line::Compile(span) => (false, span),
                Line::Eager(span) => (true, span),
                _ => return Ok(()),
            };
            let largest = MAX_NANOSECONDS as i64;
            if !(0 <= span.begin && span.begin <= span.end && span.end < largest) {
                let reason = format!("from {} ns to {} ns", span.begin, span.end);
                return Err(TimelineError::at(&self.path, offset, reason));
            }
            see(Span {
                is_eager,
                begin: self.clocks.shifted(span.begin as u64),
                end: self.clocks.shifted(span.end as u64),
                ..span
            })
        })
    }

    /// How exact its times are.
    fn about(&self) -> String {
        let mut text = match self.clocks.error() {
            _ if self.rank == 0 => "its clock is that of the timeline".into(),
            _ if self.clocks.is_shared() => "the clock of rank 0".into(),
            None => "its clock was not compared with rank 0's".into(),
            Some(error) => format!("times are right to {:.1} µs", error as f64 / 1e3),
        };
        if self.rank != 0 && !self.clocks.is_shared() && self.clocks.error().is_some() {
            text += &match self.clocks.drift() {
                Some(drift) => {
                    format!(
                        ", after correcting a drift of {:+.2} µs per second",
                        drift * 1e6
                    )
                }
                None => {
                    ", and worse with every second, as there was no comparison at the end".into()
                }
            };
        }
        match self.lost {
            None => text + "; it has not got to its end",
            Some(0) => text,
            Some(lost) => text + &format!("; {lost} calls are missing"),
        }
    }
}
