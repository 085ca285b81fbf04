"""Starting JAX on all processes, and ending it."""

import os
from pathlib import Path

import processes
import pytest

from mpi4jax import _core

PROGRAM = """
    import os, sys, time
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from mpi4py import MPI
    from mpi4jax import distributed

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    {before}
    distributed.initialize()

    def sum_over(*devices):
        mesh = Mesh(devices, "i")
        rows, same = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
        x = jax.make_array_from_process_local_data(rows, np.full(1, rank + 1.0))
        return jax.jit(lambda x: x.sum(), out_shardings=same)(x)

    total = sum_over(*jax.devices())
    assert float(total) == size * (size + 1) / 2
    {after}
    print("end", flush=True)
"""


def program(before="", after=""):
    return PROGRAM.format(before=before, after=after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "sum_over(*jax.devices()); time.sleep(1 - rank)"),
        # On one core, XLA would have one thread for all that waits.
        (
            "os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])",
            "assert os.environ['PJRT_NPROC'] == '2'; time.sleep(rank); MPI.Finalize()",
        ),
    ],
    ids=["late", "finalised"],
)
def test_ends(launch, before, after):
    """In any order, with a program under way, and without a word from MPI or XLA."""
    done = launch(program(before, after), ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end") == 2
    assert done.stderr == ""


def test_an_exception_after_which_nobody_waits(launch):
    after = "if rank == 0: raise ValueError('on purpose')"
    done = launch(program(after=after), ranks=2)
    assert done.returncode == 1
    assert done.stdout.count("end") == 1
    assert "ValueError: on purpose" in done.stderr
    assert "deadlock" not in done.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_while_another_rank_waits(launch, rank):
    """JAX waits at exit for all processes, of which one would wait for a sum for ever."""
    after = f"if rank == {rank}: raise ValueError('on purpose')\n"
    after += "    float(sum_over(*jax.devices()))"
    done = launch(program(after=after), ranks=2, MPI4JAX_HANG_REPORT="2")
    assert done.returncode != 0
    assert done.stdout == ""
    assert f"  rank  {rank}   is ending: ValueError: on purpose, " in done.stderr
    assert f"  rank  {rank}   in jax.distributed.shutdown\n" in done.stderr
    waits = (
        f"  rank  {1 - rank}   in allreduce #2 (SUM, float32[1]) on JAX's communicator 1"
    )
    assert waits in done.stderr
    assert "this is a deadlock" in done.stderr


def test_a_program_on_some_processes(launch):
    """XLA makes communicators with all processes, so that these wait: a report."""
    after = "if rank < 2: float(sum_over(*jax.devices()[:2]))"
    done = launch(program(after=after), ranks=3, MPI4JAX_HANG_REPORT="2")
    assert done.returncode != 0
    assert "in comm_split #2 on JAX's world" in done.stderr
    assert "  rank  2      in jax.distributed.shutdown\n" in done.stderr
    assert "rank 2 has made 1 call on JAX's world, and ranks 0, 1 wait for" in done.stderr


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ("jax.devices()", "JAX has made its devices already. Call it before anything is"),
        ("rank == 1 and jax.devices()", "on rank 1, JAX has made its devices already."),
    ],
    ids=["all", "one"],
)
def test_too_late(launch, before, problem):
    done = launch(program(before), ranks=2)
    assert done.returncode != 0
    assert done.stdout == ""
    start = "mpi4jax.distributed.initialize() can't be called now: "
    assert done.stderr.count(f"RuntimeError: {start}{problem}") == 2


def test_without_threads(launch):
    done = launch(
        """
        import mpi4py
        mpi4py.rc.thread_level = "serialized"
        from mpi4jax import distributed
        distributed.initialize()
        """
    )
    assert done.returncode == 1
    assert "MPI was not initialised with THREAD_MULTIPLE, but JAX calls it" in done.stderr


def test_half_of_the_processes(launch):
    """Each half has a JAX of its own, of which the ranks count from 0."""
    done = launch(
        """
        import jax
        from mpi4py import MPI
        from mpi4jax import distributed
        from jax.experimental import multihost_utils
        world = MPI.COMM_WORLD
        rank = world.Get_rank()
        part = world.Split(rank % 2, -rank)
        distributed.initialize(part)
        assert jax.process_count() == 2
        gathered = multihost_utils.process_allgather(rank)
        assert gathered.tolist() == [rank % 2 + 2, rank % 2], gathered
        print("end", flush=True)
        """,
        ranks=4,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end") == 4


def test_the_library_named_at_the_start(launch):
    """The way where jaxlib hides its MPItrampoline: the constants are the same."""
    library = os.path.realpath(_core.__file__)
    done = launch(program(), ranks=2, MPITRAMPOLINE_LIB=library)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end") == 2


def test_example():
    example = Path(__file__).resolve().parents[2] / "examples" / "sharded.py"
    done = processes.run(example, ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("own weights (8, 16)") == 2


def test_jax_without_initialize(launch):
    """XLA looks at no error code of these, so the process has to end with the reason."""
    done = launch(
        """
        import jax, mpi4jax
        jax.config.update("jax_cpu_collectives_implementation", "mpi")
        jax.distributed.initialize("127.0.0.1:23451", 1, 0)
        print(jax.devices())
        """,
        MPITRAMPOLINE_LIB=os.path.realpath(_core.__file__),
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.endswith(
        "mpi4jax: JAX's collectives want MPI, which they get from "
        "mpi4jax.distributed.initialize(): call it before JAX is used\n"
    )
