"""The end of a program by an error: all ranks end, equal tracebacks are printed once."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from mpi4jax import _launcher, _node

Hook = Callable[[type[BaseException], BaseException, "TracebackType | None"], Any]

#: Seconds for which the first rank with an error waits for others with the same one.
GRACE = 0.5
#: Seconds after which a file is left over by a rank that was killed.
STALE = 60

#: The files whose frames are before those of the program.
_BEFORE = "mpi4jax/__main__.py", "mpi4jax/_commands/run.py", "/runpy.py", "<frozen runpy>"


#: The exit code of a program that has failed before MPI was initialised, once it has.
_early_status = 0


def watch() -> None:
    """End the other ranks after all exit handlers, if this one fails before MPI begins.

    MPICH's launcher lets them wait in MPI_Init otherwise.
    """
    if "MPI_LOCALNRANKS" in os.environ:
        with suppress(OSError, KeyError, ValueError):
            atexit.register(_abort_early, os.dup(int(os.environ["PMI_FD"])))


def _abort_early(to_launcher: int) -> None:
    if _early_status:
        os.write(to_launcher, f"cmd=abort exitcode={_early_status}\n".encode())


def prepare(error: BaseException, console: TextIO | None) -> None:
    """Prepare an error of the program to end all ranks, and one of them to print it.

    Call this before the error leaves the main program. `console` is the standard error of
    the launcher, if that of this rank is another one.
    """
    if status := _status_of(error):
        _abort_at_exit(status)
    if not isinstance(error, SystemExit):
        sys.excepthook = functools.partial(_show, sys.excepthook, console)
    elif console is not None and isinstance(error.code, str):
        print(error.code, file=console, flush=True)


def _status_of(error: BaseException) -> int:
    """The exit code of Python after an exception."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def _abort_at_exit(status: int) -> None:
    """End all ranks after the exit handlers of the program."""
    global _early_status
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized():
        _early_status = status
    elif not mpi.Is_finalized() and mpi.COMM_WORLD.Get_size() > 1:
        # mpi4py then calls MPI_Abort in place of MPI_Finalize.
        mpi._set_abort_status(status)


def _show(
    hook: Hook,
    console: TextIO | None,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Print an error without the frames before the program, if this rank is to print it."""
    whole, error.__traceback__ = error.__traceback__, _of_program(trace)
    try:
        text = "".join(traceback.format_exception(kind, error, error.__traceback__))
        file = _file_of(text) if _launcher.processes_on_node() > 1 else None
        is_first = file is None or _claim(file)
        if console is not None or is_first:
            hook(kind, error, error.__traceback__)
        if console is not None and is_first:
            console.write(text)
            console.flush()
    finally:
        error.__traceback__ = whole  # which the exit handlers look at
    if file is None:
        return
    sys.stderr.flush()
    # The end of this rank may end the first one, too.
    time.sleep(GRACE if is_first else 2 * GRACE)
    if is_first and (others := _count_others(file)):
        stream = sys.stderr if console is None else console
        print(f"mpi4jax: the same error on {others} more rank(s)", file=stream, flush=True)


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the program."""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.endswith(_BEFORE):
            break
        trace = trace.tb_next
    return trace


def _file_of(text: str) -> Path:
    """The file in which the ranks of this node meet that have the same error."""
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    name = f"mpi4jax-{os.getuid()}-{_node.siblings()}-{key}"
    return Path(tempfile.gettempdir(), name)


def _claim(file: Path) -> bool:
    """Whether this rank is the first with its error. If not, it is counted."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > STALE:
                file.unlink()
                return _claim(file)
            with file.open("a") as counter:
                counter.write(".")
        return False
    except OSError:
        return True
    return True


def _count_others(file: Path) -> int:
    others = 0
    with suppress(OSError):
        others = file.stat().st_size
        file.unlink()
    return others
