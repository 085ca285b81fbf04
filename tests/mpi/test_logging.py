"""The debug lines of every operation, through sys.stdout."""

import re

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._core import get_logging, set_logging

X = jnp.ones(10)
NULL = MPI.PROC_NULL
ANY = MPI.ANY_TAG

LINES = {
    "Allgather": (lambda n: mpi.allgather(X), "(10 items)"),
    "Allgatherv": (lambda n: mpi.allgatherv(X, [10] * n), "(10 items)"),
    "Allreduce": (lambda n: mpi.allreduce(X, MPI.SUM), "with 10 items"),
    "Alltoall": (lambda n: mpi.alltoall(jnp.ones((n, 5, 2))), "(10 items)"),
    "Alltoallv": (lambda n: alltoallv(n), "(10 items sent, 10 items received)"),
    "Barrier": (lambda n: mpi.barrier(), None),
    "Bcast": (lambda n: mpi.bcast(X, 0), "(10 items, root=0)"),
    "Exscan": (lambda n: mpi.exscan(X, MPI.SUM), "(10 items)"),
    "Gather": (lambda n: mpi.gather(X, 0), "(10 items, root=0)"),
    "Gatherv": (lambda n: mpi.gatherv(X, [10] * n, 0), "(10 items, root=0)"),
    "Scatter": (lambda n: scatter(n), "(10 items, root=0)"),
    "Scatterv": (lambda n: scatterv(n), "(10 items, root=0)"),
    "Reduce": (lambda n: mpi.reduce(X, MPI.SUM, 0), "(10 items, root=0)"),
    "Reduce_scatter_block": (
        lambda n: mpi.reduce_scatter(jnp.ones((n, 10)), MPI.SUM),
        "(10 items)",
    ),
    "Scan": (lambda n: mpi.scan(X, MPI.SUM), "(10 items)"),
    "Send": (lambda n: mpi.send(X, NULL, tag=3), f"-> {NULL} (tag 3, 10 items)"),
    "Recv": (lambda n: mpi.recv(X, NULL, tag=4), f"<- {NULL} (tag 4, 10 items)"),
    "Sendrecv": (
        lambda n: mpi.sendrecv(X, jnp.ones(7), NULL, NULL, sendtag=2),
        f"<- {NULL} (tag {ANY}, 7 items) / -> {NULL} (tag 2, 10 items)",
    ),
}


def scatter(size):
    x = jnp.ones((size, 10)) if MPI.COMM_WORLD.Get_rank() == 0 else X
    return mpi.scatter(x, 0)


def scatterv(size):
    x = jnp.ones(10 * size) if MPI.COMM_WORLD.Get_rank() == 0 else X
    return mpi.scatterv(x, [10] * size, 0)


def alltoallv(size):
    # Five rows of two elements stay where they are.
    rank = MPI.COMM_WORLD.Get_rank()
    counts = [5 if r == rank else 0 for r in range(size)]
    return mpi.alltoallv(jnp.ones((5, 2)), counts, counts)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", LINES)
def test_lines(name, jit, rank, size, capsys):
    call, details = LINES[name]
    set_logging(True)
    try:
        assert get_logging()
        (jax.jit(call, static_argnums=0) if jit else call)(size)
        jax.effects_barrier()
        mpi.barrier(comm=MPI.COMM_SELF)  # ordered behind the call
    finally:
        set_logging(False)
    first, second, *_ = capsys.readouterr().out.splitlines()
    details = "" if details is None else " " + re.escape(details)
    started = re.fullmatch(rf"r{rank} \| (\w{{8}}) \| MPI_{name}{details}", first)
    assert started, first
    assert re.fullmatch(
        rf"r{rank} \| {started[1]} \| MPI_{name} done with code 0 "
        r"\(\d\.\d\de[+-]\d\d+s\)",
        second,
    ), second


def test_silent_when_off(capsys):
    set_logging(False)
    mpi.allreduce(X, MPI.SUM).block_until_ready()
    assert capsys.readouterr().out == ""


def test_rank_is_that_of_the_communicator(rank, size, comm, capsys):
    backwards = comm.Split(0, -rank)
    set_logging(True)
    try:
        mpi.allreduce(X, MPI.SUM, comm=backwards).block_until_ready()
    finally:
        set_logging(False)
    assert capsys.readouterr().out.startswith(f"r{size - 1 - rank} | ")
    backwards.Free()
