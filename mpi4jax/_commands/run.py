"""Start of a program on a number of ranks, each at its place on the node."""

from __future__ import annotations

import argparse
import os
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from mpi4jax import _launcher, _terminal

from . import failures, place, starters

#: The environment variable for each option about mpi4jax.
VARIABLES = {
    "check": "MPI4JAX_CHECK",
    "on_hang": "MPI4JAX_ON_DEADLOCK",
    "profile": "MPI4JAX_PROFILE",
    "timeline": "MPI4JAX_TRACE",
    "timeout": "MPI4JAX_TIMEOUT",
}


def run(options: argparse.Namespace) -> int:
    program = _program(options)
    if not program:
        return _launcher.refuse(
            "no program is given, expected a file, -m MODULE or -c CODE"
        )
    if options.n is not None:
        return _start(options, program)
    if not options.as_is:
        _settle(options.quiet)
    for name, variable in VARIABLES.items():
        if (value := getattr(options, name)) not in (None, False):
            os.environ[variable] = "1" if value is True else str(value)
    count = _launcher.processes_on_node()
    console = _log(options.log) if options.log is not None else None
    try:
        _run(program)
    except BaseException as error:
        failures.prepare(error, count, console)
        raise
    return 0


def _program(options: argparse.Namespace) -> list[str]:
    """The program and its arguments, as `python` takes them."""
    for flag in ("m", "c"):
        given: list[str] | None = getattr(options, flag)
        if given is not None:
            return [f"-{flag}", *given] if given else []
    return list(options.program)


# With -n: the launcher takes the place of this process.


def _start(options: argparse.Namespace, program: Sequence[str]) -> int:
    for launcher in _launcher.launchers()[:1]:
        return _launcher.refuse(
            f"-n {options.n} is given, but this process was started by {launcher.name} "
            f"({launcher.variable}={launcher.size}): leave one of them out"
        )
    try:
        mpi = starters.load()
        starter = starters.find(mpi)
    except (ImportError, LookupError) as error:
        return _launcher.refuse(str(error))
    launch = starter(options.n, shlex.split(options.options), tags=options.tag_output)
    environ = dict(os.environ)
    if not options.as_is:
        starter.leave_cores(launch, environ)
        place.ask_for_huge_pages(environ)
    own = len(sys.orig_argv) - len(sys.argv[1:])
    python = [sys.executable, *sys.orig_argv[1:own]]
    command = [*launch, *python, *_for_ranks(options), *program]
    added = [f"{k}={v}" for k, v in environ.items() if os.environ.get(k) != v]
    if options.dry_run:
        print(*added, shlex.join(command))
        return 0
    if not options.quiet:
        started = " ".join([*added, shlex.join(launch)])
        print(f"mpi4jax: {started} ({mpi.name})", file=sys.stderr, flush=True)
    os.execve(command[0], command, environ)


def _for_ranks(options: argparse.Namespace) -> list[str]:
    """The command and the options with which each rank is started."""
    words = ["run"]
    for name in ("as_is", "log", "quiet", *VARIABLES):
        if (value := getattr(options, name)) not in (None, False):
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return words


# On each rank.


def _settle(is_quiet: bool) -> None:
    """Take this rank's part of the node, in a new process where that has to be."""
    tunables = os.environ.get(place.TUNABLES)
    done = place.settle()
    if done and not is_quiet and _launcher.is_first():
        _terminal.tell(f"mpi4jax: each rank has {', '.join(done)}", sys.stderr)
    if os.environ.get(place.TUNABLES) != tunables:
        # The C library reads it when a program starts.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _log(folder: Path) -> TextIO:
    """Redirect this rank's output to a file. Returns the launcher's error stream."""
    rank = next((launcher.rank for launcher in _launcher.launchers()), 0)
    folder.mkdir(parents=True, exist_ok=True)
    console = os.fdopen(os.dup(2), "w")
    with (folder / f"rank-{rank}.log").open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    for text in (sys.stdout, sys.stderr):
        text.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return console


def _run(program: Sequence[str]) -> None:
    """Run a program as `python` would."""
    first, *rest = program
    # The program imports mpi4jax anew: a command starts without its public names.
    for name in [name for name in sys.modules if name.partition(".")[0] == "mpi4jax"]:
        del sys.modules[name]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [*program]
        if not getattr(sys.flags, "safe_path", sys.flags.isolated):
            sys.path[0] = str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")
