//! The devices of a communicator that XLA asks for.
//!
//! XLA has MPI split its world, by a color and a key: the number of the communicator's first device,
//! and the rank in it. It does not say which processes take part. Programs on overlapping sets of
//! processes may ask with the same colors, and a process without a device in the program does not
//! ask at all, so the split of a world would join what does not belong together, or wait for ever.
//!
//! But the thread that asks has the devices on its stack, in an `xla::cpu::CpuCliqueKey`. Like every
//! C++ object with virtual functions, this begins with the address of its class's table, before which
//! stands the address of the class's description, with its name (Itanium C++ ABI, §2.5.2 and
//! §2.9.5). Its only member is a `std::vector` of the devices' numbers. jaxlib 0.6 to 0.12 are alike
//! in this. The devices have to fit the color and the key.
//!
//! Without them, no communicator is made, not even one of all processes: those of the cliques {0, 1} and
//! {0, 1, 2, 3} are asked for with the same colors and keys by processes 0 and 1, of which each may be in
//! another program than 2 and 3, so that nothing that they tell each other shows which one is meant.
//!
//! The memory is read through the kernel, which refuses what is not mapped.

use std::collections::HashSet;

/// Name of the class in C++.
const CLASS: &[u8] = b"N3xla3cpu12CpuCliqueKeyE\0";

/// The object is less than 3 KiB from the function that jaxlib calls.
const SEARCHED: usize = 32 * 1024;

/// Upper limit of the number of devices.
const MAX_DEVICES: usize = 1 << 20;

/// The numbers of all devices of the communicator for which this thread asks with a color and a key.
/// `None` if they are not found, or if it is not clear which they are. jaxlib keeps each number in `bytes`
/// bytes.
pub fn devices(color: i64, key: usize, bytes: usize) -> Option<Vec<i64>> {
    let here = 0usize;
    let stack = words(&read((&raw const here).addr(), SEARCHED));
    let mut clique: Option<Vec<i64>> = None;
    for object in stack.windows(3) {
        if !is_clique(object[0]) {
            continue;
        }
        let Some(devices) = numbers(object[1], object[2], bytes) else {
            continue;
        };
        let distinct: HashSet<i64> = devices.iter().copied().collect();
        let is_whole = distinct.len() == devices.len() && key < devices.len();
        if is_whole && devices[0] == color {
            if clique.as_ref().is_some_and(|other| *other != devices) {
                return None;
            }
            clique = Some(devices);
        }
    }
    clique
}

/// Whether something is the address that objects of the class begin with.
fn is_clique(table: usize) -> bool {
    const WORD: usize = size_of::<usize>();
    let follow = |address: usize| words(&read(address, WORD)).first().copied();
    let description = table.checked_sub(WORD).and_then(follow);
    let name = description.and_then(|description| follow(description.checked_add(WORD)?));
    name.is_some_and(|name| read(name, CLASS.len()) == CLASS)
}

/// The numbers between two addresses, if they are there.
fn numbers(begin: usize, end: usize, bytes: usize) -> Option<Vec<i64>> {
    let length = end.checked_sub(begin)?;
    if length == 0 || length % bytes != 0 || length / bytes > MAX_DEVICES {
        return None;
    }
    let content = read(begin, length);
    let device = |bytes: &[u8]| match bytes.try_into() {
        Ok(bytes) => Some(i32::from_ne_bytes(bytes).into()),
        Err(_) => Some(i64::from_ne_bytes(bytes.try_into().ok()?)),
    };
    (content.len() == length).then(|| content.chunks_exact(bytes).map(device).collect())?
}

fn words(bytes: &[u8]) -> Vec<usize> {
    let words = bytes.chunks_exact(size_of::<usize>());
    words
        .filter_map(|word| Some(usize::from_ne_bytes(word.try_into().ok()?)))
        .collect()
}

/// The `length` bytes of this process's memory from `address` on, or as many as can be read.
#[cfg(target_os = "linux")]
fn read(address: usize, length: usize) -> Vec<u8> {
    use std::ffi::c_void;
    use std::io::Error;

    /// The least size of a page. What is read in one piece is mapped or not.
    const PAGE: usize = 4096;
    /// Number of pieces that Linux takes at once (`IOV_MAX`).
    const MAX_PIECES: usize = 1024;

    let end = address.saturating_add(length);
    let mut bytes = vec![0; end - address];
    let mut begin = address;
    while begin < end {
        let mut pieces = Vec::new();
        let mut at = begin;
        while at < end && pieces.len() < MAX_PIECES {
            let next = (at | (PAGE - 1)).saturating_add(1).min(end);
            pieces.push(libc::iovec {
                iov_base: at as *mut c_void,
                iov_len: next - at,
            });
            at = next;
        }
        let rest = &mut bytes[begin - address..];
        let room = libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        };
        let count = pieces.len() as libc::c_ulong;
        // SAFETY: the kernel writes no more than there is room for, and sees itself to what it reads.
        let moved = unsafe {
            libc::process_vm_readv(
                libc::getpid(),
                &raw const room,
                1,
                pieces.as_ptr(),
                count,
                0,
            )
        };
        match usize::try_from(moved) {
            Ok(moved) if moved > 0 => begin += moved,
            _ => {
                let is_refused = Error::last_os_error().raw_os_error() != Some(libc::EFAULT);
                if is_refused {
                    begin += read_file(begin, &mut bytes[begin - address..]);
                }
                break;
            }
        }
    }
    bytes.truncate(begin - address);
    bytes
}

/// Reads in the way that remains where `process_vm_readv` is refused, as in some containers. Gives
/// the number of bytes.
#[cfg(target_os = "linux")]
fn read_file(address: usize, bytes: &mut [u8]) -> usize {
    use std::os::unix::fs::FileExt;

    let Ok(memory) = std::fs::File::open("/proc/self/mem") else {
        return 0;
    };
    let mut count = 0;
    while count < bytes.len() {
        let at = (address + count) as u64;
        match memory.read_at(&mut bytes[count..], at) {
            Ok(more) if more > 0 => count += more,
            _ => break,
        }
    }
    count
}

/// jaxlib's collectives are connected to MPI on Linux only.
#[cfg(not(target_os = "linux"))]
fn read(_: usize, _: usize) -> Vec<u8> {
    Vec::new()
}
