"""The Python lines of the operations in compiled programs.

An attribute of each call, its site, says which operation of which program it is: a hash of
the program without its lines, and of the index of the call in it. So programs stay equal on
all processes, and JAX's cache of compiled programs finds them when lines have moved. The
core is told the line of each site whenever a program is lowered, which happens also when it
then comes from the cache.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from itertools import starmap
from types import CodeType, FrameType, FunctionType
from typing import NamedTuple, TypeVar, cast

import mpi4jax
from mpi4jax import _core

from .jax_compat import LoweringContext, ir, is_user_file, operation_of_module, traceback_of
from .programs import LoweredProgram, map_call_attribute, program_text

F = TypeVar("F", bound=Callable[..., object])

#: The attribute with the site of a call.
CALL_SITE = "call_site"

_PACKAGE = os.path.join(os.path.dirname(mpi4jax.__file__), "")
#: Wheels have the programs of the gallery there.
_EXAMPLES = os.path.join(_PACKAGE, "examples", "")
_LIBRARY = os.path.join(sysconfig.get_paths()["stdlib"], "")
_INSTALLED = ("site-packages", "dist-packages")

#: The name of the code of a file, and of functions that are a part of another one.
MODULE = "<module>"
_PARTS = ("<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Frame(NamedTuple):
    """A function that was called, and the instruction that it is at."""

    code: CodeType
    #: The offset of the instruction.
    instruction: int

    @property
    def line(self) -> int:
        return _line(self.code, self.code.co_linetable, self.instruction)

    @property
    def file(self) -> str:
        return self.code.co_filename

    @property
    def function(self) -> str:
        """The name of the function, with its class if it has one."""
        name: str = getattr(self.code, "co_qualname", self.code.co_name)  # Python >= 3.11
        return name.rpartition("<locals>.")[2]

    def __str__(self) -> str:
        where = f"{relative_path(self.file)}:{self.line}"
        return where if self.function == MODULE else f"{where} in {self.function}"


@functools.lru_cache
def _line(code: CodeType, _: bytes, instruction: int) -> int:
    """The line of an instruction.

    The second parameter is for the cache: Python 3.10 takes code for equal that differs in
    its lines only.
    """
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def frames_of(frame: FrameType | None) -> Iterator[Frame]:
    """A frame of Python's and its callers, the innermost first."""
    while frame is not None:
        yield Frame(frame.f_code, frame.f_lasti)
        frame = frame.f_back


def _directory() -> str:
    """The working directory, empty if it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def relative_path(file: str) -> str:
    """The path of a file from the working directory, if it is below that."""
    directory = _directory()
    try:
        return _relative_path(file, directory) if directory else file
    except ValueError:  # on another drive
        return file


@functools.lru_cache
def _relative_path(file: str, directory: str) -> str:
    relative = os.path.relpath(file, directory)
    return file if relative.startswith(os.pardir) else relative


@functools.lru_cache
def is_jax(file: str) -> bool:
    """Whether a file belongs to JAX."""
    return not is_user_file(file)


@functools.lru_cache
def is_users(file: str) -> bool:
    """Whether a file is a user's: not JAX's, Python's or ours, or it is an example."""
    if file.startswith(_EXAMPLES):
        return True
    if file.startswith((_PACKAGE, "<frozen ")) or is_jax(file):
        return False
    return not file.startswith(_LIBRARY) or is_installed(file)


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package."""
    return any(part in file for part in _INSTALLED)


def describe_stack(stack: Iterable[Frame], scope: str = "") -> str:
    """The user's innermost line in a stack, and the one that called it, as text.

    The stack begins with its innermost frame.
    """
    frames = iter(stack)
    frame = next((frame for frame in frames if is_users(frame.file)), None)
    if frame is None:
        return ""
    text = f"{frame} ({scope})" if scope else str(frame)
    caller = _caller(frame, frames)
    return text if caller is None else f"{text}, from {caller}"


#: The texts of stacks, by the directory and the instructions, whose code keeps its address.
_described: dict[tuple[str | int, ...], tuple[list[CodeType], str]] = {}
_MOST_DESCRIBED = 1024


def current_line() -> str:
    """The user's line that runs, as text.

    Of the same calls it is the same text, which takes much longer to make than to find.
    """
    frame: FrameType | None = sys._getframe(1)
    codes: list[CodeType] = []
    key: list[str | int] = [_directory()]
    while frame is not None:
        codes.append(frame.f_code)
        key += (id(frame.f_code), frame.f_lasti)
        frame = frame.f_back
    described = _described.get(tuple(key))
    if described is None:
        if len(_described) == _MOST_DESCRIBED:
            _described.clear()
        described = codes, describe_stack(frames_of(sys._getframe(1)))
        _described[tuple(key)] = described
    return described[1]


def _caller(callee: Frame, frames: Iterable[Frame]) -> Frame | None:
    """The frame that called a user's function, which may be a helper, if it tells more.

    A function that JAX calls has no caller: it is traced once for all of them. Only that of
    an installed package has one nevertheless, as the user's own line says more.
    """
    for frame in frames:
        if not is_installed(callee.file) and is_jax(frame.file):
            return None
        if (
            is_users(frame.file)
            and not is_installed(frame.file)  # what runs the program, such as pytest
            and frame.code is not callee.code
            and frame.function not in _PARTS
        ):
            # That a program calls its main function tells nothing.
            is_same = frame.function == MODULE and frame.file == callee.file
            return None if is_same else frame
    return None


#: The functions that make a call outside of any program.
eager_functions: set[CodeType] = set()


def mark_eager(function: F) -> F:
    """Mark a function under which every call is an eager one."""
    eager_functions.add(cast(FunctionType, function).__code__)
    return function


class Envelope(NamedTuple):
    """A message as one of its two processes knows it (MPI-4.1 §3.2.3), and its size."""

    #: The process on the other side, in the communicator.
    rank: int
    tag: int
    #: In bytes.
    size: int


class Envelopes(NamedTuple):
    """The messages of a call, in the order in which it posts them."""

    sent: tuple[Envelope, ...]
    received: tuple[Envelope, ...]


class CallNote(NamedTuple):
    """A call that was lowered, until all of its program is."""

    #: The name of its operation.
    name: str
    #: The communicator, as `mpi.handles` has it.
    communicator: object
    #: Empty for an eager call.
    line: str
    #: Its messages, if its attributes do not say so.
    envelopes: Envelopes | None
    #: The messages that it waits for, which reports name.
    awaited: Envelopes | None


#: The calls that were lowered so far, by the program that is being lowered.
_unfinished: dict[ir.Operation, list[CallNote]] = {}
#: Programs whose lowering failed stay there, but not more than so many.
_MOST_UNFINISHED = 16


#: The messages of calls, by their sites.
_envelopes: dict[int, Envelopes] = {}


def envelopes_of(site: int) -> Envelopes | None:
    """The messages of a call, if its attributes do not say so."""
    return _envelopes.get(site)


def note(
    ctx: LoweringContext,
    name: str,
    communicator: object,
    envelopes: Envelopes | None = None,
    awaited: Envelopes | None = None,
) -> int:
    """Note what is known of the call that is being lowered. Gives its index."""
    frames = list(starmap(Frame, traceback_of(ctx)))
    is_eager = any(frame.code in eager_functions for frame in frames)
    scopes = str(ctx.name_stack).split("/")
    scope = "/".join(scope for scope in scopes if scope and not scope.startswith("jit("))
    calls = _unfinished.setdefault(operation_of_module(ctx), [])
    line = "" if is_eager else describe_stack(frames, scope)
    calls.append(CallNote(name, communicator, line, envelopes, awaited))
    while len(_unfinished) > _MOST_UNFINISHED:
        _unfinished.pop(next(iter(_unfinished)))
    return len(calls) - 1


def has_notes(program: LoweredProgram) -> bool:
    """Whether a program has calls, whose sites are still their indices."""
    return program.module.operation in _unfinished


def take_notes(program: LoweredProgram) -> list[CallNote]:
    """The notes of a program's calls, in the order in which they were lowered."""
    return _unfinished.pop(program.module.operation)


def finish_program(
    program: LoweredProgram, calls: Iterable[ir.Operation], notes: Iterable[CallNote]
) -> None:
    """Replace the indices of calls by their sites, and tell the core their lines."""
    digest = hashlib.blake2b(program_text(program).encode(), digest_size=8)
    sites = []
    for _, _, line, envelopes, awaited in notes:
        digest.update(b".")
        site = int.from_bytes(digest.digest(), "little", signed=True)
        if envelopes is not None:
            _envelopes[site] = envelopes
        if awaited is not None:
            _core.set_messages(site, *map(list, awaited))
        _core.set_call_site(site, line)
        sites.append(site)
    for call in calls:
        map_call_attribute(call, CALL_SITE, sites.__getitem__)
