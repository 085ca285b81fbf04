//! Translates what the tests compare with: the header of XLA's FFI, and the special addresses of
//! `mpi.h`, which mpi-sys leaves out or hides in a C file.

use std::path::{Path, PathBuf};
use std::{env, fs};

use bindgen::callbacks::{EnumVariantValue, ItemInfo, ParseCallbacks};

fn main() {
    let outcome = xla_header().and_then(|()| mpi_header());
    if let Err(message) = outcome {
        println!("cargo::error={message}");
    }
}

/// `XLA_FFI_Extension_Base` is `XLA_FFI_InternalExtension` in newer jaxlibs. One name serves.
#[derive(Debug)]
struct OldNames;

impl OldNames {
    fn of(name: &str) -> Option<String> {
        let rest = name.strip_prefix("XLA_FFI_InternalExtension")?;
        match rest {
            "" | "_STRUCT_SIZE" => Some(format!("XLA_FFI_Extension_Base{rest}")),
            _ => None,
        }
    }
}

impl ParseCallbacks for OldNames {
    fn item_name(&self, item: ItemInfo) -> Option<String> {
        Self::of(item.name)
    }

    fn enum_variant_name(
        &self,
        _enum: Option<&str>,
        variant: &str,
        _value: EnumVariantValue,
    ) -> Option<String> {
        Self::of(variant)
    }
}

fn xla_header() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=XLA_FFI_INCLUDE");
    let include = env::var("XLA_FFI_INCLUDE").map_err(|_| {
        "the environment variable XLA_FFI_INCLUDE is not set: it names the directory that \
         `python -c 'import jax; print(jax.ffi.include_dir())'` prints"
            .to_owned()
    })?;
    let header = Path::new(&include).join("xla/ffi/api/c_api.h");
    if !header.is_file() {
        return Err(format!(
            "the environment variable XLA_FFI_INCLUDE is {include}, where there is no \
             xla/ffi/api/c_api.h"
        ));
    }
    println!("cargo::rerun-if-changed={}", header.display());
    let bindings = bindgen::builder()
        .header(header.to_string_lossy())
        .allowlist_item("XLA_FFI_.*")
        .prepend_enum_name(false)
        .layout_tests(false)
        .parse_callbacks(Box::new(OldNames));
    write(bindings, "xla.rs").map(drop)
}

/// Constants by which clang evaluates the addresses: bindgen drops a macro whose value is a cast.
/// They are signed: bindgen also drops a constant beyond the largest signed one, as MPICH's
/// `(void *) -1` would be.
const MPI_CONSTANTS: &str = "
#include <stdint.h>
static const intptr_t IN_PLACE = (intptr_t)(MPI_IN_PLACE);
static const intptr_t STATUS_IGNORE = (intptr_t)(MPI_STATUS_IGNORE);
static const int PROC_NULL = MPI_PROC_NULL;
static const uintptr_t STATUS_SIZE = sizeof(MPI_Status);
static const uintptr_t COMM_SIZE = sizeof(MPI_Comm);
static const int VERSION = 100 * MPI_VERSION + MPI_SUBVERSION;
#if MPI_VERSION >= 4
static const int LARGE_COUNTS = 1;
#endif
";

fn mpi_header() -> Result<(), String> {
    for name in [
        "MPICC",
        "MPI_PKG_CONFIG",
        "PATH",
        "BINDGEN_EXTRA_CLANG_ARGS",
    ] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    // As mpi-sys finds it, or the two would not speak of the same MPI.
    let mpi = build_probe_mpi::probe().map_err(|reasons| {
        let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        format!(
            "no MPI found; put mpicc on PATH or name it in MPICC ({})",
            reasons.join("; ")
        )
    })?;
    // The tests link with MPI. Without this they would need LD_LIBRARY_PATH to start.
    for path in &mpi.lib_paths {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", path.display());
    }
    let bindings = |header: &str| {
        bindgen::builder()
            .header_contents(
                "constants.h",
                &format!("#include <{header}>\n{MPI_CONSTANTS}"),
            )
            .clang_args(
                mpi.include_paths
                    .iter()
                    .map(|path| format!("-I{}", path.display())),
            )
            .allowlist_var(
                "IN_PLACE|STATUS_IGNORE|PROC_NULL|STATUS_SIZE|COMM_SIZE|VERSION|LARGE_COUNTS",
            )
    };
    let written = write(bindings("mpi.h"), "mpi.rs")?;
    println!("cargo::rustc-check-cfg=cfg(large_counts)");
    if written.contains("LARGE_COUNTS") {
        println!("cargo::rustc-cfg=large_counts");
    }

    // The ABI that MPI-5.0 §20 standardises has a header of its own, which MPICH 5 brings along.
    // mpi-sys does not build for it, because it has no MPI_Fint.
    println!("cargo::rustc-check-cfg=cfg(standard_abi)");
    if mpi
        .include_paths
        .iter()
        .any(|path| path.join("mpi_abi.h").is_file())
    {
        println!("cargo::rustc-cfg=standard_abi");
        let standard = bindings("mpi_abi.h")
            .allowlist_item("MPI_(Aint|Comm|Datatype|Group|Op|Request|Status)")
            .allowlist_function("MPI_.*")
            .layout_tests(false);
        write(standard, "standard.rs")?;
    }
    Ok(())
}

/// Writes the file of this name, and gives back what is in it.
fn write(bindings: bindgen::Builder, name: &str) -> Result<String, String> {
    let path = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join(name);
    let text = bindings
        .generate()
        .map_err(|error| format!("{name}: {error}"))?
        .to_string();
    fs::write(&path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text)
}
