"""What started this process, as its environment tells, and whether it fits the MPI."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

OPEN_MPI, MPICH, SRUN = "Open MPI", "MPICH or Intel MPI", "srun"


class Launcher(NamedTuple):
    """A launcher, and what it says of this process."""

    #: Whose mpiexec it is, or srun.
    name: str
    rank: int
    size: int
    #: The variable that gives the size.
    variable: str


#: The variables of each launcher: the rank, and the number of processes.
_VARIABLES = {
    OPEN_MPI: ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    MPICH: ("PMI_RANK", "PMI_SIZE"),
    # Not SLURM_NTASKS, which batch scripts have that srun has not started.
    SRUN: ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}


def launchers(environ: Mapping[str, str] = os.environ) -> list[Launcher]:
    """The launchers that left their traces, the one that counts first."""
    found = []
    for name, (rank, size) in _VARIABLES.items():
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            found.append(Launcher(name, int(environ[rank]), int(environ[size]), size))
    # srun hands out PMI's numbers itself, or starts an mpiexec once on each host.
    if len(found) > 1 and found[-1].name == SRUN:
        *others, srun = found
        is_direct = "MPI_LOCALNRANKS" not in environ and others[0].name == MPICH
        return [srun] if is_direct else others
    return found


def is_first(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is rank 0 for its launcher, whatever MPI says."""
    found = launchers(environ)
    # PMIx tells the rank only.
    rank = found[0].rank if found else int(environ.get("PMIX_RANK", 0))
    return rank == 0


def from_facts(facts: Sequence[Mapping[str, Any]]) -> list[Launcher]:
    return [Launcher(**one) for one in facts]


def stranger(library: str, file: str | None, found: Sequence[Launcher]) -> str | None:
    """Whose mpiexec has started this process, if it is not that of the loaded MPI.

    Arguments:
        library: The name of the MPI.
        file: Where it is.
        found: The launchers that left their traces.

    """
    names = [launcher.name for launcher in found]
    own = OPEN_MPI if library.startswith(OPEN_MPI) else MPICH
    if not names or own in names or SRUN in names:
        return None
    return (
        f"this mpiexec belongs to {found[0].name} ({found[0].variable}), mpi4py loaded "
        f"{library} ({file or 'from an unknown file'}). Start the program with the mpiexec "
        "of that MPI"
    )


def mismatch(
    library: str, file: str | None, size: int, found: Sequence[Launcher]
) -> str | None:
    """Why MPI, which says that there are `size` processes, takes each for the only one."""
    if size != 1 or not found or any(launcher.size == 1 for launcher in found):
        return None
    launcher = found[0]
    command = SRUN if launcher.name == SRUN else "mpiexec"
    start = f"every process is rank 0 of 1, but {command} started {launcher.size}: "
    if why := stranger(library, file, found):
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
    """Say once why a command would be about nothing, and give its exit code."""
    if is_first():
        print(why, file=sys.stderr)
    return 1
