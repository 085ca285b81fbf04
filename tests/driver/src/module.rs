//! Modules and their functions, which do nothing when they are launched.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use crate::driver::give;
use crate::image;
use crate::memory::{free, new_device_memory};
use crate::state::{INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, Outcome, lock};
use crate::stream::{Command, stream};

pub struct Module {
    /// The names of its variables, with their bytes.
    variables: Vec<(CString, usize)>,
    /// Where those are that have been asked for.
    addresses: Vec<(CString, usize, usize)>,
}

/// A function on the device.
pub struct Kernel {
    name: CString,
}

pub fn load(module: *mut *mut c_void, image: *const c_void) -> Outcome {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller gives an image.
    let variables = unsafe { image::variables(image.cast()) };
    let (handle, _) = lock().new_handle();
    give(module, handle as *mut c_void)?;
    let addresses = Vec::new();
    let loaded = Module {
        variables,
        addresses,
    };
    lock().modules.insert(handle, loaded);
    Ok(())
}

pub fn load_with_options(
    module: *mut *mut c_void,
    image: *const c_void,
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> Outcome {
    load(module, image)
}

pub fn unload(module: *mut c_void) -> Outcome {
    let unloaded = lock().modules.remove(&(module as usize));
    let Module { addresses, .. } = unloaded.ok_or(INVALID_HANDLE)?;
    addresses
        .iter()
        .try_for_each(|(_, address, _)| free(*address))
}

/// # Safety
/// `name` must be a C string or null.
unsafe fn text(name: *const c_char) -> Result<CString, c_int> {
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(name) }.to_owned())
}

pub fn module_function(
    function: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> Outcome {
    // SAFETY: the caller gives a C string.
    let name = unsafe { text(name) }?;
    let mut state = lock();
    if !state.modules.contains_key(&(module as usize)) {
        return Err(INVALID_HANDLE);
    }
    let (handle, _) = state.new_handle();
    give(function, handle as *mut c_void)?;
    state.kernels.insert(handle, Kernel { name });
    Ok(())
}

/// A kernel of the caller's own, which the runtime library has by the address of its stub.
pub fn kernel_of(symbol: usize) -> usize {
    let mut state = lock();
    let name = CString::from(c"of the runtime");
    state.kernels.entry(symbol).or_insert(Kernel { name });
    symbol
}

pub fn module_global(
    address: *mut usize,
    bytes: *mut usize,
    module: *mut c_void,
    name: *const c_char,
) -> Outcome {
    // SAFETY: the caller gives a C string.
    let name = unsafe { text(name) }?;
    let (start, length) = variable(module as usize, name)?;
    if !address.is_null() {
        give(address, start)?;
    }
    match bytes.is_null() {
        true => Ok(()),
        false => give(bytes, length),
    }
}

/// The address and the bytes of a variable, which gets its memory when it is first asked for.
fn variable(module: usize, name: CString) -> Result<(usize, usize), c_int> {
    let bytes = {
        let state = lock();
        let module = state.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let known = module.addresses.iter().find(|(known, ..)| *known == name);
        if let Some((_, address, bytes)) = known {
            return Ok((*address, *bytes));
        }
        let variable = module.variables.iter().find(|(known, _)| *known == name);
        variable.ok_or(NOT_FOUND)?.1
    };
    let address = new_device_memory(bytes)?;
    if let Some(module) = lock().modules.get_mut(&module) {
        module.addresses.push((name, address, bytes));
    }
    Ok((address, bytes))
}

fn check(function: *mut c_void) -> Outcome {
    let state = lock();
    let kernel = state.kernels.get(&(function as usize));
    kernel.map(drop).ok_or(INVALID_HANDLE)
}

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`, `_NUM_REGS`, `_PTX_VERSION`, `_BINARY_VERSION`.
const ATTRIBUTES: &[(c_int, c_int)] = &[(0, 1024), (4, 32), (5, 90), (6, 90)];

pub fn function_attribute(value: *mut c_int, attribute: c_int, function: *mut c_void) -> Outcome {
    check(function)?;
    let known = ATTRIBUTES.iter().find(|(number, _)| *number == attribute);
    give(value, known.map_or(0, |(_, value)| *value))
}

pub fn function_name(name: *mut *const c_char, function: *mut c_void) -> Outcome {
    let state = lock();
    let kernel = state.kernels.get(&(function as usize));
    give(name, kernel.ok_or(INVALID_HANDLE)?.name.as_ptr())
}

pub fn set_function(function: *mut c_void, _attribute: c_int, _value: c_int) -> Outcome {
    check(function)
}

pub fn occupancy(
    blocks: *mut c_int,
    function: *mut c_void,
    _size: c_int,
    _shared: usize,
) -> Outcome {
    check(function)?;
    give(blocks, 1)
}

pub fn occupancy_with_flags(
    blocks: *mut c_int,
    function: *mut c_void,
    size: c_int,
    shared: usize,
    _flags: c_uint,
) -> Outcome {
    occupancy(blocks, function, size, shared)
}

#[expect(clippy::too_many_arguments, reason = "they are CUDA's")]
pub fn launch(
    function: *mut c_void,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared: c_uint,
    on: *mut c_void,
    _arguments: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Outcome {
    launch_on(function, on)
}

/// The beginning of CUDA's `CUlaunchConfig`.
#[repr(C)]
struct Settings {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: *mut c_void,
}

pub fn launch_with(
    settings: *const c_void,
    function: *mut c_void,
    _arguments: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Outcome {
    if settings.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller gives CUDA's struct.
    let on = unsafe { (*settings.cast::<Settings>()).stream };
    launch_on(function, on)
}

/// A kernel takes its time, and does nothing.
fn launch_on(function: *mut c_void, on: *mut c_void) -> Outcome {
    check(function)?;
    let mut state = lock();
    stream(&mut state, on)?.push(Command::new(|| ()));
    Ok(())
}
