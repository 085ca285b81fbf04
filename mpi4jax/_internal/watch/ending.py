"""Reason why this process ends, which the core tells the ranks that wait for it."""

from __future__ import annotations

import _sitebuiltins
import dis
import functools
import sys
import traceback
from types import FrameType, TracebackType
from typing import Any, NoReturn

from mpi4jax import _core

from ..forks import at_exit
from ..xla.call_sites import Frame, current_line, describe_stack

#: Largest number of characters of a reason.
_MAX_CHARACTERS = 200


class _Ending:
    """The reason why the main program ends."""

    def __init__(self) -> None:
        #: The status of the last call of sys.exit, the call in words, and its line.
        self._exit: tuple[object, str, str] | None = None
        self._main = _main()

    def watch(self) -> None:
        @functools.wraps(sys.exit)
        def exit(status: object = None, /) -> NoReturn:
            self._note_exit(status, "sys.exit")
            raise SystemExit(status)

        sys.exit = exit

        # The class of `exit` and `quit`.
        quitter: Any = _sitebuiltins.Quitter
        call = quitter.__call__

        @functools.wraps(call)
        def quit(quitter: _sitebuiltins.Quitter, code: object = None) -> None:
            self._note_exit(code, quitter.name)
            call(quitter, code)

        quitter.__call__ = quit

    def _note_exit(self, status: object, name: str) -> None:
        argument = "" if status is None else _shorten(repr(status))
        self._exit = status, f"{name}({argument})", current_line()

    def reason(self) -> tuple[int, str, str] | None:
        """The exit code, the reason in words and its line; none for a plain end."""
        if _has_returned(self._main):
            # A program that caught the exception of sys.exit went on.
            return None
        # Python sets this before any hook prints the error, such as rich's.
        error = getattr(sys, "last_value", None)
        if error is not None and _is_from(self._main, error.__traceback__):
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
            return code, _describe_error(error), _lines_of(error.__traceback__)
        if self._exit is not None:
            status, call, line = self._exit
            return _exit_code(status), call, line
        # The program raised SystemExit itself, which leaves no exit code behind.
        last = Frame(self._main.f_code, self._main.f_lasti)
        return 0, "SystemExit", describe_stack([last])


def _is_from(frame: FrameType, trace: TracebackType | None) -> bool:
    """Whether an exception has left a function."""
    return any(other is frame for other, _ in traceback.walk_tb(trace))


def _lines_of(trace: TracebackType | None) -> str:
    frames = [Frame(frame.f_code, frame.f_lasti) for frame, _ in traceback.walk_tb(trace)]
    return describe_stack(reversed(frames))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "..."


def _describe_error(error: BaseException) -> str:
    name = type(error).__name__
    text, _, trace = str(error).strip().partition("Traceback (most recent call last):")
    # JAX's error contains the whole traceback of a callback: its last line is the reason.
    reason = text.partition("\n")[0] + trace.strip().rpartition("\n")[2]
    return f"{name}: {_shorten(reason)}" if reason else name


def _exit_code(status: object) -> int:
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1


def _main() -> FrameType:
    """The frame of the main program, the outermost one."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def _has_returned(frame: FrameType) -> bool:
    """Whether a finished function has returned. If not, an exception has left it."""
    instruction = frame.f_code.co_code[frame.f_lasti]
    return dis.opname[instruction].startswith("RETURN")


_ending = _Ending()


@functools.cache
def tell() -> bool:
    """Tell the core why the main program has ended. Return whether the program has failed.

    Functions that were registered for the exit may still run and call MPI.
    """
    reason = _ending.reason()
    if reason is None:
        return False
    code, text, line = reason
    _core.end_with(code, f"{text}, {line}" if line else text)
    return code != 0


def enable() -> None:
    """Watch for the reason why this process ends, and tell the core at the exit."""
    _ending.watch()
    at_exit(tell)
