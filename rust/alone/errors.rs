//! Errors: their classes, codes and texts, and the handlers that raise them (MPI-3.1 §8.3).

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::fmt::Display;

use super::environment;
use super::handles::{COMM_WORLD, ERRHANDLER_NULL, State, state};
use super::memory::{Out, Text};

macro_rules! classes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        $(
            #[doc = concat!("`MPI_ERR_", stringify!($name), "`.")]
            pub const $name: c_int = $value;
        )*

        /// The name and the text of each class.
        const CLASSES: &[(c_int, &str, &str)] = &[$(($name, stringify!($name), $text)),*];
    };
}

classes! {
    BUFFER = 1, "invalid buffer";
    COUNT = 2, "invalid count";
    TYPE = 3, "invalid datatype";
    TAG = 4, "invalid tag";
    COMM = 5, "invalid communicator";
    RANK = 6, "invalid rank";
    ROOT = 7, "invalid root";
    GROUP = 8, "invalid group";
    OP = 9, "invalid operation";
    TOPOLOGY = 10, "invalid topology";
    DIMS = 11, "invalid dimensions";
    ARG = 12, "invalid argument";
    UNKNOWN = 13, "unknown error";
    TRUNCATE = 14, "message is longer than the receive buffer";
    OTHER = 15, "other error";
    INTERN = 16, "internal error";
    IN_STATUS = 17, "the statuses have the errors";
    PENDING = 18, "pending request";
    REQUEST = 19, "invalid request";
    ACCESS = 20, "permission denied";
    AMODE = 21, "invalid access mode";
    BAD_FILE = 22, "invalid name of a file";
    CONVERSION = 23, "a conversion of data failed";
    DUP_DATAREP = 24, "the data representation exists";
    FILE_EXISTS = 25, "file exists";
    FILE_IN_USE = 26, "file in use";
    FILE = 27, "invalid file";
    INFO = 28, "invalid info object";
    INFO_KEY = 29, "invalid key of an info object";
    INFO_VALUE = 30, "invalid value of an info object";
    INFO_NOKEY = 31, "an info object has no such key";
    IO = 32, "input or output failed";
    NAME = 33, "no such service name";
    NO_MEM = 34, "out of memory";
    NOT_SAME = 35, "arguments differ between processes";
    NO_SPACE = 36, "no space left";
    NO_SUCH_FILE = 37, "no such file";
    PORT = 38, "invalid port";
    QUOTA = 39, "quota exceeded";
    READ_ONLY = 40, "read-only file";
    SERVICE = 41, "invalid service name";
    SPAWN = 42, "processes cannot be spawned";
    UNSUPPORTED_DATAREP = 43, "unsupported data representation";
    UNSUPPORTED_OPERATION = 44, "unsupported operation";
    WIN = 45, "invalid window";
    BASE = 46, "invalid base address";
    LOCKTYPE = 47, "invalid type of lock";
    KEYVAL = 48, "invalid attribute key";
    RMA_CONFLICT = 49, "conflicting accesses to a window";
    RMA_SYNC = 50, "wrong synchronization of a window";
    SIZE = 51, "invalid size";
    DISP = 52, "invalid displacement";
    ASSERT = 53, "invalid assertion";
    RMA_RANGE = 55, "not in the window";
    RMA_ATTACH = 56, "memory cannot be attached";
    RMA_SHARED = 57, "memory cannot be shared";
    RMA_FLAVOR = 58, "wrong kind of window";
    ERRHANDLER = 80, "invalid error handler";
}

/// `MPI_ERR_LASTCODE`.
const LAST_CODE: c_int = 0x3fff_ffff;
/// The codes of errors with a text of their own are their class and a number above it.
const CLASS_BITS: u32 = 8;
/// Number of texts that are kept.
const TEXTS: c_int = 1024;

/// What is wrong with a call.
#[derive(Debug)]
pub struct Error {
    /// The class, or a code that a callback returned.
    pub code: c_int,
    /// What was given, and what was expected. Empty for a callback's error.
    pub text: String,
    /// The communicator whose handler raises it, if it is another than the call's.
    pub comm: Option<c_int>,
}

/// What a function's body returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of a class.
    pub fn new(class: c_int, text: impl Into<String>) -> Self {
        Self {
            code: class,
            text: text.into(),
            comm: None,
        }
    }

    /// An error for a value that isn't what it should be.
    pub fn got(class: c_int, value: impl Display, what: &str, expected: &str) -> Self {
        Self::new(
            class,
            format!("got {value} for {what}, expected {expected}"),
        )
    }

    /// The error, to be raised by a communicator's handler.
    pub fn on(self, comm: c_int) -> Self {
        Self {
            comm: Some(comm),
            ..self
        }
    }
}

/// The outcome of a callback.
pub fn outcome(code: c_int) -> Result<()> {
    if code == 0 {
        Ok(())
    } else {
        Err(Error {
            code,
            text: String::new(),
            comm: None,
        })
    }
}

/// A number of elements.
pub fn count(count: c_int) -> Result<usize> {
    usize::try_from(count).map_err(|_| Error::got(COUNT, count, "a count", "0 or more"))
}

/// Errors that were made while the program runs.
#[derive(Default)]
pub struct Errors {
    texts: BTreeMap<c_int, String>,
    serial: c_int,
    /// Classes and codes of the program's, each with its class.
    own: BTreeMap<c_int, (c_int, String)>,
}

impl Errors {
    /// `MPI_LASTUSEDCODE`.
    pub fn last_used(&self) -> c_int {
        self.own
            .last_key_value()
            .map_or(LAST_CODE, |(code, _)| *code)
    }

    fn add(&mut self, class: Option<c_int>) -> c_int {
        let code = self.last_used() + 1;
        self.own
            .insert(code, (class.unwrap_or(code), String::new()));
        code
    }

    /// The code of an error, by which its text is found.
    pub fn keep(&mut self, class: c_int, text: String) -> c_int {
        self.serial = self.serial % (LAST_CODE >> CLASS_BITS) + 1;
        let code = class | self.serial << CLASS_BITS;
        self.texts.insert(code, text);
        if self.texts.len() > TEXTS as usize {
            let serial = |code: c_int| code >> CLASS_BITS;
            let oldest =
                |code: c_int| (self.serial - serial(code)).rem_euclid(LAST_CODE >> CLASS_BITS);
            let oldest = self.texts.keys().copied().max_by_key(|code| oldest(*code));
            oldest.and_then(|code| self.texts.remove(&code));
        }
        code
    }

    /// The class of a code.
    fn class(&self, code: c_int) -> Result<c_int> {
        match self.own.get(&code) {
            Some((class, _)) => Ok(*class),
            None if code == 0 || (1..=LAST_CODE).contains(&code) => {
                Ok(code & ((1 << CLASS_BITS) - 1))
            }
            None => Err(Error::got(
                ARG,
                code,
                "the error code",
                "one that MPI returned",
            )),
        }
    }

    fn text(&self, code: c_int) -> Result<String> {
        let class = self.class(code)?;
        if let Some((_, text)) = self.own.get(&code) {
            return Ok(text.clone());
        }
        let name = CLASSES.iter().find(|(value, ..)| *value == class);
        Ok(match (name, self.texts.get(&code)) {
            _ if code == 0 => "no error".into(),
            (Some((_, name, _)), Some(text)) => format!("MPI_ERR_{name}: {text}"),
            (Some((_, name, text)), None) => format!("MPI_ERR_{name}: {text}"),
            (None, _) => format!("error class {class}"),
        })
    }
}

/// The function of an error handler. C declares it with further arguments, which are never given.
pub type Function = extern "C" fn(comm: *mut c_int, code: *mut c_int);

/// An error handler, and the number of handles and communicators that have it.
pub struct Errhandler {
    function: Option<Function>,
    pub uses: usize,
}

/// `MPI_ERRORS_ARE_FATAL`.
pub const FATAL: c_int = 0x5400_0000;
const RETURN: c_int = 0x5400_0001;
const ABORT: c_int = 0x5400_0003;

/// The error handlers that every program has.
pub fn predefined() -> [(c_int, Errhandler); 3] {
    [FATAL, RETURN, ABORT].map(|handle| {
        (
            handle,
            Errhandler {
                function: None,
                uses: 1,
            },
        )
    })
}

/// Gives up one use of an error handler.
pub fn release(state: &mut State, handle: c_int) {
    if state.errhandlers.is_predefined(handle) {
        return;
    }
    if let Ok(errhandler) = state.errhandlers.get_mut(handle) {
        errhandler.uses -= 1;
        if errhandler.uses == 0 {
            let _ = state.errhandlers.remove(handle);
        }
    }
}

/// Gives a communicator's error handler the error, and returns the code if it returns.
fn raise(comm: c_int, code: c_int) -> c_int {
    let (mut comm, mut code, handler, function, text) = {
        let state = state();
        let known = state.communicators.get(comm).is_ok();
        let comm = if known { comm } else { COMM_WORLD };
        let handler = state
            .communicators
            .get(comm)
            .map_or(FATAL, |found| found.errhandler);
        let function = state
            .errhandlers
            .get(handler)
            .ok()
            .and_then(|handler| handler.function);
        let text = state.errors.text(code).unwrap_or_default();
        (comm, code, handler, function, text)
    };
    if let Some(function) = function {
        function(&raw mut comm, &raw mut code);
    } else if handler != RETURN {
        environment::exit(code & 0xff, &format!("Fatal error in {text}"));
    }
    code
}

/// Runs the body of a function and returns its code, after an error handler where it fails.
pub fn call(name: &str, comm: Option<c_int>, body: impl FnOnce() -> Result<()>) -> c_int {
    if !environment::is_running() {
        environment::exit(
            OTHER,
            &format!("{name}: called before MPI_Init or after MPI_Finalize"),
        );
    }
    let check = comm.map_or(Ok(()), |comm| state().communicators.get(comm).map(|_| ()));
    let Err(error) = check.and_then(|()| body()) else {
        return 0;
    };
    let code = if error.text.is_empty() {
        error.code
    } else {
        state()
            .errors
            .keep(error.code, format!("{name}: {}", error.text))
    };
    raise(error.comm.or(comm).unwrap_or(COMM_WORLD), code)
}

mpi! {
    MPI_Add_error_class(class: Out<c_int>) => {
        let mut state = state();
        let made = state.errors.add(None);
        environment::set_last_used_code(state.errors.last_used());
        class.put(made)
    };
    MPI_Add_error_code(class: c_int, code: Out<c_int>) => {
        let mut state = state();
        let class = state.errors.class(class)?;
        let made = state.errors.add(Some(class));
        environment::set_last_used_code(state.errors.last_used());
        code.put(made)
    };
    MPI_Add_error_string(code: c_int, text: Text) => {
        let text = text.read()?;
        let expected = "one of MPI_Add_error_class or MPI_Add_error_code";
        let mut state = state();
        let own = state.errors.own.get_mut(&code);
        own.ok_or_else(|| Error::got(ARG, code, "the error code", expected))?.1 = text;
        Ok(())
    };
    MPI_Error_class(code: c_int, class: Out<c_int>) => class.put(state().errors.class(code)?);
    MPI_Error_string(code: c_int, text: Out<c_char>, length: Out<c_int>) => {
        let found = state().errors.text(code)?;
        length.put(text.put_text(&found, 512)?)
    };
    MPI_Comm_create_errhandler(function: Option<Function>, errhandler: Out<c_int>) => {
        let function = Some(function.ok_or_else(super::memory::null)?);
        errhandler.put(state().errhandlers.add(Errhandler { function, uses: 1 }))
    };
    MPI_Comm_set_errhandler(comm: c_int, errhandler: c_int) on comm => {
        let mut state = state();
        state.errhandlers.get_mut(errhandler)?.uses += 1;
        let found = state.communicators.get_mut(comm)?;
        let before = std::mem::replace(&mut found.errhandler, errhandler);
        release(&mut state, before);
        Ok(())
    };
    MPI_Comm_get_errhandler(comm: c_int, errhandler: Out<c_int>) on comm => {
        let mut state = state();
        let found = state.communicators.get(comm)?.errhandler;
        state.errhandlers.get_mut(found)?.uses += 1;
        errhandler.put(found)
    };
    MPI_Errhandler_free(errhandler: Out<c_int>) => {
        let mut state = state();
        let handle = errhandler.get()?;
        state.errhandlers.get(handle)?;
        release(&mut state, handle);
        errhandler.put(ERRHANDLER_NULL)
    };
    MPI_Comm_call_errhandler(comm: c_int, code: c_int) on comm => {
        raise(comm, code);
        Ok(())
    };
}
