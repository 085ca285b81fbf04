//! One call of MPI: the functions and the communicator, what is done around it, and its two forms.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::counts::{CollectiveForm, Count, Counting, Form};
use super::derived::TypedCount;
use super::outcome::{CallError, Outcome, check};
use crate::error::{self, Error};
use crate::mpi::abi::Abi;
use crate::mpi::availability::is_available;
use crate::mpi::buffers::{RecvBuffer, SendBuffer};
use crate::mpi::functions::Functions;
use crate::mpi::half_float::{self, Format};
use crate::mpi::operators::PredefinedOp;
use crate::mpi::registry::{Communicator, REGISTRY, SizedDatatype};
use crate::mpi::requests::OwnedRequest;
use crate::mpi::types::Handle;
use crate::mpi::waiting::Waiting;

/// Work before and after a call of MPI: debug lines, memory of arrays, errors.
pub trait CallWrapper {
    /// Error that the caller gets if the call fails.
    type Error;

    /// Makes the call of the function with this name, which `body` does.
    fn call(
        self,
        function: &'static str,
        body: impl FnOnce() -> Outcome,
    ) -> Result<(), Self::Error>;
}

/// A function that makes an error of a failed call, and nothing else.
impl<E, F: FnOnce(CallError) -> E> CallWrapper for F {
    type Error = E;

    fn call(self, _: &'static str, body: impl FnOnce() -> Outcome) -> Result<(), E> {
        body().map_err(self)
    }
}

/// The owner of the buffers of a nonblocking call, which it keeps until the requests are done.
pub trait Owner {
    /// Takes over a request that MPI has given.
    fn take_over(&self, request: OwnedRequest);
    /// Takes over a list that MPI reads until then.
    fn keep(&self, list: Box<dyn Send>);
}

/// The MPI that a call is made to, and how it counts.
pub struct Mpi<A: Abi> {
    pub(super) functions: &'static Functions<A>,
    pub(super) counting: Counting<A>,
    pub(super) comm: A::Comm,
    pub(super) rank: c_int,
    pub(super) size: c_int,
}

impl<A: Abi> Mpi<A> {
    /// MPI's functions on a communicator of the registry's.
    #[inline(always)]
    pub fn new(functions: &'static Functions<A>, communicator: &Communicator) -> Self {
        Self {
            functions,
            counting: Counting::new(functions),
            comm: communicator.handle::<A>(),
            rank: communicator.rank,
            size: communicator.size,
        }
    }

    /// The rank of this process in the communicator.
    pub fn rank(&self) -> c_int {
        self.rank
    }

    /// Number of ranks of the communicator.
    pub fn size(&self) -> c_int {
        self.size
    }

    /// MPI on another communicator.
    pub fn on(&self, communicator: &Communicator) -> Self {
        Self::new(self.functions, communicator)
    }

    /// The most elements that each MPI counts in one call.
    pub fn count_limit(&self) -> i64 {
        self.counting.limit
    }

    /// Whether one call of MPI reduces `count` elements.
    pub fn reduces(&self, count: i64, op: &Operator<A>) -> bool {
        // An operator that is not MPI's own is told the length as an int.
        count <= self.counting.limit || op.is_predefined && self.counting.takes(count)
    }

    /// `count` elements for one call.
    #[inline(always)]
    pub fn typed(&self, count: i64, datatype: SizedDatatype) -> Result<TypedCount<A>, CallError> {
        TypedCount::new(&self.counting, count, datatype)
    }

    #[inline(always)]
    pub(super) fn form(&self, largest: Count) -> Form<A> {
        self.counting.form(largest)
    }

    #[inline(always)]
    pub(super) fn collective_form(
        &self,
        largest: Count,
        request: Option<*mut A::Request>,
    ) -> CollectiveForm<A> {
        CollectiveForm {
            counted: self.form(largest),
            request,
        }
    }

    /// A blocking call, with what is to be done around it.
    #[inline(always)]
    pub fn blocking<W: CallWrapper>(&self, around: W) -> Caller<'_, A, W> {
        Caller {
            mpi: self,
            around,
            owner: None,
        }
    }

    /// A nonblocking call, if it is a collective one.
    ///
    /// # Safety
    /// The buffers that it gets stay as long as the requests that `owner` takes over.
    #[inline(always)]
    pub unsafe fn nonblocking<'r, W: CallWrapper>(
        &'r self,
        around: W,
        owner: &'r dyn Owner,
    ) -> Caller<'r, A, W> {
        Caller {
            mpi: self,
            around,
            owner: Some(owner),
        }
    }

    /// The operator with this number.
    pub fn operator(op_number: i64) -> error::Result<Operator<A>> {
        Ok(Operator {
            handle: REGISTRY.operator::<A>(op_number)?,
            is_predefined: PredefinedOp::from_number(op_number).is_some(),
        })
    }

    /// The operator that does for 16-bit floats what MPI's own does for others, if it can. The first
    /// call makes it.
    pub fn half_float_operator(
        &self,
        op: PredefinedOp,
        format: Format,
        around: impl CallWrapper<Error = Error>,
    ) -> Option<error::Result<Operator<A>>> {
        let made = half_float::operator::<A>(op, format, |function| {
            let mut handle = REGISTRY.operator::<A>(op.number())?;
            around.call("MPI_Op_create", || {
                // SAFETY: the function is one of MPI's form; it is commutative.
                let code = unsafe { (self.functions.op_create)(function, 1, &raw mut handle) };
                check(self.functions, "MPI_Op_create", code)
            })?;
            Ok(handle)
        })?;
        let is_predefined = false;
        Some(made.map(|handle| Operator {
            handle,
            is_predefined,
        }))
    }
}

/// A reduction operator, as MPI gets it.
pub struct Operator<A: Abi> {
    pub(super) handle: A::Op,
    /// Whether MPI itself defines it. Others are C functions that take the count as an int.
    pub is_predefined: bool,
}

impl<A: Abi> Operator<A> {
    /// An operator of MPI's own, by mpi4py's number for its handle.
    ///
    /// # Safety
    /// It is one.
    pub unsafe fn predefined(handle: usize) -> Self {
        Self {
            handle: A::Op::from_raw(handle),
            is_predefined: true,
        }
    }
}

/// One call that is about to be made.
#[must_use = "one of its methods makes the call"]
pub struct Caller<'r, A: Abi, W> {
    pub(super) mpi: &'r Mpi<A>,
    around: W,
    /// Owner of the request and the buffers, if the call is nonblocking.
    pub(super) owner: Option<&'r dyn Owner>,
}

impl<A: Abi, W: CallWrapper> Caller<'_, A, W> {
    /// Makes a blocking call. `body` gives MPI's error code.
    #[inline(always)]
    pub(super) fn blocking(
        self,
        function: &'static str,
        body: impl FnOnce(&Mpi<A>) -> Result<c_int, CallError>,
    ) -> Result<(), W::Error> {
        debug_assert!(self.owner.is_none());
        let mpi = self.mpi;
        self.around.call(function, || {
            let _waiting = Waiting::begin();
            let code = body(mpi)?;
            check(mpi.functions, function, code)
        })
    }

    /// Makes a call in one of its two forms. `body` gets the place for the request of a nonblocking
    /// one, and lists that MPI reads, and gives MPI's error code.
    #[inline(always)]
    pub(super) fn collective<L: Send + 'static>(
        self,
        [blocking, nonblocking]: [&'static str; 2],
        lists: L,
        body: impl FnOnce(&Mpi<A>, Option<*mut A::Request>, &L) -> Result<c_int, CallError>,
    ) -> Result<(), W::Error> {
        let (mpi, owner) = (self.mpi, self.owner);
        let function = if owner.is_none() {
            blocking
        } else {
            nonblocking
        };
        self.around.call(function, || {
            let Some(owner) = owner else {
                let _waiting = Waiting::begin();
                return check(mpi.functions, function, body(mpi, None, &lists)?);
            };
            let mut request = A::Request::from_raw(0);
            let code = body(mpi, Some(&raw mut request), &lists)?;
            check(mpi.functions, function, code)?;
            if size_of::<L>() > 0 {
                owner.keep(Box::new(lists));
            }
            // SAFETY: MPI has given the request. The owner keeps buffers and lists.
            owner.take_over(unsafe { OwnedRequest::new(mpi.functions, request) });
            Ok(())
        })
    }

    /// Fails, as MPI can't be asked for what `function` would do.
    #[cold]
    pub(super) fn refuse(self, function: &'static str, error: Error) -> Result<(), W::Error> {
        self.around.call(function, || Err(error.into()))
    }

    /// MPI-4.1 §7.4.2: a communicator of all ranks, in the same or in reverse order.
    pub fn comm_split(self, is_reversed: bool) -> Result<Communicator, W::Error> {
        let Mpi { rank, size, .. } = *self.mpi;
        let rank = if is_reversed { size - 1 - rank } else { rank };
        let mut handle = self.mpi.comm;
        self.blocking("MPI_Comm_split", |mpi| {
            // SAFETY: MPI gives the new communicator in place of this one.
            Ok(unsafe { (mpi.functions.comm_split)(mpi.comm, 0, rank, &raw mut handle) })
        })?;
        // SAFETY: MPI has made the communicator of all ranks, in the order of the new ones.
        Ok(unsafe { Communicator::new(handle.into_raw(), rank, size, 0) })
    }
}

/// Makes calls on a communicator an error, and frees its companions.
pub fn free_communicator<A: Abi>(comm_number: usize) {
    let companions = REGISTRY.free_communicator::<A>(comm_number);
    let Some(functions) = A::functions().get() else {
        return;
    };
    for mut comm in companions {
        if is_available() {
            // SAFETY: this process made the communicator, which is freed once.
            unsafe { (functions.comm_free)(&raw mut comm) };
        }
    }
}

/// Checks that only this process is root if it has a buffer for that.
#[track_caller]
pub(super) fn check_root(is_root: bool, has_buffer: bool) {
    assert!(!is_root || has_buffer, "root has a buffer");
}

/// The places that MPI reads only at root (MPI-4.1 §6.5, "significant only at root").
pub(super) fn send_address<A: Abi>(send: Option<&SendBuffer>) -> *const c_void {
    send.map_or(ptr::null(), SendBuffer::address::<A>)
}

/// The places that MPI writes only at root.
pub(super) fn recv_address(recv: Option<&RecvBuffer>) -> *mut c_void {
    recv.map_or(ptr::null_mut(), RecvBuffer::address)
}
