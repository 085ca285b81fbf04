"""The command line: `python -m mpi4jax COMMAND`."""

from __future__ import annotations

import argparse
import importlib
import math
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpi4jax._override import override


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def limit(text: str) -> float:
    """A timeout in seconds."""
    seconds = _number(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is given, expected a number of seconds greater than 0"
        )
    return seconds


def moment(text: str) -> float:
    """A time in seconds since a run began, which may be infinite."""
    seconds = _number(text)
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is given, expected a number of seconds, 0 or greater"
        )
    return seconds


def count(text: str) -> int:
    """A number of ranks."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is given, expected a number of ranks")
    return int(text)


def folder(text: str) -> Path:
    """A folder, which a relative path names for all ranks."""
    return Path(text).absolute()


class Period(argparse.Action):
    """A period: two moments in increasing order."""

    @override
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        begin, end = values
        if begin >= end:
            raise argparse.ArgumentError(
                self, f"{begin:g} {end:g} is given, expected BEGIN to be less than END"
            )
        setattr(namespace, self.dest, values)


class Version(argparse.Action):
    """The option that prints the version of mpi4jax, and ends the process."""

    @override
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        facts = importlib.import_module("mpi4jax._commands.facts")
        print(facts.describe_version())
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The arguments of all commands. Each is run by the module in _commands of its name."""
    main = argparse.ArgumentParser(
        prog="python -m mpi4jax",
        description="Run programs, and look at an installation of mpi4jax. Each command "
        "can be started under mpiexec, and is then about all of its ranks.",
    )
    main.add_argument(
        "--version", action=Version, nargs=0, help="say which mpi4jax this is, and where"
    )
    commands = main.add_subparsers(metavar="COMMAND", dest="command", required=True)

    def add(name: str, purpose: str) -> argparse.ArgumentParser:
        # What looks like the begin of an option may be an argument of a program.
        return commands.add_parser(
            name, help=purpose, description=purpose, allow_abbrev=False
        )

    run = add("run", "start a program on a number of ranks, with threads and GPUs for each")
    run.add_argument("-n", type=count, metavar="N", help="number of ranks to start")
    run.add_argument("-m", nargs=argparse.REMAINDER, help="module to run as a program")
    run.add_argument("-c", nargs=argparse.REMAINDER, help="program as text")
    run.add_argument("program", nargs=argparse.REMAINDER, help="program and its arguments")
    for_launcher = run.add_argument_group("with -n")
    for_launcher.add_argument(
        "--dry-run", action="store_true", help="print the whole command, and start nothing"
    )
    for_launcher.add_argument(
        "--tag-output", action="store_true", help="put the rank in front of each line"
    )
    for_launcher.add_argument(
        "--options",
        type=shlex.split,
        default=[],
        metavar='="..."',
        help="more options for the launcher",
    )
    run.add_argument("-q", "--quiet", action="store_true", help="print nothing about this")
    run.add_argument(
        "--as-is",
        action="store_true",
        help="leave threads, GPUs and huge pages as they are",
    )
    for name, kind, purpose in (
        ("log", folder, "folder for a file with the output of each rank"),
        ("timeline", folder, "folder for a timeline (MPI4JAX_TRACE)"),
        ("timeout", limit, "end all ranks if a call takes longer (MPI4JAX_TIMEOUT)"),
    ):
        metavar = "SECONDS" if kind is limit else "FOLDER"
        run.add_argument(f"--{name}", type=kind, metavar=metavar, help=purpose)
    for name, purpose in (
        ("profile", "print at the end what each line cost (MPI4JAX_PROFILE)"),
        ("check", "compare the calls of all ranks (MPI4JAX_CHECK)"),
    ):
        run.add_argument(f"--{name}", action="store_true", help=purpose)
    run.add_argument(
        "--on-hang",
        choices=("abort", "report"),
        help="end a deadlock, or only report it (MPI4JAX_ON_DEADLOCK)",
    )
    doctor = add("doctor", "say what is installed, and what is wrong with it")
    bench = add("bench", "measure what calls cost beside mpi4py's")
    for command in (doctor, bench):
        command.add_argument("--json", action="store_true", help="print JSON, no text")
    bench.add_argument("--quick", action="store_true", help="only show that it works")
    selftest = add("selftest", "call every operation, and compare it with NumPy")
    selftest.add_argument(
        "--limit",
        type=limit,
        default=300,
        metavar="SECONDS",
        help="end all ranks if one call takes longer (default: %(default)s)",
    )
    trace = add("trace", "merge what MPI4JAX_TRACE=folder has written into one timeline")
    trace.add_argument("folder", type=Path, help="what MPI4JAX_TRACE was")
    trace.add_argument(
        "-o",
        "--output",
        type=Path,
        help="the file to write (by default trace.pftrace in the folder)",
    )
    trace.add_argument(
        "--between",
        nargs=2,
        type=moment,
        action=Period,
        default=(0, float("inf")),
        metavar=("BEGIN", "END"),
        help="only what happens between these seconds of the run",
    )
    files = add("files", "say what is in a checkpoint, and whether it is whole")
    files.add_argument("path", type=Path, help="a checkpoint, or a folder of checkpoints")
    files.add_argument(
        "--verify", action="store_true", help="read all bytes, and compare checksums"
    )
    examples = add("examples", "run a program of the gallery, or list them")
    examples.add_argument("name", metavar="NAME", nargs="?", help="the program to run")
    examples.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return main


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.command == "run":
        # An error of the program is its own.
        code: int = importlib.import_module("mpi4jax._commands.run").run(options)
        return code
    try:
        if options.command in ("bench", "selftest"):
            # These commands import mpi4py. The context of a GPU has to exist before that.
            importlib.import_module("mpi4jax._internal")
        # Imported on demand, as a command should not need the modules of others.
        command = importlib.import_module(f"mpi4jax._commands.{options.command}")
        code = command.run(options)
    except Exception:
        traceback.print_exc()
        _end_the_others()
        return 1
    return code


def _end_the_others() -> None:
    """End all ranks, as the others would wait for this one."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.Get_size() > 1:
        sys.stderr.flush()
        # Launchers may lose what is written right before the end.
        time.sleep(0.2)
        mpi.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    # A plain end leaves no exit code for other ranks to see.
    if code := main():
        sys.exit(code)
