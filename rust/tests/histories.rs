//! Random programs on a few ranks, with threads and several communicators, run on a made-up MPI. In
//! the middle of them, ranks say what they do. Of a correct program, no rank is ever found to be
//! stuck; of one in a deadlock, some are.

use std::collections::{BTreeMap, HashMap};

use _core::diagnosis::{
    Attendance, CallNote, Collective, CommunicatorId, CommunicatorKind, Diagnosis, Endpoint, Note,
    Notes, Posted, Running, Snapshot, State, report,
};
use _core::recorder::Group;

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "common/notes.rs"]
mod notes;
use notes::{diagnosis_of, ended, group, message};
#[path = "common/random.rs"]
mod random;
use random::Random;

/// A communicator, as each of its ranks knows it.
struct Communicator {
    members: Vec<i32>,
    kind: CommunicatorKind,
    name: fn(i32) -> String,
}

fn communicators(size: i32, random: &mut Random) -> Vec<Communicator> {
    let all: Vec<i32> = (0..size).collect();
    let some: Vec<i32> = all.iter().copied().filter(|_| random.chance(60)).collect();
    let plain = |members: &Vec<i32>, kind, name| Communicator {
        members: members.clone(),
        kind,
        name,
    };
    let mut made = vec![
        plain(&all, CommunicatorKind::Default, |_| "COMM_WORLD".into()),
        plain(&all, CommunicatorKind::World, |_| "MPI.COMM_WORLD".into()),
        plain(&all, CommunicatorKind::Copy(vec![(1, 2)]), |_| {
            "rows".into()
        }),
        plain(&all, CommunicatorKind::Copy(vec![(2, 2)]), |_| {
            "columns".into()
        }),
        plain(&all, CommunicatorKind::Unknown, |rank| {
            format!("solver of rank {rank}")
        }),
        plain(&all, CommunicatorKind::Unknown, |_| "communicator 7".into()),
    ];
    if some.len() > 1 {
        made.push(plain(&some, CommunicatorKind::Unknown, |_| "some".into()));
        made.push(plain(&some, CommunicatorKind::Unknown, |_| "some".into()));
    }
    made
}

/// A step of a thread.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// It is busy for some seconds: it computes, compiles, reads a file.
    Compute(u32),
    /// It takes part in an operation.
    Operate(Operation),
    /// It has the thread of XLA's run one operation more, and goes on.
    Dispatch,
    /// It waits until that is through with all of them.
    Synchronise,
}

#[derive(Debug, Clone, PartialEq)]
struct Operation {
    /// An id of the operation, the same for all of its parts in the program.
    event: usize,
    name: &'static str,
    communicator: usize,
    messages: Vec<Endpoint>,
    bytes: u64,
    root: Option<i32>,
    /// Whether mpi4jax is called, which the recorder sees.
    is_ours: bool,
    /// Whether the sender need not wait for the receiver.
    is_eager: bool,
    /// Whether the call begins it only. It is waited for by the next operation of the thread.
    starts: bool,
}

impl Operation {
    fn is_collective(&self) -> bool {
        self.messages.is_empty()
    }
}

/// A thread of a rank. The last one of each rank is XLA's, which runs what was dispatched.
#[derive(Default)]
struct Thread {
    steps: Vec<Step>,
    next: usize,
    /// When the step began.
    begin: u32,
    has_begun: bool,
    /// For a collective operation: its position among those of the rank on the communicator.
    position: usize,
    /// The operations that it has started and not waited for, with that position.
    started: Vec<(Operation, usize)>,
}

/// A place where ranks meet: a position among the collective operations on a communicator, or a message
/// on a communicator with a tag.
type Meeting = (usize, bool, usize);

struct World<'r> {
    random: &'r mut Random,
    size: i32,
    communicators: Vec<Communicator>,
    groups: Vec<Group>,
    ranks: Vec<Vec<Thread>>,
    now: u32,
    /// Since when each rank has done just what it does.
    since: Vec<u32>,
    /// The ranks that have come to something: when, and the operation.
    arrived: HashMap<Meeting, BTreeMap<i32, (u32, &'static str)>>,
    /// How many collective operations each rank has begun, by communicator.
    positions: Vec<Vec<usize>>,
    /// How many operations were dispatched, and are done.
    dispatched: Vec<usize>,
    /// The collective calls that each rank has made by mpi4jax, by communicator.
    made: Vec<Vec<Vec<Operation>>>,
    /// The ranks that have come to their end.
    has_ended: Vec<bool>,
    /// The ranks that were not looking yet when the first copy of MPI_COMM_WORLD was made.
    late: Vec<bool>,
}

const SLOWEST_TRANSFER: u64 = 2_000_000;

impl<'r> World<'r> {
    /// A correct program: operations one after another, each by threads that take part in it.
    fn new(random: &'r mut Random, is_plain: bool) -> Self {
        let size = 2 + random.below(5) as i32;
        let communicators = communicators(size, random);
        let threads: Vec<usize> = (0..size).map(|_| 1 + random.below(3)).collect();
        let mut world = Self {
            size,
            groups: communicators
                .iter()
                .map(|communicator| group(communicator.members.iter().copied()))
                .collect(),
            communicators,
            ranks: threads
                .iter()
                .map(|count| (0..=*count).map(|_| Thread::default()).collect())
                .collect(),
            now: 0,
            since: vec![0; size as usize],
            arrived: HashMap::new(),
            positions: vec![vec![0; 8]; size as usize],
            dispatched: vec![0; size as usize],
            made: vec![vec![Vec::new(); 8]; size as usize],
            has_ended: vec![false; size as usize],
            late: (0..size).map(|_| random.chance(10)).collect(),
            random,
        };
        for event in 0..30 {
            world.add_event(event, is_plain);
        }
        for rank in 0..size as usize {
            world.ranks[rank][0].steps.push(Step::Synchronise);
        }
        world
    }

    fn add_event(&mut self, event: usize, is_plain: bool) {
        let count = if is_plain {
            1
        } else {
            self.communicators.len()
        };
        let communicator = self.random.below(count);
        let members = self.communicators[communicator].members.clone();
        let is_default = communicator == 0;
        let is_eager = self.random.chance(50);
        let bytes = *self.random.pick(&[8, 8, 1_000_000, 40_000_000]);
        let kinds = if is_plain { 6 } else { 8 };
        let operation = |name, messages, root| Operation {
            event,
            name,
            communicator,
            messages,
            bytes,
            root,
            is_ours: true,
            is_eager,
            starts: false,
        };
        let tag = Some(event as i64);
        let mut parts: Vec<(i32, Operation)> = Vec::new();
        match self.random.below(kinds) {
            kind @ 0..3 => {
                let name = ["allreduce", "barrier", "allgather"][kind];
                parts.extend(
                    members
                        .iter()
                        .map(|rank| (*rank, operation(name, vec![], None))),
                );
            }
            kind @ 3..5 => {
                let name = ["bcast", "reduce"][kind - 3];
                let root = *self.random.pick(&members);
                let part = |rank: &i32| (*rank, operation(name, vec![], Some(root)));
                parts.extend(members.iter().map(part));
            }
            5 => {
                let (from, to) = self.pair(&members);
                let send = message(_core::diagnosis::Peer::Rank(to), tag, false);
                let receive = message(_core::diagnosis::Peer::Rank(from), tag, true);
                parts.push((from, operation("send", vec![send], None)));
                parts.push((to, operation("recv", vec![receive], None)));
            }
            6 => {
                // Each sends to the next one of a ring.
                for (index, rank) in members.iter().enumerate() {
                    let next = members[(index + 1) % members.len()];
                    let last = members[(index + members.len() - 1) % members.len()];
                    let receive = message(_core::diagnosis::Peer::Rank(last), tag, true);
                    let send = message(_core::diagnosis::Peer::Rank(next), tag, false);
                    parts.push((*rank, operation("sendrecv", vec![receive, send], None)));
                }
            }
            _ => {
                let part = |rank: &i32| {
                    let operation = operation("iallreduce", vec![], None);
                    (
                        *rank,
                        Operation {
                            starts: true,
                            ..operation
                        },
                    )
                };
                parts.extend(members.iter().map(part));
            }
        }
        let may_be_mpi4py = !is_default && !parts[0].1.starts;
        for (rank, mut operation) in parts {
            operation.is_ours = !(may_be_mpi4py && self.random.chance(30));
            // What is on one communicator keeps its order if one thread does it.
            let threads = self.ranks[rank as usize].len();
            let thread = (communicator + rank as usize) % threads;
            self.add_step(rank, thread, operation);
        }
        for rank in 0..self.size {
            if self.random.chance(20) {
                let threads = self.ranks[rank as usize].len() - 1;
                let thread = self.random.below(threads);
                let seconds = *self.random.pick(&[1, 5, 100]);
                let step = Step::Compute(seconds);
                self.ranks[rank as usize][thread].steps.push(step);
            }
            if self.random.chance(10) {
                self.ranks[rank as usize][0].steps.push(Step::Synchronise);
            }
        }
    }

    fn add_step(&mut self, rank: i32, thread: usize, operation: Operation) {
        let threads = &mut self.ranks[rank as usize];
        let is_xla = thread == threads.len() - 1;
        let starts = operation.starts;
        if is_xla {
            threads[0].steps.push(Step::Dispatch);
            // XLA runs no calls of mpi4py.
            let operation = Operation {
                is_ours: true,
                ..operation
            };
            threads[thread].steps.push(Step::Operate(operation));
        } else {
            let event = operation.event;
            threads[thread].steps.push(Step::Operate(operation.clone()));
            if starts {
                threads[thread].steps.push(Step::Compute(1));
                threads[thread].steps.push(Step::Operate(Operation {
                    event,
                    name: "wait for iallreduce",
                    starts: false,
                    ..operation
                }));
            }
        }
    }

    fn pair(&mut self, members: &[i32]) -> (i32, i32) {
        let from = self.random.below(members.len());
        let other = 1 + self.random.below(members.len() - 1);
        (members[from], members[(from + other) % members.len()])
    }

    /// Breaks the program at a random place.
    fn spoil(&mut self) {
        let rank = self.random.below(self.size as usize);
        let thread = self.random.below(self.ranks[rank].len());
        let steps = &mut self.ranks[rank][thread].steps;
        if steps.is_empty() {
            return;
        }
        let index = self.random.below(steps.len());
        let way = self.random.below(3);
        if let Step::Operate(operation) = &mut steps[index]
            && way == 0
        {
            operation.event += 1000;
            match operation.messages.first_mut() {
                Some(message) => message.tag = Some(operation.event as i64),
                None => operation.name = "scan",
            }
        } else if way == 1 && index + 1 < steps.len() {
            steps.swap(index, index + 1);
        } else {
            steps.truncate(index);
        }
    }

    fn step_of(&self, rank: usize, thread: usize) -> Option<&Step> {
        let thread = &self.ranks[rank][thread];
        thread.steps.get(thread.next)
    }

    /// Whether a thread of XLA's has something to run.
    fn may_run(&self, rank: usize, thread: usize) -> bool {
        let is_xla = thread == self.ranks[rank].len() - 1;
        !is_xla || self.ranks[rank][thread].next < self.dispatched[rank]
    }

    fn meeting(&self, rank: i32, thread: usize, operation: &Operation) -> Meeting {
        let thread = &self.ranks[rank as usize][thread];
        if operation.is_collective() {
            (operation.communicator, true, thread.position)
        } else {
            (operation.communicator, false, operation.event)
        }
    }

    /// When an operation is over for a rank that has begun it, if that is known.
    fn end_of(&self, rank: i32, thread: usize, operation: &Operation) -> Option<u32> {
        let arrived = self.arrived.get(&self.meeting(rank, thread, operation))?;
        let (own, _) = *arrived.get(&rank)?;
        if operation.starts {
            return Some(own);
        }
        let members = &self.communicators[operation.communicator].members;
        let needed: Vec<i32> = match (operation.name, operation.root) {
            ("bcast", Some(root)) if operation.is_eager && root != rank => vec![root],
            ("bcast", Some(_)) if operation.is_eager => vec![],
            ("reduce", Some(root)) if operation.is_eager && root != rank => vec![],
            ("send", _) if operation.is_eager => vec![],
            _ if operation.is_collective() => members.clone(),
            _ => {
                let peer = |endpoint: &Endpoint| match endpoint.peer {
                    _core::diagnosis::Peer::Rank(peer) => peer,
                    _ => unreachable!(),
                };
                operation.messages.iter().map(peer).collect()
            }
        };
        let mut last = own;
        for other in needed {
            let (when, name) = *arrived.get(&other)?;
            let fits = !operation.is_collective()
                || name.ends_with(operation.name)
                || operation.name.ends_with(name);
            last = last.max(fits.then_some(when)?);
        }
        let moving = (operation.bytes / SLOWEST_TRANSFER) as u32;
        Some(last + moving)
    }

    /// Lets a second pass. Gives whether something has happened, or will by itself.
    fn tick(&mut self) -> bool {
        self.now += 1;
        let mut is_alive = false;
        for rank in 0..self.size as usize {
            for thread in 0..self.ranks[rank].len() {
                while self.advance(rank, thread) {
                    is_alive = true;
                    self.since[rank] = self.now;
                }
                is_alive |= matches!(self.step_of(rank, thread), Some(Step::Compute(_)));
            }
            let is_over = |thread: &Thread| thread.next == thread.steps.len();
            let threads = &self.ranks[rank];
            if threads.iter().take(threads.len() - 1).all(is_over) {
                self.has_ended[rank] = true;
            }
        }
        let moving = self.arrived.values().flat_map(BTreeMap::values);
        is_alive || moving.into_iter().any(|(when, _)| self.now - when < 25)
    }

    /// Moves a thread to its next step if it is through with this one.
    fn advance(&mut self, rank: usize, thread: usize) -> bool {
        let Some(step) = self.step_of(rank, thread).cloned() else {
            return false;
        };
        if !self.may_run(rank, thread) {
            return false;
        }
        if !self.ranks[rank][thread].has_begun {
            self.begin(rank, thread, &step);
        }
        let begin = self.ranks[rank][thread].begin;
        let is_over = match &step {
            Step::Compute(seconds) => self.now >= begin + seconds,
            Step::Operate(operation) => self
                .end_of(rank as i32, thread, operation)
                .is_some_and(|end| self.now >= end),
            Step::Dispatch => true,
            Step::Synchronise => {
                let xla = self.ranks[rank].last().unwrap();
                xla.next >= self.dispatched[rank]
            }
        };
        if is_over {
            if step == Step::Dispatch {
                self.dispatched[rank] += 1;
            }
            let thread = &mut self.ranks[rank][thread];
            thread.next += 1;
            thread.has_begun = false;
            if let Step::Operate(operation) = step {
                if operation.starts {
                    thread.started.push((operation, thread.position));
                } else {
                    thread
                        .started
                        .retain(|(other, _)| other.event != operation.event);
                }
            }
        }
        is_over
    }

    fn begin(&mut self, rank: usize, index: usize, step: &Step) {
        self.since[rank] = self.now;
        let thread = &mut self.ranks[rank][index];
        (thread.begin, thread.has_begun) = (self.now, true);
        let Step::Operate(operation) = step else {
            return;
        };
        if operation.name.starts_with("wait") {
            let mut started = thread.started.iter();
            let started = started.find(|(other, _)| other.event == operation.event);
            thread.position = started.map_or(0, |(_, position)| *position);
            return;
        }
        if operation.is_collective() {
            let position = &mut self.positions[rank][operation.communicator];
            *position += 1;
            thread.position = *position;
            if operation.is_ours {
                self.made[rank][operation.communicator].push(operation.clone());
            }
        }
        let meeting = self.meeting(rank as i32, index, operation);
        let arrived = self.arrived.entry(meeting).or_default();
        arrived
            .entry(rank as i32)
            .or_insert((self.now, operation.name));
    }

    fn id(&self, rank: usize, communicator: usize) -> CommunicatorId {
        let kind = match &self.communicators[communicator].kind {
            CommunicatorKind::Copy(path) if self.late[rank] => match path[0].0 {
                1 => CommunicatorKind::Unknown,
                index => CommunicatorKind::Copy(vec![(index - 1, 1)]),
            },
            kind => kind.clone(),
        };
        CommunicatorId {
            group: self.groups[communicator].hash(),
            kind,
        }
    }

    fn call(&self, rank: usize, id: u64, operation: &Operation) -> CallNote {
        let name = (self.communicators[operation.communicator].name)(rank as i32);
        let is_wait = operation.name.starts_with("wait");
        CallNote {
            id,
            operation: operation.name.into(),
            text: format!("{} on {name}", operation.name),
            line: String::new(),
            seconds: 10.0,
            communicator: self.id(rank, operation.communicator),
            communicator_name: name,
            sequence: if operation.is_collective() {
                self.made[rank][operation.communicator].len() as u64
            } else {
                0
            },
            agreed: if is_wait {
                Vec::new()
            } else {
                agreed(operation)
            },
            rule: String::new(),
            neighbors: None,
            messages: operation.messages.clone(),
            awaited: None,
            bytes: operation.bytes,
        }
    }

    /// The note of a rank, with its part in collective calls of others.
    fn note(&self, rank: usize, about: &[Collective]) -> Note {
        let default_calls = self.made[rank][0].len() as u64;
        let attendance = |asked: &Collective| {
            let is_asked = |communicator: &usize| {
                self.id(rank, *communicator) == asked.communicator
                    && (self.communicators[*communicator].name)(rank as i32) == asked.name
            };
            let made = &self.made[rank][(0..self.communicators.len()).find(is_asked)?];
            let call = made.get(asked.sequence as usize - 1);
            Some(Attendance {
                count: made.len() as u64,
                call: call.map(|operation| (operation.name.into(), agreed(operation))),
            })
        };
        let attendances = about.iter().map(attendance).collect();
        let steady = f64::from(self.now - self.since[rank]);
        if self.has_ended[rank] {
            return Note {
                steady,
                attendances,
                ..ended(0, "", default_calls)
            };
        }
        let threads = &self.ranks[rank];
        let mut running = Running::default();
        for (index, thread) in threads.iter().enumerate() {
            for (operation, _) in &thread.started {
                running.posted.push(Posted {
                    communicator: self.id(rank, operation.communicator),
                    communicator_name: String::new(),
                    operation: operation.name.into(),
                    messages: Vec::new(),
                });
            }
            let is_xla = index == threads.len() - 1;
            match thread.steps.get(thread.next) {
                Some(Step::Operate(operation)) if operation.is_ours && thread.has_begun => {
                    let id = (index * 1000 + thread.next) as u64;
                    running.calls.push(self.call(rank, id, operation));
                }
                Some(Step::Synchronise) | None => {}
                Some(_) if is_xla => {}
                Some(_) => running.elsewhere.push(_core::diagnosis::ThreadActivity {
                    thread: index.to_string(),
                    activity: String::new(),
                    line: String::new(),
                }),
            }
        }
        let xla = threads.last().unwrap();
        let is_starting = xla.next < self.dispatched[rank] && !xla.has_begun;
        if running.calls.is_empty() || is_starting {
            running.doubt = "it is on its way".into();
        }
        Note {
            steady,
            default_calls,
            attendances,
            ..Note::new(State::Running(Box::new(running)))
        }
    }

    fn notes(&self, about: &[Collective]) -> Notes {
        let mut notes = Notes::default();
        for rank in 0..self.size as usize {
            notes.add(rank as i32, self.note(rank, about), self.groups.clone());
        }
        notes
    }

    /// The diagnosis, after ranks were asked about calls that are not complete.
    fn diagnose(&self) -> (Notes, Diagnosis) {
        let notes = self.notes(&[]);
        let about = Snapshot::new(&notes, self.size, &[]).questions(8);
        let notes = self.notes(&about);
        let diagnosis = diagnosis_of(&notes, self.size, &about);
        (notes, diagnosis)
    }

    fn is_over(&self) -> bool {
        self.has_ended.iter().all(|has_ended| *has_ended)
    }

    fn describe(&self) -> String {
        let (notes, diagnosis) = self.diagnose();
        report(&notes, self.size, &diagnosis)
    }
}

/// The values about which all ranks have to agree.
fn agreed(operation: &Operation) -> Vec<(String, String)> {
    let root = operation
        .root
        .map(|root| ("roots".into(), root.to_string()));
    root.into_iter().collect()
}

/// The number of programs to try: the number in HISTORIES, or a default.
fn count(default: u64) -> u64 {
    let setting = std::env::var("HISTORIES").ok();
    setting
        .and_then(|count| count.parse().ok())
        .unwrap_or(default)
}

#[test]
fn a_correct_program_is_never_found_to_be_stuck() {
    for seed in 0..count(40) {
        let mut random = Random(seed);
        let mut world = World::new(&mut random, seed % 3 == 0);
        for _ in 0..20_000 {
            world.tick();
            let (_, diagnosis) = world.diagnose();
            assert!(
                diagnosis.stuck.is_empty(),
                "seed {seed}, second {}, {}: {}",
                world.now,
                diagnosis.stuck,
                world.describe()
            );
            if world.is_over() {
                break;
            }
        }
        assert!(
            world.is_over(),
            "seed {seed} is no correct program: {}",
            world.describe()
        );
    }
}

#[test]
fn a_deadlock_is_found() {
    let (mut deadlocks, mut visible, mut proven) = (0, 0, 0);
    for seed in 0..count(200) {
        let is_plain = seed % 3 == 0;
        let mut random = Random(seed + 1_000_000);
        let mut world = World::new(&mut random, is_plain);
        world.spoil();
        let mut idle = 0;
        for _ in 0..20_000 {
            idle = if world.tick() { 0 } else { idle + 1 };
            if world.is_over() || idle > 100 {
                break;
            }
        }
        if world.is_over() {
            continue;
        }
        let (notes, diagnosis) = world.diagnose();
        let is_found = !diagnosis.stuck.is_empty();
        let is_visible = notes.iter().all(|(_, note)| {
            note.running()
                .is_none_or(|running| running.elsewhere.is_empty() && running.doubt.is_empty())
        });
        if notes.iter().all(|(_, note)| note.calls().is_empty()) {
            continue; // all wait in mpi4py
        }
        assert!(!diagnosis.findings.is_empty(), "seed {seed}");
        deadlocks += 1;
        if is_visible {
            visible += 1;
            proven += u64::from(is_found);
            assert!(is_found || !is_plain, "seed {seed}: {}", world.describe());
        }
    }
    println!("{deadlocks} deadlocks, {visible} without calls of mpi4py, {proven} of these proven");
    assert!(visible > 20, "{visible} of {deadlocks}");
    assert!(proven * 10 >= visible * 8, "{proven} of {visible}");
}
