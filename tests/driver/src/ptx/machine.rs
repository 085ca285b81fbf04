//! Runs the threads of a kernel, one after the other, block by block.

use super::arithmetic::{atomic, compute, cut};
use super::instruction::{Instruction, Operand, Special, Type};
use super::text::Kernel;

/// Where the memory of a block and of a thread begin, among addresses that no mapping has.
pub const SHARED: u64 = 1 << 56;
pub const LOCAL: u64 = 2 << 56;
const WINDOWS: u64 = 3 << 56;

/// The threads that exchange values.
const WARP: usize = 32;

/// Where the bytes at a device address are for this driver; None if a kernel has no business there.
pub trait Memory {
    fn at(&self, address: u64, bytes: usize) -> Option<*mut u8>;
}

struct Thread {
    index: [u32; 3],
    registers: Vec<u64>,
    local: Vec<u8>,
    carry: u64,
    next: usize,
    state: State,
}

#[derive(PartialEq, Clone, Copy)]
enum State {
    Runs,
    /// At an instruction that it makes together with its warp, or its block.
    Waits,
    Ended,
}

struct Block<'a> {
    kernel: &'a Kernel,
    parameters: &'a [u8],
    memory: &'a dyn Memory,
    threads: [u32; 3],
    index: [u32; 3],
    blocks: [u32; 3],
    shared: Vec<u8>,
}

/// Instructions that threads make together.
fn is_joint(instruction: &Instruction) -> bool {
    matches!(
        instruction.name.as_str(),
        "shfl" | "bar" | "barrier" | "vote"
    )
}

/// The operands that an instruction computes with.
fn sources(instruction: &Instruction) -> &[Operand] {
    instruction.operands.get(1..).unwrap_or_default()
}

/// Whether the machine has the instruction.
pub fn is_known(instruction: &Instruction) -> bool {
    const WITHOUT_VALUE: [&str; 17] = [
        "bra",
        "brx",
        "ret",
        "exit",
        "ld",
        "st",
        "atom",
        "red",
        "mov",
        "cvta",
        "shfl",
        "bar",
        "barrier",
        "vote",
        "griddepcontrol",
        "membar",
        "fence",
    ];
    WITHOUT_VALUE.contains(&instruction.name.as_str())
        || carries(instruction)
        || compute(instruction, &[1; 4][..sources(instruction).len().min(4)]).is_some()
}

/// Whether it sets the carry or adds it.
fn carries(instruction: &Instruction) -> bool {
    instruction.has("cc") || ["addc", "subc", "madc"].contains(&instruction.name.as_str())
}

/// The result, and what is carried.
fn with_carry(instruction: &Instruction, values: &[u64], carry: u64) -> Option<(u64, u64)> {
    let bits = instruction.types[0].bits;
    let name = instruction.name.trim_end_matches('c');
    let takes_carry = name.len() < instruction.name.len();
    let carry = u128::from(if takes_carry { carry } else { 0 });
    let [first, second] = match name {
        "mad" => {
            let product = u128::from(cut(values[0], bits)) * u128::from(cut(values[1], bits));
            let shift = if instruction.has("hi") { bits } else { 0 };
            [cut((product >> shift) as u64, bits), cut(values[2], bits)]
        }
        _ => [cut(values[0], bits), cut(values[1], bits)],
    };
    let [first, second] = [first, second].map(u128::from);
    let whole = match name {
        "sub" => first.wrapping_sub(second).wrapping_sub(carry),
        _ => first + second + carry,
    };
    Some((cut(whole as u64, bits), (whole >> bits & 1) as u64))
}

/// Runs a kernel to its end; an error says what it did wrong.
pub fn run(
    kernel: &Kernel,
    parameters: &[u8],
    blocks: [u32; 3],
    threads: [u32; 3],
    dynamic: usize,
    memory: &dyn Memory,
) -> Result<(), String> {
    for index in indices(blocks) {
        let mut block = Block {
            kernel,
            parameters,
            memory,
            threads,
            index,
            blocks,
            shared: vec![0xCD; kernel.shared + dynamic],
        };
        block.run()?;
    }
    Ok(())
}

/// All indices below these, the first axis first.
fn indices(counts: [u32; 3]) -> impl Iterator<Item = [u32; 3]> {
    let [x, y, z] = counts;
    (0..z).flat_map(move |k| (0..y).flat_map(move |j| (0..x).map(move |i| [i, j, k])))
}

impl Block<'_> {
    fn run(&mut self) -> Result<(), String> {
        let mut threads: Vec<Thread> = indices(self.threads)
            .map(|index| Thread {
                index,
                registers: vec![0; self.kernel.registers],
                local: vec![0xCD; self.kernel.local],
                carry: 0,
                next: 0,
                state: State::Runs,
            })
            .collect();
        while threads.iter().any(|thread| thread.state != State::Ended) {
            for thread in &mut threads {
                while thread.state == State::Runs {
                    self.step(thread)?;
                }
            }
            self.join(&mut threads)?;
        }
        Ok(())
    }

    /// Lets those go on that wait for nobody any more.
    fn join(&self, threads: &mut [Thread]) -> Result<(), String> {
        let is_at_barrier = |thread: &Thread| {
            let instruction = self.kernel.instructions.get(thread.next);
            instruction.is_some_and(|instruction| instruction.name.starts_with("bar"))
        };
        let mut has_moved = false;
        for warp in threads.chunks_mut(WARP) {
            let waits = |thread: &&Thread| thread.state == State::Waits && !is_at_barrier(thread);
            let indices = warp.iter().filter(waits).map(|thread| thread.next);
            let Some(index) = indices.min() else {
                continue;
            };
            self.exchange(&self.kernel.instructions[index], index, warp)?;
            has_moved = true;
        }
        let is_over = |thread: &Thread| thread.state == State::Ended || is_at_barrier(thread);
        if !has_moved && threads.iter().all(is_over) {
            for thread in threads
                .iter_mut()
                .filter(|thread| thread.state == State::Waits)
            {
                thread.next += 1;
                thread.state = State::Runs;
                has_moved = true;
            }
        }
        let is_done = threads.iter().all(|thread| thread.state == State::Ended);
        match has_moved || is_done {
            true => Ok(()),
            false => Err("its threads wait for each other".to_owned()),
        }
    }

    /// `shfl` and `vote`, of the threads of a warp that are at this instruction.
    fn exchange(
        &self,
        instruction: &Instruction,
        index: usize,
        warp: &mut [Thread],
    ) -> Result<(), String> {
        let takes_part = |thread: &Thread| thread.state == State::Waits && thread.next == index;
        let sources: Vec<Option<Vec<u64>>> = warp
            .iter()
            .map(|thread| takes_part(thread).then(|| self.sources(thread, instruction)))
            .collect();
        let votes = sources
            .iter()
            .enumerate()
            .filter_map(|(lane, values)| values.as_ref().map(|values| (values[0] & 1) << lane));
        let ballot: u64 = votes.sum();
        let count = sources.iter().flatten().count() as u32;
        for (lane, thread) in warp.iter_mut().enumerate() {
            let Some(values) = &sources[lane] else {
                continue;
            };
            let (value, is_valid) = match instruction.name.as_str() {
                "vote" if instruction.has("ballot") => (ballot, true),
                "vote" if instruction.has("any") => ((ballot != 0).into(), true),
                "vote" if instruction.has("all") => ((ballot.count_ones() == count).into(), true),
                "shfl" => {
                    let (from, is_valid) = partner(instruction, lane, values);
                    let other = sources.get(from).and_then(Option::as_ref);
                    (other.map_or(values[0], |other| other[0]), is_valid)
                }
                _ => return Err(format!("{} is not known", instruction.name)),
            };
            let results = &instruction.operands;
            set(thread, &results[0], value);
            if instruction.name == "shfl" && has_predicate(instruction) {
                set(thread, &results[1], is_valid.into());
            }
            thread.next += 1;
            thread.state = State::Runs;
        }
        Ok(())
    }

    fn sources(&self, thread: &Thread, instruction: &Instruction) -> Vec<u64> {
        let results = 1 + usize::from(instruction.name == "shfl" && has_predicate(instruction));
        let operands = &instruction.operands[results..];
        operands
            .iter()
            .map(|operand| self.value(thread, operand))
            .collect()
    }

    fn step(&mut self, thread: &mut Thread) -> Result<(), String> {
        let kernel = self.kernel;
        let Some(instruction) = kernel.instructions.get(thread.next) else {
            thread.state = State::Ended;
            return Ok(());
        };
        if let Some((predicate, is_negated)) = instruction.guard
            && (thread.registers[predicate] & 1 == 1) == is_negated
        {
            thread.next += 1;
            return Ok(());
        }
        if is_joint(instruction) {
            thread.state = State::Waits;
            return Ok(());
        }
        thread.next += 1;
        let operands = &instruction.operands;
        match instruction.name.as_str() {
            "ret" | "exit" => thread.state = State::Ended,
            "bra" => thread.next = self.value(thread, &operands[0]) as usize,
            "brx" => {
                let index = self.value(thread, &operands[0]) as u32 as usize;
                let Operand::Vector(targets) = &operands[1] else {
                    return Err("brx without targets is not known".to_owned());
                };
                let target = targets.get(index).ok_or("brx has no such target")?;
                thread.next = self.value(thread, target) as usize;
            }
            "griddepcontrol" | "membar" | "fence" => {}
            "ld" => self.load(thread, instruction)?,
            "st" => self.store(thread, instruction)?,
            "atom" | "red" => self.atomic(thread, instruction)?,
            _ if operands.is_empty() => return Err(format!("{:?} is not known", instruction.name)),
            "mov" if matches!(operands[0], Operand::Vector(_)) => self.unpack(thread, instruction),
            "mov" if matches!(operands[1], Operand::Vector(_)) => self.pack(thread, instruction),
            _ => {
                let mut values = [0; 4];
                let sources = &operands[1..];
                for (value, operand) in values.iter_mut().zip(sources) {
                    *value = self.value(thread, operand);
                }
                let values = &values[..sources.len()];
                let value = match carries(instruction) {
                    true => with_carry(instruction, values, thread.carry).map(|(value, carry)| {
                        thread.carry = carry;
                        value
                    }),
                    false => compute(instruction, values),
                };
                set(
                    thread,
                    &operands[0],
                    value.ok_or_else(|| instruction.name.clone())?,
                );
            }
        }
        Ok(())
    }

    fn value(&self, thread: &Thread, operand: &Operand) -> u64 {
        match operand {
            Operand::Register(index) => thread.registers[*index],
            Operand::Not(index) => 1 ^ thread.registers[*index],
            Operand::Value(value) => *value,
            Operand::Special(special, axis) => u64::from(match special {
                Special::Thread => thread.index[*axis],
                Special::Threads => self.threads[*axis],
                Special::Block => self.index[*axis],
                Special::Blocks => self.blocks[*axis],
                Special::Lane => self.flat(thread) % WARP as u32,
            }),
            Operand::Memory(base, offset) => self.value(thread, base).wrapping_add_signed(*offset),
            Operand::Vector(_) => 0,
        }
    }

    fn flat(&self, thread: &Thread) -> u32 {
        let [x, y, z] = thread.index;
        (z * self.threads[1] + y) * self.threads[0] + x
    }

    /// Where the bytes are that an instruction means by an address.
    fn bytes(
        &mut self,
        thread: &mut Thread,
        instruction: &Instruction,
        address: u64,
        bytes: usize,
    ) -> Result<*mut u8, String> {
        let offset = cut(address, 56) as usize;
        let window = match address & WINDOWS {
            SHARED => Some(&mut self.shared),
            LOCAL => Some(&mut thread.local),
            _ if instruction.has("shared") => Some(&mut self.shared),
            _ if instruction.has("local") => Some(&mut thread.local),
            _ => None,
        };
        let pointer = match window {
            Some(window) => window
                .get_mut(offset..offset + bytes)
                .map(<[u8]>::as_mut_ptr),
            None if instruction.has("param") => self
                .parameters
                .get(offset..offset + bytes)
                .map(|bytes| bytes.as_ptr().cast_mut()),
            None => self.memory.at(address, bytes),
        };
        pointer
            .ok_or_else(|| format!("it uses {bytes} bytes at {address:#x}, which are not its own"))
    }

    fn load(&mut self, thread: &mut Thread, instruction: &Instruction) -> Result<(), String> {
        let of = instruction.types[0];
        let address = self.value(thread, &instruction.operands[1]);
        let parts = parts(&instruction.operands[0]);
        for (index, part) in parts.iter().enumerate() {
            let address = address + (index * of.bytes()) as u64;
            let pointer = self.bytes(thread, instruction, address, of.bytes())?;
            set(thread, part, extended(read(pointer, of.bytes()), of));
        }
        Ok(())
    }

    fn store(&mut self, thread: &mut Thread, instruction: &Instruction) -> Result<(), String> {
        let of = instruction.types[0];
        let address = self.value(thread, &instruction.operands[0]);
        for (index, part) in parts(&instruction.operands[1]).iter().enumerate() {
            let value = self.value(thread, part);
            let address = address + (index * of.bytes()) as u64;
            let pointer = self.bytes(thread, instruction, address, of.bytes())?;
            write(pointer, of.bytes(), value);
        }
        Ok(())
    }

    fn atomic(&mut self, thread: &mut Thread, instruction: &Instruction) -> Result<(), String> {
        let of = instruction.types[0];
        let has_result = instruction.name == "atom";
        let sources = &instruction.operands[usize::from(has_result)..];
        let address = self.value(thread, &sources[0]);
        let values: Vec<u64> = sources[1..]
            .iter()
            .map(|part| self.value(thread, part))
            .collect();
        let pointer = self.bytes(thread, instruction, address, of.bytes())?;
        let old = read(pointer, of.bytes());
        let new =
            atomic(instruction, of, old, &values).ok_or("an atomic operation is not known")?;
        write(pointer, of.bytes(), new);
        if has_result {
            set(thread, &instruction.operands[0], old);
        }
        Ok(())
    }

    /// `mov.b64 {%r1, %r2}, %rd1`.
    fn unpack(&self, thread: &mut Thread, instruction: &Instruction) {
        let value = self.value(thread, &instruction.operands[1]);
        let parts = parts(&instruction.operands[0]);
        let bits = instruction.types[0].bits / parts.len() as u32;
        for (index, part) in parts.iter().enumerate() {
            set(thread, part, cut(value >> (index as u32 * bits), bits));
        }
    }

    /// `mov.b64 %rd1, {%r1, %r2}`.
    fn pack(&self, thread: &mut Thread, instruction: &Instruction) {
        let parts = parts(&instruction.operands[1]);
        let bits = instruction.types[0].bits / parts.len() as u32;
        let value = parts.iter().enumerate().fold(0, |value, (index, part)| {
            value | cut(self.value(thread, part), bits) << (index as u32 * bits)
        });
        set(thread, &instruction.operands[0], value);
    }
}

fn has_predicate(instruction: &Instruction) -> bool {
    instruction.operands.len() == 6
}

/// The lane that a thread gets a value from, and whether there is one.
fn partner(instruction: &Instruction, lane: usize, values: &[u64]) -> (usize, bool) {
    let (distance, clamp) = (values[1] as usize & 31, values[2] as usize);
    let (limit, segment) = (clamp & 31, clamp >> 8 & 31);
    let first = lane & segment;
    let last = first | (limit & !segment);
    let (from, is_valid) = match () {
        () if instruction.has("up") => (lane.wrapping_sub(distance), lane >= last + distance),
        () if instruction.has("down") => (lane + distance, lane + distance <= last),
        () if instruction.has("bfly") => (lane ^ distance, lane ^ distance <= last),
        () => {
            let from = first | (distance & !segment);
            (from, from <= last)
        }
    };
    (if is_valid { from } else { lane }, is_valid)
}

fn parts(operand: &Operand) -> &[Operand] {
    match operand {
        Operand::Vector(parts) => parts,
        single => std::slice::from_ref(single),
    }
}

fn set(thread: &mut Thread, operand: &Operand, value: u64) {
    if let Operand::Register(index) = operand {
        thread.registers[*index] = value;
    }
}

fn extended(value: u64, of: Type) -> u64 {
    match of.kind {
        super::instruction::Kind::Signed => {
            let unused = 64 - of.bits;
            ((value << unused).cast_signed() >> unused).cast_unsigned()
        }
        _ => value,
    }
}

fn read(pointer: *const u8, bytes: usize) -> u64 {
    let mut value = [0; 8];
    // SAFETY: the pointer has `bytes` bytes, at most 8.
    unsafe { pointer.copy_to_nonoverlapping(value.as_mut_ptr(), bytes) };
    u64::from_le_bytes(value)
}

fn write(pointer: *mut u8, bytes: usize, value: u64) {
    // SAFETY: the pointer has `bytes` bytes, at most 8.
    unsafe { pointer.copy_from_nonoverlapping(value.to_le_bytes().as_ptr(), bytes) };
}
