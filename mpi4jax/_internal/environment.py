"""The environment variables that mpi4jax reads."""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from mpi4jax import _launcher

from . import versions

T = TypeVar("T")

TRUTHY = ("1", "true", "on", "yes")
FALSY = ("0", "false", "off", "no")

#: Largest number of bytes for all copies of arrays on their way between GPUs and MPI.
DEFAULT_STAGING_LIMIT = 1 << 30

#: Number of seconds after which a call is reported.
DEFAULT_HANG_REPORT = 60.0

#: Number of seconds that stands for never (31 years). Timers overflow at 292 years.
NEVER = 1e9

#: Number of decimal digits that always fit into the core's integers.
MAX_DIGITS = len(str(sys.maxsize)) - 1


def is_truthy(value: str) -> bool:
    return value.lower() in TRUTHY


def is_falsy(value: str) -> bool:
    return value.lower() in FALSY


_PREFIX = "MPI4JAX_"

#: Names of all variables: the variables that were read, and one of the original's build.
_known = {"MPI4JAX_BUILD_MPICC"}


def _get(name: str) -> str:
    """The value of the variable `name`, empty if it is not set."""
    _known.add(name)
    return os.environ.get(name, "")


def _read(name: str, convert: Callable[[str], T | None], expected: str) -> T | None:
    """The converted value of the variable `name`, None if it is not set or empty."""
    value = _get(name)
    if not value:
        return None
    converted = convert(value)
    if converted is None:
        raise ValueError(
            f"the environment variable {name} is {value!r}, expected {expected}"
        )
    return converted


def flag(name: str) -> bool | None:
    """The value of the on/off variable `name`."""
    values = {**dict.fromkeys(TRUTHY, True), **dict.fromkeys(FALSY, False)}
    expected = f"one of: {', '.join(values)} (in any case)"
    return _read(name, lambda value: values.get(value.lower()), expected)


def choice(name: str, *accepted: str) -> str | None:
    """The value of the variable `name`, which is one of the accepted words."""
    values = {value: value for value in accepted}
    return _read(name, values.get, f"one of: {', '.join(accepted)}")


def byte_count(name: str) -> int | None:
    """The number of bytes in the variable `name`, `sys.maxsize` at most."""

    def convert(value: str) -> int | None:
        if not (value.isascii() and value.isdigit()):
            return None
        digits = value.lstrip("0") or "0"
        return int(digits) if len(digits) <= MAX_DIGITS else sys.maxsize

    return _read(name, convert, "a number of bytes")


def seconds(name: str) -> float | None:
    """The number of seconds in the variable `name`, `NEVER` at most."""

    def convert(value: str) -> float | None:
        try:
            limit = float(value)
        except ValueError:
            return None
        return min(limit, NEVER) if limit >= 0 else None

    return _read(name, convert, "a number of seconds")


def folder(name: str) -> str | None:
    """The folder in the variable `name`, None if the variable is off."""

    value = _get(name)
    if is_falsy(value):
        return None
    expected = f"a folder (./{value} for one of this name)"
    return _read(name, lambda path: None if is_truthy(path) else path, expected)


class Settings(NamedTuple):
    """The values of all variables, None where one is not set and has no default."""

    has_tokens: bool
    alone: bool
    check: bool
    debug: bool
    fast_dispatch: bool
    hang_report: float
    huge_pages: bool
    on_deadlock: str
    profile: bool
    progress_thread: bool
    raise_on_error: bool
    staging_chunk: int | None
    staging_limit: int
    timeout: float | None
    trace: str | None
    use_cuda_mpi: bool | None
    wait: str


def read_settings() -> Settings:
    """Read all variables. Raises ValueError on one that is not understood."""
    for name in (
        "MPI4JAX_NO_WARN_JAX_VERSION",  # read again when the versions are compared
        "MPI4JAX_PREFER_NOTOKEN",
        "MPI4JAX_SKIP_ABI_CHECK",
        "MPI4JAX_USE_SYCL_MPI",
    ):
        flag(name)
    api = choice("MPI4JAX_API", "token", "notoken")
    limit = byte_count("MPI4JAX_STAGING_LIMIT")
    report = seconds("MPI4JAX_HANG_REPORT")
    return Settings(
        has_tokens=versions.HAS_TOKENS if api is None else api == "token",
        alone=flag("MPI4JAX_ALONE") is True,
        check=flag("MPI4JAX_CHECK") is True,
        debug=flag("MPI4JAX_DEBUG") is True,
        fast_dispatch=flag("MPI4JAX_FAST_DISPATCH") is not False,
        hang_report=DEFAULT_HANG_REPORT if report is None else report,
        huge_pages=flag("MPI4JAX_HUGE_PAGES") is not False,
        on_deadlock=choice("MPI4JAX_ON_DEADLOCK", "abort", "report") or "abort",
        profile=flag("MPI4JAX_PROFILE") is True,
        progress_thread=flag("MPI4JAX_PROGRESS_THREAD") is not False,
        raise_on_error=choice("MPI4JAX_ON_ERROR", "abort", "raise") == "raise",
        staging_chunk=byte_count("MPI4JAX_STAGING_CHUNK"),
        staging_limit=DEFAULT_STAGING_LIMIT if limit is None else limit,
        timeout=seconds("MPI4JAX_TIMEOUT") or None,
        trace=folder("MPI4JAX_TRACE"),
        use_cuda_mpi=flag("MPI4JAX_USE_CUDA_MPI"),
        wait=choice("MPI4JAX_WAIT", "auto", "spin", "yield") or "auto",
    )


def unknown_variables() -> list[str]:
    """A sentence on each environment variable with our prefix that has no effect."""
    endings = [name.removeprefix(_PREFIX) for name in _known]
    sentences = []
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in _known:
            nearest = difflib.get_close_matches(name.removeprefix(_PREFIX), endings, n=1)
            hint = "".join(f". Did you mean {_PREFIX}{ending}?" for ending in nearest)
            sentences.append(f"mpi4jax has no environment variable {name}{hint}")
    return sentences


def warn_of_unknown_variables() -> None:
    """Warn of variables that have no effect, on the first process if that is known."""
    sentences = unknown_variables()
    if sentences and _launcher.is_first():
        for sentence in sentences:
            warnings.warn(sentence, stacklevel=3)


#: The settings when mpi4jax was imported.
settings = read_settings()
