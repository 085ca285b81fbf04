//! Builds the library for one process (`alone`) beside the core, for the wheel.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=alone");
    let variable = |name| env::var_os(name).unwrap_or_default();
    // Tests compile it themselves, and only Linux has its soname.
    if variable("CARGO_FEATURE_PYTHON").is_empty() || variable("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let output = PathBuf::from(variable("OUT_DIR")).join("libmpi.so.12");
    let mut compiler = Command::new(variable("RUSTC"));
    compiler.args([
        "--crate-type",
        "cdylib",
        "--crate-name",
        "mpi",
        "--edition",
        "2024",
    ]);
    compiler.arg("--target").arg(variable("TARGET"));
    let options = "opt-level=s panic=abort lto codegen-units=1 strip=symbols";
    let soname = "link-arg=-Wl,-soname,libmpi.so.12";
    compiler.args(
        options
            .split(' ')
            .chain([soname])
            .flat_map(|option| ["-C", option]),
    );
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = std::ffi::OsString::from("linker=");
        option.push(linker);
        compiler.arg("-C").arg(option);
    }
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    compiler.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    let status = compiler.arg("-o").arg(output).arg("alone/lib.rs").status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "rust/alone was not compiled"
    );
}
