"""Messages between processes while a plan is made, by mpi4py."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from ..mpi.handles import members_of
from ..watch.meetings import meeting
from ..xla.flush import flush

#: Row numbers, ranks, or ids.
Integers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

#: The most rows of a process, and elements in a call of MPI's: C's `int`.
MAX_COUNT = 2**31 - 1


@contextlib.contextmanager
def private(function: str, comm: MPI.Intracomm) -> Iterator[MPI.Intracomm]:
    """Give a duplicate of a communicator, for messages that meet no others."""
    # Programs that were called before may use the communicator in other threads.
    flush()
    duplicate = _duplicate(function, comm)
    try:
        yield duplicate
    finally:
        duplicate.Free()


def _duplicate(function: str, comm: MPI.Intracomm) -> MPI.Intracomm:
    rule = "all ranks of its communicator have to call it together."
    with meeting(function, rule, members_of(comm)):
        return comm.Dup()


class Problem(NamedTuple):
    """The first error in the input of all ranks, and which of them have errors."""

    rank: int
    #: Position of the problem among those of its rank: the first one is reported.
    order: int
    text: str
    #: All ranks that have a problem.
    ranks: frozenset[int]


def agree(comm: MPI.Intracomm, problem: Problem | None) -> None:
    """Raise the first ValueError of all ranks, if there is one, on each of them."""
    if not comm.allreduce(problem is not None, op=MPI.LOR):
        return
    problems = [each for each in comm.allgather(problem) if each is not None]
    count = len(frozenset().union(*(each.ranks for each in problems)))
    more = f". {count} ranks have errors, of which this is the first" if count > 1 else ""
    raise ValueError(f"{min(problems).text}{more}")


class Routes:
    """A message from each process to each other one: a part of its rows, and an answer.

    Arguments:
        comm: The communicator, on which all processes make it together.
        rows: The rows, which are sent in this order.
        targets: The rank to which each of them is sent.

    """

    def __init__(self, comm: MPI.Intracomm, rows: Integers, targets: Integers) -> None:
        self._comm = comm
        size = comm.Get_size()
        #: The rows by the rank to which they are sent.
        self.rows = rows[np.argsort(targets, kind="stable")]
        self._sent = np.bincount(targets, minlength=size)
        self._received = np.empty_like(self._sent)
        comm.Alltoall(self._sent, self._received)
        self._ends = np.cumsum(self._received)
        most = comm.allreduce(int(self._ends[-1]), op=MPI.MAX)
        if most > MAX_COUNT:
            raise ValueError(
                f"unstructured.Plan would send {most} ids to one rank, expected at most "
                f"{MAX_COUNT}. Divide them among more ranks"
            )

    def send(self, values: Integers) -> Integers:
        """Values of all rows go; those of other processes return, in the order of ranks."""
        return self._exchange(values[self.rows], self._sent, self._received)

    def answer(self, values: Integers) -> Integers:
        """A value for each that was received goes back; returns those for `self.rows`."""
        return self._exchange(values, self._received, self._sent)

    def _exchange(self, values: Integers, sent: Integers, received: Integers) -> Integers:
        values = np.ascontiguousarray(values)
        result = np.empty((received.sum(), *values.shape[1:]), values.dtype)
        row = MPI.BYTE.Create_contiguous(
            values[:1].nbytes if len(values) else result[:1].nbytes
        )
        row.Commit()
        try:
            self._comm.Alltoallv(
                [values, _blocks(sent), row], [result, _blocks(received), row]
            )
        finally:
            row.Free()
        return result

    def sources(self, positions: Integers) -> Integers:
        """The ranks from which the values at some positions were received."""
        return np.searchsorted(self._ends, positions, side="right").astype(np.int32)


def _blocks(counts: Integers) -> tuple[Integers, Integers]:
    """The sizes of blocks that follow one another, and where they begin."""
    return counts.astype(np.intc), (np.cumsum(counts) - counts).astype(np.intc)


def send_sparsely(
    comm: MPI.Intracomm, messages: Mapping[int, Integers]
) -> dict[int, Integers]:
    """Send int32 arrays to some ranks, and return those from ranks that sent one here.

    Nobody knows who sends to it, and nothing is as long as the number of ranks: the
    algorithm NBX of Hoefler, Siebert and Lumsdaine (2010), "Scalable communication
    protocols for dynamic sparse data exchange". A synchronous send ends when its message
    is received. Once that holds for all of a process, it enters a barrier, after which no
    message is on its way. So it can be called once only on a communicator.
    """
    requests = [comm.Issend(message, rank) for rank, message in messages.items()]
    received: dict[int, Integers] = {}
    barrier: MPI.Request | None = None
    status = MPI.Status()
    while True:
        if comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            message = np.empty(status.Get_count(MPI.INT32_T), np.int32)
            comm.Recv(message, status.Get_source())
            received[status.Get_source()] = message
        elif barrier is None and MPI.Request.Testall(requests):
            barrier = comm.Ibarrier()
        elif barrier is not None and barrier.Test():
            return received
        else:
            os.sched_yield()


def update(
    comm: MPI.Intracomm,
    ranks: Sequence[int],
    sent: Sequence[Integers],
    received: Sequence[Integers],
    values: Integers,
) -> None:
    """Fill the values of the rows that are received from these ranks."""
    incoming = [np.empty((len(rows), *values.shape[1:]), values.dtype) for rows in received]
    outgoing = [values[rows] for rows in sent]
    requests = [comm.Irecv(*each) for each in zip(incoming, ranks, strict=True)]
    requests += [comm.Isend(*each) for each in zip(outgoing, ranks, strict=True)]
    MPI.Request.Waitall(requests)
    for rows, message in zip(received, incoming, strict=True):
        values[rows] = message
