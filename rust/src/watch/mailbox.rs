//! Mailbox for messages between the watchers of all ranks, by TCP.
//!
//! Only the [directory](super::directory) calls MPI here. The watcher never waits: sender threads open a
//! separate connection for each message, and messages that can't be delivered return to the watcher.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::address::{Address, Secret};
use super::directory::{Closed, Directory};
use super::round::Failure;
use super::watcher::{Event, WatcherMessage};
use crate::lock::lock;
use crate::recorder::os_thread;

/// Time limit for the delivery of a message, and its extension for each MB. Only a message to a stopped
/// process takes all of it.
const PATIENCE: Duration = Duration::from_secs(3);
const PATIENCE_PER_MB: Duration = Duration::from_secs(1);
/// Time limit for a connection to one of several addresses. A firewall or a lost machine takes all of it.
const CONNECTING: Duration = Duration::from_secs(1);
/// Pause before a rank that was not in the directory is looked up again: PMIx takes a second to say so.
const LOOKING_UP: Duration = Duration::from_secs(2);
/// Largest size of a message in bytes: a longer one comes from another program.
const LARGEST: usize = 1 << 28;
/// Largest number of threads that send messages.
const MAX_SENDERS: usize = 32;
/// Byte by which a receiver confirms a message.
const RECEIVED: u8 = b'+';

/// Message with the address of its sender.
#[derive(Serialize, Deserialize)]
struct Letter {
    from: Address,
    message: WatcherMessage,
}

/// Queue of messages to send, and the number of threads that send them.
#[derive(Default)]
struct Outbox {
    waiting: VecDeque<(i32, WatcherMessage)>,
    senders: usize,
}

/// Mailbox of the watcher of one rank.
pub struct Mailbox {
    own: Address,
    directory: Box<dyn Directory>,
    /// Known addresses of other ranks.
    addresses: Mutex<HashMap<i32, Address>>,
    /// Ranks that were not in the directory, with the time of the last look-up.
    missing: Mutex<HashMap<i32, Instant>>,
    /// Number of connections whose message is being received.
    arriving: AtomicUsize,
    inbox: Mutex<Vec<Event>>,
    outbox: Mutex<Outbox>,
    /// Wakes the watcher up.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Mailbox {
    /// Opens the mailbox of a rank, to which processes on its host, or with `all_hosts` on all hosts, can
    /// write. `wake` is called when there are events.
    pub fn open(
        rank: i32,
        host: &str,
        all_hosts: bool,
        directory: Box<dyn Directory>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Arc<Self>> {
        let listener = if all_hosts {
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))?
        } else {
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        };
        let port = listener.local_addr()?.port();
        let mailbox = Arc::new(Self {
            own: Address::own(rank, host, all_hosts, port)?,
            directory,
            addresses: Mutex::default(),
            missing: Mutex::default(),
            arriving: AtomicUsize::default(),
            inbox: Mutex::default(),
            outbox: Mutex::default(),
            wake: Box::new(wake),
        });
        let receiver = Arc::clone(&mailbox);
        os_thread::spawn("mpi4jax-receive", move || receiver.listen(&listener))?;
        Ok(mailbox)
    }

    /// Address of this rank.
    pub fn address(&self) -> &Address {
        &self.own
    }

    /// Publishes the address for other ranks, or returns the reason why it can't.
    pub fn publish(&self) -> Result<(), String> {
        self.directory.publish(&self.own.to_string())
    }

    /// Adds addresses of other ranks, which then need no directory.
    pub fn add_addresses(&self, addresses: impl IntoIterator<Item = Address>) {
        let addresses = addresses.into_iter().map(|address| (address.rank, address));
        lock(&self.addresses).extend(addresses);
    }

    /// Whether the address of a rank is known without the directory.
    pub fn knows(&self, rank: i32) -> bool {
        lock(&self.addresses).contains_key(&rank)
    }

    /// Takes the messages that have arrived, or could not be delivered, since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *lock(&self.inbox))
    }

    fn add_event(&self, event: Event) {
        lock(&self.inbox).push(event);
        (self.wake)();
    }

    /// Queues a message to a rank, and starts a thread that sends it.
    pub fn send(self: &Arc<Self>, rank: i32, message: WatcherMessage) {
        let mut outbox = lock(&self.outbox);
        outbox.waiting.push_back((rank, message));
        if outbox.senders < MAX_SENDERS {
            let mailbox = Arc::clone(self);
            let spawned = os_thread::spawn("mpi4jax-send", move || mailbox.send_all());
            outbox.senders += usize::from(spawned.is_ok());
        }
    }

    /// Whether all messages were delivered or have returned.
    pub fn has_sent_all(&self) -> bool {
        lock(&self.outbox).senders == 0
    }

    /// Whether no messages are left to send or to receive, and no events to take.
    pub fn is_idle(&self) -> bool {
        self.has_sent_all()
            && self.arriving.load(Ordering::SeqCst) == 0
            && lock(&self.inbox).is_empty()
    }

    fn send_all(&self) {
        loop {
            let mut outbox = lock(&self.outbox);
            let Some((to, message)) = outbox.waiting.pop_front() else {
                outbox.senders -= 1;
                return;
            };
            drop(outbox);
            if let Err(failure) = self.deliver(to, &message) {
                self.add_event(Event::Undelivered {
                    to,
                    message,
                    failure,
                });
            }
        }
    }

    fn deliver(&self, to: i32, message: &WatcherMessage) -> Result<(), Failure> {
        let address = self.address_of(to)?;
        let letter = Letter {
            from: self.own.clone(),
            message: message.clone(),
        };
        let body = serde_json::to_vec(&letter).unwrap_or_default();
        let patience = PATIENCE + PATIENCE_PER_MB * (body.len() >> 20) as u32;
        let deadline = Instant::now() + patience;
        let sockets = address.sockets(&self.own.host);
        let mut attempts = sockets.map(|socket| send_to(socket, address.secret, &body, deadline));
        if attempts.any(|attempt| attempt.is_ok()) {
            return Ok(());
        }
        Err(Failure::Silent {
            host: Some(address.host.clone()),
        })
    }

    fn address_of(&self, rank: i32) -> Result<Address, Failure> {
        if let Some(address) = lock(&self.addresses).get(&rank) {
            return Ok(address.clone());
        }
        let missed = lock(&self.missing).get(&rank).copied();
        if missed.is_some_and(|when| when.elapsed() < LOOKING_UP) {
            return Err(Failure::NotThere);
        }
        match self.directory.look_up(rank) {
            Ok(text) => {
                let address = text.and_then(|text| text.parse::<Address>().ok());
                // Slurm's PMI-2 returns the last text again for a rank that has published none.
                let address = address.filter(|address| address.rank == rank);
                let Some(address) = address else {
                    lock(&self.missing).insert(rank, Instant::now());
                    return Err(Failure::NotThere);
                };
                self.add_addresses([address.clone()]);
                Ok(address)
            }
            Err(Closed) => Err(Failure::Silent { host: None }),
        }
    }

    fn listen(&self, listener: &TcpListener) {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    self.arriving.fetch_add(1, Ordering::SeqCst);
                    self.receive(stream);
                    self.arriving.fetch_sub(1, Ordering::SeqCst);
                }
                // No file descriptor is free, but one may be later.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Receives a message. Data that is not from a watcher gets no answer.
    fn receive(&self, stream: TcpStream) {
        if let Ok(Letter { from, message }) = receive_from(stream, self.own.secret) {
            let rank = from.rank;
            self.add_addresses([from]);
            self.add_event(Event::Received {
                from: rank,
                message,
            });
        }
    }
}

fn send_to(socket: SocketAddr, secret: Secret, body: &[u8], deadline: Instant) -> io::Result<()> {
    let remaining = || {
        let remaining = deadline.saturating_duration_since(Instant::now());
        // Sockets take no zero as a timeout.
        remaining.max(Duration::from_millis(1))
    };
    let mut stream = TcpStream::connect_timeout(&socket, remaining().min(CONNECTING))?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(remaining()))?;
    let mut packet = secret.to_vec();
    packet.extend((body.len() as u64).to_be_bytes());
    packet.extend(body);
    stream.write_all(&packet)?;
    stream.set_read_timeout(Some(remaining()))?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    if answer == [RECEIVED] {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn receive_from(mut stream: TcpStream, secret: Secret) -> io::Result<Letter> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = [0; size_of::<Secret>() + size_of::<u64>()];
    stream.read_exact(&mut head)?;
    let (sent_secret, length) = head.split_at(size_of::<Secret>());
    let length = u64::from_be_bytes(length.try_into().unwrap_or_default());
    if sent_secret != secret || length > LARGEST as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = Vec::new();
    Read::by_ref(&mut stream)
        .take(length)
        .read_to_end(&mut body)?;
    let letter = serde_json::from_slice(&body)?;
    stream.write_all(&[RECEIVED])?;
    Ok(letter)
}
