"""Packages of Debian's, for x86_64 and aarch64, unpacked into .envs without root.

The Rust toolchain is one of them: a machine's own often has neither the standard library of
another architecture nor the sources of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from environments import FOLDER, ROOT, attempt, call, output_of

HERE = FOLDER / "debian"

#: A compiler with the standard libraries of both architectures, and their sources.
COMPILER = (
    "rustc-web:amd64",
    "libstd-rust-web-dev:amd64",
    "libstd-rust-web-dev:arm64",
    "rust-web-src",
)


class LackError(Exception):
    """An error: this machine lacks the requested packages."""


def apt(*arguments: object, archives: object = "archives") -> list[object]:
    """A command of apt's that knows both architectures, and leaves the system as it is."""
    settings = {
        "Dir::State": HERE / "apt",
        "Dir::State::status": HERE / "apt" / "status",
        "Dir::Cache": HERE / "apt",
        "Dir::Cache::archives": archives,
        "APT::Architecture": "arm64",
        # Both keep APT_CONFIG and the system's settings from adding to them.
        "APT::Architectures": "arm64,amd64",
        "APT::Sandbox::User": "",
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
    }
    options = [f"-o{key}={value}" for key, value in settings.items()]
    return ["apt-get", "--quiet", *options, *arguments]


def require(label: str, command: list[object]) -> None:
    """Run a command that needs the network."""
    code, output = attempt(command, {})
    if code:
        raise LackError(f"{label} failed: {(output.strip().splitlines() or [''])[-1]}")


@cache
def update() -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise LackError("this takes Debian's apt-get and dpkg")
    for folder in ("lists", "archives"):
        (HERE / "apt" / folder / "partial").mkdir(parents=True, exist_ok=True)
    (HERE / "apt" / "status").touch()
    require("apt-get update", apt("update"))


def unpack(folder: Path, *packages: str) -> Path:
    """Unpack packages, and what they need, into a folder. Without a suffix: aarch64's."""
    stamp = folder / "packages"
    if stamp.exists() and stamp.read_text() == " ".join(packages):
        return folder
    update()
    print(f"making {folder.relative_to(ROOT)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "partial").mkdir()
        download = apt("install", "--yes", "--download-only", *packages, archives=scratch)
        require(f"apt-get install {' '.join(packages)}", download)
        for package in sorted(Path(scratch).glob("*.deb")):
            call("dpkg", "-x", package, folder)
    stamp.write_text(" ".join(packages))
    return folder


@cache
def compiler() -> Path:
    """A rustc of Debian's, for x86_64, which finds its own libraries.

    Debian leaves out the runtimes of sanitizers, which it gets from this machine's rustc.
    """
    folder = unpack(HERE / "rust", *COMPILER)
    target = Path("x86_64-unknown-linux-gnu", "lib")
    for runtime in (libraries() / target).glob("librustc-*_rt.*.a"):
        copy = folder / "usr" / "lib" / "rustlib" / target / runtime.name
        copy.unlink(missing_ok=True)
        copy.symlink_to(runtime)
    rustc = folder / "bin" / "rustc"
    rustc.parent.mkdir(exist_ok=True)
    own = folder / "usr" / "lib" / "x86_64-linux-gnu"
    rustc.write_text(
        f'#!/bin/sh\nLD_LIBRARY_PATH="{own}" exec "{folder}/usr/bin/rustc" "$@"\n'
    )
    rustc.chmod(0o755)
    return rustc


def libraries(rustc: object = None) -> Path:
    """Folder of a compiler's standard libraries for targets, by default of cargo's."""
    rustc = rustc or os.environ.get("RUSTC", "rustc")
    return Path(output_of(rustc, "--print", "sysroot"), "lib", "rustlib")


def has_standard_library(target: str) -> bool:
    return (libraries() / target / "lib").is_dir()


def standard_library_from_source() -> dict[str, str]:
    """The variables with which cargo may compile the standard library (-Zbuild-std)."""
    environ = {"RUSTC_BOOTSTRAP": "1"}
    if not (libraries() / "src" / "rust" / "library" / "Cargo.toml").exists():
        environ["RUSTC"] = str(compiler())
    return environ
