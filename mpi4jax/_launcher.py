"""The launcher of this process, found in the environment, and whether it fits the MPI."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpi4jax import _terminal

OPEN_MPI, MPICH, SRUN = "Open MPI", "MPICH or Intel MPI", "srun"


class Launcher(NamedTuple):
    """A launcher, with the rank and the number of processes that it set here."""

    #: The MPI of the mpiexec, or the name of a launcher that belongs to no MPI.
    name: str
    rank: int
    size: int
    #: The environment variable with the size.
    variable: str


class _Variables(NamedTuple):
    """The environment variables of a launcher."""

    rank: str
    size: str
    #: The rank among the processes on this node, and their number, if it has a variable.
    local_rank: str
    local_size: str = ""


_VARIABLES = {
    OPEN_MPI: _Variables(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    MPICH: _Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # Not SLURM_NTASKS, which is also set in batch scripts that srun has not started.
    SRUN: _Variables("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    "Flux": _Variables("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    # HPE's PALS, with the variables of its PMI.
    "PALS": _Variables("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE"),
    "jsrun": _Variables(
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        "JSM_NAMESPACE_LOCAL_RANK",
        "JSM_NAMESPACE_LOCAL_SIZE",
    ),
    "MVAPICH": _Variables(
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
}


def _variables(environ: Mapping[str, str]) -> dict[str, _Variables]:
    """The variables of the launchers that may have started this process."""
    # A shell with a terminal, by `srun --pty`, is one task of several.
    left_out = SRUN if "SLURM_PTY_PORT" in environ else None
    return {name: each for name, each in _VARIABLES.items() if name != left_out}


def launchers(environ: Mapping[str, str] = os.environ) -> list[Launcher]:
    """The launchers found in the environment, the decisive one first."""
    all_launchers = []
    for name, variables in _variables(environ).items():
        rank, size = environ.get(variables.rank, ""), environ.get(variables.size, "")
        if rank.isdigit() and size.isdigit():
            launcher = Launcher(name, int(rank), int(size), variables.size)
            all_launchers.append(launcher)
    with_mpi = [each for each in all_launchers if each.name in (OPEN_MPI, MPICH)]
    general = [each for each in all_launchers if each not in with_mpi]
    if not with_mpi or not general:
        return all_launchers
    # A general launcher sets PMI's variables itself, or starts an mpiexec on each host.
    is_direct = "MPI_LOCALNRANKS" not in environ and with_mpi[0].name == MPICH
    return general if is_direct else with_mpi


def rank(environ: Mapping[str, str] = os.environ) -> int:
    """The rank of this process by its launcher, 0 if unknown."""
    # PMIx sets the rank only.
    ranks = [launcher.rank for launcher in launchers(environ)]
    return [*ranks, int(environ.get("PMIX_RANK", 0))][0]


def is_first(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is rank 0 of its launcher, independent of MPI."""
    return rank(environ) == 0


def processes_on_node(environ: Mapping[str, str] = os.environ) -> int:
    """Number of processes that were started together on this node, 1 if unknown."""
    table = _variables(environ)
    counts = [environ.get(variables.local_size, "") for variables in table.values()]
    if known := [int(count) for count in counts if count.isdigit()]:
        return known[0]
    if SRUN not in table:
        return 1
    # "2(x3),1" for 2 on each of three nodes and 1 on the next.
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    on_nodes = [int(count) for count, nodes in runs for _ in range(int(nodes or 1))]
    node = environ.get("SLURM_NODEID", "0")
    return on_nodes[int(node)] if node.isdigit() and int(node) < len(on_nodes) else 1


def local_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Rank of this process among those on its node, None if unknown."""
    table = _variables(environ)
    ranks = [environ.get(variables.local_rank, "") for variables in table.values()]
    return next((int(rank) for rank in ranks if rank.isdigit()), None)


def from_facts(facts: Sequence[Mapping[str, Any]]) -> list[Launcher]:
    return [Launcher(**launcher_facts) for launcher_facts in facts]


def library_name(version: str) -> str:
    """The short name of an MPI, from the text of MPI_Get_library_version."""
    first = " ".join(version.strip("\0 \n").splitlines()[0].split())
    # "MPICH Version: 5.0.2", "Open MPI v5.0.11, package: ...": the others stay whole.
    first = re.sub(r"^(\w+) Version: ?", r"\1 ", first)
    return re.sub(r"^(Open MPI) v?([^,]+),.*", r"\1 \2", first)


def library_file(maps: Path = Path("/proc/self/maps")) -> str | None:
    """The file of the MPI library that is loaded."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return None
    files = [line.split(maxsplit=5)[-1] for line in lines]
    names = re.compile(r"lib(mpi|mpich|mpi_abi|mpi_cray|mpi_gnu\w*)\.so[.\d]*")
    return next((f for f in files if names.fullmatch(os.path.basename(f))), None)


def foreign_launcher(
    library: str, file: str | None, started_by: Sequence[Launcher]
) -> str | None:
    """The problem that another MPI's mpiexec has started this process, None if not.

    Arguments:
        library: The name of the MPI.
        file: The file of the MPI.
        started_by: The launchers found in the environment.

    """
    names = {launcher.name for launcher in started_by}
    own = OPEN_MPI if library.startswith(OPEN_MPI) else MPICH
    if not names or own in names or names - {OPEN_MPI, MPICH}:
        return None
    return (
        f"this mpiexec belongs to {started_by[0].name} ({started_by[0].variable}), mpi4py "
        f"loaded {library} ({file or 'from an unknown file'}). Start the program with the "
        f"mpiexec of that MPI, as `python -m mpi4jax run -n {started_by[0].size}` does"
    )


def mismatch(
    library: str, file: str | None, size: int, started_by: Sequence[Launcher]
) -> str | None:
    """Reason why each process is alone in its MPI although a launcher started several.

    None if `size`, the number of processes by MPI, fits the launcher.
    """
    if not _is_alone(size, started_by):
        return None
    launcher = started_by[0]
    has_mpi = launcher.name in (OPEN_MPI, MPICH)
    command = "mpiexec" if has_mpi else launcher.name
    start = f"every process is rank 0 of 1, but {command} started {launcher.size}: "
    if why := foreign_launcher(library, file, started_by):
        return start + why
    both = f"and {library}, which mpi4py loaded ({file or 'from an unknown file'}), do not"
    if has_mpi:
        return (
            f"{start}this mpiexec of {launcher.name} ({launcher.variable}) {both} know "
            f"each other. The mpiexec on the path is {shutil.which('mpiexec')}"
        )
    cure = (
        "Try `srun --mpi=pmix` (Open MPI) or `srun --mpi=pmi2` (MPICH; Intel MPI with "
        "I_MPI_PMI_LIBRARY); `srun --mpi=list` says what there is"
        if launcher.name == SRUN
        else "Use mpi4py with the MPI of this machine, or the mpiexec of that MPI"
    )
    return f"{start}{launcher.name} ({launcher.variable}) {both} know each other. {cure}"


def _is_alone(size: int, started_by: Sequence[Launcher]) -> bool:
    """Whether MPI has one process, though each launcher has started several."""
    return size == 1 and bool(started_by) and all(each.size != 1 for each in started_by)


def why_alone(mpi: Any) -> str | None:
    """Reason why this process is alone in its MPI, mpi4py's `MPI`, against its launcher."""
    size, started_by = mpi.COMM_WORLD.Get_size(), launchers()
    if not _is_alone(size, started_by):
        return None  # before the maps of this process are read
    library = library_name(mpi.Get_library_version())
    return mismatch(library, library_file(), size, started_by)


def refuse(why: str) -> int:
    """Print once why a command can't do anything useful, and return its exit code."""
    if is_first():
        _terminal.tell(why, sys.stderr)
    return 1
