//! The processes, communicators and requests of the MPI that moves bytes.
//!
//! Nothing moves but in calls of MPI: a call that tests or waits goes on with all requests of its
//! process. A message of more than `eager` bytes is read when it is received, and a receive buffer is
//! written some looks after the message is there: as late as MPI may do it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::c_int;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use _core::log;
use _core::mpi::{DeleteAttribute, IntHandles};

use super::memory;
use super::types::{Datatype, Element, Operator, Part};

pub const PROC_NULL: c_int = -1;
pub const ANY_SOURCE: c_int = -2;
pub const ANY_TAG: c_int = -1;
pub const REQUEST_NULL: c_int = 0x2c00_0000;
/// The code of an error that a test asked for, and of a message that has no room.
pub const ASKED_FOR: c_int = 5;
pub const TRUNCATED: c_int = 14;

/// A process in a communicator.
#[derive(Clone, Copy)]
pub struct Member {
    pub context: usize,
    pub rank: usize,
}

/// A communicator, as all of its processes see it.
pub struct Context {
    /// Its processes, by their handles for it.
    pub handles: Vec<c_int>,
    /// The processes as tests count them.
    pub processes: Vec<usize>,
    /// By process: the receives without a message, and the messages without a receive.
    posted: Vec<Vec<c_int>>,
    unexpected: Vec<VecDeque<Message>>,
    /// By process: how many collective calls it has made.
    calls: Vec<u64>,
    meetings: BTreeMap<u64, Meeting>,
}

impl Context {
    /// How many collective calls a process has made.
    pub fn collective_calls(&self, rank: usize) -> u64 {
        self.calls[rank]
    }
}

/// A message on its way.
pub struct Message {
    pub source: c_int,
    pub tag: c_int,
    content: Content,
}

enum Content {
    /// A copy.
    Eager(Vec<u8>),
    /// Where it is read when it is received, and the request of the send.
    There(Part, c_int),
}

impl Message {
    pub fn bytes(&self) -> usize {
        match &self.content {
            Content::Eager(bytes) => bytes.len(),
            Content::There(part, _) => part.bytes(),
        }
    }
}

/// The contribution of a process to a collective call.
#[derive(Default, Clone)]
pub struct Contribution {
    /// The function and what all processes have to agree about.
    pub function: String,
    pub sends: Vec<(usize, Part)>,
    pub receives: Vec<(usize, Part)>,
    pub reduction: Option<Reduction>,
    /// Lists that MPI may read (MPI-4.1 §6.12).
    pub lists: Vec<Range<usize>>,
}

/// The contribution of a process to a reduction.
#[derive(Clone)]
pub struct Reduction {
    pub operand: Part,
    pub op: Operator,
    pub share: Share,
    /// Where the result goes.
    pub result: Option<Part>,
}

/// The part of a reduction that a process gets.
#[derive(Clone)]
pub enum Share {
    All,
    /// Of the processes up to this one.
    Scan,
    /// Of those before it.
    Exscan,
    /// A block: its first element, and its number of elements.
    Block(usize, usize),
}

/// The results of a process, and where they go.
type Results = Vec<(Part, Vec<u8>)>;

/// A collective call.
struct Meeting {
    contributions: Vec<Option<Contribution>>,
    /// By process, once the first of them has completed it: the results that are not written yet.
    results: Option<Vec<Results>>,
    left: usize,
}

/// The content of a status.
#[derive(Clone, Copy, Default)]
pub struct Status {
    pub source: c_int,
    pub tag: c_int,
    pub bytes: usize,
    pub is_cancelled: bool,
}

enum Kind {
    Send,
    Receive {
        source: c_int,
        tag: c_int,
        part: Part,
        message: Option<Message>,
    },
    Collective(u64),
}

struct Request {
    function: &'static str,
    member: Member,
    kind: Kind,
    is_done: bool,
    code: c_int,
    status: Status,
    /// Number of times that MPI looks at it before it completes.
    looks: usize,
}

/// An error that a test asks for.
struct Fault {
    process: usize,
    function: &'static str,
    /// Number of calls without an error before.
    after: usize,
}

/// How late things happen.
#[derive(Clone, Copy)]
pub struct Lateness {
    /// A message of no more bytes is copied when it is sent.
    pub eager: usize,
    /// Largest number of times that MPI looks at what could be completed.
    pub looks: usize,
}

#[derive(Default)]
pub struct Network {
    pub members: HashMap<c_int, Member>,
    pub contexts: Vec<Context>,
    pub datatypes: HashMap<c_int, Arc<Datatype>>,
    pub operators: HashMap<c_int, Operator>,
    /// The communicators that were made of others, by the call that made them.
    pub splits: HashMap<(usize, u64, Vec<usize>), usize>,
    /// The attributes of communicators, and who is called when they are deleted.
    pub attributes: Vec<(c_int, c_int)>,
    pub deleters: HashMap<c_int, DeleteAttribute<IntHandles>>,
    requests: BTreeMap<c_int, Request>,
    faults: Vec<Fault>,
    lateness: Option<Lateness>,
    last: c_int,
    /// The processes that wait in MPI now, by the functions.
    waiting: Vec<(usize, &'static str)>,
    pub is_finalized: bool,
    /// Mistakes in the use of MPI.
    violations: Vec<String>,
}

static NETWORK: Mutex<Option<Network>> = Mutex::new(None);
static NEWS: Condvar = Condvar::new();
/// What takes longer is a deadlock.
const PATIENCE: Duration = Duration::from_secs(300);

/// Ends the test program: a panic can't leave a C function.
pub fn die(text: &str) -> ! {
    log::print_error(text);
    std::process::abort()
}

pub type Guard = MutexGuard<'static, Option<Network>>;

pub fn network() -> Guard {
    NETWORK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn with<R>(body: impl FnOnce(&mut Network) -> R) -> R {
    let mut guard = network();
    let result = body(guard.get_or_insert_with(Network::new));
    NEWS.notify_all();
    result
}

/// Waits until `body` gives something.
pub fn wait_until<R>(
    who: (usize, &'static str),
    mut body: impl FnMut(&mut Network) -> Option<R>,
) -> R {
    let begin = Instant::now();
    let mut guard = network();
    let state = guard.get_or_insert_with(Network::new);
    state.waiting.push(who);
    NEWS.notify_all();
    loop {
        let state = guard.get_or_insert_with(Network::new);
        if let Some(result) = body(state) {
            let index = state.waiting.iter().position(|entry| *entry == who);
            state.waiting.swap_remove(index.unwrap());
            NEWS.notify_all();
            return result;
        }
        if begin.elapsed() > PATIENCE {
            die(&format!("a deadlock in {who:?}: {}", state.describe()));
        }
        let step = Duration::from_millis(50);
        guard = NEWS
            .wait_timeout(guard, step)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

impl Network {
    fn new() -> Self {
        let mut network = Self::default();
        for element in Element::ALL {
            let datatype = Arc::new(Datatype::predefined(element));
            network.datatypes.insert(element.handle(), datatype);
        }
        network
    }

    /// A new handle, of anything.
    pub fn new_handle(&mut self) -> c_int {
        self.last += 1;
        0x0400_0000 + self.last
    }

    /// A communicator of these processes.
    pub fn new_context(&mut self, processes: Vec<usize>) -> usize {
        let context = self.contexts.len();
        let size = processes.len();
        let handles: Vec<_> = processes.iter().map(|_| self.new_handle()).collect();
        for (rank, handle) in handles.iter().enumerate() {
            self.members.insert(*handle, Member { context, rank });
        }
        self.contexts.push(Context {
            handles,
            processes,
            posted: vec![Vec::new(); size],
            unexpected: (0..size).map(|_| VecDeque::new()).collect(),
            calls: vec![0; size],
            meetings: BTreeMap::new(),
        });
        context
    }

    pub fn set_lateness(&mut self, lateness: Lateness) {
        self.lateness = Some(lateness);
    }

    /// Makes a function return an error to a process, after `after` calls without an error.
    pub fn fail(&mut self, process: usize, function: &'static str, after: usize) {
        self.faults.push(Fault {
            process,
            function,
            after,
        });
    }

    pub fn forget_faults(&mut self) {
        self.faults.clear();
    }

    /// Whether all errors that tests have asked for have come.
    pub fn has_failed(&self) -> bool {
        self.faults.is_empty()
    }

    /// Whether a process waits in MPI.
    pub fn is_waiting(&self, process: usize) -> bool {
        self.waiting.iter().any(|entry| entry.0 == process)
    }

    pub fn process_of(&self, member: Member) -> usize {
        self.contexts[member.context].processes[member.rank]
    }

    /// Notes a call of a function: an error code if a test has asked for one.
    pub fn enter(&mut self, member: Member, function: &'static str) -> Result<(), c_int> {
        if self.is_finalized {
            self.note(format!("{function} was called after MPI_Finalize"));
        }
        let process = self.process_of(member);
        let mut faults = self.faults.iter_mut();
        let index = faults.position(|fault| (fault.process, fault.function) == (process, function));
        let Some(index) = index else {
            return Ok(());
        };
        if self.faults[index].after > 0 {
            self.faults[index].after -= 1;
            return Ok(());
        }
        self.faults.swap_remove(index);
        Err(ASKED_FOR)
    }

    /// Notes a mistake in the use of MPI.
    pub fn note(&mut self, violation: String) {
        if !self.violations.contains(&violation) {
            self.violations.push(violation);
        }
    }

    pub fn take_violations(&mut self) -> Vec<String> {
        std::mem::take(&mut self.violations)
    }

    fn describe(&self) -> String {
        let requests = self.requests.iter().map(|(handle, request)| {
            let Member { context, rank } = request.member;
            let is_done = request.is_done;
            format!(
                "{handle:x}: {} of rank {rank} on {context}, done: {is_done}",
                request.function
            )
        });
        format!("{:#?} {:?}", requests.collect::<Vec<_>>(), self.waiting)
    }

    /// The requests that were never completed, by their functions.
    pub fn incomplete(&self) -> Vec<&'static str> {
        self.requests
            .values()
            .map(|request| request.function)
            .collect()
    }

    /// Forgets requests that nobody will complete. MPI may touch their memory for good.
    pub fn forget_requests(&mut self) {
        self.requests.clear();
        for context in &mut self.contexts {
            context.posted.iter_mut().for_each(Vec::clear);
            context.unexpected.iter_mut().for_each(VecDeque::clear);
        }
    }

    fn new_request(&mut self, function: &'static str, member: Member, kind: Kind) -> c_int {
        let handle = self.new_handle();
        let most = self.lateness.map_or(0, |lateness| lateness.looks);
        let request = Request {
            function,
            member,
            kind,
            is_done: false,
            code: 0,
            status: Status::default(),
            // Some are earlier than others.
            looks: (handle as usize).wrapping_mul(7) % (most + 1),
        };
        self.requests.insert(handle, request);
        handle
    }

    /// Lends memory to a request, and notes if another one may touch it.
    fn lend(&mut self, request: c_int, read: &[&Part], written: &[&Part]) {
        for part in written {
            for range in part.ranges() {
                if let Some(user) = memory::user_of(&range) {
                    let function = |handle| {
                        let request = self.requests.get(&handle);
                        request.map_or("a forgotten request", |request| request.function)
                    };
                    let (new, old) = (function(request), function(user));
                    self.note(format!("{new} writes to memory of {old}"));
                }
            }
        }
        let parts = read.iter().chain(written);
        memory::lend(request, parts.flat_map(|part| part.ranges()));
    }

    /// Begins to send.
    pub fn send(
        &mut self,
        function: &'static str,
        member: Member,
        part: Part,
        dest: c_int,
        tag: c_int,
    ) -> c_int {
        let request = self.new_request(function, member, Kind::Send);
        self.lend(request, &[&part], &[]);
        let is_eager = self
            .lateness
            .is_none_or(|lateness| part.bytes() <= lateness.eager);
        if dest == PROC_NULL {
            self.complete(request, 0, Status::default());
            return request;
        }
        let content = if is_eager {
            self.complete(request, 0, Status::default());
            Content::Eager(part.pack())
        } else {
            Content::There(part, request)
        };
        let message = Message {
            source: member.rank as c_int,
            tag,
            content,
        };
        self.arrive(member.context, dest as usize, message);
        request
    }

    /// Gives a message to the first receive that it matches (MPI-4.1 §3.5).
    fn arrive(&mut self, context: usize, dest: usize, message: Message) {
        let posted = self.contexts[context].posted[dest].clone();
        let matched = posted.iter().position(|request| {
            let kind = &self.requests[request].kind;
            matches!(kind, Kind::Receive { source, tag, .. } if message.matches(*source, *tag))
        });
        let Some(index) = matched else {
            self.contexts[context].unexpected[dest].push_back(message);
            return;
        };
        self.contexts[context].posted[dest].remove(index);
        let request = self.requests.get_mut(&posted[index]);
        if let Some(Kind::Receive { message: slot, .. }) = request.map(|request| &mut request.kind)
        {
            *slot = Some(message);
        }
    }

    /// The first message that a receive would get, if there is one.
    pub fn probe(&self, member: Member, source: c_int, tag: c_int) -> Option<(usize, &Message)> {
        let messages = self.contexts[member.context].unexpected[member.rank].iter();
        let mut messages = messages.enumerate();
        messages.find(|(_, message)| message.matches(source, tag))
    }

    /// Begins to receive.
    pub fn receive(
        &mut self,
        function: &'static str,
        member: Member,
        part: Part,
        source: c_int,
        tag: c_int,
    ) -> c_int {
        let matched = self.probe(member, source, tag).map(|(index, _)| index);
        let context = &mut self.contexts[member.context];
        let message = matched.and_then(|index| context.unexpected[member.rank].remove(index));
        let is_posted = message.is_none() && source != PROC_NULL;
        let kind = Kind::Receive {
            source,
            tag,
            part: part.clone(),
            message,
        };
        let request = self.new_request(function, member, kind);
        self.lend(request, &[], &[&part]);
        if is_posted {
            self.contexts[member.context].posted[member.rank].push(request);
        } else if source == PROC_NULL {
            let status = Status {
                source: PROC_NULL,
                tag: ANY_TAG,
                ..Status::default()
            };
            self.complete(request, 0, status);
        }
        request
    }

    /// Begins a collective call.
    pub fn meet(
        &mut self,
        function: &'static str,
        member: Member,
        contribution: Contribution,
    ) -> c_int {
        let Member { context, rank } = member;
        let size = self.contexts[context].handles.len();
        self.contexts[context].calls[rank] += 1;
        let call = self.contexts[context].calls[rank];
        let request = self.new_request(function, member, Kind::Collective(call));
        let mut read: Vec<_> = contribution.sends.iter().map(|send| &send.1).collect();
        let mut written: Vec<_> = contribution.receives.iter().map(|recv| &recv.1).collect();
        if let Some(reduction) = &contribution.reduction {
            written.extend(&reduction.result);
            let is_in_place = reduction
                .result
                .as_ref()
                .is_some_and(|result| result.ranges() == reduction.operand.ranges());
            if !is_in_place {
                read.push(&reduction.operand);
            }
        }
        self.lend(request, &read, &written);
        memory::lend(request, contribution.lists.iter().cloned());
        let meetings = &mut self.contexts[context].meetings;
        let meeting = meetings.entry(call).or_insert_with(|| Meeting {
            contributions: vec![None; size],
            results: None,
            left: size,
        });
        let contributions = meeting.contributions.iter().flatten();
        let differing = contributions
            .filter(|earlier| earlier.function != contribution.function)
            .map(|earlier| format!("{} meets {}", contribution.function, earlier.function))
            .next();
        meeting.contributions[rank] = Some(contribution);
        if let Some(text) = differing {
            self.note(text);
        }
        request
    }

    fn complete(&mut self, request: c_int, code: c_int, status: Status) {
        if let Some(request) = self.requests.get_mut(&request) {
            request.is_done = true;
            request.code = code;
            request.status = status;
        }
    }

    /// Goes on with all requests of a process. Whether anything has moved.
    pub fn progress(&mut self, process: usize) -> bool {
        let requests = self.requests.iter();
        let open = requests
            .filter(|(_, request)| !request.is_done && self.process_of(request.member) == process);
        let open: Vec<_> = open.map(|(handle, _)| *handle).collect();
        let moved = open.into_iter().filter(|handle| self.look_at(*handle));
        moved.count() > 0
    }

    fn look_at(&mut self, handle: c_int) -> bool {
        let request = &self.requests[&handle];
        let member = request.member;
        let is_ready = match &request.kind {
            Kind::Send => false,
            Kind::Receive { message, .. } => message.is_some(),
            Kind::Collective(call) => {
                let meeting = &self.contexts[member.context].meetings[call];
                meeting.contributions.iter().all(Option::is_some)
            }
        };
        if !is_ready {
            return false;
        }
        let request = self.requests.get_mut(&handle).unwrap();
        if request.looks > 0 {
            request.looks -= 1;
            return true;
        }
        match &mut request.kind {
            Kind::Send => {}
            Kind::Receive { part, message, .. } => {
                let (part, message) = (part.clone(), message.take().unwrap());
                self.deliver(handle, &part, message);
            }
            Kind::Collective(call) => {
                let call = *call;
                self.end_meeting(member, call);
                self.complete(handle, 0, Status::default());
            }
        }
        true
    }

    fn deliver(&mut self, receive: c_int, part: &Part, message: Message) {
        let status = Status {
            source: message.source,
            tag: message.tag,
            bytes: message.bytes().min(part.bytes()),
            is_cancelled: false,
        };
        let code = if message.bytes() > part.bytes() {
            TRUNCATED
        } else {
            0
        };
        let bytes = match message.content {
            Content::Eager(bytes) => bytes,
            Content::There(part, send) => {
                self.complete(send, 0, Status::default());
                part.pack()
            }
        };
        part.unpack(&bytes);
        self.complete(receive, code, status);
    }

    fn end_meeting(&mut self, member: Member, call: u64) {
        let meetings = &mut self.contexts[member.context].meetings;
        let meeting = meetings.get_mut(&call).unwrap();
        let contributions: Vec<_> = meeting.contributions.iter().flatten().collect();
        let results = meeting
            .results
            .get_or_insert_with(|| results_of(&contributions));
        for (part, bytes) in std::mem::take(&mut results[member.rank]) {
            part.unpack(&bytes);
        }
        meeting.left -= 1;
        if meeting.left == 0 {
            meetings.remove(&call);
        }
    }

    /// Ends a request for its owner, if it is done.
    pub fn retire(&mut self, handle: c_int) -> Option<(c_int, Status)> {
        if !self.requests[&handle].is_done {
            return None;
        }
        let request = self.requests.remove(&handle)?;
        memory::release(handle);
        Some((request.code, request.status))
    }

    /// The process of a request. Notes it if there is none.
    pub fn member_of(&mut self, handle: c_int, function: &str) -> Option<Member> {
        let member = self.requests.get(&handle).map(|request| request.member);
        if member.is_none() {
            self.note(format!("{function} of a request that is over"));
        }
        member
    }

    /// Cancels a receive that has no message yet (MPI-4.1 §3.8.4).
    pub fn cancel(&mut self, handle: c_int) {
        let request = &self.requests[&handle];
        let Member { context, rank } = request.member;
        if matches!(request.kind, Kind::Receive { message: None, .. }) && !request.is_done {
            self.contexts[context].posted[rank].retain(|posted| *posted != handle);
            let status = Status {
                is_cancelled: true,
                ..Status::default()
            };
            self.complete(handle, 0, status);
        }
    }
}

impl Message {
    fn matches(&self, source: c_int, tag: c_int) -> bool {
        (source == ANY_SOURCE || source == self.source) && (tag == ANY_TAG || tag == self.tag)
    }
}

/// The results of each process.
fn results_of(contributions: &[&Contribution]) -> Vec<Results> {
    let operands: Vec<_> = contributions
        .iter()
        .map(|contribution| {
            contribution
                .reduction
                .as_ref()
                .map(|own| own.operand.pack())
        })
        .collect();
    let moved = |rank: usize, source: usize| {
        let mut sends = contributions[source].sends.iter();
        let part = sends.find(|(dest, _)| *dest == rank).map(|(_, part)| part);
        part.map(Part::pack).unwrap_or_default()
    };
    let each = contributions.iter().enumerate();
    each.map(|(rank, own)| {
        let receives = own.receives.iter();
        let mut results: Vec<_> = receives
            .map(|(source, part)| (part.clone(), moved(rank, *source)))
            .collect();
        if let Some(reduction) = &own.reduction
            && let Some(result) = &reduction.result
        {
            let last = match reduction.share {
                Share::Scan => rank + 1,
                Share::Exscan => rank,
                Share::All | Share::Block(..) => operands.len(),
            };
            let reduced = reduce(reduction, &operands[..last]);
            let bytes = match reduction.share {
                Share::Block(first, count) => {
                    let size = reduction.operand.datatype.size();
                    reduced[first * size..(first + count) * size].to_vec()
                }
                _ => reduced,
            };
            results.push((result.clone(), bytes));
        }
        results
    })
    .collect()
}

fn reduce(reduction: &Reduction, operands: &[Option<Vec<u8>>]) -> Vec<u8> {
    let element = reduction.operand.datatype.element;
    let mut operands = operands.iter().flatten();
    let Some(first) = operands.next() else {
        return Vec::new();
    };
    operands.fold(first.clone(), |reduced, operand| {
        let mut right = operand.clone();
        reduction.op.combine(element, &reduced, &mut right);
        right
    })
}
