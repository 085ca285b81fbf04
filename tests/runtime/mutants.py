"""Takes waits out of the core, one at a time, and expects the tests to find each.

    python tests/runtime/mutants.py [NAME ...]

Each mutant is a copy of the sources with one change, built and installed into a copy of the
environment of the runtime tests. What it has wrong is a race on a GPU, that no test on a
driver whose streams are always on time would see.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

import environments
import runs
from environments import ROOT, Environment

BUILD = ROOT / "build" / "mutants"


class Mutant(NamedTuple):
    """A change of one file, and the tests that have to fail."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = {
    "direct calls do not wait for the stream": Mutant(
        "rust/src/memory/device.rs",
        "unsafe { self.driver.stream_synchronize(self.stream) }\n    }\n\n    fn after",
        "Ok(())\n    }\n\n    fn after",
        ("programs",),
    ),
    "staged calls do not wait for the copy of an operand": Mutant(
        "rust/src/memory/device.rs",
        "unsafe { self.driver.event_synchronize(event) }?;",
        "let _ = event;",
        ("programs",),
    ),
    "a buffer goes back to the pool while it is copied up": Mutant(
        "rust/src/memory/device.rs",
        "let stream = is_busy.then_some(self.stream);",
        "let stream = None; let _ = is_busy;",
        ("programs",),
    ),
    "a result is not copied up": Mutant(
        "rust/src/memory/device.rs",
        "if start >= end {\n                continue;",
        "if start <= end {\n                continue;",
        ("programs",),
    ),
    "what is stored goes back to the pool while it is copied up": Mutant(
        "rust/src/memory/device.rs",
        "driver.copy_up(array.address as usize, buffer.address, from.len(), stream)\n"
        "    };\n    POOL.release(buffer, Some(stream));",
        "driver.copy_up(array.address as usize, buffer.address, from.len(), stream)\n"
        "    };\n    POOL.release(buffer, None);",
        ("programs",),
    ),
    "a ticket is read before it has come": Mutant(
        "rust/src/memory/device.rs",
        "            .and_then(|()| driver.stream_synchronize(stream))\n",
        "",
        ("nonblocking",),
    ),
    "MPI gets slices that overlap": Mutant(
        "rust/src/ops/handlers.rs",
        "                return Ok(true);",
        "                return Ok(false);",
        ("slices",),
    ),
}
#: XLA hands over slices from this version on.
CUDA = Environment(jax="0.12", cuda=True)


def sources() -> Path:
    """A copy of what the wheel is built from."""
    copy = BUILD / "sources"
    shutil.rmtree(copy, ignore_errors=True)
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in names:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            # Newer than what was built from them, so that cargo builds it again.
            shutil.copy(ROOT / name, copy / name)
    return copy


def core_of(copy: Path) -> Path:
    """Build the core from the copy, quickly: it only has to be right, or wrong."""
    command = ["cargo", "build", "--locked", "--quiet", "--features", "python"]
    environ = {**os.environ, "CARGO_TARGET_DIR": str(BUILD / "target")}
    manifest = copy / "rust" / "Cargo.toml"
    subprocess.run([*command, "--manifest-path", manifest], env=environ, check=True)
    (library,) = (BUILD / "target" / "debug").glob("lib*core*.so")
    return library


def fails(tests: tuple[str, ...], packages: Path, ranks: int) -> tuple[bool, str]:
    """Run tests with the packages in a folder. Says whether they fail, and how."""
    names = runs.under("runtime", *tests)
    run = runs.Run(CUDA, ranks, names, (("TEST_LIMIT", "60"),))
    environ = run.settings()
    environ["PYTHONPATH"] = os.pathsep.join([str(packages), environ["PYTHONPATH"]])
    command = run.command("-q", "-x", "--color=no")
    code, output = environments.attempt(command, environ, timeout=300)
    lines = re.findall(r"^(?:FAILED|E  |stand-in driver:).*", output, re.MULTILINE)
    return code != 0, "\n".join(dict.fromkeys(line[:160] for line in lines[:6]))


def packages_with(core: Path) -> Path:
    """A folder with the package of the environment, and this core in it."""
    packages = BUILD / "packages"
    shutil.rmtree(packages, ignore_errors=True)
    (installed,) = (CUDA.path / "lib").glob("python*/site-packages")
    shutil.copytree(installed / "mpi4jax", packages / "mpi4jax")
    (old,) = (packages / "mpi4jax").glob("_core*.so")
    shutil.copy(core, old)
    return packages


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a word of its name")
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    environments.prepare(CUDA)
    copy = sources()
    words = arguments.names
    chosen = {
        name: mutant
        for name, mutant in MUTANTS.items()
        if not words or any(word in name for word in words)
    }
    everything = tuple(dict.fromkeys(test for m in chosen.values() for test in m.tests))
    wrong, why = fails(everything, packages_with(core_of(copy)), arguments.ranks)
    if wrong:
        print(f"the tests fail without a mutant:\n{why}")
        return 1
    survivors = []
    for name, mutant in chosen.items():
        path = copy / mutant.file
        original = path.read_text()
        assert original.count(mutant.old) == 1, f"{name}: {mutant.file} has changed"
        path.write_text(original.replace(mutant.old, mutant.new))
        is_found, how = fails(mutant.tests, packages_with(core_of(copy)), arguments.ranks)
        path.write_text(original)
        print(f"{'found' if is_found else 'SURVIVED'}: {name}\n{how}", flush=True)
        if not is_found:
            survivors.append(name)
    return len(survivors)


if __name__ == "__main__":
    sys.exit(main())
