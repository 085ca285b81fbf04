"""The launcher of this process, found in the environment, and whether it fits the MPI."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mpi4jax import _terminal

OPEN_MPI, MPICH, SRUN = "Open MPI", "MPICH or Intel MPI", "srun"


class Launcher(NamedTuple):
    """A launcher, with the rank and the number of processes that it set here."""

    #: The MPI of the mpiexec, or srun.
    name: str
    rank: int
    size: int
    #: The environment variable with the size.
    variable: str


#: The variables of each launcher: the rank, and the number of processes.
_VARIABLES = {
    OPEN_MPI: ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    MPICH: ("PMI_RANK", "PMI_SIZE"),
    # Not SLURM_NTASKS, which is also set in batch scripts that srun has not started.
    SRUN: ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}


def launchers(environ: Mapping[str, str] = os.environ) -> list[Launcher]:
    """The launchers found in the environment, the decisive one first."""
    all_launchers = []
    for name, (rank, size) in _VARIABLES.items():
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            launcher = Launcher(name, int(environ[rank]), int(environ[size]), size)
            all_launchers.append(launcher)
    # srun sets PMI's variables itself, or starts an mpiexec once on each host.
    if len(all_launchers) > 1 and all_launchers[-1].name == SRUN:
        *others, srun = all_launchers
        is_direct = "MPI_LOCALNRANKS" not in environ and others[0].name == MPICH
        return [srun] if is_direct else others
    return all_launchers


def is_first(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is rank 0 of its launcher, independent of MPI."""
    # PMIx sets the rank only.
    ranks = [launcher.rank for launcher in launchers(environ)]
    return [*ranks, int(environ.get("PMIX_RANK", 0))][0] == 0


def processes_on_node(environ: Mapping[str, str] = os.environ) -> int:
    """Number of processes that were started together on this node, 1 if unknown."""
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    # "2(x3),1" for 2 on each of three nodes and 1 on the next.
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    on_nodes = [int(count) for count, nodes in runs for _ in range(int(nodes or 1))]
    node = environ.get("SLURM_NODEID", "0")
    return on_nodes[int(node)] if node.isdigit() and int(node) < len(on_nodes) else 1


def from_facts(facts: Sequence[Mapping[str, Any]]) -> list[Launcher]:
    return [Launcher(**launcher_facts) for launcher_facts in facts]


def foreign_launcher(
    library: str, file: str | None, started_by: Sequence[Launcher]
) -> str | None:
    """The problem that another MPI's mpiexec has started this process, None if not.

    Arguments:
        library: The name of the MPI.
        file: The file of the MPI.
        started_by: The launchers found in the environment.

    """
    names = [launcher.name for launcher in started_by]
    own = OPEN_MPI if library.startswith(OPEN_MPI) else MPICH
    if not names or own in names or SRUN in names:
        return None
    return (
        f"this mpiexec belongs to {started_by[0].name} ({started_by[0].variable}), mpi4py "
        f"loaded {library} ({file or 'from an unknown file'}). Start the program with the "
        "mpiexec of that MPI"
    )


def mismatch(
    library: str, file: str | None, size: int, started_by: Sequence[Launcher]
) -> str | None:
    """Reason why each process is alone in its MPI although a launcher started several.

    None if `size`, the number of processes by MPI, fits the launcher.
    """
    if size != 1 or not started_by or any(launcher.size == 1 for launcher in started_by):
        return None
    launcher = started_by[0]
    command = SRUN if launcher.name == SRUN else "mpiexec"
    start = f"every process is rank 0 of 1, but {command} started {launcher.size}: "
    if why := foreign_launcher(library, file, started_by):
        return start + why
    both = f"and {library}, which mpi4py loaded ({file or 'from an unknown file'}), do not"
    if launcher.name == SRUN:
        return (
            f"{start}srun ({launcher.variable}) {both} know each other. Try `srun "
            "--mpi=pmix` (Open MPI) or `srun --mpi=pmi2` (MPICH, Intel MPI); `srun "
            "--mpi=list` says what there is"
        )
    return (
        f"{start}this mpiexec of {launcher.name} ({launcher.variable}) {both} know each "
        f"other. The mpiexec on the path is {shutil.which('mpiexec')}"
    )


def refuse(why: str) -> int:
    """Print once why a command can't do anything useful, and return its exit code."""
    if is_first():
        _terminal.tell(why, sys.stderr)
    return 1
