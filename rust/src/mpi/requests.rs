//! Requests of nonblocking operations (MPI-4.1 §3.7).

use std::ffi::c_int;

use super::abi::Abi;
use super::functions::Functions;
use super::status::OwnStatus;
use super::types::Handle;
use super::waiting::Waiting;

/// How an MPI ends a request, whatever its handles are.
trait Completion: Sync {
    fn cancel(&self, request: usize);
    /// The error code with which the operation has ended, if it has.
    fn test(&self, request: usize, status: &mut OwnStatus) -> Option<c_int>;
    fn wait(&self, request: usize, status: &mut OwnStatus) -> c_int;
}

impl<A: Abi> Completion for Functions<A> {
    fn cancel(&self, request: usize) {
        let mut request = A::Request::from_raw(request);
        // SAFETY: an `OwnedRequest` has one of MPI's that is not complete.
        unsafe { (self.cancel)(&raw mut request) };
    }

    fn test(&self, request: usize, status: &mut OwnStatus) -> Option<c_int> {
        let mut request = A::Request::from_raw(request);
        let (mut flag, status) = (0, status.address::<A>());
        // SAFETY: as above; there is room for the status.
        let code = unsafe { (self.test)(&raw mut request, &raw mut flag, status) };
        (code != 0 || flag != 0).then_some(code)
    }

    fn wait(&self, request: usize, status: &mut OwnStatus) -> c_int {
        let mut request = A::Request::from_raw(request);
        // SAFETY: as above; there is room for the status.
        unsafe { (self.wait)(&raw mut request, status.address::<A>()) }
    }
}

/// A request of MPI's, until MPI has completed it and for some time after that.
///
/// It does not know its buffers. Its owner keeps them until it [is done](Self::is_done), and neither
/// drops it before nor has the program go on with them.
#[must_use = "MPI reads or writes its buffers until it is done"]
pub struct OwnedRequest {
    raw: usize,
    functions: &'static dyn Completion,
    /// Filled when it is done.
    status: OwnStatus,
    /// The error code with which it has ended.
    code: Option<c_int>,
}

impl OwnedRequest {
    /// # Safety
    /// MPI has given the request, and nobody else completes it. Its buffers stay until it is done.
    pub unsafe fn new<A: Abi>(functions: &'static Functions<A>, request: A::Request) -> Self {
        Self {
            raw: request.into_raw(),
            functions,
            status: OwnStatus::EMPTY,
            code: None,
        }
    }

    /// One that no MPI completes.
    #[cfg(test)]
    pub fn never_done() -> Self {
        struct Never;
        impl Completion for Never {
            fn cancel(&self, _: usize) {}
            fn test(&self, _: usize, _: &mut OwnStatus) -> Option<c_int> {
                None
            }
            fn wait(&self, _: usize, _: &mut OwnStatus) -> c_int {
                panic!("it waits for ever")
            }
        }
        Self {
            raw: 0,
            functions: &Never,
            status: OwnStatus::EMPTY,
            code: None,
        }
    }

    /// Whether MPI has completed it, so that its buffers may be used again.
    pub fn is_done(&self) -> bool {
        self.code.is_some()
    }

    /// Has MPI make progress, and notes it if the request is done.
    pub fn test(&mut self) {
        if !self.is_done() {
            self.code = self.functions.test(self.raw, &mut self.status);
        }
    }

    /// Waits until it is done. Gives the error code, which is 0 if there was no error.
    pub fn wait(&mut self) -> c_int {
        let (functions, status) = (self.functions, &mut self.status);
        *self.code.get_or_insert_with(|| {
            let _waiting = Waiting::begin();
            functions.wait(self.raw, status)
        })
    }

    /// Waits until it is done, and gives its status, or the error code.
    pub fn wait_for_status(&mut self) -> Result<&mut OwnStatus, c_int> {
        match self.wait() {
            0 => Ok(&mut self.status),
            code => Err(code),
        }
    }

    /// Asks MPI to end a receive that no message has matched. It is waited for as before
    /// (MPI-4.1 §3.8.4).
    pub fn cancel(&mut self) {
        if !self.is_done() {
            self.functions.cancel(self.raw);
        }
    }

    /// The status of a receive that is done.
    pub fn status(&mut self) -> &mut OwnStatus {
        &mut self.status
    }
}
