//! The mailboxes of ranks, by TCP within this process.

// Miri has no network.
#![cfg(not(miri))]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use _core::diagnosis::{Note, Notes, State};
use _core::watch::{Alarm, Event, Failure, Mailbox, RoundId, WatcherMessage};

#[path = "common/board.rs"]
mod board;
use board::Board;

const HOST: &str = "here";

fn mailbox(board: &Board, rank: i32) -> Arc<Mailbox> {
    let mailbox = Mailbox::open(rank, HOST, rank != 1, board.of(rank), || ()).unwrap();
    mailbox.publish().unwrap();
    mailbox
}

fn alarm(leader: i32) -> WatcherMessage {
    WatcherMessage::Alarm {
        reason: Alarm::Waiting,
        leader,
    }
}

/// The next events of a mailbox.
fn events(mailbox: &Mailbox) -> Vec<Event> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        let events = mailbox.take_events();
        if !events.is_empty() {
            return events;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("no event");
}

fn received(from: i32, message: WatcherMessage) -> Event {
    Event::Received { from, message }
}

fn undelivered(to: i32, message: WatcherMessage, failure: Failure) -> Event {
    Event::Undelivered {
        to,
        message,
        failure,
    }
}

fn silent() -> Failure {
    Failure::Silent {
        host: Some(HOST.into()),
    }
}

#[test]
fn messages_arrive_and_wake_the_receiver() {
    let board = Board::default();
    let (wake, woken) = mpsc::channel();
    let first = Mailbox::open(0, HOST, true, board.of(0), move || wake.send(()).unwrap()).unwrap();
    first.publish().unwrap();
    let second = mailbox(&board, 1);
    second.send(0, alarm(0));
    woken.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(first.take_events(), [received(1, alarm(0))]);
    // A message has the address of its sender, which need not be in the directory any more.
    board.write(1, String::new());
    assert!(first.knows(1));
    first.send(1, WatcherMessage::Hello);
    assert_eq!(events(&second), [received(0, WatcherMessage::Hello)]);
}

/// Fails if a large message is cut, or counts as lost.
#[test]
fn notes_of_many_ranks_arrive() {
    let board = Board::default();
    let (first, second) = (mailbox(&board, 0), mailbox(&board, 1));
    let mut notes = Notes::default();
    for rank in 0..3000 {
        let mut note = Note::new(State::Silent);
        note.default_calls = u64::MAX - rank as u64;
        notes.add(rank, note, []);
        notes.add_host(&format!("a host with a long name for rank {rank}"), rank);
    }
    let round = RoundId {
        leader: 1,
        index: 1,
    };
    let answer = WatcherMessage::Answer { round, notes };
    first.send(1, answer.clone());
    assert_eq!(events(&second), [received(0, answer)]);
    assert!(first.take_events().is_empty());
}

/// Fails if messages to many ranks need as many threads, or if one is lost.
#[test]
fn many_messages_at_once() {
    const COUNT: usize = 500;
    let board = Board::default();
    let (first, second) = (mailbox(&board, 0), mailbox(&board, 1));
    for leader in 0..COUNT {
        first.send(1, alarm(leader as i32));
    }
    let mut leaders = Vec::new();
    while leaders.len() < COUNT {
        for event in events(&second) {
            match event {
                Event::Received {
                    message: WatcherMessage::Alarm { leader, .. },
                    ..
                } => leaders.push(leader),
                other => panic!("{other:?}"),
            }
        }
    }
    leaders.sort_unstable();
    assert_eq!(leaders, (0..COUNT as i32).collect::<Vec<_>>());
}

#[test]
fn what_can_not_be_delivered_comes_back() {
    let board = Board::default();
    let first = mailbox(&board, 0);
    // A launcher that gives back the address of another rank, as Slurm's does.
    board.write(2, first.address().to_string());
    board.write(3, "tag#0$description#somewhere$port#4711$".into());
    for rank in [1, 2, 3] {
        first.send(rank, alarm(rank));
        let expected = undelivered(rank, alarm(rank), Failure::NotThere);
        assert_eq!(events(&first), [expected]);
    }
    // One that comes meanwhile is not looked for at once.
    let second = mailbox(&board, 1);
    first.send(1, alarm(1));
    let expected = undelivered(1, alarm(1), Failure::NotThere);
    assert_eq!(events(&first), [expected]);
    thread::sleep(Duration::from_millis(2100));
    first.send(1, alarm(1));
    assert_eq!(events(&second), [received(0, alarm(1))]);
    // A process that has ended.
    let mut address = first.address().clone();
    address.rank = 4;
    address.port = free_port();
    board.write(4, address.to_string());
    first.send(4, alarm(4));
    assert_eq!(events(&first), [undelivered(4, alarm(4), silent())]);
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// Fails if a process that is stopped counts as reached: the system takes its connections.
#[test]
fn a_message_that_nobody_takes_comes_back() {
    let board = Board::default();
    let first = mailbox(&board, 0);
    let stopped = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut address = first.address().clone();
    address.rank = 1;
    address.interfaces.clear();
    address.port = stopped.local_addr().unwrap().port();
    board.write(1, address.to_string());
    first.send(1, alarm(0));
    assert_eq!(events(&first), [undelivered(1, alarm(0), silent())]);
}

/// Fails if anyone who reaches the port can have all ranks ended, or keep others from being heard.
#[test]
fn strangers_are_not_heard() {
    let board = Board::default();
    let (first, second) = (mailbox(&board, 0), mailbox(&board, 1));
    let secret = first.address().secret;
    let from = second.address().to_string();
    let body = format!("{{\"from\": \"{from}\", \"message\": {{\"Abort\": 3}}}}");
    let answers = AtomicUsize::new(0);
    let connect = |secret: &[u8], length: u64, body: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", first.address().port)).unwrap();
        let packet = [secret, &length.to_be_bytes()[..], body.as_bytes()].concat();
        stream.write_all(&packet).unwrap();
        let mut answer = Vec::new();
        // It may be closed before all was read.
        let _ = stream.read_to_end(&mut answer);
        answers.fetch_add(answer.len(), SeqCst);
    };
    let length = body.len() as u64;
    connect(&[0; 16], length, &body);
    connect(&secret, u64::MAX, &body);
    connect(&secret, length - 1, &body);
    connect(&secret[..3], 0, "");
    assert_eq!((answers.load(SeqCst), first.take_events()), (0, Vec::new()));
    connect(&secret, length, &body);
    assert_eq!(answers.load(SeqCst), 1);
    assert_eq!(events(&first), [received(1, WatcherMessage::Abort(3))]);
}
