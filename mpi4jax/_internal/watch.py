"""What Python tells the watching thread of the core.

The thread looks at the calls of this process, asks the other ranks when one takes long, and
prints a report (rust/src/watch). Here is what it can't know: where Python is, and why it
ends.
"""

from __future__ import annotations

import _sitebuiltins
import atexit
import dis
import functools
import math
import sys
import threading
import traceback
from types import FrameType, TracebackType
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from mpi4jax import _core

from .environment import settings
from .hashable import handle
from .lines import Frame, described, eager, frames_of

#: Where JAX compiles.
_COMPILER = "jax/_src/compiler.py"


def whereabouts() -> tuple[str, str]:
    """What the main thread does, and its line; or that of an eager call in any thread."""
    stacks = {name: list(frames_of(frame)) for name, frame in sys._current_frames().items()}
    main = stacks.pop(threading.main_thread().ident or 0, [])
    for frames in (main, *stacks.values()):
        if any(frame.code in eager for frame in frames):
            return "", described(frames)
    compiles = any(frame.code.co_filename.endswith(_COMPILER) for frame in main)
    return "compiling" if compiles else "", described(main)


def _lines_of(trace: TracebackType | None) -> str:
    frames = [Frame(frame.f_code, frame.f_lasti) for frame, _ in traceback.walk_tb(trace)]
    return described(reversed(frames))


class _Ending:
    """Why this process ends, if it does so by an exception."""

    def __init__(self) -> None:
        self._exception: BaseException | None = None
        #: The status of the last call of sys.exit, the call in words, and its line.
        self._exit: tuple[Any, str, str] | None = None
        self._excepthook = sys.excepthook
        self._main = _main()

    def watch(self) -> None:
        sys.excepthook = self._note_exception

        @functools.wraps(sys.exit)
        def exit(status: Any = None, /) -> NoReturn:
            self._note_exit(status, "sys.exit")
            raise SystemExit(status)

        sys.exit = exit

        # The class of `exit` and `quit`.
        quitter: Any = _sitebuiltins.Quitter
        call = quitter.__call__

        @functools.wraps(call)
        def quit(quitter: Any, code: Any = None) -> None:
            self._note_exit(code, quitter.name)
            call(quitter, code)

        quitter.__call__ = quit

    def _note_exit(self, status: Any, name: str) -> None:
        given = "" if status is None else _shortened(repr(status))
        line = described(frames_of(sys._getframe()))
        self._exit = status, f"{name}({given})", line

    def _note_exception(self, kind: Any, value: Any, trace: Any) -> None:
        self._exception = value
        self._excepthook(kind, value, trace)

    def tell(self) -> None:
        """Tell the core, if there is a reason to end."""
        error = self._exception
        if error is not None:
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
            self._tell(code, _in_words(error), _lines_of(error.__traceback__))
        elif _has_returned(self._main):
            # Who has called sys.exit, and caught the exception, went on.
            return
        elif self._exit is not None:
            status, call, line = self._exit
            self._tell(_exit_code(status), call, line)
        else:
            # Raised by itself, it tells nobody its exit code.
            last = Frame(self._main.f_code, self._main.f_lasti)
            self._tell(0, "SystemExit", described([last]))

    def _tell(self, code: int, text: str, line: str) -> None:
        _core.end_with(code, f"{text}, {line}" if line else text)


#: Reasons are cut here.
_LONGEST = 200


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _in_words(error: BaseException) -> str:
    name = type(error).__name__
    text, _, trace = str(error).strip().partition("Traceback (most recent call last):")
    # JAX puts the whole traceback of a callback into its error; the last line says it.
    reason = text.partition("\n")[0] + trace.strip().rpartition("\n")[2]
    return f"{name}: {_shortened(reason)}" if reason else name


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


@functools.cache
def connect() -> bool:
    """Have the ranks ask each other from now on. Says whether MPI allows it.

    All of them call this, as it makes a communicator for them to talk on.
    """
    start()
    world = MPI.COMM_WORLD
    own = np.array([MPI.Query_thread(), settings.check, not settings.check])
    least = np.empty_like(own)
    world.Allreduce(own, least, MPI.MIN)
    thread_level, is_checked, is_unchecked = least
    if is_checked == is_unchecked:
        raise RuntimeError(
            "the environment variable MPI4JAX_CHECK is set in some processes only, "
            "expected it in all of them or in none"
        )
    if thread_level < MPI.THREAD_MULTIPLE:
        return False
    comm = world.Dup()
    _core.connect_watchers(handle(comm), handle(MPI.BYTE), int(MPI.ANY_SOURCE))
    return True


def enable() -> None:
    """Note why this process ends."""
    _ending.watch()
    atexit.register(_ending.tell)
