//! Notes of ranks, made up.

use std::collections::BTreeMap;
use std::sync::Mutex;

use _core::diagnosis::{
    CallNote, Collective, CommunicatorId, CommunicatorKind, Diagnosis, End, Endpoint, Note, Notes,
    Peer, Running, Snapshot, State, ThreadActivity, diagnose,
};
use _core::recorder::Group;

/// Seconds that calls have lasted, and for which ranks have done nothing else.
pub const LONG: f64 = 20.0;
/// For how many seconds processes are unchanged that count.
pub const SETTLED: f64 = 1.0;

pub fn group(ranks: impl IntoIterator<Item = i32>) -> Group {
    ranks.into_iter().collect()
}

/// A communicator of some ranks.
pub fn communicator(kind: CommunicatorKind, group: &Group) -> CommunicatorId {
    CommunicatorId {
        group: group.hash(),
        kind,
    }
}

/// The default communicator of a world of `size` ranks.
pub fn default(size: i32) -> CommunicatorId {
    static HASHES: Mutex<BTreeMap<i32, u64>> = Mutex::new(BTreeMap::new());
    let mut hashes = HASHES.lock().unwrap();
    let hash = hashes.entry(size).or_insert_with(|| group(0..size).hash());
    CommunicatorId {
        group: *hash,
        kind: CommunicatorKind::Default,
    }
}

pub fn note(state: State, default_calls: u64) -> Note {
    Note {
        steady: LONG,
        default_calls,
        ..Note::new(state)
    }
}

/// A rank that is in some calls.
pub fn in_calls(calls: Vec<CallNote>) -> Note {
    let on_default = |call: &&CallNote| call.communicator.kind == CommunicatorKind::Default;
    let sequences = calls.iter().filter(on_default).map(|call| call.sequence);
    let default_calls = sequences.max().unwrap_or(0);
    let running = Running {
        calls,
        ..Running::default()
    };
    note(State::Running(Box::new(running)), default_calls)
}

pub fn waiting(call: CallNote) -> Note {
    in_calls(vec![call])
}

/// A rank that may do something else while it is in its call.
pub fn with_thread(mut note: Note, thread: &str) -> Note {
    if let State::Running(running) = &mut note.state {
        running.elsewhere.push(ThreadActivity {
            thread: thread.into(),
            activity: String::new(),
            line: "serve.py:3 in serve".into(),
        });
    }
    note
}

/// A rank that is not in a call, and has made `count` calls on the default communicator.
pub fn elsewhere(count: u64) -> Note {
    let running = Running {
        elsewhere: vec![ThreadActivity {
            thread: String::new(),
            activity: String::new(),
            line: "main.py:7 in load".into(),
        }],
        ..Running::default()
    };
    note(State::Running(Box::new(running)), count)
}

pub fn ended(code: i32, reason: &str, count: u64) -> Note {
    let reason = reason.into();
    note(State::Ended(End { code, reason }), count)
}

/// The first collective call on the default communicator of `size` ranks.
pub fn collective(size: i32, operation: &str) -> CallNote {
    CallNote {
        id: 1,
        operation: operation.into(),
        text: format!("{operation} #1 on COMM_WORLD"),
        line: "main.py:5".into(),
        seconds: LONG,
        communicator: default(size),
        communicator_name: "COMM_WORLD".into(),
        sequence: 1,
        agreed: Vec::new(),
        rule: String::new(),
        neighbors: None,
        messages: Vec::new(),
        awaited: None,
        bytes: 0,
    }
}

/// A call, on another communicator.
pub fn on(communicator: CommunicatorId, name: &str, call: CallNote) -> CallNote {
    CallNote {
        text: call.text.replace("COMM_WORLD", name),
        communicator,
        communicator_name: name.into(),
        ..call
    }
}

pub fn agreeing(size: i32, about: &str, value: &str) -> CallNote {
    CallNote {
        agreed: vec![(about.into(), value.into())],
        ..collective(size, "bcast")
    }
}

pub fn message(peer: Peer, tag: Option<i64>, is_receive: bool) -> Endpoint {
    Endpoint {
        peer,
        tag,
        is_receive,
    }
}

pub fn to(rank: i32, tag: i64) -> Endpoint {
    message(Peer::Rank(rank), Some(tag), false)
}

pub fn from(rank: i32, tag: i64) -> Endpoint {
    message(Peer::Rank(rank), Some(tag), true)
}

/// A call that sends and receives messages.
pub fn messages(size: i32, messages: &[Endpoint]) -> CallNote {
    CallNote {
        sequence: 0,
        text: "a message".into(),
        messages: messages.to_vec(),
        ..collective(size, "sendrecv")
    }
}

/// A call that receives a message with any tag.
pub fn receive(size: i32, from: i32) -> CallNote {
    messages(size, &[message(Peer::Rank(from), None, true)])
}

/// The notes of ranks 0, 1, and so on. All communicators have all ranks.
pub fn notes_of(all: &[Note]) -> Notes {
    let mut notes = Notes::default();
    for (rank, note) in all.iter().enumerate() {
        notes.add(rank as i32, note.clone(), [group(0..all.len() as i32)]);
    }
    notes
}

pub fn diagnosis_of(notes: &Notes, size: i32, about: &[Collective]) -> Diagnosis {
    diagnose(&Snapshot::new(notes, size, about), SETTLED)
}
