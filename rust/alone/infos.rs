//! Info objects (MPI-3.1 §9).

use std::ffi::{c_char, c_int};

use super::errors::{ARG, Error, INFO_KEY, INFO_NOKEY, INFO_VALUE, Result};
use super::handles::{INFO_NULL, state};
use super::memory::{Out, Text};

/// Keys and values, in the order in which they were set.
pub type Info = Vec<(String, String)>;

const MAX_KEY: usize = 255;
const MAX_VALUE: usize = 1024;

/// `MPI_INFO_ENV`.
pub fn predefined() -> [(c_int, Info); 1] {
    [(0x5c00_0001, vec![("maxprocs".into(), "1".into())])]
}

/// A text that is neither empty nor too long.
fn text(text: Text, max: usize, class: c_int, what: &str) -> Result<String> {
    let text = text.read()?;
    if text.is_empty() || text.len() > max {
        let given = format!("a text of {} bytes", text.len());
        return Err(Error::got(class, given, what, &format!("1 to {max}")));
    }
    Ok(text)
}

fn key(key: Text) -> Result<String> {
    text(key, MAX_KEY, INFO_KEY, "the key")
}

fn get(info: c_int, key: Text) -> Result<Option<String>> {
    let key = self::key(key)?;
    let state = state();
    let found = state.infos.get(info)?.iter().find(|(name, _)| *name == key);
    Ok(found.map(|(_, value)| value.clone()))
}

mpi! {
    MPI_Info_create(info: Out<c_int>) => info.put(state().infos.add(Info::new()));
    MPI_Info_set(info: c_int, key: Text, value: Text) => {
        let key = self::key(key)?;
        let value = text(value, MAX_VALUE, INFO_VALUE, "the value")?;
        let mut state = state();
        state.infos.check_made(info)?;
        let found = state.infos.get_mut(info)?;
        match found.iter_mut().find(|(name, _)| *name == key) {
            Some((_, before)) => *before = value,
            None => found.push((key, value)),
        }
        Ok(())
    };
    MPI_Info_delete(info: c_int, key: Text) => {
        let key = self::key(key)?;
        let mut state = state();
        state.infos.check_made(info)?;
        let found = state.infos.get_mut(info)?;
        let before = found.len();
        found.retain(|(name, _)| *name != key);
        if found.len() == before {
            return Err(Error::got(INFO_NOKEY, key, "the key", "one of the info object's"));
        }
        Ok(())
    };
    MPI_Info_get(info: c_int, key: Text, room: c_int, value: Out<c_char>, flag: Out<c_int>) => {
        let found = get(info, key)?;
        if let Some(found) = &found {
            // One more for the zero.
            value.put_text(found, super::errors::count(room)? + 1)?;
        }
        flag.put(found.is_some().into())
    };
    MPI_Info_get_valuelen(info: c_int, key: Text, length: Out<c_int>, flag: Out<c_int>) => {
        let found = get(info, key)?;
        if let Some(found) = &found {
            length.put(found.len() as c_int)?;
        }
        flag.put(found.is_some().into())
    };
    MPI_Info_get_nkeys(info: c_int, count: Out<c_int>) => {
        count.put(state().infos.get(info)?.len() as c_int)
    };
    MPI_Info_get_nthkey(info: c_int, index: c_int, key: Out<c_char>) => {
        let state = state();
        let found = state.infos.get(info)?;
        let (name, _) = usize::try_from(index).ok().and_then(|index| found.get(index)).ok_or_else(
            || Error::got(ARG, index, "the index of a key", &format!("less than {}", found.len())),
        )?;
        key.put_text(name, MAX_KEY + 1).map(|_| ())
    };
    MPI_Info_dup(info: c_int, new: Out<c_int>) => {
        let mut state = state();
        let copy = state.infos.get(info)?.clone();
        new.put(state.infos.add(copy))
    };
    MPI_Info_free(info: Out<c_int>) => {
        let mut state = state();
        let handle = info.get()?;
        state.infos.check_made(handle)?;
        state.infos.remove(handle)?;
        info.put(INFO_NULL)
    };
}
