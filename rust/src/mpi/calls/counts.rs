//! Counts, as MPI takes them: an int where it suffices, and 64 bits beyond (MPI-4.1 §19.2).

use std::cell::OnceCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::mpi::abi::Abi;
use crate::mpi::functions::{Counted, Functions};
use crate::mpi::types::Types;

/// The largest count that an int holds.
const INT_LIMIT: i64 = c_int::MAX as i64;

static LIMIT: AtomicI64 = AtomicI64::new(INT_LIMIT);
static USE_LARGE: AtomicBool = AtomicBool::new(true);

/// Routes calls of more than `limit` elements the ways that are meant for more than an int counts,
/// with or without MPI's functions for large counts. Tests call it: who has so much memory?
pub fn set_count_limit(limit: i64, use_large: bool) {
    LIMIT.store(limit.clamp(1, INT_LIMIT), Ordering::Relaxed);
    USE_LARGE.store(use_large, Ordering::Relaxed);
}

/// A count, in a call of either form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub i64);

/// Counts or displacements, one for each rank, in a call of either form.
pub struct CountList {
    large: Vec<i64>,
    ints: OnceCell<Vec<c_int>>,
}

impl CountList {
    /// The counts, or the displacements.
    pub fn new(counts: impl Iterator<Item = i64>) -> Self {
        Self {
            large: counts.collect(),
            ints: OnceCell::new(),
        }
    }
}

/// An argument, as the function that is called takes it.
pub trait Pass<T> {
    fn pass(self) -> T;
}

impl<T> Pass<T> for T {
    #[inline(always)]
    fn pass(self) -> T {
        self
    }
}

impl Pass<c_int> for Count {
    #[inline(always)]
    fn pass(self) -> c_int {
        debug_assert!(self.0 <= INT_LIMIT, "the form is for the largest count");
        self.0 as c_int
    }
}

impl Pass<i64> for Count {
    #[inline(always)]
    fn pass(self) -> i64 {
        self.0
    }
}

impl Pass<*const c_int> for &CountList {
    fn pass(self) -> *const c_int {
        let ints = || {
            self.large
                .iter()
                .map(|count| Count(*count).pass())
                .collect()
        };
        self.ints.get_or_init(ints).as_ptr()
    }
}

impl Pass<*const i64> for &CountList {
    fn pass(self) -> *const i64 {
        self.large.as_ptr()
    }
}

// Displacements have the size of an address.
const _: () = assert!(size_of::<isize>() == size_of::<i64>());

impl Pass<*const isize> for &CountList {
    fn pass(self) -> *const isize {
        self.large.as_ptr().cast()
    }
}

/// The functions that take counts, in one of their two forms.
pub enum Form<A: Types> {
    Int(&'static Counted<A, c_int, c_int>),
    Large(&'static Counted<A, i64, A::Aint>),
}

/// The form of a collective call. If it is nonblocking, with the place for its request.
pub struct CollectiveForm<A: Types> {
    pub counted: Form<A>,
    pub request: Option<*mut A::Request>,
}

/// Calls a function of a [`Form`]: `invoke!(form.send(address, count, ...))`.
macro_rules! invoke {
    ($form:ident . $function:ident ( $($argument:expr),* $(,)? )) => {
        match $form {
            Form::Int(functions) => (functions.$function)($(Pass::pass($argument)),*),
            Form::Large(functions) => (functions.$function)($(Pass::pass($argument)),*),
        }
    };
}

/// Calls a function of a [`CollectiveForm`]: `invoke_collective!(form.bcast(address, count, ...))`.
macro_rules! invoke_collective {
    ($form:ident . $function:ident ( $($argument:expr),* $(,)? )) => {
        match ($form.counted, $form.request) {
            (Form::Int(functions), None) => {
                (functions.$function.blocking)($(Pass::pass($argument)),*)
            }
            (Form::Int(functions), Some(request)) => {
                (functions.$function.nonblocking)($(Pass::pass($argument),)* request)
            }
            (Form::Large(functions), None) => {
                (functions.$function.blocking)($(Pass::pass($argument)),*)
            }
            (Form::Large(functions), Some(request)) => {
                (functions.$function.nonblocking)($(Pass::pass($argument),)* request)
            }
        }
    };
}
pub(super) use {invoke, invoke_collective};

/// How one call counts.
#[derive(Clone, Copy)]
pub struct Counting<A: Types> {
    pub functions: &'static Functions<A>,
    large: Option<&'static Counted<A, i64, A::Aint>>,
    /// The largest count of the int form.
    pub limit: i64,
}

impl<A: Abi> Counting<A> {
    pub fn new(functions: &'static Functions<A>) -> Self {
        let use_large = USE_LARGE.load(Ordering::Relaxed);
        Self {
            functions,
            large: functions.large.as_ref().filter(|_| use_large),
            limit: LIMIT.load(Ordering::Relaxed),
        }
    }

    /// Whether one call of MPI can have this count.
    pub fn takes(&self, count: i64) -> bool {
        count <= self.limit || self.large.is_some()
    }

    /// The form of a call whose largest count is this one, which it [`takes`](Self::takes).
    pub fn form(&self, largest: Count) -> Form<A> {
        match self.large {
            Some(functions) if largest.0 > self.limit => Form::Large(functions),
            _ => Form::Int(&self.functions.int),
        }
    }
}
