"""The command that starts processes of the MPI that mpi4py loads."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mpi4jax import _launcher, _mpi

#: The kinds of launchers, and the MPIs whose processes each starts, by the begins of their
#: names.
HYDRA, OPEN_MPI = "Hydra", "Open MPI"
_KINDS = {
    "MPICH": HYDRA,
    "Intel(R) MPI": HYDRA,
    "MVAPICH": HYDRA,
    "Open MPI": OPEN_MPI,
}

#: The names of commands: the `mpiexec` of one MPI may hide that of another.
_NAMES = {
    HYDRA: ("mpiexec", "mpiexec.hydra", "mpiexec.mpich"),
    OPEN_MPI: ("mpiexec", "mpiexec.openmpi"),
}

#: The PMI that the MPIs of each kind speak, as `srun --mpi=list` names it.
_PMI = {HYDRA: "pmi2", OPEN_MPI: "pmix"}

#: Options and variables by which a user binds ranks of Open MPI.
_BINDS = re.compile(r"--?bind-to\b|_default_binding_policy\b|_base_binding_policy\b")
#: Options and variables, also of batch systems, that say where ranks run, and how many.
_MAPS = re.compile(
    r"--?(map-by|host|hostfile|machinefile|rankfile|oversubscribe|rf|H)\b|_mapping_policy\b"
    r"|\b(SLURM_JOB_ID|PBS_NODEFILE|LSB_HOSTS|LSB_DJOB_HOSTFILE|PE_HOSTFILE)\b"
)


class Mpi(NamedTuple):
    """The MPI that mpi4py loads."""

    #: Such as "MPICH 5.0.2".
    name: str
    file: str | None

    @property
    def kind(self) -> str | None:
        """The kind of its launcher, None if unknown."""
        return next((k for n, k in _KINDS.items() if self.name.startswith(n)), None)

    @property
    def major(self) -> str:
        """The first number of its version, empty if unknown."""
        return re.sub(r"\D.*", "", self.name.removeprefix(OPEN_MPI).strip())


class Starter(NamedTuple):
    """A command that starts processes, without their number."""

    command: Sequence[str]
    #: The first line that it prints about itself.
    description: str
    #: HYDRA, OPEN_MPI, or "srun".
    kind: str

    def binding_options(
        self, options: Sequence[str], environ: Mapping[str, str]
    ) -> list[str]:
        """Options by which Open MPI binds no rank, and starts more ranks than cores.

        By default, it binds each of two ranks to a single core, however many there are. A
        batch system, a list of hosts or a mapping says how many ranks there may be.
        """
        if self.kind != OPEN_MPI:
            return []
        words = " ".join([*options, *environ])
        added = [] if _BINDS.search(words) else ["--bind-to", "none"]
        if not _MAPS.search(words):
            old, new = ["--oversubscribe"], ["--map-by", ":OVERSUBSCRIBE"]
            added += old if self._is_old() else new
        return added

    def tag_options(self) -> list[str]:
        """Options that put the rank in front of each line of output."""
        if self.kind != OPEN_MPI:
            return ["-l"]
        return ["--tag-output"] if self._is_old() else ["--output", "TAG"]

    def _is_old(self) -> bool:
        """Whether the command is Open MPI's before version 5."""
        return re.search(r"(?<![\d.])[1-4]\.\d", self.description) is not None


def load() -> Mpi:
    """The MPI that mpi4py loads in this process. It is not initialised.

    Raises:
        ImportError: if mpi4py or its MPI library is missing.

    """
    # Where mpi4py is missing, the error is that of `load`.
    with contextlib.suppress(ImportError):
        import mpi4py

        mpi4py.rc.initialize = False
    MPI = _mpi.load()
    name = _launcher.library_name(MPI.Get_library_version())
    if _mpi.is_missing(name):
        raise ImportError(_mpi.MISSING)
    return Mpi(name, _launcher.library_file())


def find(mpi: Mpi, environ: Mapping[str, str] = os.environ) -> Starter:
    """The command that starts processes of an MPI.

    Raises:
        LookupError: if no launcher fits. The text lists the launchers that were found.

    """
    # Intel MPI finds srun's PMI in a library of Slurm's.
    lacks_pmi = mpi.name.startswith("Intel") and "I_MPI_PMI_LIBRARY" not in environ
    if "SLURM_JOB_ID" in environ and not lacks_pmi:
        starter = _srun(mpi.kind, environ)
        if starter is not None:
            return starter
    if mpi.kind is None:
        raise LookupError(
            f"no command is known that starts programs of {mpi.name}. Use the launcher of "
            "this machine: LAUNCHER -n 4 python -m mpi4jax run PROGRAM"
        )
    others = []
    for path in dict.fromkeys(_candidates(mpi, _NAMES[mpi.kind])):
        description = _describe(path)
        kind = _kind_of(description)
        if kind == mpi.kind and _fits(mpi, description):
            return Starter([path], description, kind)
        others.append(f"; {path} is {description if kind else 'of another kind'}")
    raise LookupError(
        f"no launcher was found for {mpi.name}, which mpi4py loads "
        f"({mpi.file or 'from an unknown file'}). It may be beside this file, beside "
        f"python, or on the path{''.join(others)}"
    )


def _srun(kind: str | None, environ: Mapping[str, str]) -> Starter | None:
    """The srun of an allocation, if it speaks the PMI of a kind of MPI."""
    path = shutil.which("srun")
    if path is None:
        return None
    # If a rank fails before MPI begins, the others would wait for it.
    options = ["--kill-on-bad-exit=1"]
    if kind is not None:
        listed = _output_of(path, "--mpi=list").replace(",", " ").split()
        if _PMI[kind] not in listed:
            return None
        options.append(f"--mpi={_PMI[kind]}")
    # What srun does not take from sbatch, since Slurm 22.05.
    cpus = environ.get("SLURM_CPUS_PER_TASK")
    if cpus and "SRUN_CPUS_PER_TASK" not in environ:
        options.append(f"--cpus-per-task={cpus}")
    # Of `srun --pty bash`: another step would wait for its end.
    if "SLURM_STEP_ID" in environ:
        options.append("--overlap")
    return Starter([path, *options], _output_of(path, "--version").strip(), "srun")


def _candidates(mpi: Mpi, names: Sequence[str]) -> Iterator[str]:
    """The paths of commands that may start processes of an MPI, the likely ones first."""
    # Such as /usr/lib/x86_64-linux-gnu/openmpi/lib/libmpi.so.
    above = list(Path(mpi.file).parents)[:-1] if mpi.file else []
    folders = [folder / "bin" for folder in above]
    folders.append(Path(sys.executable).parent)
    for folder in folders:
        for name in names:
            if os.access(path := folder / name, os.X_OK):
                yield str(path)
    for name in names:
        if (on_path := shutil.which(name)) is not None:
            yield on_path


def _describe(path: str) -> str:
    """Version of a launcher, in one line of its own words."""
    text = _output_of(path, "--version")
    version = re.search(r"^\s*Version:\s*(\S+)", text, re.MULTILINE)
    if "HYDRA" in text and version:
        return f"Hydra {version[1]}"
    return text.strip().partition("\n")[0]


def _kind_of(description: str) -> str | None:
    if re.search(r"\bHydra\b|Intel\(R\) MPI", description):
        return HYDRA
    return OPEN_MPI if re.search(r"Open ?MPI|OpenRTE|PRRTE", description) else None


def _fits(mpi: Mpi, description: str) -> bool:
    """Whether a launcher of the right kind starts this release, too."""
    version = re.search(r"\b(\d+)\.\d", description)
    # All of Hydra speak the same PMI. Open MPI's has changed with its first number.
    return mpi.kind == HYDRA or version is None or version[1] == mpi.major


def _output_of(*command: str) -> str:
    """Output of a command, empty if the command fails or hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
