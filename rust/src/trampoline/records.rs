//! JAX's calls for the recorder and the debug lines.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::table::{HANDLES, index_of};
use crate::lock::lock;
use crate::mpi::{OwnedRequest, PredefinedOp, SizedDatatype};
use crate::recorder::{self, Recordable, Scope};
use crate::xla::raw::*;

/// An operation of JAX's, with the function of MPI's that it calls.
pub struct JaxOperation {
    pub recorded: recorder::Operation,
    pub function: &'static str,
}

const fn operation(name: &'static str, scope: Scope, function: &'static str) -> JaxOperation {
    let recorded = recorder::Operation::new(name, scope);
    JaxOperation { recorded, function }
}

pub static ALLGATHER: JaxOperation = operation("allgather", Scope::All, "MPI_Allgather");
pub static ALLREDUCE: JaxOperation = operation("allreduce", Scope::All, "MPI_Allreduce");
pub static COMM_CREATE_GROUP: JaxOperation =
    operation("comm_create_group", Scope::All, "MPI_Comm_create_group");
pub static RECV: JaxOperation = operation("recv", Scope::Message, "MPI_Irecv");
pub static REDUCE_SCATTER: JaxOperation =
    operation("reduce_scatter", Scope::All, "MPI_Reduce_scatter");
pub static SEND: JaxOperation = operation("send", Scope::Message, "MPI_Isend");
pub static SENDRECV: JaxOperation = operation("sendrecv", Scope::Message, "MPI_Sendrecv");

/// The types of MPI's that XLA sends, and what they hold.
const DATA_TYPES: &[(usize, XLA_FFI_DataType)] = &[
    (index_of(HANDLES, "INT8_T"), XLA_FFI_DataType_S8),
    (index_of(HANDLES, "INT16_T"), XLA_FFI_DataType_S16),
    (index_of(HANDLES, "INT32_T"), XLA_FFI_DataType_S32),
    (index_of(HANDLES, "INT64_T"), XLA_FFI_DataType_S64),
    (index_of(HANDLES, "UINT8_T"), XLA_FFI_DataType_U8),
    (index_of(HANDLES, "BYTE"), XLA_FFI_DataType_U8),
    (index_of(HANDLES, "UINT16_T"), XLA_FFI_DataType_U16),
    (index_of(HANDLES, "UINT32_T"), XLA_FFI_DataType_U32),
    (index_of(HANDLES, "UINT64_T"), XLA_FFI_DataType_U64),
    (index_of(HANDLES, "FLOAT"), XLA_FFI_DataType_F32),
    (index_of(HANDLES, "DOUBLE"), XLA_FFI_DataType_F64),
    (index_of(HANDLES, "C_COMPLEX"), XLA_FFI_DataType_C64),
    (index_of(HANDLES, "C_DOUBLE_COMPLEX"), XLA_FFI_DataType_C128),
];

/// XLA's type for the elements of a data type of MPI's, if XLA sends these.
pub fn data_type(datatype: usize) -> Option<XLA_FFI_DataType> {
    let (_, dtype) = DATA_TYPES.iter().find(|(handle, _)| *handle == datatype)?;
    Some(*dtype)
}

fn array(datatype: usize, count: impl Into<i64>) -> Option<(XLA_FFI_DataType, i64)> {
    Some((data_type(datatype)?, count.into()))
}

/// The number of an operator in compiled programs.
fn operator(op: usize) -> i64 {
    let name = HANDLES.get(op);
    let mut operators = PredefinedOp::ALL.iter();
    let operator = operators.find(|operator| Some(&operator.name()) == name);
    operator.map_or(-1, |operator| operator.number())
}

/// The arguments of a call.
#[derive(Debug, Default, Clone, Copy)]
pub struct CallArguments {
    sent: Option<(XLA_FFI_DataType, i64)>,
    received: Option<(XLA_FFI_DataType, i64)>,
    op: Option<i64>,
    to: Option<(i64, i64)>,
    from: Option<(i64, i64)>,
}

impl CallArguments {
    pub fn sending(datatype: usize, count: impl Into<i64>) -> Self {
        Self {
            sent: array(datatype, count),
            ..Self::default()
        }
    }

    pub fn receiving(mut self, datatype: usize, count: c_int) -> Self {
        self.received = array(datatype, count);
        self
    }

    pub fn with_op(mut self, op: usize) -> Self {
        self.op = Some(operator(op));
        self
    }

    pub fn to(mut self, rank: c_int, tag: c_int) -> Self {
        self.to = Some((rank.into(), tag.into()));
        self
    }

    pub fn from(mut self, rank: c_int, tag: c_int) -> Self {
        self.from = Some((rank.into(), tag.into()));
        self
    }

    fn attributes(&self) -> impl Iterator<Item = (&'static str, i64)> {
        let (dest, send_tag) = self.to.unzip();
        let (source, recv_tag) = self.from.unzip();
        let all = [
            ("op_number", self.op),
            ("dest", dest),
            ("sendtag", send_tag),
            ("source", source),
            ("recvtag", recv_tag),
        ];
        all.into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
    }

    /// The call for the debug lines.
    pub fn describe(&self) -> String {
        let items = |array: Option<(XLA_FFI_DataType, i64)>| array.map_or(0, |(_, count)| count);
        let mut words = Vec::new();
        if let Some((rank, tag)) = self.from {
            let items = items(self.received);
            words.push(format!("<- {rank} (tag {tag}, {items} items)"));
        }
        if let Some((rank, tag)) = self.to {
            words.push(format!("-> {rank} (tag {tag}, {} items)", items(self.sent)));
        }
        if words.is_empty() && self.sent.is_some() {
            words.push(format!("({} items)", items(self.sent)));
        }
        words.join(" / ")
    }
}

/// A call on the communicator with this number.
pub struct OnCommunicator<'a>(pub &'a CallArguments, pub i64);

impl Recordable for OnCommunicator<'_> {
    fn sent(&self) -> Option<(XLA_FFI_DataType, i64)> {
        self.0.sent
    }

    fn received(&self) -> Option<(XLA_FFI_DataType, i64)> {
        self.0.received
    }

    fn integers(&self, count: usize, mut see: impl FnMut(usize, i64)) {
        see(0, self.1);
        for (index, (_, value)) in (1..count).zip(self.0.attributes()) {
            see(index, value);
        }
    }

    fn attribute_names(&self) -> Vec<String> {
        let names = self.0.attributes().map(|(name, _)| name);
        ["comm_number"]
            .into_iter()
            .chain(names)
            .map(Into::into)
            .collect()
    }
}

/// A send or receive that was started: the call to record when it is waited for.
pub struct Started {
    pub operation: &'static JaxOperation,
    pub comm: usize,
    pub arguments: CallArguments,
    /// The type and number of the elements that are to come, if it is received.
    pub expected: Option<(SizedDatatype, c_int)>,
    pub request: OwnedRequest,
}

/// The sends and receives that were started, by the numbers that jaxlib has for them.
pub struct Requests {
    started: Mutex<HashMap<usize, Started>>,
    next: AtomicUsize,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            started: Mutex::default(),
            next: AtomicUsize::new(HANDLES.len()),
        }
    }
}

impl Requests {
    /// Adds a send or receive, and returns its number.
    pub fn add(&self, started: Started) -> usize {
        let jax_request = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.started).insert(jax_request, started);
        jax_request
    }

    /// Removes the request with this number, and returns it.
    pub fn take(&self, jax_request: usize) -> Option<Started> {
        lock(&self.started).remove(&jax_request)
    }
}
