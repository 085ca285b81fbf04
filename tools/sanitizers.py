"""The core's tests under tools that watch memory and threads, where this machine has them.

`tools/run.py --only sanitize` runs all of them, and `make test` one or two of them in turn.

To run jaxlib with ASan, by hand, build the core with RUSTC_BOOTSTRAP=1, --target,
RUSTFLAGS=-Zsanitizer=address and --features mpi4jax/python, put it where _core.abi3.so is,
and start each rank with LD_PRELOAD=libasan.so.8:libstdc++.so.6 (GCC's) and
ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0. Tests of memory that grows fail, as
ASan keeps what is freed.
"""

from __future__ import annotations

import platform
import subprocess
from typing import NamedTuple

import debian
from environments import ROOT

TARGET = f"{platform.machine()}-unknown-linux-gnu"
#: The tests of what has threads, or is passed on to MPI: the others add little but time.
SAMPLE = ("--lib", "--test", "moving", "--test", "fuzz")

CARGO_TEST = ["cargo", "test", "--quiet", "--locked"]

#: Variables of cargo's that make a build for release a fast one.
QUICK_BUILD = {
    "CARGO_PROFILE_RELEASE_LTO": "false",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
}


class Check(NamedTuple):
    """A tool, and how to run it. `lack`: why this machine can't."""

    label: str
    command: list[str]
    environ: dict[str, str]
    lack: str | None = None


def sanitizer(name: str, short: str, *arguments: str, **environ: str) -> Check:
    """The tests, built with one of LLVM's sanitizers, which a stable toolchain has, too."""
    runtimes = debian.libraries(environ.get("RUSTC")) / TARGET / "lib"
    has_runtime = any(runtimes.glob(f"librustc-*_rt.{short}.a"))
    return Check(
        label=f"rust under the {name} sanitizer",
        command=[*CARGO_TEST, "--target", TARGET, *arguments],
        environ={
            "RUSTC_BOOTSTRAP": "1",
            "RUSTFLAGS": f"-Zsanitizer={name}",
            "RUSTDOCFLAGS": f"-Zsanitizer={name}",
            "CARGO_TARGET_DIR": str(ROOT / "target" / short),
            **environ,
        },
        lack=None if has_runtime else f"this toolchain has no runtime of {short}",
    )


def address(*tests: str) -> Check:
    """Memory that is used after its end, or beyond its bounds."""
    # What MPI may still write to after an error is left to it for good.
    return sanitizer("address", "asan", *tests, ASAN_OPTIONS="detect_leaks=0")


def thread(*tests: str) -> Check:
    """Data races."""
    try:
        environ, lack = debian.standard_library_from_source(), None
    except debian.LackError as error:
        environ, lack = {}, str(error)
    # Without this, the tool sees no locks of std, and takes guarded data for races.
    check = sanitizer("thread", "tsan", "-Zbuild-std", *tests, **environ)
    return check._replace(lack=lack or check.lack)


def miri(*tests: str) -> Check:
    """Undefined behaviour, in tests that call no C function."""
    code = subprocess.run(["cargo", "miri", "--version"], capture_output=True).returncode
    # Leaks: as of `address`.
    flags = "-Zmiri-permissive-provenance -Zmiri-disable-isolation -Zmiri-ignore-leaks"
    return Check(
        label="rust under Miri",
        command=["cargo", "miri", *CARGO_TEST[1:], *tests],
        environ={"MIRIFLAGS": flags},
        lack=None if code == 0 else "this toolchain has no Miri",
    )


def loom() -> Check:
    """All orders of the steps by which the progress thread goes to sleep and is woken."""
    return Check(
        label="rust under loom",
        command=[*CARGO_TEST, "--release", "--test", "loom"],
        environ={
            "RUSTFLAGS": "--cfg loom",
            "CARGO_TARGET_DIR": str(ROOT / "target" / "loom"),
            # Only this test has to be fast.
            **QUICK_BUILD,
        },
    )
