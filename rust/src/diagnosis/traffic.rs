//! Messages that were sent and never received.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lines::WIDTH;

/// The route of messages: their sender, receiver, communicator and tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Route {
    /// The rank of the sender in `MPI_COMM_WORLD`.
    pub from: i32,
    /// The rank of the receiver in `MPI_COMM_WORLD`.
    pub to: i32,
    /// The number that the sender has for the communicator.
    pub communicator: i64,
    /// The tag.
    pub tag: i32,
}

/// The messages that were sent on a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Their route.
    pub route: Route,
    /// Number of messages.
    pub count: u64,
    /// The name of the communicator.
    pub communicator: String,
    /// The Python line of the last one.
    pub line: String,
}

/// The messages of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Those that it has sent.
    pub sent: Vec<Sent>,
    /// Number of messages received on each route.
    pub received: Vec<(Route, u64)>,
}

/// Largest number of routes that are listed.
const MAX_LISTED: usize = 20;

/// The report of messages that nobody has received, if there are any.
pub fn unreceived(of_all: &[Traffic]) -> Option<String> {
    let mut left: BTreeMap<Route, (u64, &Sent)> = BTreeMap::new();
    for sent in of_all.iter().flat_map(|traffic| &traffic.sent) {
        left.insert(sent.route, (sent.count, sent));
    }
    for (route, count) in of_all.iter().flat_map(|traffic| &traffic.received) {
        if let Some((left, _)) = left.get_mut(route) {
            *left = left.saturating_sub(*count);
        }
    }
    left.retain(|_, (left, _)| *left > 0);
    let total: u64 = left.values().map(|(left, _)| *left).sum();
    let subject = match total {
        0 => return None,
        1 => "1 message was",
        _ => &format!("{total} messages were"),
    };
    let mut lines = vec![format!("mpi4jax: {subject} never received (MPI4JAX_CHECK)")];
    for (route, (left, sent)) in left.iter().take(MAX_LISTED) {
        let Route { from, to, tag, .. } = route;
        let Sent {
            count,
            communicator,
            line,
            ..
        } = sent;
        let messages = format!(
            "  {left} of {count} from rank {from} to rank {to} with tag {tag} on {communicator}"
        );
        let row = format!("{messages}   {line}");
        if row.chars().count() <= WIDTH {
            lines.push(row);
        } else {
            lines.extend([messages, format!("      at {line}")]);
        }
    }
    if left.len() > MAX_LISTED {
        lines.push("  ...".to_owned());
    }
    Some(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(from: i32, tag: i32) -> Route {
        Route {
            from,
            to: 1,
            communicator: 0,
            tag,
        }
    }

    fn sent(route: Route, count: u64) -> Sent {
        Sent {
            route,
            count,
            communicator: "COMM_WORLD".into(),
            line: "main.py:5 in main".into(),
        }
    }

    #[test]
    fn what_nobody_has_received() {
        let sender = Traffic {
            sent: vec![sent(route(0, 5), 3), sent(route(0, 6), 2)],
            received: Vec::new(),
        };
        let receiver = Traffic {
            sent: vec![sent(route(1, 5), 1)],
            received: vec![(route(0, 5), 1), (route(0, 6), 2)],
        };
        assert_eq!(
            unreceived(&[sender, receiver]).unwrap(),
            "mpi4jax: 3 messages were never received (MPI4JAX_CHECK)\n  \
             2 of 3 from rank 0 to rank 1 with tag 5 on COMM_WORLD   main.py:5 in main\n  \
             1 of 1 from rank 1 to rank 1 with tag 5 on COMM_WORLD   main.py:5 in main\n"
        );
    }

    #[test]
    fn all_were_received() {
        let both = Traffic {
            sent: vec![sent(route(1, 5), 1)],
            received: vec![(route(1, 5), 1)],
        };
        assert_eq!(unreceived(&[both, Traffic::default()]), None);
    }

    #[test]
    fn long_lists_are_cut() {
        let sender = Traffic {
            sent: (0..30).map(|tag| sent(route(0, tag), 1)).collect(),
            received: Vec::new(),
        };
        let report = unreceived(&[sender]).unwrap();
        assert!(report.starts_with("mpi4jax: 30 messages were never"));
        assert!(report.ends_with("tag 19 on COMM_WORLD   main.py:5 in main\n  ...\n"));
    }
}
