"""Errors that all processes raise alike, whichever of them has found one."""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence

from mpi4py import MPI

from ..._manifest import Json
from ..mpi.handles import members_of
from ..watch.meetings import meeting, wait_for_all
from ..xla.flush import flush


class Agreement:
    """The processes that call a function together, and what has failed on this one.

    Arguments:
        function: The public name of the function.
        comm: The communicator, whose processes make this together.

    """

    def __init__(self, function: str, comm: MPI.Intracomm) -> None:
        self.enter(function)
        #: The ranks of the processes in COMM_WORLD.
        self.members = members_of(comm)
        with self._meeting():
            #: A communicator for messages that meet no others.
            self.comm = comm.Dup()
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.failure: Exception | None = None

    def _meeting(self) -> contextlib.AbstractContextManager[None]:
        rule = "all ranks of its communicator have to call it together."
        return meeting(self.function, rule, self.members)

    def enter(self, function: str) -> None:
        """Begin a call of a function, from which on errors have its name."""
        # Programs that were called before may be in MPI, in other threads.
        flush()
        self.function = function

    def free(self) -> None:
        """Free the communicator. All processes call this together."""
        self.comm.Free()

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Keep the first error of a block for :meth:`settle`."""
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error

    @property
    def has_failed(self) -> bool:
        return self.failure is not None

    def settle(self) -> None:
        """Raise the first error of all processes, by rank, on each of them."""
        failure, self.failure = self.failure, None
        with self._meeting():
            wait_for_all(self.comm)
            if not self.comm.allreduce(failure is not None, op=MPI.LOR):
                return
            own = None if failure is None else (type(failure).__name__, str(failure))
            failures = self.comm.allgather(own)
        rank, (name, text) = next(
            (rank, each) for rank, each in enumerate(failures) if each is not None
        )
        kind = getattr(builtins, name, RuntimeError)
        others = sum(each is not None for each in failures)
        if rank and self.size > 1 and others < self.size:
            text = f"{text} (on rank {rank})"
        raise kind(text) from (failure if rank == self.rank else None)

    def compare(self, facts: Sequence[Json]) -> None:
        """Raise ValueError on all processes if their facts differ, one for each leaf."""
        encoded = [json.dumps(fact, sort_keys=True) for fact in facts]
        digest = hashlib.blake2b("\n".join(encoded).encode(), digest_size=16).digest()
        with self._meeting():
            digests = self.comm.allgather(digest)
            unlike = [rank for rank, each in enumerate(digests) if each != digests[0]]
            if not unlike:
                return
            first, other = (self.comm.bcast(facts, root) for root in (0, unlike[0]))
        raise ValueError(f"{self.function} got {_difference(first, other, unlike[0])}")


def _difference(first: Sequence[Json], other: Sequence[Json], rank: int) -> str:
    """How the facts of a rank differ from those of rank 0."""
    if len(first) != len(other):
        return (
            f"a tree of {len(first)} leaves on rank 0 and of {len(other)} on rank {rank}, "
            "expected the same on all ranks"
        )
    here, there = next((a, b) for a, b in zip(first, other, strict=True) if a != b)
    name = next(key for key in here if here[key] != there.get(key))
    if here["path"] != there["path"]:
        return (
            f"a leaf `tree{here['path']}` on rank 0 and `tree{there['path']}` on rank "
            f"{rank}, expected the same tree on all ranks"
        )
    return (
        f"for `tree{here['path']}` the {name} {here[name]} on rank 0 and {there.get(name)} "
        f"on rank {rank}, expected the same on all ranks"
    )
