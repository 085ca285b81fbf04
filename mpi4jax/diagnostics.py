"""Records of the calls of this process: its last calls, and profiles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from mpi4py import MPI

from mpi4jax import _core, _terminal
from mpi4jax._override import override

from ._internal.traces.profile import Recording
from ._internal.traces.report import Bytes, Result, Row, Seconds, draw, text_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Call", "Profile", "Row", "profile", "recent", "watch"]


class Call(NamedTuple):
    """A call of an operation by this process."""

    #: The name of the operation.
    operation: str
    #: Descriptions of the arguments: the operator, the root, the peers and tags, the type
    #: and size of the array.
    arguments: tuple[str, ...]
    #: The name of the communicator in reports.
    communicator: str
    #: For collective operations: the position of the call among the collective calls on the
    #: communicator, from 1.
    number: int | None
    #: The line of the user's program that made the call, if known. The line of an eager
    #: call is known only while the call is in progress.
    line: str | None
    #: The seconds since the call began, to some milliseconds.
    age: float
    #: The duration in seconds, to some milliseconds, or None while the call is in progress.
    duration: float | None

    @override
    def __str__(self) -> str:
        position = "" if self.number is None else f" #{self.number}"
        arguments = f" ({', '.join(self.arguments)})" if self.arguments else ""
        text = f"{self.operation}{position}{arguments} on {self.communicator}"
        return f"{text}   {self.line}" if self.line else text


def recent() -> list[Call]:
    """The last calls of this process, up to about a thousand, the oldest first.

    Calls are always recorded, at the cost of some nanoseconds each. Calls in progress are
    included, so a debugger or a signal handler can find out where the process waits.
    """
    return [
        Call(operation, tuple(arguments), comm, index or None, line or None, age, duration)
        for operation, index, comm, arguments, line, age, duration in _core.recent_calls()
    ]


class Profile:
    """The profile of a part of a program, available on all processes at the end."""

    def __init__(self) -> None:
        self._result: Result | None = None

    @property
    def _finished(self) -> Result:
        if self._result is None:
            raise RuntimeError("the profile is not finished: the `with` block is under way")
        return self._result

    @property
    def elapsed(self) -> float:
        """The duration of the profiled part in seconds."""
        return self._finished.elapsed

    @property
    def rows(self) -> tuple[Row, ...]:
        """The operations by line, sorted by time, the longest first."""
        return self._finished.rows

    @property
    def seconds(self) -> Seconds:
        """The seconds that each process spent in MPI."""
        return self._finished.seconds

    @property
    def waiting(self) -> Seconds:
        """The seconds in MPI in which each process waited for another to begin its call."""
        return self._finished.waiting

    @property
    def traffic(self) -> Bytes:
        """The bytes in messages from each process (first index) to each other process.

        The messages of `send`, `sendrecv`, `exchange` and the neighborhood operations
        count. How the data of other collective operations travel is up to MPI.
        """
        return self._finished.traffic

    @override
    def __str__(self) -> str:
        return text_of(self._finished)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the time of each process, and the bytes between each two processes.

        Arguments:
            path: A file to which rank 0 saves the picture.

        Returns:
            A figure of matplotlib, which has to be installed.

        """
        figure = draw(self._finished)
        if path is not None and MPI.COMM_WORLD.Get_rank() == 0:
            figure.savefig(path)
        return figure


@contextmanager
def profile(*, quiet: bool = False) -> Iterator[Profile]:
    """Measure the time of the calls in a `with` block, by operation and by line.

    All processes have to enter and leave the block. At the end rank 0 prints a summary.
    The profile waits for pending calls at the beginning and at the end, so that it contains
    exactly the calls made in the block.

    Arguments:
        quiet: Print nothing.

    """
    result = Profile()
    recording = Recording()
    try:
        yield result
    except BaseException:
        # The other processes may not have come here, so nothing can be exchanged.
        recording.abandon()
        raise
    result._result = recording.finish()
    if not quiet and MPI.COMM_WORLD.Get_rank() == 0:
        print(text_of(result._finished, _terminal.of()), flush=True)


def watch() -> None:
    """Do nothing: hangs are watched for from the import of mpi4jax on.

    Earlier versions needed this call in programs that use only their own communicators.
    """
