"""MPI4JAX_WAIT: waits give way where the ranks of a node share its cores."""

import os

import pytest

from mpi4jax import _launcher, _node
from mpi4jax._internal.mpi import cores
from mpi4jax._internal.mpi.cores import Cores

WAITS = """
import sys, time
import jax, jax.numpy as jnp
from mpi4py import MPI
from mpi4jax._internal.mpi import cores
import mpi4jax.notoken as mpi

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
x = jnp.ones(4)

def say(text):
    # In one piece, as the output of all ranks is mixed.
    sys.stdout.write(f"{text}\\n")

def receive(x):
    if rank == 0:
        mpi.send(x, 1, comm=comm)
        return x
    return mpi.recv(x, 0, comm=comm)

def start_and_wait(x):
    return mpi.wait(mpi.iallreduce(x, op=MPI.SUM, comm=comm))

say(cores.waits)
for operation in (
    jax.jit(lambda x: mpi.allreduce(x, op=MPI.SUM, comm=comm)),
    lambda x: mpi.sendrecv(x, x, 1 - rank, 1 - rank, comm=comm),
    receive,
    jax.jit(start_and_wait),
):
    jax.block_until_ready(operation(x))
    comm.Barrier()
    if rank == 0:
        time.sleep(0.5)
    start = time.process_time()
    jax.block_until_ready(operation(x))
    if rank == 1:
        say(time.process_time() - start)
    comm.Barrier()
"""


def test_waits_give_way(launch):
    """Fails if a rank that waits for another one computes all the time."""
    seconds = {}
    for setting in ("spin", "yield"):
        done = launch(WAITS, ranks=2, MPI4JAX_WAIT=setting)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.split("\n")
        if "spin, as this MPI never yields" in lines:
            pytest.skip("this MPI never yields")
        assert lines.count("give way" if setting == "yield" else "spin") == 2
        seconds[setting] = [float(line) for line in lines if line[:1].isdigit()]
        assert len(seconds[setting]) == 4
    for polling, giving_way in zip(seconds["spin"], seconds["yield"], strict=True):
        assert giving_way < polling / 2, seconds


BLAS = """
import ctypes, os, sys
{first}
import mpi4jax
import scipy.linalg.cython_blas as blas

get_threads = ctypes.CDLL(blas.__file__).scipy_openblas_get_num_threads
sys.stdout.write(f"{{get_threads()}}\\n")  # in one piece
"""


@pytest.mark.skipif(len(_node.allowed_cpus()) < 2, reason="one thread in any case")
@pytest.mark.parametrize("first", ["", "import scipy.linalg.cython_blas"])
@pytest.mark.parametrize("chosen", ["", "2"])
def test_threads_of_linear_algebra(launch, first, chosen):
    """Fails if OpenBLAS makes more threads than a rank has cores, or not those chosen."""
    done = launch(
        BLAS.format(first=first), ranks=2, MPI4JAX_WAIT="yield", OPENBLAS_NUM_THREADS=chosen
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == 2 * [chosen or str(max(1, cores.cores.cpus // 2))]


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 1),
        ({"MPI_LOCALNRANKS": "3"}, 3),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "5"}, 5),
    ],
)
def test_processes_on_a_node(environ, count):
    assert _launcher.processes_on_node(environ) == count


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, len(_node.allowed_cpus())),
        ({"NPROC": "3"}, 3),
        ({"PJRT_NPROC": "5", "NPROC": "3"}, 5),
        ({"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "3"}, 1),
        ({"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true", "NPROC": "3"}, 3),
    ],
)
def test_threads_of_xla(environ, count):
    assert cores.of_this_node(environ).threads == count


def test_cores_are_shared():
    assert Cores(processes=2, threads=2, cpus=2).are_shared
    assert not Cores(processes=2, threads=1, cpus=2).are_shared
    assert Cores(processes=3, threads=1, cpus=2).are_shared
    assert not Cores(processes=1, threads=8, cpus=2).are_shared


@pytest.mark.parametrize(("allowed", "count"), [("0-3,8,10-11\n", 7), ("5\n", 1)])
def test_cpus_of_a_control_group(tmp_path, allowed, count):
    own = tmp_path / "cgroup"
    own.write_text("0::/batch/job\n")
    (tmp_path / "batch/job").mkdir(parents=True)
    (tmp_path / "batch/job/cpuset.cpus.effective").write_text(allowed)
    assert len(_node.all_cpus(tmp_path, own)) == count
    assert len(_node.all_cpus(tmp_path / "none", own)) == os.cpu_count()
    # In a group without the file, its parent's.
    own.write_text("0::/batch/job/step\n")
    assert len(_node.all_cpus(tmp_path, own)) == count


def test_cpus_of_an_older_control_group(tmp_path):
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/job\n3:cpuset:/job\n0::/\n")
    (tmp_path / "cpuset/job").mkdir(parents=True)
    (tmp_path / "cpuset/job/cpuset.effective_cpus").write_text("2-3\n")
    assert _node.all_cpus(tmp_path, own) == [2, 3]
