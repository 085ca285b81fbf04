//! The debug lines: one before and one after each MPI call.

use std::collections::hash_map::RandomState;
use std::fmt::Display;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Function that prints a line. The Python module sets it to `sys.stdout`.
static SINK: RwLock<fn(&str)> = RwLock::new(|line| println!("{line}"));

/// Turns the lines on or off. They are off at first.
pub fn set_enabled(enabled: bool) {
    ENABLED.store(enabled, Ordering::Relaxed);
}

/// Whether they are on.
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Sends the lines to another sink.
pub fn set_sink(sink: fn(&str)) {
    *SINK.write().unwrap_or_else(PoisonError::into_inner) = sink;
}

/// Writes to stderr, at once, so that the texts of ranks don't mix, and without a panic where stderr
/// is closed.
pub fn print_error(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// The log of one call, between its two lines.
pub struct LoggedCall {
    prefix: String,
    start: Instant,
}

impl LoggedCall {
    /// Prints the first line: who calls what, on which peers and how much.
    pub fn begin(rank: i32, function: &str, details: &str) -> Self {
        let prefix = format!("r{rank} | {} | {function}", random_id());
        if details.is_empty() {
            emit(&prefix);
        } else {
            emit(&format!("{prefix} {details}"));
        }
        Self {
            prefix,
            start: Instant::now(),
        }
    }

    /// Prints the second line: how it ended, and how long it took.
    pub fn end(self, code: i32) {
        emit(&format!(
            "{} done with code {code} ({}s)",
            self.prefix,
            scientific(self.start.elapsed())
        ));
    }
}

fn emit(line: &str) {
    let sink = *SINK.read().unwrap_or_else(PoisonError::into_inner);
    sink(line);
}

/// Eight random letters and digits, which the two lines of a call have in common.
fn random_id() -> String {
    const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut seed = RandomState::new().build_hasher().finish();
    (0..8)
        .map(|_| {
            let digit = DIGITS[(seed % 36) as usize];
            seed /= 36;
            char::from(digit)
        })
        .collect()
}

/// Seconds as C's `%.2e` prints them: `1.23e-05`.
fn scientific(duration: Duration) -> impl Display {
    let text = format!("{:.2e}", duration.as_secs_f64());
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_look_like_c() {
        let text = |nanos| scientific(Duration::from_nanos(nanos)).to_string();
        assert_eq!(text(12_340), "1.23e-05");
        assert_eq!(text(1_500_000_000), "1.50e+00");
        assert_eq!(text(125_000_000_000), "1.25e+02");
    }

    #[test]
    fn ids_differ_and_have_eight_characters() {
        let (a, b) = (random_id(), random_id());
        assert_eq!((a.len(), b.len()), (8, 8));
        assert_ne!(a, b);
    }
}
