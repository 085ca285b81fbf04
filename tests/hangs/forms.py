"""Programs on other communicators than the default one: `forms.py FORM PROGRAM [ARGUMENT]`.

Public programs name their communicator in each call. So that all programs here can be run
as if they did, what calls take without `comm=`, and what a program finds as
`MPI.COMM_WORLD`, is another one: a duplicate, a grid, ranks in another order, or a half of
the ranks, of which the others do something else.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

#: The forms, and how many times as many ranks each takes.
FORMS = {"world": 1, "duplicate": 1, "grid": 1, "reversed": 1, "half": 2}


def communicator(form: str) -> Any:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    if form == "world":
        return world
    comm = {
        "duplicate": world.Dup,
        "grid": lambda: world.Create_cart([size], [True]),
        "reversed": lambda: world.Split(0, -rank),
        "half": lambda: world.Split(int(rank >= size // 2), rank),
    }[form]()
    comm.Set_name("COMM_WORLD")
    if form == "half" and rank >= size // 2:
        # What the others do is no concern of these.
        from mpi4jax import notoken

        for _ in range(10):
            notoken.barrier(comm=comm)
            time.sleep(0.1)
        sys.exit()
    return comm


def put_in_place(form: str) -> Any:
    """Make the communicator of a form the one of all calls without `comm=`."""
    comm = communicator(form)
    from mpi4jax._internal.mpi import handles

    handles._default_comm = comm
    return comm


def main() -> None:
    form, path, *arguments = sys.argv[1:]
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    source = Path(path).read_text()
    names = {"__name__": "__main__", "__file__": path}
    if "COMM_WORLD" in source:
        # In the program's own lines, which reports name.
        source = source.replace("MPI.COMM_WORLD", "COMM")
        names["COMM"] = put_in_place(form)
    exec(compile(source, path, "exec"), names)


if __name__ == "__main__":
    main()
