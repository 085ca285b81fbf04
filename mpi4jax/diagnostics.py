"""What mpi4jax knows about the calls of this process."""

from __future__ import annotations

from typing import NamedTuple

from mpi4jax import _core

from ._internal.watch import connect

__all__ = ["Call", "recent", "watch"]


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
