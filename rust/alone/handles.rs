//! Handles, and the state that they name.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_int;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard};

use super::attributes::Keyval;
use super::communicators::{self, Communicator};
use super::datatypes::{self, Datatype};
use super::environment::Environment;
use super::errors::{self, Error, Result};
use super::groups;
use super::infos::{self, Info};
use super::messages::{Message, Receive};
use super::operators::{self, Operator};
use super::requests::Request;

/// `MPI_UNDEFINED`.
pub const UNDEFINED: c_int = -32766;
/// `MPI_COMM_NULL`.
pub const COMM_NULL: c_int = 0x0400_0000;
/// `MPI_COMM_WORLD`.
pub const COMM_WORLD: c_int = 0x4400_0000;
/// `MPI_COMM_SELF`.
pub const COMM_SELF: c_int = 0x4400_0001;
/// `MPI_GROUP_NULL`.
pub const GROUP_NULL: c_int = 0x0800_0000;
/// `MPI_DATATYPE_NULL`.
pub const DATATYPE_NULL: c_int = 0x0c00_0000;
/// `MPI_ERRHANDLER_NULL`.
pub const ERRHANDLER_NULL: c_int = 0x1400_0000;
/// `MPI_OP_NULL`.
pub const OP_NULL: c_int = 0x1800_0000;
/// `MPI_INFO_NULL`.
pub const INFO_NULL: c_int = 0x1c00_0000;
/// `MPI_KEYVAL_INVALID`.
pub const KEYVAL_INVALID: c_int = 0x2400_0000;
/// `MPI_REQUEST_NULL` and `MPI_MESSAGE_NULL`.
pub const REQUEST_NULL: c_int = 0x2c00_0000;
/// `MPI_MESSAGE_NO_PROC`.
pub const MESSAGE_NO_PROC: c_int = 0x6c00_0000;

/// The bits of a handle that say which of its kind it is. The others say that a program made it.
const INDEX: c_int = 0x00ff_ffff;
const MADE: c_int = 0x8000_0000_u32.cast_signed();

/// The objects of one kind. A handle that was freed isn't given again before all others were.
pub struct Table<T> {
    objects: BTreeMap<c_int, T>,
    kind: c_int,
    next: c_int,
    class: c_int,
    name: &'static str,
}

impl<T> Table<T> {
    /// A table of what is predefined. `null` is the kind's null handle.
    pub fn new(
        null: c_int,
        class: c_int,
        name: &'static str,
        predefined: impl IntoIterator<Item = (c_int, T)>,
    ) -> Self {
        let objects = predefined.into_iter().collect();
        Self {
            objects,
            kind: MADE | null,
            next: 0x100,
            class,
            name,
        }
    }

    /// What an unknown handle is.
    fn unknown(&self, handle: c_int) -> Error {
        let Self { class, name, .. } = self;
        Error::new(
            *class,
            format!("got {handle:#010x} for the {name}, which is null, freed or unknown"),
        )
    }

    /// The object.
    pub fn get(&self, handle: c_int) -> Result<&T> {
        self.objects
            .get(&handle)
            .ok_or_else(|| self.unknown(handle))
    }

    /// The object, to change it.
    pub fn get_mut(&mut self, handle: c_int) -> Result<&mut T> {
        self.get(handle)?;
        Ok(self.objects.get_mut(&handle).expect("it is there"))
    }

    /// Adds an object, and returns its handle.
    pub fn add(&mut self, object: T) -> c_int {
        loop {
            let handle = self.kind | self.next;
            self.next = (self.next + 1) & INDEX;
            if let Entry::Vacant(place) = self.objects.entry(handle) {
                place.insert(object);
                return handle;
            }
        }
    }

    /// Removes an object that a program made.
    pub fn remove(&mut self, handle: c_int) -> Result<T> {
        let object = self.objects.remove(&handle);
        object.ok_or_else(|| self.unknown(handle))
    }

    /// Whether MPI made the object.
    pub fn is_predefined(&self, handle: c_int) -> bool {
        handle & MADE == 0 || handle & INDEX < 0x100
    }

    /// The error of a function that frees, given something predefined.
    pub fn check_made(&self, handle: c_int) -> Result<()> {
        self.get(handle)?;
        if self.is_predefined(handle) {
            let Self { class, name, .. } = self;
            return Err(Error::new(
                *class,
                format!("got {handle:#010x}, a predefined {name}"),
            ));
        }
        Ok(())
    }
}

/// Everything that calls of MPI change.
pub struct State {
    pub environment: Environment,
    pub communicators: Table<Communicator>,
    pub datatypes: Table<Datatype>,
    pub errhandlers: Table<errors::Errhandler>,
    pub groups: Table<bool>,
    pub infos: Table<Info>,
    pub keyvals: Table<std::sync::Arc<Keyval>>,
    pub operators: Table<Operator>,
    pub requests: Table<Request>,
    /// Messages that `MPI_Mprobe` has taken out.
    pub matched: Table<Message>,
    /// Messages that were sent and not received, in order.
    pub messages: Vec<Message>,
    /// Receives that wait for a message, in order.
    pub receives: Vec<Receive>,
    pub errors: errors::Errors,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    Mutex::new(State {
        environment: Environment::default(),
        communicators: Table::new(
            COMM_NULL,
            errors::COMM,
            "communicator",
            communicators::predefined(),
        ),
        datatypes: Table::new(
            DATATYPE_NULL,
            errors::TYPE,
            "datatype",
            datatypes::predefined(),
        ),
        errhandlers: Table::new(
            ERRHANDLER_NULL,
            errors::ERRHANDLER,
            "error handler",
            errors::predefined(),
        ),
        groups: Table::new(GROUP_NULL, errors::GROUP, "group", groups::predefined()),
        infos: Table::new(INFO_NULL, errors::INFO, "info object", infos::predefined()),
        keyvals: Table::new(KEYVAL_INVALID, errors::KEYVAL, "attribute key", []),
        operators: Table::new(OP_NULL, errors::OP, "operation", operators::predefined()),
        requests: Table::new(REQUEST_NULL, errors::REQUEST, "request", []),
        matched: Table::new(MESSAGE_NO_PROC, errors::REQUEST, "message", []),
        messages: Vec::new(),
        receives: Vec::new(),
        errors: errors::Errors::default(),
    })
});
static CHANGED: Condvar = Condvar::new();

/// The state, for as long as it is held.
pub fn state() -> MutexGuard<'static, State> {
    STATE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Wakes those who [`wait`].
pub fn changed() {
    CHANGED.notify_all();
}

/// Waits until another thread has [`changed`] the state.
pub fn wait(state: MutexGuard<'static, State>) -> MutexGuard<'static, State> {
    CHANGED
        .wait(state)
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
