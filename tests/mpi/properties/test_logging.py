"""The debug lines of every operation, through sys.stdout."""

import re

import jax
import jax.numpy as jnp
import pytest
from every import every_operation
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._core import get_logging
from mpi4jax._internal.operations._alone import set_logging

X = jnp.ones(10)
NULL = MPI.PROC_NULL
ANY = MPI.ANY_TAG
MODES = pytest.mark.parametrize("mode", [lambda f: f, jax.jit], ids=["eager", "jit"])


def check_lines(lines, expected, rank):
    """Compare the lines with what each call prints: a function and its details."""
    assert len(lines) == 2 * len(expected), lines
    for first, second, (name, details) in zip(
        lines[::2], lines[1::2], expected, strict=True
    ):
        details = f" {re.escape(details)}" if details else ""
        started = re.fullmatch(rf"r{rank} \| (\w{{8}}) \| MPI_{name}{details}", first)
        assert started, first
        assert re.fullmatch(
            rf"r{rank} \| {started[1]} \| MPI_{name} done with code 0 "
            r"\(\d\.\d\de[+-]\d\d+s\)",
            second,
        ), second


@MODES
@every_operation
def test_lines(case, mode, log_of):
    for block in ((5, 2), (0,)):
        x = jnp.ones(case.shape(block))
        result, lines = log_of(mode(case.call), x)
        check_lines(lines, case.log(x.size, result.size).items(), case.rank)


@MODES
@pytest.mark.parametrize(
    ("call", "name", "details"),
    [
        (lambda x: mpi.send(x, NULL, tag=3), "Send", f"-> {NULL} (tag 3, 10 items)"),
        (lambda x: mpi.recv(x, NULL, tag=4), "Recv", f"<- {NULL} (tag 4, 10 items)"),
        (
            lambda x: mpi.sendrecv(x, jnp.ones(7), NULL, NULL, sendtag=2),
            "Sendrecv",
            f"<- {NULL} (tag {ANY}, 7 items) / -> {NULL} (tag 2, 10 items)",
        ),
    ],
    ids=["send", "recv", "sendrecv"],
)
def test_lines_of_messages_to_nobody(call, name, details, mode, rank, log_of):
    _, lines = log_of(mode(call), X)
    check_lines(lines, [(name, details)], rank)


def test_silent_when_off(capsys):
    for on in (True, False):
        set_logging(on)
        assert get_logging() == on
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
