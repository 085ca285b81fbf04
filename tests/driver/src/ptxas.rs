//! Stands for NVIDIA's assembler: leaves PTX as it is, which the stand-in for a driver can read.

use std::env::args;
use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

/// Of the runtime that the stand-in has.
const VERSION: &str = "Cuda compilation tools, release 12.8, V12.8.93";

fn main() -> ExitCode {
    match assemble() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "ptxas: {error}");
            ExitCode::FAILURE
        }
    }
}

fn assemble() -> io::Result<()> {
    let mut arguments = args().skip(1);
    let (mut source, mut target) = (None, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--version" => return writeln!(io::stdout(), "{VERSION}"),
            "-o" => target = arguments.next(),
            _ if argument.starts_with('-') => {}
            _ => source = Some(argument),
        }
    }
    let (Some(source), Some(target)) = (source, target) else {
        return Err(io::Error::other(
            "expected a source, and a target behind -o",
        ));
    };
    let mut text = fs::read(source)?;
    // As a string of C, as the driver gets no length.
    text.push(0);
    fs::write(target, text)
}
