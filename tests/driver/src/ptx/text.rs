//! The statements of a module.

use std::collections::HashMap;

use super::instruction::{Instruction, Names};

/// A variable of a module, or of a kernel.
#[derive(Clone)]
pub struct Variable {
    pub name: String,
    pub bytes: usize,
    pub alignment: usize,
    /// The initial contents, which may be shorter than the variable.
    pub content: Vec<u8>,
}

pub struct Kernel {
    /// The offset and the bytes of each parameter.
    pub parameters: Vec<(usize, usize)>,
    pub registers: usize,
    /// The bytes of memory that a block shares, and that a thread has for itself.
    pub shared: usize,
    pub local: usize,
    pub instructions: Vec<Instruction>,
}

/// The variables of a module, and its kernels by name, or why one can't be run.
type Module = (Vec<Variable>, HashMap<String, Result<Kernel, String>>);

/// Reads a module. `address_of` gives each variable its memory.
pub fn read(text: &str, mut address_of: impl FnMut(&Variable) -> Option<u64>) -> Module {
    let text = without_comments(text);
    let mut variables = Vec::new();
    let mut addresses = HashMap::new();
    let mut kernels = HashMap::new();
    let mut rest = text.as_str();
    while let Some(end) = rest.find([';', '{']) {
        let head = &rest[..end];
        if let Some(entry) = head.split(".entry").nth(1) {
            let body = block(&rest[end..]);
            let name = entry.split('(').next().unwrap_or("").trim();
            kernels.insert(name.to_owned(), kernel(entry, body, &addresses));
            rest = &rest[end + body.len() + 2..];
            continue;
        }
        if rest.as_bytes()[end] == b'{' && !head.contains('=') {
            // A function that no kernel is.
            rest = &rest[end + block(&rest[end..]).len() + 2..];
            continue;
        }
        let end = end + rest[end..].find(';').unwrap_or(rest.len() - end - 1);
        if let Some(variable) = variable(&rest[..end]) {
            if let Some(address) = address_of(&variable) {
                addresses.insert(variable.name.clone(), address);
            }
            variables.push(variable);
        }
        rest = &rest[end + 1..];
    }
    (variables, kernels)
}

fn without_comments(text: &str) -> String {
    let is_statement = |line: &&str| {
        let line = line.trim_start();
        let directives = [
            ".version",
            ".target",
            ".address_size",
            ".file",
            ".loc ",
            ".loc\t",
            "//",
        ];
        !directives
            .iter()
            .any(|directive| line.starts_with(directive))
    };
    let lines = text.lines().filter(is_statement);
    let code = lines.map(|line| line.split("//").next().unwrap_or(""));
    code.collect::<Vec<_>>().join("\n")
}

/// The text between a brace and the one that closes it.
fn block(text: &str) -> &str {
    let mut depth = 0;
    for (offset, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[1..offset];
        }
    }
    &text[1..]
}

/// The bytes of a type such as `.b32`.
fn bytes_of(kind: &str) -> Option<usize> {
    let digits = kind.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.parse::<usize>().ok().map(|bits| bits.div_ceil(8))
}

/// Of `.global .align 4 .b8 name[8] = {1, 2}`.
fn variable(statement: &str) -> Option<Variable> {
    let (declared, content) = statement.split_once('=').unwrap_or((statement, ""));
    let is_variable = [".global", ".const", ".shared", ".local"];
    if !is_variable.iter().any(|space| declared.contains(space)) {
        return None;
    }
    let (declared, count) = match declared.split_once('[') {
        Some((declared, count)) => (declared, count.split(']').next()?.trim().parse().ok()?),
        None => (declared, 1),
    };
    let mut words = declared.split_whitespace();
    let alignment = words
        .by_ref()
        .find(|word| *word == ".align")
        .and(words.next());
    let mut last_two = declared.split_whitespace().rev();
    let name = last_two.next()?.to_owned();
    let size = bytes_of(last_two.next()?)?;
    let values = content.trim().trim_matches(['{', '}']).split(',');
    let content = values
        .filter_map(|value| super::instruction::number(value.trim()))
        .flat_map(|value| value.to_le_bytes()[..size].to_vec())
        .collect();
    Some(Variable {
        name,
        bytes: size * count,
        alignment: alignment.and_then(|word| word.parse().ok()).unwrap_or(size),
        content,
    })
}

fn kernel(head: &str, body: &str, addresses: &HashMap<String, u64>) -> Result<Kernel, String> {
    let mut names = Names {
        addresses: addresses.clone(),
        ..Names::default()
    };
    let parameters = parameters(head, &mut names)?;
    let statements = statements(body);
    let (mut shared, mut local) = (0, 0);
    for statement in &statements {
        for (space, end, window) in [
            (".shared", &mut shared, super::machine::SHARED),
            (".local", &mut local, super::machine::LOCAL),
        ] {
            if let (true, Some(variable)) = (statement.starts_with(space), variable(statement)) {
                let start = usize::next_multiple_of(*end, variable.alignment);
                *end = start + variable.bytes;
                names.addresses.insert(variable.name, window + start as u64);
            }
        }
    }
    let mut code = Vec::new();
    let mut last_label = "";
    for statement in statements {
        if let Some(targets) = statement.strip_prefix(".branchtargets") {
            let targets = format!("{{{targets}}}");
            names.branch_targets.insert(last_label.to_owned(), targets);
            continue;
        }
        match statement.strip_suffix(':') {
            Some(label) => {
                last_label = label;
                names.labels.insert(label.to_owned(), code.len());
            }
            None if statement.starts_with(".reg") => names.declare(statement),
            None if !statement.starts_with('.') => code.push(statement),
            None => {}
        }
    }
    let read = |statement| {
        Instruction::read(statement, &mut names).unwrap_or_else(|| Instruction::unknown(statement))
    };
    let instructions = code.into_iter().map(read).collect();
    Ok(Kernel {
        parameters,
        registers: names.registers.len(),
        shared,
        local,
        instructions,
    })
}

/// Of `name(.param .u64 a, .param .align 8 .b8 b[16])`.
fn parameters(head: &str, names: &mut Names) -> Result<Vec<(usize, usize)>, String> {
    let list = head
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(')'));
    let mut end = 0;
    let mut parameters = Vec::new();
    for declared in list.map_or("", |(list, _)| list).split(',') {
        let declared = declared.trim();
        if declared.is_empty() {
            continue;
        }
        let (declared, count) = declared.split_once('[').unwrap_or((declared, "1]"));
        let count: usize = count.trim_end_matches(']').parse().map_err(|_| declared)?;
        let words: Vec<_> = declared.split_whitespace().collect();
        let is_type = |word: &&&str| word.starts_with(['.']) && bytes_of(word).is_some();
        let size = words.iter().find(is_type).and_then(|kind| bytes_of(kind));
        let size = size.ok_or(declared)?;
        let start = usize::next_multiple_of(end, 16);
        end = start + size * count;
        parameters.push((start, size * count));
        let name = (*words.last().ok_or(declared)?).to_owned();
        names.addresses.insert(name, start as u64);
    }
    Ok(parameters)
}

/// The statements of a body without their semicolons; labels with their colons.
fn statements(body: &str) -> Vec<&str> {
    let mut statements = Vec::new();
    for part in body.split(';') {
        let mut part = part.trim();
        while let Some((label, rest)) = part.split_once(':') {
            let is_label = |c: char| c.is_ascii_alphanumeric() || "$_%".contains(c);
            let label = label.trim_start_matches(['{', '}', ' ', '\n', '\t']);
            if label.is_empty() || !label.chars().all(is_label) || rest.starts_with(':') {
                break;
            }
            let start = part.find(label).unwrap_or(0);
            statements.push(&part[start..=start + label.len()]);
            part = rest.trim();
        }
        let statement = part.trim_matches(['\n', '\t', ' ']);
        let statement = match statement.starts_with(['{', '}']) {
            true => statement.trim_start_matches(['{', '}', '\n', '\t', ' ']),
            false => statement,
        };
        if !statement.is_empty() {
            statements.push(statement);
        }
    }
    statements
}
