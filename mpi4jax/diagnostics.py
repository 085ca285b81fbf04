"""Records of the calls of this process: the last ones, and profiles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from mpi4py import MPI

from mpi4jax import _core, _terminal

from ._internal.traces.profile import Recording
from ._internal.traces.report import Bytes, Result, Row, Seconds, draw, text_of
from ._internal.watch.startup import connect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Call", "Profile", "Row", "profile", "recent", "watch"]


class Call(NamedTuple):
    """A call of an operation by this process."""

    #: The name of the operation.
    operation: str
    #: Its arguments in words: the operator, the root, the peers and tags, type and size of
    #: the array.
    arguments: tuple[str, ...]
    #: The name of the communicator in reports.
    communicator: str
    #: For collective operations: the position of the call among those on the
    #: communicator, from 1.
    number: int | None
    #: The user's line that the call comes from, if it is known. For eager calls, it is
    #: known only while they are in progress.
    line: str | None
    #: The seconds since the call began, to some milliseconds.
    age: float
    #: The seconds that it took, to some milliseconds, or None while it is in progress.
    duration: float | None

    def __str__(self) -> str:
        position = "" if self.number is None else f" #{self.number}"
        arguments = f" ({', '.join(self.arguments)})" if self.arguments else ""
        text = f"{self.operation}{position}{arguments} on {self.communicator}"
        return f"{text}   {self.line}" if self.line else text


def recent() -> list[Call]:
    """The last calls of this process, up to about a thousand, the oldest first.

    They are always recorded, at the cost of some nanoseconds each. Calls in progress are
    included, so a debugger or a signal handler can find out where the process waits.
    """
    return [
        Call(operation, tuple(arguments), comm, index or None, line or None, age, duration)
        for operation, index, comm, arguments, line, age, duration in _core.recent_calls()
    ]


class Profile:
    """The profile of a part of a program. It is filled at its end, on all processes."""

    def __init__(self) -> None:
        self._result: Result | None = None

    @property
    def _finished(self) -> Result:
        if self._result is None:
            raise RuntimeError("the profile is not finished: the `with` block is under way")
        return self._result

    @property
    def elapsed(self) -> float:
        """The duration in seconds."""
        return self._finished.elapsed

    @property
    def rows(self) -> tuple[Row, ...]:
        """The operations by line, the one with the longest time first."""
        return self._finished.rows

    @property
    def seconds(self) -> Seconds:
        """The seconds that each process spent in MPI."""
        return self._finished.seconds

    @property
    def waiting(self) -> Seconds:
        """The part of these in which each process waited for another to begin its call."""
        return self._finished.waiting

    @property
    def traffic(self) -> Bytes:
        """The bytes of messages from each process (first index) to each other one.

        It includes `send`, `sendrecv`, `exchange` and the neighborhood operations. How the
        data of other collective operations are sent is up to MPI.
        """
        return self._finished.traffic

    def __str__(self) -> str:
        return text_of(self._finished)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the time of each process, and who sends how much to whom.

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
    """Measure what the calls in a `with` block cost, by operation and by line.

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
        # The other processes may not have come here: nothing can be exchanged.
        recording.abandon()
        raise
    result._result = recording.finish()
    if not quiet and MPI.COMM_WORLD.Get_rank() == 0:
        print(text_of(result._finished, _terminal.of()), flush=True)


def watch() -> None:
    """Let the processes ask each other what they are doing when one waits for long.

    The first call on the default communicator enables this anyway. This function is for
    programs that use only communicators of their own. All processes of ``COMM_WORLD`` have
    to call it, as it creates a communicator; further calls do nothing.

    Raises:
        RuntimeError: if MPI was not initialised with ``MPI.THREAD_MULTIPLE`` everywhere.
    """
    if not connect():
        raise RuntimeError(
            "mpi4jax.diagnostics.watch() needs an MPI that was initialised with "
            "THREAD_MULTIPLE, by which a thread can ask while another one waits"
        )
