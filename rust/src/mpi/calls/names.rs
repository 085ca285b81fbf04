//! The name service (MPI-4.1 §11.8.4).

use std::ffi::{CStr, CString, c_char};

use crate::mpi::abi::Abi;
use crate::mpi::functions::Functions;
use crate::mpi::types::Handle;

/// Handles that the name service takes.
#[derive(Debug, Clone, Copy)]
pub struct NameHandles {
    comms: [usize; 2],
    info: usize,
    errors_return: usize,
}

impl NameHandles {
    /// The handles of `MPI_COMM_WORLD`, `MPI_COMM_SELF`, `MPI_INFO_NULL` and `MPI_ERRORS_RETURN`.
    ///
    /// # Safety
    /// They are.
    pub const unsafe fn new(comms: [usize; 2], info: usize, errors_return: usize) -> Self {
        Self {
            comms,
            info,
            errors_return,
        }
    }
}

/// The name service of an MPI.
pub struct NameService<A: Abi> {
    functions: &'static Functions<A>,
    handles: NameHandles,
}

/// Room for the text of a name in any MPI (`MPI_MAX_PORT_NAME`).
const MAX_BYTES: usize = 4096;

impl<A: Abi> NameService<A> {
    /// The service of the MPI with these functions and handles.
    pub fn new(functions: &'static Functions<A>, handles: NameHandles) -> Self {
        Self { functions, handles }
    }

    /// Whether an error is given back. Users may have set a handler that ends the program instead, and a
    /// name that is not there is an error.
    fn gives_errors_back(&self) -> bool {
        self.handles.comms.iter().all(|comm| {
            let mut errhandler = A::Errhandler::from_raw(0);
            let comm = A::Comm::from_raw(*comm);
            // SAFETY: the communicators live until MPI is finalised, and the handler may be written. It is
            // a reference of ours.
            unsafe {
                let code = (self.functions.comm_get_errhandler)(comm, &raw mut errhandler);
                let gives = code == 0 && errhandler.into_raw() == self.handles.errors_return;
                if code == 0 {
                    (self.functions.errhandler_free)(&raw mut errhandler);
                }
                gives
            }
        })
    }

    /// Publishes a text under a name, or says why that can't be.
    pub fn publish(&self, name: &str, text: &str) -> Result<(), String> {
        if !self.gives_errors_back() {
            return Err("an error of MPI's ends the program".to_owned());
        }
        let [name, text] = [name, text].map(|text| CString::new(text).unwrap_or_default());
        let info = A::Info::from_raw(self.handles.info);
        // SAFETY: both texts end, and MPI copies them.
        match unsafe { (self.functions.publish_name)(name.as_ptr(), info, text.as_ptr()) } {
            0 => Ok(()),
            _ => Err("this MPI and its launcher have no MPI_Publish_name".to_owned()),
        }
    }

    /// The text under a name, if there is one.
    pub fn look_up(&self, name: &str) -> Option<String> {
        if !self.gives_errors_back() {
            return None;
        }
        let name = CString::new(name).unwrap_or_default();
        let info = A::Info::from_raw(self.handles.info);
        let mut text: Vec<c_char> = vec![0; MAX_BYTES];
        // SAFETY: the name ends, and there is room for every text.
        let code = unsafe { (self.functions.lookup_name)(name.as_ptr(), info, text.as_mut_ptr()) };
        // SAFETY: the text ends in the buffer, whose last byte stays zero.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        (code == 0).then(|| text.to_string_lossy().into_owned())
    }
}
