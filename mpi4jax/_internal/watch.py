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
import os
import sys
import threading
import time
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
        #: Where this process then waits for others, if that is not MPI_Finalize.
        self.waits_in = ""
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
            if self.waits_in:
                _core.end_with(0, self.waits_in)
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
        handle(comm),
        handle(MPI.COMM_SELF),
        whereabouts,
        report_after=settings.hang_report or math.inf,
        timeout=settings.timeout,
        end_deadlocks=settings.on_deadlock == "abort" and settings.hang_report != 0,
    )


class Meeting:
    """Reports a block that waits for long for all ranks, in a collective call of mpi4py's.

    The core's thread only sees our own calls, and ranks can't ask each other before they
    have a communicator for it.

    Arguments:
        doing: What this rank does, in words.
        rule: What all ranks have to do.

    """

    def __init__(self, doing: str, rule: str) -> None:
        self._doing = doing
        self._rule = rule
        self._begin = time.monotonic()
        self._is_over = threading.Event()
        self._is_told = False

    def __enter__(self) -> None:
        self._caller = sys._getframe(1)
        # It can look at the clock meanwhile, as mpi4py gives up Python's lock to wait.
        threading.Thread(target=self._watch, name="mpi4jax-meeting", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _watch(self) -> None:
        limits = {settings.hang_report or math.inf: self._report}
        if settings.timeout is not None:
            # It reports by itself, if the two limits are one.
            limits[settings.timeout] = self._end
        for seconds in sorted(filter(math.isfinite, limits)):
            if self._is_over.wait(self._begin + seconds - time.monotonic()):
                return
            limits[seconds]()

    def _report(self) -> None:
        if not self._is_told:
            self._is_told = True
            seconds = time.monotonic() - self._begin
            _print_error(
                f"mpi4jax: 1 rank has been waiting for {seconds:.0f} s\n"
                f"  rank  {MPI.COMM_WORLD.Get_rank()}   {self._doing}   "
                f"{described(frames_of(self._caller))}\n"
                f"{self._rule}\n"
            )

    def _end(self) -> None:
        self._report()
        can_abort = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        who = "all ranks" if can_abort else "this rank"
        _print_error(
            f"MPI4JAX_TIMEOUT is over: ending {who} with exit code {_core.DEADLOCK}\n"
        )
        # Launchers may lose what is written right before the end.
        time.sleep(0.2)
        if can_abort:
            MPI.COMM_WORLD.Abort(_core.DEADLOCK)
        # While another thread is in MPI, no function can run that would do so at exit.
        os._exit(_core.DEADLOCK)


def _print_error(text: str) -> None:
    # At once, so that the lines of several ranks don't mix.
    sys.stderr.write(text)
    sys.stderr.flush()


@functools.cache
def connect() -> bool:
    """Have the ranks ask each other from now on. Says whether MPI allows it.

    All of them call this, as it makes a communicator for them to talk on.
    """
    with Meeting(
        "in mpi4jax.diagnostics.watch()",
        "all ranks of MPI.COMM_WORLD have to call it. What the others do is not known "
        "before they do.",
    ):
        return _connect()


def _connect() -> bool:
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
    hosts = world.gather(MPI.Get_processor_name()) or []
    comm = world.Dup()
    _core.connect_watchers(handle(comm), handle(MPI.BYTE), int(MPI.ANY_SOURCE), hosts)
    return True


def waits_at_exit_in(place: str) -> None:
    """Note where this process waits for the others in the end, before MPI does."""
    _ending.waits_in = f"in {place}"


def enable() -> None:
    """Note why this process ends."""
    _ending.watch()
    atexit.register(_ending.tell)
