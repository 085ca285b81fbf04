//! Network address at which the watcher of a process listens.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Secret number with which each message to a watcher begins: known only to processes that could look
/// up the address.
pub type Secret = [u8; 16];

/// Address of a watcher. Its text has none of the characters that separate the fields of launchers'
/// messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// Rank of the process in `MPI_COMM_WORLD`.
    pub rank: i32,
    /// Host name of the machine on which the process runs.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Secret of the process.
    pub secret: Secret,
    /// IP addresses of the machine, without the loopback.
    pub interfaces: Vec<IpAddr>,
}

/// First word of an address, which tells it from other texts under our key.
const MARK: &str = "mpi4jax";
const SEPARATOR: char = ',';
/// Length of the longest text: MPICH has room for 255 characters (`MPI_MAX_PORT_NAME`).
const LONGEST: usize = 255;
/// Length to which host names are cut: they are only compared for equality.
const LONGEST_HOST: usize = 64;

impl Address {
    /// Address of this process, which listens on `port` to its machine or, with `all_hosts`, to all.
    pub fn own(rank: i32, host: &str, all_hosts: bool, port: u16) -> io::Result<Self> {
        let mut secret = Secret::default();
        File::open("/dev/urandom")?.read_exact(&mut secret)?;
        let host = host
            .chars()
            .filter(|c| c.is_ascii_graphic() && *c != SEPARATOR);
        Ok(Self {
            rank,
            host: host.take(LONGEST_HOST).collect(),
            port,
            secret,
            interfaces: if all_hosts { interfaces() } else { Vec::new() },
        })
    }

    /// Socket addresses to try, in order, from a process on the host `from`.
    pub fn sockets(&self, from: &str) -> impl Iterator<Item = SocketAddr> {
        let is_near = from == self.host || self.interfaces.is_empty();
        let loopback = is_near.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let all = loopback.into_iter().chain(self.interfaces.iter().copied());
        all.map(|ip| SocketAddr::new(ip, self.port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let secret = u128::from_be_bytes(self.secret);
        let Self {
            rank, port, host, ..
        } = self;
        let mut text = format!("{MARK},{rank},{port},{secret:032x},{host}");
        for ip in &self.interfaces {
            let word = format!("{SEPARATOR}{ip}");
            if text.len() + word.len() <= LONGEST {
                text += &word;
            }
        }
        f.write_str(&text)
    }
}

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.split(SEPARATOR);
        let mut next = || words.next().ok_or("an address with too few words");
        if next()? != MARK {
            return Err("no address of mpi4jax");
        }
        let malformed = |_| "a word of an address is no number";
        Ok(Self {
            rank: next()?.parse().map_err(malformed)?,
            port: next()?.parse().map_err(malformed)?,
            secret: u128::from_str_radix(next()?, 16)
                .map_err(malformed)?
                .to_be_bytes(),
            host: next()?.to_owned(),
            interfaces: words.filter_map(|word| word.parse().ok()).collect(),
        })
    }
}

impl TryFrom<String> for Address {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

/// IP addresses at which other machines may reach this one: IPv4 before IPv6, without loopback and
/// link-local addresses.
fn interfaces() -> Vec<IpAddr> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the system allocates a list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let mut addresses = Vec::new();
    let mut entry = first;
    while !entry.is_null() {
        // SAFETY: an entry of the list, which lives until it is freed.
        let (address, next) = unsafe { ((*entry).ifa_addr, (*entry).ifa_next) };
        if !address.is_null() {
            // SAFETY: the system's entries are as long as their family says.
            addresses.extend(unsafe { ip_of(address) });
        }
        entry = next;
    }
    // SAFETY: the list of `getifaddrs`.
    unsafe { libc::freeifaddrs(first) };
    addresses.retain(|ip| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    });
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.dedup();
    addresses
}

/// IP address in a socket address, if the address is of an IP family.
///
/// # Safety
/// The address is as long as its family says.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise. The reads need no alignment.
    unsafe {
        match libc::c_int::from((*address).sa_family) {
            libc::AF_INET => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::from(address.sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => {
                let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(IpAddr::from(address.sin6_addr.s6_addr))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, interfaces: &[&str]) -> Address {
        Address {
            rank: 12,
            host: host.into(),
            port: 4567,
            secret: [7; 16],
            interfaces: interfaces.iter().map(|ip| ip.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn addresses_survive_their_text() {
        let address = address("node7", &["10.0.0.7", "fd00::7"]);
        let text = address.to_string();
        assert_eq!(
            text,
            "mpi4jax,12,4567,07070707070707070707070707070707,node7,10.0.0.7,fd00::7"
        );
        assert_eq!(text.parse(), Ok(address));
    }

    /// Fails if a launcher would truncate the text or read a part as its own separator.
    #[test]
    #[cfg(not(miri))] // it has no network
    fn the_longest_address_fits() {
        let mut address = Address::own(i32::MAX, &"a=b;c d,e".repeat(20), true, u16::MAX).unwrap();
        address.interfaces = vec!["fd00:1234:5678:9abc:def0:1234:5678:9abc".parse().unwrap(); 20];
        let text = address.to_string();
        assert!((200..=LONGEST).contains(&text.len()), "{text}");
        assert!(text.starts_with("mpi4jax,2147483647,65535,"), "{text}");
        assert!(!text.contains([' ', '\n']), "{text}");
        let copy: Address = text.parse().unwrap();
        assert_eq!((copy.secret, copy.host), (address.secret, address.host));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "mpi4jax",
            "port,1,2,3,host",
            "mpi4jax,x,1,2,host",
            "mpi4jax,1,70000,2,h",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_loopback_is_tried_first_on_the_same_machine() {
        let tried = |interfaces: &[&str], from| -> Vec<String> {
            let address = address("here", interfaces);
            let sockets = address.sockets(from);
            sockets.map(|socket| socket.to_string()).collect()
        };
        let (near, far) = ("127.0.0.1:4567", "10.0.0.7:4567");
        assert_eq!(tried(&["10.0.0.7"], "here"), [near, far]);
        assert_eq!(tried(&["10.0.0.7"], "there"), [far]);
        assert_eq!(tried(&[], "there"), [near]);
    }
}
