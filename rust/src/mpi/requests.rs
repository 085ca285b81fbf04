//! Requests of nonblocking operations (MPI-4.1 §3.7).

use std::ffi::c_int;

use super::abi::Abi;
use super::functions::Functions;
use super::status::OwnStatus;
use super::types::Handle;
use super::waiting::Waiting;

/// The functions by which MPI completes a request, without the handle's type.
trait Completion: Sync {
    fn cancel(&self, request: usize);
    /// The error code of the operation, or `None` if it has not ended.
    fn test(&self, request: usize, status: &mut OwnStatus) -> Option<c_int>;
    fn wait(&self, request: usize, status: &mut OwnStatus) -> c_int;
}

impl<A: Abi> Completion for Functions<A> {
    fn cancel(&self, request: usize) {
        let mut request = A::Request::from_raw(request);
        // SAFETY: the handle of an `OwnedRequest` that is not complete.
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

/// A request of MPI's, and its outcome once MPI has completed the request.
///
/// The request does not know its buffers. Its owner keeps them until the request
/// [has let go](Self::has_let_go) of them: until then the owner neither drops the request nor lets the
/// program use the buffers.
#[must_use = "MPI reads or writes its buffers until it has let go of them"]
pub struct OwnedRequest {
    raw: usize,
    functions: &'static dyn Completion,
    /// The status, filled when the request is done.
    status: OwnStatus,
    /// The error code, once the request is done.
    code: Option<c_int>,
}

impl OwnedRequest {
    /// The request behind a handle of MPI's.
    ///
    /// # Safety
    /// MPI has returned the handle, and only this value completes the request. The buffers stay until the
    /// request has let go of them.
    pub unsafe fn new<A: Abi>(functions: &'static Functions<A>, request: A::Request) -> Self {
        Self {
            raw: request.into_raw(),
            functions,
            status: OwnStatus::EMPTY,
            code: None,
        }
    }

    /// A request that is never done.
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

    /// Whether the request has ended, with or without an error, so that MPI is not called for it again.
    pub fn is_done(&self) -> bool {
        self.code.is_some()
    }

    /// Whether MPI has completed the request, so that the buffers may be used again. After an error MPI may
    /// still be writing to them, as its state is undefined (MPI-4.1 §9.3).
    pub fn has_let_go(&self) -> bool {
        self.code == Some(0)
    }

    /// Tests the request, which lets MPI make progress, and keeps the outcome if the request is done.
    pub fn test(&mut self) {
        if !self.is_done() {
            self.code = self.functions.test(self.raw, &mut self.status);
        }
    }

    /// Waits until the request is done, and returns the error code, or 0.
    pub fn wait(&mut self) -> c_int {
        let (functions, status) = (self.functions, &mut self.status);
        *self.code.get_or_insert_with(|| {
            let _waiting = Waiting::begin();
            functions.wait(self.raw, status)
        })
    }

    /// Waits until the request is done, and returns its status, or the error code.
    pub fn wait_for_status(&mut self) -> Result<&mut OwnStatus, c_int> {
        match self.wait() {
            0 => Ok(&mut self.status),
            code => Err(code),
        }
    }

    /// Cancels a receive that no message has matched. A cancelled receive still has to be waited for
    /// (MPI-4.1 §3.8.4).
    pub fn cancel(&mut self) {
        if !self.is_done() {
            self.functions.cancel(self.raw);
        }
    }

    /// The status of a completed receive.
    pub fn status(&mut self) -> &mut OwnStatus {
        &mut self.status
    }
}
