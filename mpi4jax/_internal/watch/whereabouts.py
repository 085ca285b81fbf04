"""Activity of Python's threads, for the watching thread of the core (rust/src/watch).

A program is ended only if no thread of it can act any more. A thread in a call of mpi4jax
can't act, and the core knows these threads. Neither can a thread that waits for JAX, if JAX
has nothing to do but such calls, nor a thread that joins another one. All other threads may
act: they compute, sleep, read files, or are in mpi4py.
"""

from __future__ import annotations

import dis
import functools
import inspect
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
from mpi4py import MPI

import mpi4jax
from mpi4jax import _core

from ..xla.call_sites import describe_stack, eager_functions, frames_of
from ..xla.jax_compat import (
    devices_in_use,
    is_compiling,
    is_jitted,
    is_shutting_down,
    is_waiting_for_arrays,
)

#: Name of the module with mpi4py's functions.
_MPI4PY = "mpi4py.MPI"
_PACKAGE = os.path.join(os.path.dirname(mpi4jax.__file__), "")
_THREADING = threading.__file__
_POOL = os.path.join("concurrent", "futures", "thread.py")
#: File of tqdm's thread for progress bars.
_PROGRESS_BARS = os.path.join("tqdm", "_monitor.py")

#: Functions of `threading` that wait for the end of one thread, or of all at the exit.
#: `_wait_for_tstate_lock` exists in Python < 3.13.
_JOINS = ("join", "_wait_for_tstate_lock", "_shutdown")

#: mpi4py's functions that make a communicator, by a call of all processes of another one.
_MAKING = re.compile(
    r"\w+\.(Create|Create_cart|Create_(dist_)?graph(_adjacent)?|Split(_type)?"
    r"|Dup|Dup_with_info|Clone|Sub)"
)
#: Function that returns a communicator's ranks in COMM_WORLD, if they are known.
_known_members: Callable[[MPI.Comm], Sequence[int] | None] | None = None


def set_known_members(find: Callable[[MPI.Comm], Sequence[int] | None]) -> None:
    """Set the function that looks up a communicator's processes without calling MPI."""
    global _known_members
    _known_members = find


def _made(frame: FrameType) -> tuple[str, list[int]] | None:
    """The mpi4py function with which a frame makes a communicator, and the ranks in it."""
    path = _callee(frame.f_code, frame.f_lasti)
    function = _look_up(frame, path)
    name = getattr(function, "__qualname__", "")
    if getattr(function, "__module__", None) != _MPI4PY or not _MAKING.fullmatch(name):
        return None
    comm = _look_up(frame, path[:-1])
    if _known_members is None or not isinstance(comm, MPI.Intracomm):
        return None
    members = _known_members(comm)
    return None if members is None else (f"{name} of mpi4py", list(members))


#: NumPy functions that wait for a JAX array, whose memory they share.
_CONVERSIONS = (np.array, np.asarray, np.asanyarray, np.ascontiguousarray)


class Threads(NamedTuple):
    """Activity of the threads of this process."""

    #: The Python lines of threads in calls of mpi4jax, by the system's thread id. Under the
    #: id 0, the line of the thread that waits for an eager call which XLA makes.
    lines: dict[int, str]
    #: Threads that may act: name (empty for the main thread), activity and line.
    elsewhere: list[tuple[str, str, str]]
    #: Threads that wait for JAX or for another thread: the system's thread id, and a number
    #: that stays the same for as long as the thread waits in the same call.
    waiting: list[tuple[int, int]]
    #: The call of mpi4py in which the main thread makes a communicator: a number that stays
    #: the same during the call, the function, the ranks in COMM_WORLD that have to call it,
    #: and the line.
    making: tuple[int, str, list[int], str] | None
    #: Whether a thread waits for JAX.
    wait_for_jax: bool
    #: Reason why a waiting thread may go on although no call returns, empty if none may.
    doubt: str
    #: Whether the main thread waits at exit for the JAX of all processes.
    is_in_shutdown: bool
    #: Whether an interrupt raises KeyboardInterrupt.
    has_default_interrupt: bool


def whereabouts(in_calls: Sequence[int]) -> Threads:
    """Activity of the threads. `in_calls` are the system's ids of threads in our calls."""
    main = threading.main_thread()
    threads = {thread.ident: thread for thread in threading.enumerate()}
    frames = _core.call_uncollected(sys._current_frames)
    del frames[threading.get_ident()]
    lines: dict[int, str] = {}
    wait_for_jax = is_in_shutdown = is_interruptible = False
    elsewhere, waiting, making = [], [], None
    # The main thread first.
    for ident in sorted(frames, key=lambda ident: ident != main.ident):
        frame, thread = frames[ident], threads.get(ident)
        thread_id = (thread and thread.native_id) or 0
        stack = list(frames_of(frame))
        if 0 not in lines and any(called.code in eager_functions for called in stack):
            lines[0] = describe_stack(stack)
        if thread_id in in_calls:
            lines[thread_id] = describe_stack(stack)
            continue
        if _is_idle(frame):
            continue
        if thread is main and _world_is_jax and is_shutting_down(frame.f_code):
            is_in_shutdown = True
            continue
        is_waiting = _is_joining(frame)
        if in_calls and thread_id and not is_waiting and _is_waiting_for_jax(frame):
            is_waiting = wait_for_jax = True
        if is_waiting:
            waiting.append((thread_id, _place(frame)))
            is_interruptible |= thread is main
            continue
        if thread is main and (made := _made(frame)):
            making = (_place(frame), *made, describe_stack(stack))
            continue
        name = "" if thread is main else "of a library" if thread is None else thread.name
        elsewhere.append((name, _activity(frame), describe_stack(stack)))
    return Threads(
        lines,
        elsewhere,
        waiting,
        making,
        wait_for_jax,
        (is_interruptible and _handled_signals()) or (wait_for_jax and _doubt()) or "",
        is_in_shutdown,
        signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    )


def _place(frame: FrameType) -> int:
    """A number that stays the same for as long as a thread is in one call."""
    return hash((id(frame), frame.f_lasti)) & (1 << 64) - 1


def _files(frame: FrameType) -> Iterator[str]:
    return (called.file for called in frames_of(frame))


def _is_idle(frame: FrameType) -> bool:
    """Whether a thread waits for work, or for a time to do something harmless."""
    if frame.f_code.co_name == "_worker" and frame.f_code.co_filename.endswith(_POOL):
        return True
    files = {file for file in _files(frame) if file != _THREADING}
    is_harmless = [
        file.endswith(_PROGRESS_BARS) or file.startswith(_PACKAGE) for file in files
    ]
    # A thread with no file but the one of `threading` is a timer.
    return bool(files) and all(is_harmless)


def _activity(frame: FrameType) -> str:
    if any(map(is_compiling, _files(frame))):
        return "compiling"
    function = _look_up(frame, _callee(frame.f_code, frame.f_lasti))
    if getattr(function, "__module__", None) == _MPI4PY:
        return f"in {function.__qualname__} of mpi4py"
    return ""


def _is_joining(frame: FrameType) -> bool:
    """Whether a thread waits for the end of another one, without a timeout."""
    code = frame.f_code
    if code.co_filename != _THREADING or code.co_name not in _JOINS:
        return False
    names = _local_names(frame)
    return names.get("timeout") in (None, -1) and names.get("block", True) is True


def _is_waiting_for_jax(frame: FrameType) -> bool:
    """Whether a thread is in a function of JAX or NumPy that waits for an array."""
    if is_waiting_for_arrays(frame.f_code.co_filename):
        return True
    path = _callee(frame.f_code, frame.f_lasti)
    function = _look_up(frame, path)
    if path and path[-1] == "block_until_ready":
        # A function that is written in Python would have its own frame.
        return not inspect.isfunction(function)
    return is_jitted(function) or any(function is conversion for conversion in _CONVERSIONS)


def _handled_signals() -> str:
    """Reason why the main thread may act while it waits: signal handlers. Empty if none."""
    names = [
        handled.name
        for handled in signal.Signals
        if callable(handler := signal.getsignal(handled))
        and handler is not signal.default_int_handler
    ]
    return f"it handles {', '.join(names)}" if names else ""


def _doubt() -> str:
    if len(devices_in_use()) != 1:
        return "JAX has several devices, and may wait for any of them"
    if jax.distributed.is_initialized() and not _jax_uses_mpi:
        return "JAX may wait for other processes"
    return ""


#: Whether JAX's processes exchange data by MPI calls that the core knows, and whether they
#: are all processes of COMM_WORLD.
_jax_uses_mpi = _world_is_jax = False


def note_distributed(uses_mpi: bool, is_world: bool) -> None:
    """Note how JAX's processes are connected."""
    global _jax_uses_mpi, _world_is_jax
    _jax_uses_mpi, _world_is_jax = uses_mpi, is_world


def _local_names(frame: FrameType) -> Mapping[str, Any]:
    """The local names of a frame of another thread, with their values."""
    names: Mapping[str, Any] = _core.call_uncollected(getattr, frame, "f_locals")
    return names


def _look_up(frame: FrameType, path: tuple[str, ...]) -> Any:
    """Value of a dotted name in a frame, or None if the frame does not define the name."""
    if not path:
        return None
    name, *attributes = path
    for names in (_local_names(frame), frame.f_globals, frame.f_builtins):
        if name in names:
            break
    else:
        return None
    value = names[name]
    for attribute in attributes:
        # No code of the program may run here, such as a property.
        if isinstance(value, ModuleType):
            value = vars(value).get(attribute)
        else:
            value = inspect.getattr_static(value, attribute, None)
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
    return value


@functools.lru_cache(maxsize=256)
def _callee(code: CodeType, offset: int) -> tuple[str, ...]:
    """The dotted name of the function that an instruction calls, such as ("np", "asarray").

    The first part is empty if it is another expression than a name, such as a call. The
    compiler records the columns of each instruction: the instructions that load the
    function begin where the whole call begins.
    """
    if not hasattr(code, "co_positions"):  # Python 3.10
        return ()
    instructions = list(dis.get_instructions(code))
    call = next((step for step in instructions if step.offset == offset), None)
    if call is None or not call.opname.startswith("CALL") or call.positions is None:
        return ()
    line, _, column, call_end = call.positions
    # The expressions that begin where the call begins, by their last column: a name, or ""
    # for a value without a name, and whether this is an attribute.
    parts: dict[int | None, tuple[str, bool]] = {}
    for step in instructions:
        span = step.positions
        if step.offset >= offset:
            break
        if span is None or span[:3] != (line, line, column) or span[3] == call_end:
            continue
        if step.opname.startswith("LOAD_") and isinstance(step.argval, str):
            is_attribute = "ATTR" in step.opname or "METHOD" in step.opname
            parts[span[3]] = step.argval, is_attribute
        elif step.opname.startswith(("CALL", "BINARY_")):
            parts[span[3]] = "", False
    path: tuple[str, ...] = ()
    for end in sorted(parts, key=lambda end: end or 0):
        name, is_attribute = parts[end]
        path = (*(path or ("",)), name) if is_attribute else (name,)
    return path
