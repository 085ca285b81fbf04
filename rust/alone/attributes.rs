//! Attributes of communicators and datatypes (MPI-3.1 §6.7), with their callbacks.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::environment;
use super::errors::{Error, KEYVAL, Result, outcome};
use super::handles::{KEYVAL_INVALID, State, state};
use super::memory::Out;

type Copy = extern "C" fn(c_int, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
type Delete = extern "C" fn(c_int, c_int, *mut c_void, *mut c_void) -> c_int;

/// A key of attributes. Attributes keep it after it was freed.
pub struct Keyval {
    copy: Option<Copy>,
    delete: Option<Delete>,
    extra: usize,
    /// Whether it is for datatypes.
    of_types: bool,
}

fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// The attributes of one object, in the order in which they were set.
#[derive(Clone, Default)]
pub struct Attributes(Vec<(c_int, Arc<Keyval>, usize)>);

impl Attributes {
    fn get(&self, keyval: c_int) -> Option<usize> {
        self.0
            .iter()
            .find(|(key, ..)| *key == keyval)
            .map(|(.., value)| *value)
    }

    fn set(&mut self, keyval: c_int, key: Arc<Keyval>, value: usize) {
        match self.0.iter_mut().find(|(key, ..)| *key == keyval) {
            Some(attribute) => attribute.2 = value,
            None => self.0.push((keyval, key, value)),
        }
    }

    /// Attributes of a copy of the object, which callbacks choose.
    pub fn copied(&self, object: c_int) -> Result<Self> {
        let mut copies = Self::default();
        for (handle, key, value) in &self.0 {
            let Some(copy) = key.copy else { continue };
            let (mut copied, mut flag) = (0_usize, 0);
            let to = (&raw mut copied).cast();
            outcome(copy(
                object,
                *handle,
                pointer(key.extra),
                pointer(*value),
                to,
                &raw mut flag,
            ))?;
            if flag != 0 {
                copies.0.push((*handle, Arc::clone(key), copied));
            }
        }
        Ok(copies)
    }
}

/// The attributes of an object, where it is.
pub trait Of: Fn(&mut State) -> Result<&mut Attributes> {}
impl<F: Fn(&mut State) -> Result<&mut Attributes>> Of for F {}

/// Attributes of a communicator.
pub fn of_communicator(comm: c_int) -> impl Of {
    move |state: &mut State| Ok(&mut state.communicators.get_mut(comm)?.attributes)
}

/// Attributes of a datatype.
pub fn of_datatype(datatype: c_int) -> impl Of {
    move |state: &mut State| Ok(&mut state.datatypes.get_mut(datatype)?.attributes)
}

/// Deletes an attribute, if its callback agrees.
fn delete(object: c_int, keyval: c_int, attributes: &impl Of) -> Result<()> {
    let attribute = attributes(&mut state())?
        .0
        .iter()
        .find(|(key, ..)| *key == keyval)
        .cloned();
    let Some((_, key, value)) = attribute else {
        return Ok(());
    };
    if let Some(delete) = key.delete {
        outcome(delete(object, keyval, pointer(value), pointer(key.extra)))?;
    }
    attributes(&mut state())?
        .0
        .retain(|(key, ..)| *key != keyval);
    Ok(())
}

/// Deletes all attributes, the last that was set first.
pub fn delete_all(object: c_int, attributes: impl Of) -> Result<()> {
    loop {
        let last = attributes(&mut state())?
            .0
            .last()
            .map(|(keyval, ..)| *keyval);
        let Some(keyval) = last else { return Ok(()) };
        delete(object, keyval, &attributes)?;
    }
}

/// A key of the right kind of objects.
fn key(keyval: c_int, of_types: bool) -> Result<Arc<Keyval>> {
    let key = Arc::clone(state().keyvals.get(keyval)?);
    if key.of_types != of_types {
        let expected = if of_types {
            "one of datatypes"
        } else {
            "one of communicators"
        };
        return Err(Error::got(
            KEYVAL,
            format!("{keyval:#x}"),
            "the attribute key",
            expected,
        ));
    }
    Ok(key)
}

fn set(
    object: c_int,
    keyval: c_int,
    value: usize,
    of_types: bool,
    attributes: impl Of,
) -> Result<()> {
    let key = key(keyval, of_types)?;
    // A new value deletes the old one, and keeps its place.
    let before = attributes(&mut state())?.get(keyval);
    if let (Some(before), Some(delete)) = (before, key.delete) {
        outcome(delete(object, keyval, pointer(before), pointer(key.extra)))?;
    }
    attributes(&mut state())?.set(keyval, key, value);
    Ok(())
}

fn put(value: Option<usize>, to: Out<usize>, flag: Out<c_int>) -> Result<()> {
    if let Some(value) = value {
        to.put(value)?;
    }
    flag.put(value.is_some().into())
}

macro_rules! attributes {
    (
        $table:ident, $of:ident, $of_types:literal:
        $create:ident, $free:ident, $set:ident, $get:ident, $delete:ident
        $(, on $comm:ident, $predefined:expr)?
    ) => {
        mpi! {
            $create(
                copy: Option<Copy>, delete: Option<Delete>, keyval: Out<c_int>, extra: usize,
            ) => {
                let key = Arc::new(Keyval { copy, delete, extra, of_types: $of_types });
                keyval.put(state().keyvals.add(key))
            };
            $free(keyval: Out<c_int>) => {
                let handle = keyval.get()?;
                key(handle, $of_types)?;
                state().keyvals.remove(handle)?;
                keyval.put(KEYVAL_INVALID)
            };
            $set(object: c_int, keyval: c_int, value: usize) $(on $comm!(object))? => {
                set(object, keyval, value, $of_types, $of(object))
            };
            $get(object: c_int, keyval: c_int, value: Out<usize>, flag: Out<c_int>)
                $(on $comm!(object))? =>
            {
                $(if let Some(address) = $predefined(keyval) {
                    return put(Some(address), value, flag);
                })?
                key(keyval, $of_types)?;
                put(state().$table.get(object)?.attributes.get(keyval), value, flag)
            };
            $delete(object: c_int, keyval: c_int) $(on $comm!(object))? => {
                key(keyval, $of_types)?;
                delete(object, keyval, &$of(object))
            };
        }
    };
}

macro_rules! itself {
    ($object:expr) => {
        $object
    };
}

attributes!(
    communicators, of_communicator, false:
    MPI_Comm_create_keyval, MPI_Comm_free_keyval, MPI_Comm_set_attr, MPI_Comm_get_attr,
    MPI_Comm_delete_attr, on itself, environment::attribute
);
attributes!(
    datatypes, of_datatype, true:
    MPI_Type_create_keyval, MPI_Type_free_keyval, MPI_Type_set_attr, MPI_Type_get_attr,
    MPI_Type_delete_attr
);

/// The copy callback that copies (`MPI_COMM_DUP_FN` and `MPI_TYPE_DUP_FN`).
#[unsafe(no_mangle)]
pub extern "C" fn MPIR_Dup_fn(
    _: c_int,
    _: c_int,
    _: *mut c_void,
    value: usize,
    copied: Out<usize>,
    flag: Out<c_int>,
) -> c_int {
    let done = copied.put(value).and_then(|()| flag.put(1));
    done.map_or_else(|error| error.code, |()| 0)
}
