"""Start of a program on a number of ranks, with threads and GPUs for each."""

from __future__ import annotations

import argparse
import os
import pkgutil
import runpy
import shlex
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
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
#: The options that are for the launcher.
FOR_LAUNCHER = ("dry_run", "options", "tag_output")


def run(options: argparse.Namespace) -> int:
    program = _program(options)
    if not program:
        return _launcher.refuse(
            "no program is given, expected a file, -m MODULE or -c CODE"
        )
    if program[0] not in ("-m", "-c") and not os.path.exists(program[0]):
        return _launcher.refuse(f"there is no file {program[0]} to run")
    if options.n is not None:
        return _start(options, program)
    for name, _ in _given(options, FOR_LAUNCHER):
        return _launcher.refuse(f"{_option(name)} is given without -n, as is needed")
    _run_here(options, program)
    return 0


def _program(options: argparse.Namespace) -> list[str]:
    """The program and its arguments, as `python` takes them."""
    rest: list[str] = options.program
    for flag in ("m", "c"):
        given: list[str] | None = getattr(options, flag)
        if given is not None:
            words = [*given, *rest]
            return [f"-{flag}", *words] if words else []
    return rest[1:] if rest[:1] == ["--"] else rest


def _given(
    options: argparse.Namespace, names: Iterable[str]
) -> Iterator[tuple[str, object]]:
    """The options of these names that are given, with their values."""
    for name in names:
        if (value := getattr(options, name)) not in (None, False, []):
            yield name, value


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# With -n: the launcher takes the place of this process.


def _start(options: argparse.Namespace, program: Sequence[str]) -> int:
    for launcher in _launcher.launchers()[:1]:
        # The shell of an allocation of Slurm's may be a step of one process.
        if launcher.size > 1 or launcher.name != _launcher.SRUN:
            return _launcher.refuse(
                f"-n {options.n} is given, but this process was started by {launcher.name} "
                f"({launcher.variable}={launcher.size}): leave one of them out"
            )
    try:
        mpi = starters.load()
        starter = starters.find(mpi)
    except (ImportError, LookupError) as error:
        return _launcher.refuse(str(error))
    environ = dict(os.environ)
    launch = [*starter.command, "-n", str(options.n)]
    launch += starter.tag_options() if options.tag_output else []
    if not options.as_is:
        launch += starter.binding_options(options.options, environ)
        place.ask_for_huge_pages(environ)
    launch += options.options
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
    for name, value in _given(options, ("as_is", "log", "quiet", *VARIABLES)):
        words.append(_option(name) + ("" if value is True else f"={value}"))
    return words


# On each rank.


def _run_here(options: argparse.Namespace, program: Sequence[str]) -> None:
    # Where a debugger or a profiler has started the command, mpi4jax may be there already.
    is_whole = "mpi4jax.notoken" in sys.modules
    if not options.as_is and not is_whole:
        _settle(options.quiet)
    for name, value in _given(options, VARIABLES):
        os.environ[VARIABLES[name]] = "1" if value is True else str(value)
    console: TextIO | None = None
    failures.watch()
    try:
        if options.log is not None:
            console = _log(options.log)
        if not is_whole:
            # The program imports it anew: a command starts without its public names.
            for name in [n for n in sys.modules if n.partition(".")[0] == "mpi4jax"]:
                del sys.modules[name]
        _run(program)
    except BaseException as error:
        failures.prepare(error, console)
        raise


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
    folder.mkdir(parents=True, exist_ok=True)
    console = os.fdopen(os.dup(2), "w")
    with (folder / f"rank-{_launcher.rank()}.log").open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    for text in (sys.stdout, sys.stderr):
        text.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return console


def _run(program: Sequence[str]) -> None:
    """Run a program as `python` would."""
    first, *rest = program
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        _run_code(rest[0], "<string>")
        return
    sys.argv = [*program]
    path = os.path.abspath(first)
    if pkgutil.get_importer(path) is not None:
        runpy.run_path(path, run_name="__main__")  # a folder, or a zip file
        return
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    _run_code(Path(path).read_bytes(), path)


def _run_code(source: str | bytes, file: str) -> None:
    """Run a program as the main module, which stays that when it has ended."""
    main = types.ModuleType("__main__")
    if file != "<string>":
        main.__file__ = file
    sys.modules["__main__"] = main
    exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)
