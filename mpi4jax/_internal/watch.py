"""What Python tells the watching thread of the core.

The thread looks at the calls of this process, asks the other ranks when one takes long, and
prints a report (rust/src/watch). Here is what it can't know: where Python is, and why it
ends.
"""

from __future__ import annotations

import atexit
import dis
import functools
import math
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn

from mpi4py import MPI

from mpi4jax import _core

from .environment import settings
from .hashable import handle
from .lines import Frame, described, eager, users

#: Where JAX compiles.
_COMPILER = "jax/_src/compiler.py"


def _stack(frame: FrameType | None) -> Iterator[Frame]:
    while frame is not None:
        yield Frame(frame.f_code, frame.f_lasti)
        frame = frame.f_back


def whereabouts() -> tuple[str, str]:
    """What the main thread does, and its line; or that of an eager call in any thread."""
    stacks = {name: list(_stack(frame)) for name, frame in sys._current_frames().items()}
    main = stacks.pop(threading.main_thread().ident or 0, [])
    for stack in (main, *stacks.values()):
        if any(frame.code in eager for frame in stack):
            return "", described(users(stack))
    compiles = any(frame.code.co_filename.endswith(_COMPILER) for frame in main)
    return "compiling" if compiles else "", described(users(main))


def _lines_of(trace: TracebackType | None) -> str:
    frames = [Frame(frame.f_code, frame.f_lasti) for frame, _ in traceback.walk_tb(trace)]
    return described(users(reversed(frames)))


class _Ending:
    """Why this process ends, if it does so by an exception."""

    def __init__(self) -> None:
        self._exception: BaseException | None = None
        #: The exit code and the line of the last call of sys.exit.
        self._exit = 0, ""
        self._excepthook = sys.excepthook
        self._main = _main()

    def watch(self) -> None:
        sys.excepthook = self._note_exception

        @functools.wraps(sys.exit)
        def exit(status: Any = None, /) -> NoReturn:
            self._exit = _exit_code(status), described(users(_stack(sys._getframe(1))))
            raise SystemExit(status)

        sys.exit = exit

    def _note_exception(self, kind: Any, value: Any, trace: Any) -> None:
        self._exception = value
        self._excepthook(kind, value, trace)

    def tell(self) -> None:
        """Tell the core, if an error is the reason."""
        error = self._exception
        if error is not None:
            name = type(error).__name__
            text = f"{name}: {error}" if str(error) else name
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
            self._tell(code, text.partition("\n")[0], _lines_of(error.__traceback__))
            return
        code, line = self._exit
        # Who has caught the exception goes on.
        if code and not _has_returned(self._main):
            self._tell(code, f"sys.exit({code})", line)

    def _tell(self, code: int, text: str, line: str) -> None:
        _core.end_with(code, f"{text}, {line}" if line else text)


def _exit_code(status: Any) -> int:
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1


def _main() -> FrameType:
    """The main program: what is called first of all."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def _has_returned(frame: FrameType) -> bool:
    """Whether a function that is over has returned. If not, an exception has left it."""
    instruction = frame.f_code.co_code[frame.f_lasti]
    return dis.opname[instruction].startswith("RETURN")


_ending = _Ending()


@functools.cache
def start() -> None:
    """Start to watch. MPI is initialised by now."""
    comm = MPI.COMM_WORLD
    _core.start_watching(
        comm.Get_rank(),
        comm.Get_size(),
        handle(MPI.COMM_SELF),
        whereabouts,
        report_after=settings.hang_report or math.inf,
        timeout=settings.timeout,
        end_deadlocks=settings.on_deadlock == "abort" and settings.hang_report != 0,
    )


def connect(comm: MPI.Intracomm) -> None:
    """Have the ranks of a communicator that has all of them ask each other, from now on.

    All of them call this, as it makes a communicator for them to talk on.
    """
    level = comm.allreduce(MPI.Query_thread(), MPI.MIN)
    if level < MPI.THREAD_MULTIPLE:
        return
    _core.connect_watchers(handle(comm.Dup()), handle(MPI.BYTE), int(MPI.ANY_SOURCE))


def enable() -> None:
    """Note why this process ends."""
    _ending.watch()
    atexit.register(_ending.tell)
