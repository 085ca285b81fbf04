"""Programs that hang or lie, and slow ones: what is reported, and how they end.

Each program in `programs` that leads to a report has it in a file beside it. There, `...`
stands for what differs from run to run.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import correct
import forms
import processes
import pytest

PROGRAMS = Path(__file__).parent / "programs"

#: Seconds after which only a program that hangs has not ended.
LIMIT = float(os.environ.get("TEST_LIMIT", 150))
#: Two programs run at once: one thread is plenty for each of their ranks.
ENVIRON = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "MPI4JAX_HANG_REPORT": "2",
}

DEADLOCK = 86
INTERRUPTED = 130


class Hang(NamedTuple):
    """How a program is run, and how it ends."""

    ranks: int
    #: None: any but 0.
    code: int | None
    environ: Mapping[str, str] = MappingProxyType({})


TIMEOUT = {"MPI4JAX_TIMEOUT": "5"}
#: Nothing here waits as long, however slow the machine is.
PATIENT = {"MPI4JAX_HANG_REPORT": "60"}
#: Compiling takes less, and what a program is slow at takes more.
SLOW = {"MPI4JAX_HANG_REPORT": "10"}

CHECK = {"MPI4JAX_CHECK": "1"}

HANGS = {
    # Collective calls that do not fit.
    "different_operations": Hang(3, DEADLOCK),
    "different_roots": Hang(2, DEADLOCK),
    "subset": Hang(4, DEADLOCK),
    "one_step_more": Hang(2, DEADLOCK),
    "other_loop_counts": Hang(2, DEADLOCK),
    "two_communicators": Hang(2, DEADLOCK),
    "freed_on_one_rank": Hang(2, DEADLOCK),
    # MPICH's mpiexec may give the signal by which it ended others as its exit code.
    "sixteen": Hang(16, None),
    "left_early": Hang(3, DEADLOCK),
    # Messages that do not fit.
    "crossed_tags": Hang(2, DEADLOCK),
    "exchange_tags": Hang(2, DEADLOCK),
    "circle_of_two": Hang(2, DEADLOCK),
    "circle_of_three": Hang(3, DEADLOCK),
    "recv_without_send": Hang(3, DEADLOCK),
    "recv_from_anyone": Hang(3, DEADLOCK),
    "different_calls": Hang(4, DEADLOCK),
    # Neighbors.
    "neighbor_missing": Hang(4, DEADLOCK),
    "exchange_missing": Hang(4, DEADLOCK),
    # Threads.
    "beside_many_calls": Hang(2, DEADLOCK),
    "dispatched_ahead": Hang(2, DEADLOCK),
    "awaited_results": Hang(2, DEADLOCK),
    # Requests.
    "request_without_send": Hang(3, DEADLOCK),
    # A rank that has ended.
    "early_end_awaited": Hang(4, DEADLOCK),
    "exception": Hang(3, 1),
    "exception_in_callback": Hang(2, 1),
    "own_excepthook": Hang(3, 1),
    "sys_exit": Hang(3, 3),
    "site_exit": Hang(3, 3),
    "raise_system_exit": Hang(3, DEADLOCK),
    "exit_at_exit": Hang(2, DEADLOCK),
    "killed": Hang(3, None, PATIENT),
    # What could go on, and is ended all the same.
    "stopped": Hang(3, DEADLOCK, TIMEOUT),
    "endless_computation": Hang(3, DEADLOCK, TIMEOUT),
    "in_mpi4py": Hang(2, DEADLOCK, TIMEOUT),
    "perhaps_a_deadlock": Hang(2, DEADLOCK, TIMEOUT),
    "interrupted": Hang(2, INTERRUPTED),
    # Nothing on the default communicator.
    "own_communicators": Hang(2, DEADLOCK),
    "halo_missing": Hang(2, DEADLOCK),
    "rows_missing": Hang(2, DEADLOCK),
    # What all ranks have to do together.
    "first_call": Hang(2, DEADLOCK),
    "first_call_late": Hang(2, 0, SLOW),
    "exception_first": Hang(3, 1),
    "plan_on_one_rank": Hang(2, DEADLOCK),
    "grid_on_one_rank": Hang(2, DEADLOCK),
    "saved_on_one_rank": Hang(2, DEADLOCK),
    # Programs in a `shard_map`.
    "sharded_recv": Hang(2, DEADLOCK),
    "sharded_exchange": Hang(2, DEADLOCK),
    "sharded_branches": Hang(2, DEADLOCK),
    "sharded_first": Hang(2, DEADLOCK),
    "sharded_again": Hang(2, DEADLOCK),
    "sharded_short_message": Hang(2, DEADLOCK, CHECK),
    # What MPI takes without a word.
    "different_types": Hang(3, DEADLOCK, CHECK),
    "short_message": Hang(2, DEADLOCK, CHECK),
    "never_received": Hang(2, 0, {**CHECK, **PATIENT}),
    "checked_on_one_rank": Hang(2, 1, PATIENT),
    # What is only slow.
    "slow_rank": Hang(3, 0, SLOW),
    "slow_compilation": Hang(2, 0, PATIENT),
    "large_messages": Hang(2, 0, PATIENT),
    "early_end": Hang(3, 0, PATIENT),
    "exit_code": Hang(2, 5, PATIENT),
}


def test_every_program_is_run():
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(HANGS)


def run_hang(name, form=None, **environ):
    ranks, _, settings = HANGS[name]
    environ = {**ENVIRON, **settings, **environ}
    command = ["-P", f"{name}.py"]
    if form is not None:
        command[1:] = [Path(forms.__file__), form, *command[1:]]
        ranks *= forms.FORMS[form]
    return processes.run(*command, ranks=ranks, cwd=PROGRAMS, timeout=LIMIT, **environ)


def run_correct(name, form=None):
    _, ranks, _, settings = correct.PROGRAMS[name]
    environ = {**ENVIRON, "MPI4JAX_HANG_REPORT": "1", **settings}
    command = ["-P", Path(correct.__file__), name]
    if form is not None:
        command.append(form)
        ranks *= forms.FORMS[form]
    return processes.run(*command, ranks=ranks, timeout=LIMIT, **environ)


@pytest.fixture(scope="session")
def runs(request):
    """The outcomes of the programs of the chosen tests: two of them run at once."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    pool = ThreadPoolExecutor(2)
    runs = {}
    for params in (call.params for call in calls if call):
        form = params.get("form")
        if "name" in params and can_run(params["name"], form):
            name = params["name"]
            runs[name, form] = pool.submit(run_hang, name, form)
        elif "program" in params:
            name = params["program"]
            runs[name, form] = pool.submit(run_correct, name, form)
    yield runs
    pool.shutdown(cancel_futures=True)


def can_run(name, form=None):
    """Whether this MPI can run the ranks of a hang on few cores."""
    return HANGS[name].ranks * forms.FORMS.get(form, 1) <= 4 or is_mpich()


def is_mpich():
    command = [processes.MPIEXEC, "--version"]
    return "HYDRA" in subprocess.run(command, capture_output=True, text=True).stdout


def reports_of(name):
    """The reports that a program leads to, as patterns."""
    file = PROGRAMS / f"{name}.txt"
    texts = file.read_text().split("\n\n") if file.exists() else []
    return [re.escape(text.strip()).replace(r"\.\.\.", ".*") for text in texts]


@pytest.mark.parametrize("name", HANGS)
def test_what_is_reported(runs, name):
    if not can_run(name):
        pytest.skip("more ranks than this MPI takes on few cores")
    done = runs[name, None].result()
    code = HANGS[name].code
    check_code(done, code)
    reports = reports_of(name)
    assert re.search(".*".join(reports), done.stderr, re.DOTALL), done.stderr
    if not reports or code == 0:
        # Nothing is said that is not expected, and nothing twice.
        assert done.stderr.count("mpi4jax: ") == len(reports), done.stderr


def check_code(done, code):
    # MPICH's mpiexec gives 9 where it kills a rank before it has heard of the abort. Open
    # MPI's may crash while it ends the others.
    codes = {code, 9, -signal.SIGSEGV} if code else {code}
    assert done.returncode in codes or (code is None and done.returncode), done.stderr


def in_forms(names, excluded):
    """Each program in one of the forms, or in all of them."""
    names = [name for name in names if name not in excluded]
    pairs = list(itertools.product(names, forms.FORMS))
    if "ALL_FORMS" in os.environ:
        return pairs
    # Another one for each of the programs that follow each other.
    return pairs[:: len(forms.FORMS) + 1]


#: About the default communicator, or about communicators of their own, of which some can't
#: be told from copies of one that Split has made.
NO_FORMS = (
    "first_call",
    "first_call_late",
    "exception_first",
    "own_communicators",
    "two_communicators",
    "checked_on_one_rank",
    # What ends there is not the program's own file.
    "raise_system_exit",
    *(name for name in HANGS if name.startswith("sharded_")),
)


@pytest.mark.parametrize(("name", "form"), in_forms(HANGS, NO_FORMS))
def test_what_is_reported_on_other_communicators(runs, name, form):
    """Fails if a hang does not end, or without its lines, on another communicator."""
    if not can_run(name, form):
        pytest.skip("more ranks than this MPI takes on few cores")
    done = runs[name, form].result()
    check_code(done, HANGS[name].code)
    expected = "".join(text.read_text() for text in PROGRAMS.glob(f"{name}.txt"))
    for line in re.findall(r"\w+\.py:\d+|this is a deadlock", expected):
        assert line in done.stderr, done.stderr


@pytest.mark.skipif(
    "MANY_RANKS" not in os.environ, reason="64 ranks take some 16 GB: MANY_RANKS=64"
)
def test_a_report_of_many_ranks_is_short():
    ranks = int(os.environ["MANY_RANKS"])
    environ = {**ENVIRON, "MPI4JAX_HANG_REPORT": "20"}
    program = ("-P", "different_calls.py")
    done = processes.run(*program, ranks=ranks, cwd=PROGRAMS, timeout=600, **environ)
    assert done.returncode
    report = done.stderr[done.stderr.index("mpi4jax: ") : done.stderr.index("this is a")]
    assert report.startswith(f"mpi4jax: {ranks} ranks have been waiting for ")
    assert report.count("\n") <= 40
    assert done.stderr.count("have been waiting for") == 1


@pytest.mark.parametrize(
    ("environ", "report"),
    [
        ({"MPI4JAX_ON_DEADLOCK": "report"}, "this is a deadlock: no rank can go on\n"),
        ({"MPI4JAX_HANG_REPORT": "0"}, ""),
    ],
    ids=["report", "off"],
)
def test_a_deadlock_that_is_left_alone(environ, report):
    process = processes.start(
        "-P", "different_operations.py", ranks=3, cwd=PROGRAMS, **ENVIRON | environ
    )
    try:
        if report:
            for line in process.stderr:
                assert "ending" not in line
                if line == report:
                    break
        # It would have been ended by now, or soon.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3 if report else 10)
    finally:
        _, rest = processes.stop(process)
    assert "mpi4jax: " not in rest


@pytest.mark.parametrize("program", correct.PROGRAMS)
def test_a_correct_program_is_not_ended(runs, program):
    """Fails if slow is taken for stuck, whatever a rank waits for."""
    check_correct(program, runs[program, None].result())


#: Those that make the default communicator, or take the ranks in COMM_WORLD for theirs.
NO_FORMS_OF_CORRECT = (
    "shared_default_communicator",
    "sharded_program_dispatched",
    "save_at_exit",
    "messages_at_exit",
)


@pytest.mark.parametrize(
    ("program", "form"), in_forms(correct.PROGRAMS, NO_FORMS_OF_CORRECT)
)
def test_a_correct_program_is_not_ended_on_other_communicators(runs, program, form):
    check_correct(program, runs[program, form].result())


def check_correct(program, done):
    assert done.returncode == correct.PROGRAMS[program].code, done.stderr
    # One of them ends in a deadlock, after what it has to do.
    if program == "save_at_exit":
        assert done.stdout.count(correct.SAVED) == 2, done.stdout
    elif program == "message_of_a_library":
        # What can be seen is a deadlock. It is announced, and withdrawn.
        announced = "this is a deadlock: ending all ranks in 4 s unless something moves\n"
        withdrawn = r"mpi4jax: something moved on rank \d: nothing is ended\n"
        assert re.search(f"{announced}.*{withdrawn}", done.stderr, re.DOTALL), done.stderr
        assert "with exit code" not in done.stderr, done.stderr
    else:
        assert "ending all ranks" not in done.stderr, done.stderr


@pytest.mark.parametrize("setting", ["MPI4JAX_PROFILE", "MPI4JAX_TRACE"])
@pytest.mark.parametrize(
    "hang", ["early_end_awaited", "one_step_more", "exception", "sys_exit"]
)
def test_ends_while_calls_are_recorded(tmp_path, hang, setting):
    """A rank that ends waits for the others, to tell them what it did, and they for it."""
    value = {"MPI4JAX_PROFILE": "1", "MPI4JAX_TRACE": str(tmp_path)}[setting]
    done = run_hang(hang, **{setting: value})
    check_code(done, HANGS[hang].code)
    assert "this is a deadlock: ending all ranks" in done.stderr
