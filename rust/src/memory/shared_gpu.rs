//! A warning if processes of a node compute on one GPU, though there is one for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::{Driver, Stream};
use crate::log;

/// The processes of a job on this node.
struct Siblings {
    /// Their common name.
    name: String,
    /// The warning, with `{gpu}` for the GPU.
    warning: String,
}

static SIBLINGS: OnceLock<Siblings> = OnceLock::new();
static IS_CHECKED: AtomicBool = AtomicBool::new(false);

/// Prepares a look at the first call on device memory whether processes of a job share a GPU.
/// `name` is common to the processes of the job on this node. `warning` has `{gpu}` for the GPU.
pub fn expect_own(name: String, warning: String) {
    SIBLINGS.get_or_init(|| Siblings { name, warning });
}

/// Warns once for all processes that share a GPU, the one of a stream.
#[inline]
pub fn check(driver: &'static Driver, stream: Stream) {
    if !IS_CHECKED.load(Ordering::Relaxed)
        && let Some(siblings) = SIBLINGS.get()
        && !IS_CHECKED.swap(true, Ordering::Relaxed)
    {
        siblings.check(driver, stream);
    }
}

impl Siblings {
    #[cold]
    fn check(&self, driver: &'static Driver, stream: Stream) {
        let Some(uuid) = uuid_of(driver, stream) else {
            return;
        };
        let Self { name, warning } = self;
        if !claim(&format!("GPU {uuid} of {name}")) && claim(&format!("warning of {name}")) {
            log::print_error(&format!("mpi4jax: {}\n", warning.replace("{gpu}", &uuid)));
        }
    }
}

/// The unique name of a stream's device, as nvidia-smi has it, or of the part of it that a process has.
fn uuid_of(driver: &'static Driver, stream: Stream) -> Option<String> {
    let context = driver.context_of(stream).ok()?;
    let in_context = driver.enter(context).ok()?;
    let (mut device, mut uuid) = (0, [0; 16]);
    // SAFETY: there is room for the answers, and the second call gets what the first has given.
    unsafe {
        driver.context_device(&raw mut device).ok()?;
        driver.device_uuid(&raw mut uuid, device).ok()?;
    }
    drop(in_context);
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &digits[range]);
    Some(format!("GPU-{}", parts.join("-")))
}

/// Claims something on this node until this process ends. Returns whether no other process has.
#[cfg(target_os = "linux")]
fn claim(what: &str) -> bool {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let address = SocketAddr::from_abstract_name(format!("mpi4jax, {what}"));
    match address.and_then(|address| UnixDatagram::bind_addr(&address)) {
        Ok(socket) => {
            std::mem::forget(socket);
            true
        }
        Err(_) => false,
    }
}

#[cfg(not(target_os = "linux"))]
fn claim(_: &str) -> bool {
    true
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn only_one_claim_succeeds() {
        let what = format!("test of {}", std::process::id());
        assert!(claim(&what));
        assert!(!claim(&what));
        assert!(claim(&format!("other {what}")));
    }
}
