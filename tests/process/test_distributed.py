"""Starting JAX on all processes, and ending it."""

import os
import shutil
from pathlib import Path

import processes
import pytest

from mpi4jax import _core
from mpi4jax._internal.xla.jax_compat import VERSIONS

PROGRAM = """
    import os, sys, time
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from mpi4py import MPI
    from mpi4jax import distributed

    FORCED = "--xla_force_host_platform_device_count"
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
    done = launch(program(after=after), ranks=2, MPI4JAX_HANG_REPORT="5")
    assert done.returncode != 0
    assert done.stdout == ""
    assert f"  rank  {rank}   is ending: ValueError: on purpose," in done.stderr
    assert f"  rank  {rank}   in jax.distributed.shutdown\n" in done.stderr
    waits = (
        f"  rank  {1 - rank}   in allreduce #3 (SUM, float32[1]) on "
        "JAX's communicator of all ranks"
    )
    assert waits in done.stderr
    assert "this is a deadlock" in done.stderr


def test_a_program_on_some_processes(launch):
    """The others do not take part in making the communicator."""
    after = "if rank < 2: assert float(sum_over(*jax.devices()[:2])) == 3"
    done = launch(program(after=after), ranks=3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end") == 3
    assert done.stderr == ""


def test_a_process_that_does_not_take_part(launch):
    after = "if rank == 2: float(sum_over(*jax.devices()[1:]))"
    done = launch(program(after=after), ranks=3, MPI4JAX_HANG_REPORT="2")
    assert done.returncode != 0
    creating = "in comm_create_group #1 on JAX's communicator of ranks 1, 2"
    assert creating in done.stderr
    missing = (
        "rank 1 has made 0 calls on JAX's communicator of ranks 1, 2, and rank 2 waits"
    )
    assert missing in done.stderr


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ("jax.devices()", "JAX has made its devices already. Call it before anything is"),
        ("rank == 1 and jax.devices()", "on rank 1, JAX has made its devices already."),
        (
            "jax.config.update('jax_num_cpu_devices', 2)",
            "with jax_num_cpu_devices=2, JAX makes several devices in a process, but its "
            "collectives use MPI with one device for each process. Start a process for ",
        ),
        (
            "rank or os.environ.update(XLA_FLAGS=f'{FORCED}=1 {FORCED}=12')",
            "on rank 0, with --xla_force_host_platform_device_count=12, JAX makes several",
        ),
    ],
    ids=["late", "one late", "devices", "one with devices"],
)
def test_refused(launch, before, problem):
    done = launch(program(before), ranks=2)
    assert done.returncode != 0
    assert done.stdout == ""
    start = "mpi4jax.distributed.initialize() can't be called now: "
    assert f"RuntimeError: {start}{problem}" in done.stderr


def test_several_devices_after_all(launch):
    """Fails if a sum over them is one of some, or is waited for."""
    done = launch(
        """
        import jax, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from mpi4jax import distributed

        distributed.initialize()
        jax.config.update("jax_num_cpu_devices", 2)
        mesh = Mesh(jax.devices(), "i")
        rows, same = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
        x = jax.make_array_from_callback((4,), rows, np.arange(4.0).__getitem__)
        print(jax.jit(lambda x: x.sum(), out_shardings=same)(x))
        """,
        ranks=2,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert "MPI error: a program runs on several devices of process 0, but " in done.stderr


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


REPLACE = """
    from mpi4jax._internal.distributed import collectives
    collectives.{name} = {value!r}
"""


def test_devices_that_are_not_found(launch):
    """Numbers of another size are no clique: an error on all ranks, and no wait."""
    before = REPLACE.format(name="DEVICE_BYTES", value=3)
    done = launch(program(before), ranks=2, MPI4JAX_HANG_REPORT="20")
    assert done.returncode != 0
    assert done.stdout == ""
    problem = "mpi4jax does not find which devices a program runs on in "
    advice = f"{VERSIONS}. Use a version of JAX that it was tested with"
    assert f"MPI error: {problem}{advice}" in done.stderr
    assert "waits" not in done.stderr


def test_a_jaxlib_without_symbols(launch, tmp_path):
    """One that is loaded, one that is not, and none. The error says what else to do."""
    library = os.path.realpath(_core.__file__)
    copy = shutil.copy(library, tmp_path)
    for path, problem in [
        (library, "does not say where its MPItrampoline is"),
        (copy, "is not loaded"),
        (tmp_path / "none.so", "can't be read"),
    ]:
        before = REPLACE.format(name="JAXLIB_LIBRARY", value=str(path))
        done = launch(program(before))
        assert done.returncode == 1
        expected = (
            f"RuntimeError: mpi4jax.distributed.initialize() can't connect {VERSIONS} to "
            f"MPI ({path} {problem}). Have it look by itself: set "
            f"MPITRAMPOLINE_LIB={library} where the program is started"
        )
        assert expected in done.stderr


def test_a_library_named_at_the_start_that_is_missing(launch, tmp_path):
    """jaxlib itself refuses to start."""
    missing = str(tmp_path / "none.so")
    done = launch(program(), MPITRAMPOLINE_LIB=missing)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f'MPItrampoline: Could not dlopen library "{missing}"' in done.stderr


def test_example():
    example = Path(__file__).resolve().parents[2] / "examples" / "sharded.py"
    done = processes.run(example, ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("own weights (8, 16)") == 2


def test_jax_without_initialize(launch):
    """XLA looks at no error code of these, so the process has to end with the reason.

    Fails if functions for the exit run on XLA's thread, while the main one runs, too.
    """
    done = launch(
        """
        import ctypes
        import jax, mpi4jax
        libc = ctypes.CDLL(None)
        getattr(libc, "__cxa_atexit")(libc.puts, b"a function for the exit", None)
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


SHAPES = """
    shape = (size, 3 + rank)
    rows = NamedSharding(Mesh(jax.devices(), "i"), P("i"))
    ones = jax.make_array_from_callback(shape, rows, lambda part: np.ones(shape)[part])
    same = NamedSharding(rows.mesh, P())
    jax.block_until_ready(jax.jit({function}, out_shardings={out})(ones))
"""


def test_shapes_that_differ(launch):
    """Fails if only MPI notices that the processes sum arrays of different sizes."""
    after = SHAPES.format(function="lambda x: x.sum(0)", out="same")
    done = launch(program(after=after), ranks=2, MPI4JAX_CHECK="1")
    assert done.returncode != 0
    assert done.stdout == ""
    assert "mpi4jax: a call that does not fit on all ranks (MPI4JAX_CHECK)" in done.stderr
    assert "they gave different sizes (3 and 4)." in done.stderr


def test_a_short_message(launch):
    """Fails if a process takes what it had before for what has come."""
    after = SHAPES.format(function="lambda x: jax.numpy.roll(x, 1, 0)", out="rows")
    done = launch(program(after=after), ranks=2)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "MPI error: a message is shorter than the array that it is " in done.stderr


@pytest.mark.parametrize(
    "devices",
    ["distributed.initialize()", "jax.config.update('jax_num_cpu_devices', 2)"],
    ids=["processes", "local"],
)
def test_a_global_mesh(launch, devices):
    """Fails if operations on local parts, or the end, run on the devices of the mesh."""
    done = launch(
        f"""
        import jax, numpy as np
        from jax.sharding import Mesh
        from mpi4py import MPI
        import mpi4jax
        from mpi4jax import distributed, halo, notoken as mpi

        {devices}
        early = mpi4jax.iallreduce(1.0, op=MPI.SUM)
        mesh = Mesh(jax.devices(), "i")
        getattr(jax, "set_mesh", getattr(jax.sharding, "set_mesh", None))(mesh)
        comm = MPI.COMM_WORLD.Dup()
        ones = jax.device_put(np.ones(3), jax.local_devices()[-1])
        for x in (ones, np.ones(3), 1.0):
            total = mpi.allreduce(x, op=MPI.SUM, comm=comm)
            assert np.all(np.asarray(total) == 2), total
        mpi.barrier()
        tree = mpi.tree.allreduce({{"a": ones, "b": 2.0}}, op=MPI.SUM, comm=comm)
        jax.block_until_ready(tree)

        def total(x):
            return mpi.allreduce(x, op=MPI.SUM, comm=comm)

        plan = halo.Plan(comm.Create_cart([2], [True]), shape=[4])
        filled = np.array([3.0, 0.0, 1.0, 2.0] if comm.rank == 0 else [1.0, 2.0, 3.0, 0.0])
        part = jax.device_put(filled, jax.local_devices()[-1])
        for actual, expected in (
            (mpi4jax.wait(early), 2),
            (mpi4jax.wait(mpi4jax.iallreduce(ones, op=MPI.SUM, comm=comm)), 2),
            (mpi4jax.overlap(lambda: total(ones), during=lambda: None)[0], 2),
            (jax.jvp(total, (ones,), (ones,))[1], 2),
            (plan.exchange(part), filled),
            (plan.exchange(part, during=lambda x: None)[0], filled),
            (plan.scatter(np.arange(4, dtype=np.float32)), filled),
            (plan.scatter(np.arange(4, dtype=np.float32), root=1), filled),
            (plan.gather(part), np.arange(4.0)),
        ):
            assert np.all(np.asarray(actual) == expected), (actual, expected)
        comm.Free()
        print("end", flush=True)
        """,
        ranks=2,
        MPI4JAX_PROFILE="1",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end") == 2
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    assert "allreduce" in done.stdout + done.stderr
