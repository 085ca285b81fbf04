//! A directory for the mailboxes of several ranks in one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use _core::watch::{Closed, Directory};

/// The texts of all ranks.
#[derive(Clone, Default)]
pub struct Board(Arc<Mutex<HashMap<i32, String>>>);

impl Board {
    /// The directory of a rank.
    pub fn of(&self, rank: i32) -> Box<dyn Directory> {
        Box::new(Entry(self.clone(), rank))
    }

    pub fn write(&self, rank: i32, text: String) {
        self.0.lock().unwrap().insert(rank, text);
    }
}

struct Entry(Board, i32);

impl Directory for Entry {
    fn publish(&self, text: &str) -> Result<(), String> {
        self.0.write(self.1, text.to_owned());
        Ok(())
    }

    fn look_up(&self, rank: i32) -> Result<Option<String>, Closed> {
        Ok(self.0.0.lock().unwrap().get(&rank).cloned())
    }
}
