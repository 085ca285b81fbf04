//! Modules and their functions. Those in PTX compute; others do nothing when they are launched.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use crate::driver::give;
use crate::image;
use crate::memory::{Span, free, new_device_memory, span, whole};
use crate::ptx;
use crate::state::{INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, Outcome, State, lock};
use crate::stream::{Command, stream};

/// A kernel in PTX, or why it can't be run.
type Code = Arc<Result<ptx::Kernel, String>>;

#[derive(Default)]
pub struct Module {
    code: HashMap<String, Code>,
    /// The names of its variables, with their bytes.
    variables: Vec<(CString, usize)>,
    /// Where those are that have been asked for.
    addresses: Vec<(CString, usize, usize)>,
}

/// A function on the device.
pub struct Kernel {
    name: CString,
    module: usize,
    code: Option<Code>,
}

pub fn load(module: *mut *mut c_void, image: *const c_void) -> Outcome {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller gives an image.
    let loaded = match unsafe { image::is_elf(image.cast()) } {
        true => Module {
            // SAFETY: the caller gives an image, which is an ELF file.
            variables: unsafe { image::variables(image.cast()) },
            ..Module::default()
        },
        // SAFETY: the caller gives an image, which else is text.
        false => of_text(&unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy()),
    };
    let (handle, _) = lock().new_handle();
    give(module, handle as *mut c_void)?;
    lock().modules.insert(handle, loaded);
    Ok(())
}

fn of_text(text: &str) -> Module {
    let mut addresses = Vec::new();
    let (_, code) = ptx::read(text, |variable| {
        let name = CString::new(variable.name.as_str()).ok()?;
        let address = new_device_memory(variable.bytes).ok()?;
        let mut content = variable.content.clone();
        content.resize(variable.bytes, 0);
        let to = span(&mut lock(), address, variable.bytes).ok()?;
        // SAFETY: the span is as long as the content.
        unsafe { to.write(content.as_ptr()) };
        addresses.push((name, address, variable.bytes));
        Some(address as u64)
    });
    let code = code.into_iter().map(|(name, code)| (name, Arc::new(code)));
    Module {
        code: code.collect(),
        addresses,
        ..Module::default()
    }
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
    let module = module as usize;
    let code = &state.modules.get(&module).ok_or(INVALID_HANDLE)?.code;
    let code = code.get(name.to_string_lossy().as_ref()).cloned();
    let (handle, _) = state.new_handle();
    give(function, handle as *mut c_void)?;
    state.kernels.insert(handle, Kernel { name, module, code });
    Ok(())
}

/// A kernel of the caller's own, which the runtime library has by the address of its stub.
pub fn kernel_of(symbol: usize) -> usize {
    let mut state = lock();
    let name = CString::from(c"of the runtime");
    state.kernels.entry(symbol).or_insert(Kernel {
        name,
        module: 0,
        code: None,
    });
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
    span(&mut lock(), address, bytes)?.fill(&[0]);
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
    let known = ATTRIBUTES
        .iter()
        .find(|(attribute_code, _)| *attribute_code == attribute);
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
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    on: *mut c_void,
    arguments: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Outcome {
    let settings = Settings {
        blocks: [grid_x, grid_y, grid_z],
        threads: [block_x, block_y, block_z],
        shared,
        stream: on,
    };
    launch_on(function, &settings, arguments)
}

/// The beginning of CUDA's `CUlaunchConfig`.
#[repr(C)]
struct Settings {
    blocks: [c_uint; 3],
    threads: [c_uint; 3],
    shared: c_uint,
    stream: *mut c_void,
}

pub fn launch_with(
    settings: *const c_void,
    function: *mut c_void,
    arguments: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Outcome {
    if settings.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller gives CUDA's struct.
    let settings = unsafe { &*settings.cast::<Settings>() };
    launch_on(function, settings, arguments)
}

/// The memory that a kernel may use: the allocations that its parameters point to, and the
/// variables of its module.
struct Reach(Vec<Span>);

impl ptx::Memory for Reach {
    fn at(&self, address: u64, bytes: usize) -> Option<*mut u8> {
        let address = usize::try_from(address).ok()?;
        self.0.iter().find_map(|span| span.at(address, bytes))
    }
}

fn launch_on(function: *mut c_void, settings: &Settings, arguments: *mut *mut c_void) -> Outcome {
    let mut state = lock();
    let kernel = state
        .kernels
        .get(&(function as usize))
        .ok_or(INVALID_HANDLE)?;
    let (module, name) = (kernel.module, kernel.name.clone());
    let Some(code) = kernel.code.clone() else {
        stream(&mut state, settings.stream)?.push(Command::new(|| ()));
        return Ok(());
    };
    let code_or_reason = code.as_ref().as_ref();
    let kernel = code_or_reason.map_err(|statement| {
        state.violation(&format!(
            "kernel {name:?} has an unknown statement: {statement}"
        ))
    })?;
    // SAFETY: the caller gives as many arguments as the kernel has parameters.
    let parameters = unsafe { parameters(kernel, arguments) };
    let reach = reach(&state, module, kernel, &parameters);
    let (blocks, threads, shared) = (settings.blocks, settings.threads, settings.shared as usize);
    let code = Arc::clone(&code);
    let work = move || {
        let Ok(kernel) = code.as_ref() else {
            return;
        };
        if let Err(error) = ptx::run(kernel, &parameters, blocks, threads, shared, &reach) {
            lock().violation(&format!("kernel {name:?}: {error}"));
        }
    };
    stream(&mut state, settings.stream)?.push(Command::new(work));
    Ok(())
}

/// # Safety
/// There must be an argument for each of the kernel's parameters, of the parameter's bytes.
unsafe fn parameters(kernel: &ptx::Kernel, arguments: *mut *mut c_void) -> Vec<u8> {
    let mut all = Vec::new();
    for (index, (start, bytes)) in kernel.parameters.iter().enumerate() {
        all.resize(start + bytes, 0);
        // SAFETY: the caller's promise.
        unsafe {
            let argument = *arguments.add(index);
            argument
                .cast::<u8>()
                .copy_to(all[*start..].as_mut_ptr(), *bytes);
        }
    }
    all
}

fn reach(state: &State, module: usize, kernel: &ptx::Kernel, parameters: &[u8]) -> Reach {
    let pointers = kernel.parameters.iter().filter_map(|(start, bytes)| {
        let pointer = parameters.get(*start..start + bytes)?.try_into().ok()?;
        Some(usize::from_ne_bytes(pointer))
    });
    let variables = state.modules.get(&module).map(|module| &module.addresses);
    let variables = variables
        .into_iter()
        .flatten()
        .map(|(_, address, _)| *address);
    let addresses = pointers.chain(variables);
    Reach(
        addresses
            .filter_map(|address| whole(state, address))
            .collect(),
    )
}
