"""Jobs of which some ranks are other programs, or can't ask the others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import NamedTuple

import processes
import pytest
from test_hangs import ENVIRON, LIMIT, check_code, is_mpich

#: Steps as arguments: `sum`, or the seconds for which it sleeps.
IN_C = """
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        float x = 1, sum = 0;
        if (strcmp(argv[i], "sum") == 0) {
            MPI_Allreduce(&x, &sum, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        } else {
            usleep((useconds_t)(atof(argv[i]) * 1e6));
        }
    }
    MPI_Finalize();
    return 0;
}
"""

IN_MPI4PY = """
import sys, time
import numpy as np
from mpi4py import MPI

for step in sys.argv[1:]:
    if step == "sum":
        MPI.COMM_WORLD.Allreduce(np.ones(1, np.float32), np.empty(1, np.float32))
    else:
        time.sleep(float(step))
"""

IN_MPI4JAX = """
import os, sys, time
import jax.numpy as jnp
from mpi4py import MPI
from mpi4jax import notoken as mpi

world = MPI.COMM_WORLD
rank = world.Get_rank()
for step in sys.argv[1:]:
    if step == "sum":
        total = mpi.allreduce(jnp.float32(1), MPI.SUM, comm=world)
        sys.stdout.write(f"sum {float(total)}" + os.linesep)
    elif step in ("fail", f"fail{rank}"):
        raise ValueError("on purpose")
    elif step.startswith("fail"):
        continue
    elif step.startswith("swap"):
        other = int(step.removeprefix("swap"))
        mpi.sendrecv(jnp.ones(1), jnp.ones(1), other, other, comm=world).block_until_ready()
    elif step.startswith("recv"):
        source = int(step.removeprefix("recv"))
        mpi.recv(jnp.ones(1), source, comm=world).block_until_ready()
    else:
        time.sleep(float(step))
"""

#: Its steps are those of two processes that it spawns.
IN_PARENT = """
import sys
from pathlib import Path
from mpi4py import MPI

program = Path(__file__).with_name("in_mpi4jax.py")
MPI.COMM_SELF.Spawn(sys.executable, ["-P", str(program), *sys.argv[1:]], maxprocs=2)
"""

#: It sleeps before it imports mpi4jax.
LATE = """
import sys, time
import mpi4py.MPI
time.sleep(float(sys.argv.pop(1)))
"""

#: Only one thread at a time may call MPI.
SERIALIZED = """
import mpi4py
mpi4py.rc.thread_level = "serialized"
"""

#: An error of MPI's ends the program, as that a name is not there.
FATAL = """
import mpi4py
mpi4py.rc.errors = "fatal"
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The command of each kind of program."""
    folder = tmp_path_factory.mktemp("programs")
    commands = {}
    texts = {
        "mpi4py": IN_MPI4PY,
        "mpi4jax": IN_MPI4JAX,
        "parent": IN_PARENT,
        "late": LATE + IN_MPI4JAX,
        "serialized": SERIALIZED + IN_MPI4JAX,
        "fatal": FATAL + IN_MPI4JAX,
    }
    for kind, text in texts.items():
        path = folder / f"in_{kind}.py"
        path.write_text(text)
        commands[kind] = [sys.executable, "-P", str(path)]
    (folder / "in_c.c").write_text(IN_C)
    mpicc = processes.MPIEXEC.with_name("mpicc")
    if shutil.which("gcc") and mpicc.exists():
        binary = folder / "in_c"
        command = [mpicc, folder / "in_c.c", "-o", binary]
        subprocess.run(list(map(str, command)), check=True)
        commands["c"] = [str(binary)]
    return commands


class Job(NamedTuple):
    """What each rank is, with its steps: "c sum 3"."""

    ranks: Sequence[str]
    environ: Mapping[str, str] = MappingProxyType({})


FAILING = {"MPI4JAX_HANG_REPORT": "20"}
SOON = {"MPI4JAX_HANG_REPORT": "3"}
JOBS = {
    # A rank in C, or of mpi4py alone, is slow. It calls what the others call.
    "slow_in_c": Job(["mpi4jax sum sum", "c sum 6 sum"]),
    "slow_first_in_c": Job(["c sum 6 sum", "mpi4jax sum sum"]),
    "slow_in_mpi4py": Job(["mpi4jax sum sum", "mpi4py sum 6 sum"]),
    "slow_with_fatal_errors": Job(["fatal sum sum", "c sum 6 sum"]),
    "spawned": Job(["parent sum 6 sum"]),
    "failure_of_spawned": Job(["parent sum fail1 sum"], SOON),
    "circle_of_spawned": Job(["parent recv0"], SOON),
    "never_calls": Job(["mpi4jax swap2", "mpi4jax 3", "mpi4jax 6 swap0"]),
    "comes_late": Job(["mpi4jax recv1", "late 8 recv0"], {"MPI4JAX_HANG_REPORT": "4"}),
    # A deadlock of the others.
    "circle_beside_c": Job(["mpi4jax recv1", "mpi4jax recv0", "c 60"]),
    "circle_behind_mpi4py": Job(["mpi4py 60", "mpi4jax recv2", "mpi4jax recv1"]),
    "failure_beside_c": Job(["mpi4jax fail", "mpi4jax recv0", "c 60"], FAILING),
    "failure_behind_c": Job(["c 60", "mpi4jax fail", "mpi4jax recv1"], FAILING),
    # Ranks that can't ask each other, where PMIx is not there.
    "failure_alone": Job(
        ["serialized fail", "serialized recv0"], {"MPI4JAX_HANG_REPORT": "4"}
    ),
    "slow_alone": Job(
        ["serialized swap1", "serialized 8 swap0"], {"MPI4JAX_HANG_REPORT": "3"}
    ),
}


@pytest.fixture(scope="module")
def outcomes(request, programs):
    """The outcomes of the jobs of the chosen tests: two of them run at once."""
    pool = ThreadPoolExecutor(2)
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    names = [call.params["job"] for call in calls if call and "job" in call.params]
    yield {name: pool.submit(run, programs, JOBS[name]) for name in names}
    pool.shutdown(cancel_futures=True)


def run(programs, job):
    command = []
    for rank in job.ranks:
        kind, *steps = rank.split()
        if kind not in programs:
            return None
        command += [":", "-n", "1", *programs[kind], *steps]
    environ = {**ENVIRON, **job.environ}
    return processes.run_command([str(processes.MPIEXEC), *command[1:]], LIMIT, **environ)


@pytest.fixture
def done(outcomes, job):
    outcome = outcomes[job].result()
    if outcome is None:
        pytest.skip("this machine has no C compiler")
    return outcome


def jobs(*words):
    """The jobs whose names begin with one of these words."""
    names = [name for name in JOBS if name.startswith(words)]
    return pytest.mark.parametrize("job", names)


@jobs("slow_in", "slow_first", "slow_with")
def test_other_programs_are_not_waited_for(done, job):
    """Fails if a rank waits for another program, or is ended as that is slow."""
    assert (done.returncode, done.stdout) == (0, "sum 2.0\n" * 2), done.stderr
    other = 0 if job == "slow_first_in_c" else 1
    why = "mpi4jax was not imported there"
    if "fatal" in job and is_mpich():
        why = "an error of MPI's ends the program"
    line = f"what rank {other} does is not known: {why}.\n"
    assert done.stderr.count("mpi4jax: ") == 1, done.stderr
    assert line in done.stderr
    assert "ending all ranks" not in done.stderr


@jobs("never")
def test_a_rank_that_never_calls(done):
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("mpi4jax: ") == 1, done.stderr
    assert "not in MPI" in done.stderr
    assert "ending all ranks" not in done.stderr


@jobs("spawned")
def test_spawned_processes(done):
    """Fails if ranks of another COMM_WORLD wait for their parent, or are ended."""
    assert (done.returncode, done.stdout) == (0, "sum 2.0\n" * 4), done.stderr
    assert "ending all ranks" not in done.stderr


@jobs("failure_of", "circle_of")
def test_spawned_processes_that_hang(done, job):
    """Fails if they hang. The exit code is that of mpiexec, which may be their parent's."""
    code = 1 if job == "failure_of_spawned" else 86
    assert f"ending all ranks with exit code {code}" in done.stderr
    # MPICH has no place where ranks of another COMM_WORLD could find each other.
    unknown = "is not known: the processes were started by MPI_Comm_spawn.\n"
    assert (unknown in done.stderr) == is_mpich(), done.stderr


@jobs("comes")
def test_a_rank_that_comes_late(done):
    """Fails if a rank is not found that has imported mpi4jax long after the others."""
    check_code(done, 86)
    unknown = "what rank 1 does is not known: mpi4jax was not imported there.\n"
    circle = "0 -> 1 -> 0 is a circle: each rank waits for the next one.\n"
    assert done.stderr.index(unknown) < done.stderr.index(circle)


@jobs("circle_be")
def test_what_is_known_is_proven(done, job):
    """Fails if a rank of another program keeps the others from being ended."""
    check_code(done, 86)
    circle = {"circle_beside_c": "0 -> 1 -> 0", "circle_behind_mpi4py": "1 -> 2 -> 1"}[job]
    assert f"{circle} is a circle: each rank waits for the next one." in done.stderr
    assert "nothing has moved for 2 s: ending all ranks" in done.stderr


@jobs("failure_be")
def test_a_failed_rank_ends_those_that_wait(done):
    check_code(done, 1)
    assert "this is a deadlock: ending all ranks with exit code 1" in done.stderr


@jobs("failure_alone")
def test_ranks_that_can_not_ask_each_other(done):
    """Fails if a rank that has failed leaves the others waiting for ever."""
    check_code(done, 1)
    text = " ".join(done.stderr.split())
    if is_mpich():
        why = "MPI was not initialised with MPI_THREAD_MULTIPLE"
        assert "mpi4jax: rank 0 has failed (ValueError: on purpose, " in text
        assert f"can't ask others whether they wait for it: {why}. Ending all" in text
        assert "mpi4jax: rank 0 has failed: ending all ranks with exit code 1" in text
    else:
        # PMIx may be called by any thread.
        assert "this is a deadlock: ending all ranks with exit code 1" in text


@jobs("slow_alone")
def test_a_wait_of_a_rank_that_can_not_ask_others(done):
    assert done.returncode == 0, done.stderr
    unknown = "what rank 1 does is not known: MPI was not initialised with"
    assert (unknown in done.stderr) == is_mpich(), done.stderr
    assert "ending all ranks" not in done.stderr
