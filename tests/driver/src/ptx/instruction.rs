//! One instruction: the operation, the types, the operands.

use std::collections::HashMap;

/// The kind of a value, and its bits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Type {
    pub kind: Kind,
    pub bits: u32,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    Predicate,
    Bits,
    Unsigned,
    Signed,
    Float,
    Brain,
}

impl Type {
    fn read(word: &str) -> Option<Self> {
        let (kind, digits) = match word {
            "pred" => {
                return Some(Self {
                    kind: Kind::Predicate,
                    bits: 1,
                });
            }
            _ if word.starts_with("bf") => (Kind::Brain, &word[2..]),
            _ if word.starts_with('b') => (Kind::Bits, &word[1..]),
            _ if word.starts_with('u') => (Kind::Unsigned, &word[1..]),
            _ if word.starts_with('s') => (Kind::Signed, &word[1..]),
            _ if word.starts_with('f') => (Kind::Float, &word[1..]),
            _ => return None,
        };
        let bits = digits.parse().ok()?;
        [8, 16, 32, 64]
            .contains(&bits)
            .then_some(Self { kind, bits })
    }

    pub fn bytes(self) -> usize {
        self.bits as usize / 8
    }

    pub fn is_float(self) -> bool {
        matches!(self.kind, Kind::Float | Kind::Brain)
    }
}

#[derive(Clone)]
pub enum Operand {
    Register(usize),
    /// A predicate that counts the other way around.
    Not(usize),
    Value(u64),
    /// `%tid.x`, `%ctaid.y` and so on: of the thread, the block, their numbers; the axis.
    Special(Special, usize),
    Vector(Vec<Self>),
    /// The memory at an address.
    Memory(Box<Self>, i64),
}

#[derive(Clone, Copy)]
pub enum Special {
    Thread,
    Threads,
    Block,
    Blocks,
    Lane,
}

/// The names of a kernel.
#[derive(Default)]
pub struct Names {
    pub registers: HashMap<String, usize>,
    pub addresses: HashMap<String, u64>,
    /// The instruction behind a label.
    pub labels: HashMap<String, usize>,
    /// The vector of labels that a table of branch targets is, by its own label.
    pub branch_targets: HashMap<String, String>,
}

pub struct Instruction {
    /// The predicate on which it depends, and whether that has to be false.
    pub guard: Option<(usize, bool)>,
    pub name: String,
    /// The suffixes of the name, without the types.
    pub modes: Vec<String>,
    pub types: Vec<Type>,
    pub operands: Vec<Operand>,
}

impl Instruction {
    /// None if something is not known.
    pub fn read(statement: &str, names: &mut Names) -> Option<Self> {
        let mut rest = statement.trim();
        let mut guard = None;
        if let Some(guarded) = rest.strip_prefix('@') {
            let (predicate, behind) = guarded.split_once(char::is_whitespace)?;
            let is_negated = predicate.starts_with('!');
            guard = Some((
                names.register(predicate.trim_start_matches('!')),
                is_negated,
            ));
            rest = behind.trim();
        }
        let (words, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let mut words = words.split('.').filter(|word| !word.is_empty());
        let name = words.next()?.to_owned();
        let (mut modes, mut types) = (Vec::new(), Vec::new());
        for word in words {
            match Type::read(word) {
                Some(read) => types.push(read),
                // `param::entry` is what `param` was in older versions.
                None => modes.push(word.split("::").next()?.to_owned()),
            }
        }
        let operands = match name.as_str() {
            "griddepcontrol" | "pragma" => Vec::new(),
            _ => split(operands)
                .into_iter()
                .map(|operand| names.operand(operand))
                .collect::<Option<_>>()?,
        };
        let instruction = Self {
            guard,
            name,
            modes,
            types,
            operands,
        };
        super::machine::is_known(&instruction).then_some(instruction)
    }

    /// One that is an error when a thread comes to it, which may never be.
    pub fn unknown(statement: &str) -> Self {
        Self {
            guard: None,
            name: statement.to_owned(),
            modes: Vec::new(),
            types: Vec::new(),
            operands: Vec::new(),
        }
    }

    pub fn has(&self, mode: &str) -> bool {
        self.modes.iter().any(|word| word == mode)
    }
}

/// The operands, of which one may be a vector in braces, or two with a bar between them.
fn split(operands: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (offset, character) in operands.char_indices() {
        match character {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' | '|' if depth == 0 => {
                parts.push(operands[start..offset].trim());
                start = offset + 1;
            }
            _ => {}
        }
    }
    parts.push(operands[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

impl Names {
    fn register(&mut self, name: &str) -> usize {
        let next = self.registers.len();
        *self.registers.entry(name.to_owned()).or_insert(next)
    }

    /// Of `.reg .b32 one, two`, where the names need not look like registers.
    pub fn declare(&mut self, statement: &str) {
        let names = statement.split([',', ' ', '\t']);
        for name in names.filter(|name| !name.is_empty() && !name.starts_with(['.', '%'])) {
            self.register(name);
        }
    }

    fn operand(&mut self, text: &str) -> Option<Operand> {
        if let Some(targets) = self.branch_targets.get(text).cloned() {
            return self.operand(&targets);
        }
        if let Some(inner) = text.strip_prefix('{') {
            let parts = split(inner.strip_suffix('}')?);
            let parts = parts.into_iter().map(|part| self.operand(part));
            return Some(Operand::Vector(parts.collect::<Option<_>>()?));
        }
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']')?;
            let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
            let base = Box::new(self.operand(base.trim())?);
            return Some(Operand::Memory(base, offset.trim().parse().ok()?));
        }
        if let Some(predicate) = text.strip_prefix('!') {
            return Some(Operand::Not(self.register(predicate)));
        }
        if text == "_" || self.registers.contains_key(text) {
            return Some(Operand::Register(self.register(text)));
        }
        if text.starts_with('%') {
            return Some(special(text).unwrap_or_else(|| Operand::Register(self.register(text))));
        }
        let label = self.labels.get(text).map(|target| *target as u64);
        let named = label.or_else(|| self.addresses.get(text).copied());
        Some(Operand::Value(named.or_else(|| number(text))?))
    }
}

fn special(text: &str) -> Option<Operand> {
    let (name, axis) = text.split_once('.').unwrap_or((text, "x"));
    let special = match name {
        "%tid" => Special::Thread,
        "%ntid" => Special::Threads,
        "%ctaid" => Special::Block,
        "%nctaid" => Special::Blocks,
        "%laneid" => Special::Lane,
        _ => return None,
    };
    Some(Operand::Special(special, "xyz".find(axis)?))
}

/// The bits of a number: an integer, or a float in hexadecimal.
pub fn number(text: &str) -> Option<u64> {
    for prefix in ["0f", "0F", "0d", "0D", "0x", "0X"] {
        if let Some(digits) = text.strip_prefix(prefix) {
            return u64::from_str_radix(digits.trim_end_matches('U'), 16).ok();
        }
    }
    if let Ok(unsigned) = text.trim_end_matches('U').parse::<u64>() {
        return Some(unsigned);
    }
    text.parse::<i64>().ok().map(i64::cast_unsigned)
}
