//! Communicators (MPI-3.1 §6). Each has the one process.

use std::ffi::{c_char, c_int};

use super::attributes::{self, Attributes};
use super::errors::{self, ARG, Error, GROUP, Result};
use super::handles::{COMM_NULL, COMM_SELF, COMM_WORLD, UNDEFINED, state};
use super::infos::Info;
use super::memory::{Out, Text};
use super::requests::Request;
use super::topologies::Topology;

const IDENT: c_int = 0;
const CONGRUENT: c_int = 1;
/// `MPI_COMM_TYPE_SHARED`.
const SHARED: c_int = 1;

/// State of a communicator.
pub struct Communicator {
    name: String,
    pub attributes: Attributes,
    pub errhandler: c_int,
    pub topology: Option<Topology>,
    info: Info,
}

impl Communicator {
    fn new(name: &str, errhandler: c_int) -> Self {
        let (attributes, topology) = (Attributes::default(), None);
        Self {
            name: name.into(),
            attributes,
            errhandler,
            topology,
            info: Info::new(),
        }
    }
}

/// The communicators that every program has.
pub fn predefined() -> [(c_int, Communicator); 2] {
    [(COMM_WORLD, "MPI_COMM_WORLD"), (COMM_SELF, "MPI_COMM_SELF")]
        .map(|(handle, name)| (handle, Communicator::new(name, errors::FATAL)))
}

/// Checks a rank of a communicator: there is one.
pub fn check_rank(rank: c_int, class: c_int, what: &str) -> Result<()> {
    if rank == 0 {
        return Ok(());
    }
    let expected = "0 in a communicator of one process";
    Err(Error::got(class, format!("rank {rank}"), what, expected))
}

/// Makes a communicator like another, which gives its error handler.
pub fn make(comm: c_int, topology: Option<Topology>) -> Result<c_int> {
    let mut state = state();
    let errhandler = state.communicators.get(comm)?.errhandler;
    state.errhandlers.get_mut(errhandler)?.uses += 1;
    let made = Communicator {
        topology,
        ..Communicator::new("", errhandler)
    };
    Ok(state.communicators.add(made))
}

/// Makes a copy with attributes and topology.
fn duplicate(comm: c_int, info: Option<c_int>) -> Result<c_int> {
    let (attributes, topology, info) = {
        let state = state();
        let found = state.communicators.get(comm)?;
        let info = match info {
            None => found.info.clone(),
            Some(super::handles::INFO_NULL) => Info::new(),
            Some(info) => state.infos.get(info)?.clone(),
        };
        (found.attributes.clone(), found.topology.clone(), info)
    };
    let attributes = attributes.copied(comm)?;
    let made = make(comm, topology)?;
    let mut state = state();
    let new = state.communicators.get_mut(made)?;
    new.attributes = attributes;
    new.info = info;
    Ok(made)
}

fn free(comm: Out<c_int>) -> Result<()> {
    let handle = comm.get()?;
    state()
        .communicators
        .check_made(handle)
        .map_err(|error| error.on(COMM_WORLD))?;
    attributes::delete_all(handle, attributes::of_communicator(handle))?;
    let mut state = state();
    let gone = state.communicators.remove(handle)?;
    errors::release(&mut state, gone.errhandler);
    state.forget(handle);
    comm.put(COMM_NULL)
}

/// The communicator of a group: none for nobody.
fn of_group(comm: c_int, group: c_int, new: Out<c_int>) -> Result<()> {
    let has = *state().groups.get(group)?;
    new.put(if has { make(comm, None)? } else { COMM_NULL })
}

mpi! {
    MPI_Comm_size(comm: c_int, size: Out<c_int>) on comm => size.put(1);
    MPI_Comm_rank(comm: c_int, rank: Out<c_int>) on comm => rank.put(0);
    MPI_Comm_group(comm: c_int, group: Out<c_int>) on comm => {
        group.put(state().groups.add(true))
    };
    MPI_Comm_compare(first: c_int, second: c_int, result: Out<c_int>) on first => {
        state().communicators.get(second)?;
        result.put(if first == second { IDENT } else { CONGRUENT })
    };
    MPI_Comm_test_inter(comm: c_int, flag: Out<c_int>) on comm => flag.put(0);
    MPI_Comm_get_parent(parent: Out<c_int>) => parent.put(COMM_NULL);
    MPI_Comm_dup(comm: c_int, new: Out<c_int>) on comm => new.put(duplicate(comm, None)?);
    MPI_Comm_dup_with_info(comm: c_int, info: c_int, new: Out<c_int>) on comm => {
        new.put(duplicate(comm, Some(info))?)
    };
    MPI_Comm_idup(comm: c_int, new: Out<c_int>, request: Out<c_int>) on comm => {
        new.put(duplicate(comm, None)?)?;
        request.put(state().requests.add(Request::done(comm)))
    };
    MPI_Comm_create(comm: c_int, group: c_int, new: Out<c_int>) on comm => {
        of_group(comm, group, new)
    };
    MPI_Comm_create_group(comm: c_int, group: c_int, tag: c_int, new: Out<c_int>) on comm => {
        if tag < 0 {
            return Err(Error::got(errors::TAG, tag, "the tag", "0 or more"));
        }
        if !*state().groups.get(group)? {
            return Err(Error::new(GROUP, "got an empty group, expected one with the process"));
        }
        of_group(comm, group, new)
    };
    MPI_Comm_split(comm: c_int, color: c_int, _key: c_int, new: Out<c_int>) on comm => {
        if color < 0 && color != UNDEFINED {
            return Err(Error::got(ARG, color, "the color", "0 or more, or MPI_UNDEFINED"));
        }
        new.put(if color == UNDEFINED { COMM_NULL } else { make(comm, None)? })
    };
    MPI_Comm_split_type(
        comm: c_int, kind: c_int, _key: c_int, _info: c_int, new: Out<c_int>,
    ) on comm => {
        match kind {
            SHARED => new.put(make(comm, None)?),
            UNDEFINED => new.put(COMM_NULL),
            _ => Err(Error::got(ARG, kind, "the type of the split", "MPI_COMM_TYPE_SHARED")),
        }
    };
    MPI_Comm_free(comm: Out<c_int>) on comm.get().unwrap_or(COMM_NULL) => free(comm);
    MPI_Comm_disconnect(comm: Out<c_int>) on comm.get().unwrap_or(COMM_NULL) => free(comm);
    MPI_Comm_get_name(comm: c_int, name: Out<c_char>, length: Out<c_int>) on comm => {
        length.put(name.put_text(&state().communicators.get(comm)?.name, 128)?)
    };
    MPI_Comm_set_name(comm: c_int, name: Text) on comm => {
        let name = name.read()?;
        state().communicators.get_mut(comm)?.name = name;
        Ok(())
    };
    MPI_Comm_get_info(comm: c_int, info: Out<c_int>) on comm => {
        let mut state = state();
        let copy = state.communicators.get(comm)?.info.clone();
        info.put(state.infos.add(copy))
    };
    MPI_Comm_set_info(comm: c_int, info: c_int) on comm => {
        let mut state = state();
        let copy = state.infos.get(info)?.clone();
        state.communicators.get_mut(comm)?.info = copy;
        Ok(())
    };
}

macro_rules! conversions {
    ($($to:ident $from:ident)*) => {$(
        /// A handle is the same in C and in Fortran.
        #[unsafe(no_mangle)]
        pub extern "C" fn $to(handle: c_int) -> c_int {
            handle
        }

        /// A handle is the same in C and in Fortran.
        #[unsafe(no_mangle)]
        pub extern "C" fn $from(handle: c_int) -> c_int {
            handle
        }
    )*};
}

conversions! {
    MPI_Comm_c2f MPI_Comm_f2c MPI_Errhandler_c2f MPI_Errhandler_f2c MPI_Group_c2f MPI_Group_f2c
    MPI_Info_c2f MPI_Info_f2c MPI_Message_c2f MPI_Message_f2c MPI_Op_c2f MPI_Op_f2c
    MPI_Request_c2f MPI_Request_f2c MPI_Type_c2f MPI_Type_f2c MPI_Win_c2f MPI_Win_f2c
}
