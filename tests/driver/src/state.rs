//! The state that all threads share, under one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::driver::FUNCTIONS;
use crate::memory::{Allocation, Physical};
use crate::module::{Kernel, Module};
use crate::stream::{Event, Stream};

pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const NOT_INITIALIZED: c_int = 3;
pub const INVALID_DEVICE: c_int = 101;
pub const INVALID_CONTEXT: c_int = 201;
pub const INVALID_HANDLE: c_int = 400;
pub const NOT_FOUND: c_int = 500;
pub const NOT_READY: c_int = 600;
pub const NOT_PERMITTED: c_int = 800;
pub const NOT_SUPPORTED: c_int = 801;

/// The outcome of a driver function: an error is its code.
pub type Outcome = Result<(), c_int>;

pub struct Failure {
    pub code: c_int,
    pub skip: u64,
}

pub struct Counts {
    pub calls: [u64; FUNCTIONS],
    pub bytes_down: u64,
    pub bytes_up: u64,
    pub violations: u64,
    pub peak_host_bytes: u64,
}

impl Counts {
    const NONE: Self = Self {
        calls: [0; FUNCTIONS],
        bytes_down: 0,
        bytes_up: 0,
        violations: 0,
        peak_host_bytes: 0,
    };
}

pub struct State {
    pub initialized: bool,
    /// By the address that the caller has.
    pub allocations: BTreeMap<usize, Arc<Allocation>>,
    /// Page-locked host memory: address and bytes.
    pub host_blocks: BTreeMap<usize, usize>,
    pub streams: BTreeMap<usize, Stream>,
    pub events: BTreeMap<usize, Event>,
    pub counts: Counts,
    pub failures: [Option<Failure>; FUNCTIONS],
    /// How often the primary context of each device is retained.
    pub retained: BTreeMap<c_int, u64>,
    /// Host memory of the caller's that is page-locked: address and bytes.
    pub registered: BTreeMap<usize, usize>,
    pub modules: BTreeMap<usize, Module>,
    pub kernels: BTreeMap<usize, Kernel>,
    /// Memory without an address, by its handle, and how many hold it.
    pub physical: BTreeMap<usize, (Arc<Physical>, u64)>,
    /// Reserved addresses, and how many.
    pub reserved: BTreeMap<usize, usize>,
    /// Whether the host may touch new device memory; None: as `STAND_IN_OPEN` says.
    pub is_open: Option<bool>,
    /// The pools, and of each address that one gave out, the pool.
    pub pools: BTreeSet<usize>,
    pub pooled: BTreeMap<usize, usize>,
    /// The addresses of memory that passes for mapped by the virtual-memory functions.
    pub mapped: BTreeSet<usize>,
    handles: usize,
}

static STATE: Mutex<State> = Mutex::new(State {
    initialized: false,
    allocations: BTreeMap::new(),
    host_blocks: BTreeMap::new(),
    streams: BTreeMap::new(),
    events: BTreeMap::new(),
    counts: Counts::NONE,
    failures: [const { None }; FUNCTIONS],
    retained: BTreeMap::new(),
    registered: BTreeMap::new(),
    modules: BTreeMap::new(),
    kernels: BTreeMap::new(),
    physical: BTreeMap::new(),
    reserved: BTreeMap::new(),
    is_open: None,
    pools: BTreeSet::new(),
    pooled: BTreeMap::new(),
    mapped: BTreeSet::new(),
    handles: 0,
});

/// Told when a stream got a command, is done with one, or ends.
static CHANGED: Condvar = Condvar::new();

pub type Locked = MutexGuard<'static, State>;

pub fn lock() -> Locked {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn wait_while(state: Locked, condition: impl Fn(&State) -> bool) -> Locked {
    CHANGED
        .wait_while(state, |state| condition(state))
        .unwrap_or_else(PoisonError::into_inner)
}

pub fn notify() {
    CHANGED.notify_all();
}

impl State {
    /// A new handle for a stream or an event. None is used twice, so a stale one is always found
    /// out, and none is an address that could be touched.
    pub fn new_handle(&mut self) -> (usize, u64) {
        self.handles += 1;
        ((0xA0 << 48) + self.handles * 16, self.handles as u64)
    }

    pub fn violation(&mut self, description: &str) -> c_int {
        // Not eprintln!, which panics when stderr is closed.
        let _ = writeln!(io::stderr(), "stand-in driver: {description}");
        self.counts.violations += 1;
        INVALID_VALUE
    }

    pub fn device_bytes(&self) -> usize {
        let allocations = self
            .allocations
            .values()
            .filter(|memory| !memory.is_reserved());
        let physical = self.physical.values().map(|(memory, _)| memory.bytes);
        allocations
            .map(|memory| memory.bytes())
            .chain(physical)
            .sum()
    }

    pub fn host_bytes(&self) -> u64 {
        self.host_blocks.values().map(|&bytes| bytes as u64).sum()
    }

    pub fn reset_counts(&mut self) {
        self.counts = Counts {
            peak_host_bytes: self.host_bytes(),
            ..Counts::NONE
        };
    }
}
