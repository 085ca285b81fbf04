"""What mpi4jax knows about the calls of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpi4jax import _core

from ._internal.profile import Recording
from ._internal.profile_report import Result, Row, draw, text_of
from ._internal.watch import connect

__all__ = ["Call", "Profile", "Row", "profile", "recent", "watch"]


class Call(NamedTuple):
    """A call of an operation that this process has made."""

    #: The name of the operation.
    operation: str
    #: Its arguments in words: the operator, the root, the peers and tags, type and size of
    #: the array.
    arguments: tuple[str, ...]
    #: What the communicator is called in reports.
    communicator: str
    #: For collective operations: the place of the call among those on the communicator,
    #: from 1.
    number: int | None
    #: The line of the user's that the call comes from, if it is known. A compiled program
    #: knows its lines; a call outside of any program is at a line only while it is under
    #: way.
    line: str | None
    #: The seconds since the call began, to some milliseconds.
    age: float
    #: The seconds that it took, to some milliseconds, or None while it is under way.
    duration: float | None

    def __str__(self) -> str:
        number = "" if self.number is None else f" #{self.number}"
        arguments = f" ({', '.join(self.arguments)})" if self.arguments else ""
        text = f"{self.operation}{number}{arguments} on {self.communicator}"
        return f"{text}   {self.line}" if self.line else text


def recent() -> list[Call]:
    """The last calls of this process, up to about a thousand, the oldest first.

    They are always recorded, at the cost of some nanoseconds each. It includes calls that
    are under way, so this also tells a debugger or a signal handler where the process
    waits.
    """
    return [
        Call(operation, tuple(arguments), comm, number or None, line or None, age, duration)
        for operation, number, comm, arguments, line, age, duration in _core.recent_calls()
    ]


class Profile:
    """What a part of a program did. It is filled when that is over, on all processes."""

    def __init__(self) -> None:
        self._result: Result | None = None

    @property
    def _found(self) -> Result:
        if self._result is None:
            raise RuntimeError("the profile is not finished: the `with` block is under way")
        return self._result

    @property
    def elapsed(self) -> float:
        """The seconds of the whole."""
        return self._found.elapsed

    @property
    def rows(self) -> tuple[Row, ...]:
        """The operations by line, the one with the longest time first."""
        return self._found.rows

    @property
    def seconds(self) -> np.ndarray[Any, Any]:
        """The seconds that each process was in MPI."""
        return self._found.seconds

    @property
    def waiting(self) -> np.ndarray[Any, Any]:
        """The seconds of it in which each process waited for another to begin its call."""
        return self._found.waiting

    @property
    def traffic(self) -> np.ndarray[Any, Any]:
        """The bytes of messages from each process (first index) to each other one.

        It has what `send`, `sendrecv`, `exchange` and the operations between neighbors
        sent. How MPI sends the data of other collective operations is up to MPI.
        """
        return self._found.traffic

    def __str__(self) -> str:
        return text_of(self._found)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the time of each process, and who sends how much to whom.

        Arguments:
            path: A file to save the picture to, which rank 0 does.

        Returns:
            A figure of matplotlib's, which has to be installed.

        """
        figure = draw(self._found)
        if path is not None and MPI.COMM_WORLD.Get_rank() == 0:
            figure.savefig(path)
        return figure


@contextmanager
def profile(*, quiet: bool = False) -> Iterator[Profile]:
    """Find out what the calls in a `with` block cost, by operation and by line.

    All processes have to enter the block, and to leave it. In the end rank 0 prints what
    they did. Calls are waited for at the beginning and in the end, so that the block has
    all calls that are made in it, and no others.

    Arguments:
        quiet: Whether to print nothing.

    """
    found = Profile()
    recording = Recording()
    try:
        yield found
    except BaseException:
        # The other processes may be anywhere.
        recording.abandon()
        raise
    found._result = recording.finish()
    if not quiet and MPI.COMM_WORLD.Get_rank() == 0:
        print(found, flush=True)


def watch() -> None:
    """Have the processes ask each other what they do, when one waits for long.

    The first call on the default communicator does so anyway. This is for programs that
    only use communicators of their own. All processes of ``COMM_WORLD`` have to call it, as
    it makes a communicator; another call does nothing.

    Raises:
        RuntimeError: if MPI was not initialised with ``MPI.THREAD_MULTIPLE`` everywhere.
    """
    if not connect():
        raise RuntimeError(
            "mpi4jax.diagnostics.watch() needs an MPI that was initialised with "
            "THREAD_MULTIPLE, by which a thread can ask while another one waits"
        )
