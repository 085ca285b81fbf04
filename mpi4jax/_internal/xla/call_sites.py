"""The Python lines of the operations in compiled programs.

An attribute of each call, its site, identifies the operation in a program: a hash of the
program without its lines, and of the index of the call. So programs stay equal on all
processes, and JAX's cache of compiled programs finds them when lines have moved. The core
is told the line of each site whenever a program is lowered, which happens even if the
compiled program then comes from the cache.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import starmap
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, TypeVar, cast

import jax

import mpi4jax
from mpi4jax import _core
from mpi4jax._override import override

from .jax_compat import LoweringContext, ir, is_user_file, operation_of_module, traceback_of
from .programs import LoweredProgram, map_call_attribute, program_text

F = TypeVar("F", bound=Callable[..., object])

#: Name of the attribute with the site of a call.
CALL_SITE = "call_site"
#: The attribute of calls that make copies before and after their messages, in place.
WITH_COPIES = "with_copies"

_PACKAGE = os.path.join(os.path.dirname(mpi4jax.__file__), "")
#: The folder of the gallery's programs in wheels.
_EXAMPLES = os.path.join(_PACKAGE, "examples", "")
_LIBRARY = os.path.join(sysconfig.get_paths()["stdlib"], "")
_INSTALLED = ("site-packages", "dist-packages")

#: Names of the code of a file, and of the code of parts of functions.
MODULE = "<module>"
_PARTS = ("<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Frame(NamedTuple):
    """A function in progress, and its current instruction."""

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

    @override
    def __str__(self) -> str:
        where = f"{relative_path(self.file)}:{self.line}"
        return where if self.function == MODULE else f"{where} in {self.function}"


@functools.lru_cache
def _line(code: CodeType, _: bytes, instruction: int) -> int:
    """The line of an instruction.

    The second parameter is for the cache: in Python 3.10, code that differs in its lines
    only compares equal.
    """
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def frames_of(frame: FrameType | None) -> Iterator[Frame]:
    """A Python frame of any thread and its callers, the innermost first."""
    while frame is not None:
        yield Frame(frame.f_code, frame.f_lasti)
        frame = _core.call_uncollected(getattr, frame, "f_back")


def _directory() -> str:
    """The working directory, empty if it no longer exists."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def relative_path(file: str) -> str:
    """The path of a file relative to the working directory, if the file is below that."""
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
    """Whether a file belongs to the user: an example, or not part of JAX, Python or us."""
    if file.startswith(_EXAMPLES):
        return True
    if file.startswith((_PACKAGE, "<frozen ")) or is_jax(file):
        return False
    return not file.startswith(_LIBRARY) or is_installed(file)


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package."""
    return any(part in file for part in _INSTALLED)


def describe_stack(stack: Iterable[Frame], scope: str = "") -> str:
    """The user's innermost line in a stack, and the line that called it, as text.

    The stack begins with its innermost frame.
    """
    frames = iter(stack)
    frame = next((frame for frame in frames if is_users(frame.file)), None)
    if frame is None:
        return ""
    text = f"{frame} ({scope})" if scope else str(frame)
    caller = _caller(frame, frames)
    return text if caller is None else f"{text}, from {caller}"


#: Texts of stacks, by the directory and the instructions. Each entry keeps the code objects
#: alive, whose addresses are part of the key.
_described: dict[tuple[str | int, ...], tuple[list[CodeType], str]] = {}
_MAX_DESCRIBED = 1024


def current_line(function: str = "") -> str:
    """The user's current line as text, with the name of the function that it calls.

    The texts are cached by the stack, as making one takes much longer than finding it.
    """
    frame: FrameType | None = sys._getframe(1)
    codes: list[CodeType] = []
    key: list[str | int] = [_directory(), function]
    while frame is not None:
        codes.append(frame.f_code)
        key += (id(frame.f_code), frame.f_lasti)
        frame = frame.f_back
    described = _described.get(tuple(key))
    if described is None:
        if len(_described) == _MAX_DESCRIBED:
            _described.clear()
        described = codes, describe_stack(frames_of(sys._getframe(1)), function)
        _described[tuple(key)] = described
    return described[1]


def _caller(callee: Frame, frames: Iterable[Frame]) -> Frame | None:
    """The frame that called a user's function, if it is informative.

    A function that JAX calls has no caller, as JAX traces it once for all callers. Only a
    function of an installed package has one nevertheless, as the user's own line says more.
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
            # The line in which a program calls its main function is not informative.
            is_same = frame.function == MODULE and frame.file == callee.file
            return None if is_same else frame
    return None


#: Code of the functions that make eager calls.
eager_functions: set[CodeType] = set()


def mark_eager(function: F) -> F:
    """Mark a function all of whose calls of operations are eager."""
    eager_functions.add(cast(FunctionType, function).__code__)
    return function


class Envelope(NamedTuple):
    """The envelope of a message on one of its processes (MPI-4.1 §3.2.3), and its size."""

    #: The rank of the other process in the communicator.
    rank: int
    tag: int
    #: The number of bytes.
    size: int


class Envelopes(NamedTuple):
    """The envelopes of a call's messages, in the order in which the call posts them."""

    sent: tuple[Envelope, ...]
    received: tuple[Envelope, ...]


class EagerSites:
    """The call sites of a program that eager calls run from different lines."""

    def __init__(self) -> None:
        self._sites: list[int] = []
        #: Each line that the core knows, with the number of sites that were told to it.
        self._told: set[tuple[str, int]] = set()
        #: The lines of the calls that may still be in progress: Python runs ahead of XLA.
        self._running: dict[str, None] = {}
        self._last_result: weakref.ref[Any] | None = None

    @contextmanager
    def called_by(self, line: str) -> Iterator[None]:
        """Tell the core that this line calls the program in the block."""
        if self._is_over():
            self._running.clear()
        self._running[line] = None
        key = line, len(self._sites)
        if key not in self._told:
            self._told.add(key)
            for site in self._sites:
                _core.set_call_site(site, line)
        self._tell(self._sites)
        _thread.sites, _thread.line = self, line
        try:
            yield
        finally:
            _thread.sites, _thread.line = None, ""

    def add(self, sites: Sequence[int]) -> None:
        """Add the sites of a program that the call in this thread has lowered."""
        self._sites += sites
        self._tell(sites)

    def end_with(self, result: Sequence[jax.Array]) -> None:
        """Note a result of the last call, which tells when the call is over.

        A call without results counts as over.
        """
        self._last_result = weakref.ref(result[-1]) if result else None

    def _is_over(self) -> bool:
        if self._last_result is None:
            return True
        array = self._last_result()
        return array is not None and not array.is_deleted() and array.is_ready()

    def _tell(self, sites: Sequence[int]) -> None:
        if sites:
            _core.set_eager_line(" or ".join(self._running), sites)


class _Thread(threading.local):
    """The eager call in a thread."""

    #: The sites of the program of an eager call whose line is known, and that line.
    sites: EagerSites | None = None
    line = ""


_thread = _Thread()


class CallNote(NamedTuple):
    """A note on a lowered call, kept until the whole program is lowered."""

    #: The name of the operation.
    name: str
    #: The `Communicator` of `mpi.handles`.
    communicator: object
    #: The Python line, empty for an eager call whose line is not known.
    line: str
    #: The messages of the call, if its attributes do not describe them.
    envelopes: Envelopes | None
    #: The messages for which the call waits, which reports name.
    awaited: Envelopes | None


#: Notes on the calls lowered so far, by the program that is being lowered.
_unfinished: dict[ir.Operation, list[CallNote]] = {}
#: Largest number of such programs. A program whose lowering failed is dropped in the end.
_MAX_UNFINISHED = 16


#: The messages of calls, by their sites.
_envelopes: dict[int, Envelopes] = {}


def envelopes_of(site: int) -> Envelopes | None:
    """The messages of a call, if its attributes do not describe them."""
    return _envelopes.get(site)


def scope_of(name_stack: object) -> str:
    """The scopes of a call in a program, without the functions that are jitted in it."""
    scopes = str(name_stack).split("/")
    return "/".join(scope for scope in scopes if scope and not scope.startswith("jit("))


def note(
    ctx: LoweringContext,
    name: str,
    communicator: object,
    envelopes: Envelopes | None = None,
    awaited: Envelopes | None = None,
) -> int:
    """Add a note on the call that is being lowered. Return the index of the call."""
    frames = list(starmap(Frame, traceback_of(ctx)))
    is_eager = any(frame.code in eager_functions for frame in frames)
    calls = _unfinished.setdefault(operation_of_module(ctx), [])
    scope = scope_of(ctx.name_stack)
    # JAX forgets the callers of functions that it traces, such as the body of a loop.
    line = _thread.line if is_eager else describe_stack(frames, scope) or scope
    calls.append(CallNote(name, communicator, line, envelopes, awaited))
    while len(_unfinished) > _MAX_UNFINISHED:
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
    sites: list[int] = []
    for _, _, line, envelopes, awaited in notes:
        digest.update(b".")
        site = int.from_bytes(digest.digest(), "little", signed=True)
        if envelopes is not None:
            _envelopes[site] = envelopes
        if awaited is not None:
            _core.set_messages(site, *map(list, awaited))
        _core.set_call_site(site, line)
        sites.append(site)
    if _thread.sites is not None:
        _thread.sites.add(sites)
    for call in calls:
        map_call_attribute(call, CALL_SITE, sites.__getitem__)
