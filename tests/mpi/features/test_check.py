"""MPI4JAX_CHECK: calls that do not fit are an error before MPI is called.

The check is turned on here within the process, and its errors raise. So what follows an
error shows that everybody is still in step.
"""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every import every_case, every_operation_that
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._internal.environment import settings
from mpi4jax._internal.operations import _calls
from mpi4jax._internal.xla.call_sites import relative_path

X = jnp.ones(3)
FILE = relative_path(__file__)


pytestmark = pytest.mark.usefixtures("compare_calls")


def report_of(function, *args, **kwargs):
    """The lines that an error says."""
    with pytest.raises(Exception, match="MPI4JAX_CHECK") as error:
        jax.block_until_ready(function(*args, **kwargs))
    # On GPUs, XLA adds the program's name.
    text = re.sub(r" \[executable_name='\w*'\]$", "", str(error.value))
    return [line.strip() for line in text.splitlines()]


def assert_in_step(size):
    assert mpi.allreduce(jnp.float32(1), MPI.SUM) == size


@every_case
@pytest.mark.parametrize("mode", [lambda function: function, jax.jit], ids=["eager", "jit"])
def test_what_fits_is_as_without(mode, case):
    xs = case.arrays(lambda rank, shape: np.full(shape, rank + 2, np.float32), (3,))
    for _ in range(2):
        result = mode(case.call)(jnp.asarray(xs[case.rank]))
        np.testing.assert_array_equal(result, case.result(xs))


@every_operation_that(lambda case: case.operations not in {("barrier",), ("send", "recv")})
@pytest.mark.ranks(2)
def test_every_operation_with_other_types(case, rank, size):
    dtype = jnp.int32 if rank == 0 else jnp.float32
    call = jax.jit(case.call)
    x = jnp.ones(case.shape((3,)), dtype)
    if case.operations == ("sendrecv",) and rank > 1:
        # Its neighbours have the same type.
        jax.block_until_ready(call(x))
    else:
        report = report_of(call, x)
        assert any("int32" in line for line in report)
        assert any("float32" in line for line in report)
    assert_in_step(size)


@pytest.mark.ranks(2)
def test_the_report(rank, size):
    dtype = jnp.int32 if rank == 0 else jnp.float32

    @jax.jit
    def total(x):
        return mpi.allreduce(x, MPI.SUM)

    line = f"{FILE}:{total.__wrapped__.__code__.co_firstlineno + 2} in total"
    first, *rows, finding = report_of(total, jnp.ones(4, dtype))
    assert first.endswith("mpi4jax: a call that does not fit on all ranks (MPI4JAX_CHECK)")
    others = (
        "rank  1  " if size == 2 else f"ranks 1-{size - 1}" if size > 3 else "ranks 1, 2"
    )
    for row, ranks, name in zip(
        rows, ["rank  0", others], ["int32[4]", "float32[4]"], strict=True
    ):
        assert row.startswith(ranks.strip())
        assert f"(SUM, {name}) on COMM_WORLD" in row
        assert row.endswith(line)
    assert finding.endswith("they gave different types (int32 and float32).")


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("call", "finding"),
    [
        (
            lambda x, rank: mpi.bcast(x, 0) if rank else mpi.allreduce(x, MPI.SUM),
            "they called different operations.",
        ),
        (
            lambda x, rank: mpi.barrier() if rank else mpi.bcast(x, 0),
            "different operations.",
        ),
        (lambda x, rank: mpi.bcast(x, min(rank, 1)), "different roots (0 and 1)."),
        (
            lambda x, rank: mpi.allreduce(x, MPI.MAX if rank else MPI.SUM),
            "different operators (SUM and MAX).",
        ),
        (
            lambda x, rank: mpi.allreduce(x[min(rank, 1) :], MPI.SUM),
            "different sizes (4 and 3).",
        ),
        (
            lambda x, rank: mpi.bcast(x[min(rank, 1) :], 0),
            "different sizes (4 and 3).",
        ),
    ],
    ids=["operation", "barrier", "root", "operator", "size", "bcast"],
)
def test_what_is_compared(call, finding, rank, size):
    def jitted(x):
        result = call(x, rank)
        return x if result is None else result

    assert report_of(jax.jit(jitted), jnp.ones(4))[-1].endswith(finding)
    assert_in_step(size)


@pytest.mark.ranks(2)
def test_counts(rank, size):
    counts = [1] * size
    if rank == 0:
        counts[1] = 2
    report = report_of(lambda: mpi.allgatherv(jnp.ones((1, 2)), counts))
    assert report[-1].endswith("they gave different counts.")
    assert_in_step(size)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "call",
    [
        lambda x, ones: mpi.allgatherv(x, ones),
        lambda x, ones: mpi.gatherv(x, ones, root=0),
        lambda x, ones: mpi.reduce_scatterv(jnp.tile(x, (len(ones), 1)), MPI.SUM, ones),
        lambda x, ones: mpi.scatterv(
            # Only root, which is told by its row, has those of all.
            jnp.tile(x, (len(ones) if x.shape[1] == 3 else 1, 1)),
            ones,
            root=0,
        ),
    ],
    ids=["allgatherv", "gatherv", "reduce_scatterv", "scatterv"],
)
def test_rows(call, rank, size):
    x = jnp.ones((1, 3 if rank == 0 else 4))
    report = report_of(call, x, [1] * size)
    assert "rank 0 has rows of 3 elements and" in report[-1] or "sizes" in report[-1]
    assert_in_step(size)


@pytest.mark.ranks(2)
def test_what_is_sent_to_each(rank, size):
    sent = [2] * size
    expected = [2] * size
    if rank == 1:
        expected[0] = 1
    report = report_of(lambda: mpi.alltoallv(jnp.ones((2 * size, 3)), sent, expected))
    assert report[-1] == "rank 0 sends 6 elements to rank 1, which expects 3."
    assert_in_step(size)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("source", [0, MPI.ANY_SOURCE], ids=["source", "any"])
@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        (np.ones(4, np.int32), np.ones(4, np.float32)),
        (np.ones(2, np.float32), np.ones(4, np.float32)),
        (np.ones(4, np.float32), np.ones(2, np.float32)),
        (np.ones(300, np.float32), np.ones(0, np.float32)),
    ],
    ids=["type", "short", "long", "empty"],
)
def test_a_message_that_does_not_fit(sent, wanted, source, rank, size):
    if rank == 0:
        mpi.send(sent, 1, tag=7)
        mpi.send(jnp.arange(3), 1, tag=7)
    if rank == 1:
        report = report_of(lambda: mpi.recv(wanted, source, tag=7))
        sender = f"rank  0   sends {sent.dtype}[{sent.size}] to 1 with tag 7 on COMM_WORLD"
        assert report[1].startswith(sender)
        assert report[-1] == (
            f"rank 0 sends {sent.dtype}[{sent.size}], "
            f"where rank 1 receives {wanted.dtype}[{wanted.size}]."
        )
        # The message behind it is not taken for it.
        assert mpi.recv(jnp.arange(3), source, tag=7).tolist() == [0, 1, 2]
    assert_in_step(size)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("jit", [lambda function: function, jax.jit], ids=["eager", "jit"])
def test_a_shorter_message_where_the_status_says_so(jit, rank, size):
    if rank == 0:
        jit(lambda x: mpi.send(x, 1))(jnp.arange(3.0))
    if rank == 1:
        status = MPI.Status()
        result = jit(lambda x: mpi.recv(x, 0, status=status))(jnp.zeros(5))
        assert result[:3].tolist() == [0, 1, 2]
        assert status.Get_count(MPI.FLOAT) == 3
    assert_in_step(size)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("in_place", [False, True])
def test_both_directions(in_place, rank, size):
    """Refused on both sides, of which neither waits for the other."""
    if rank < 2:
        other = 1 - rank
        x = jnp.ones(4, jnp.int32 if rank else jnp.float32)
        report = report_of(
            jax.jit(lambda x: mpi.sendrecv(x, x if in_place else x + 1, other, other)), x
        )
        assert len(report) == 4
        assert_fits = jax.jit(lambda x: mpi.sendrecv(x, x, other, other))
        assert assert_fits(jnp.float32(rank)) == other
    assert_in_step(size)


@pytest.mark.ranks(2)
def test_a_message_of_somebody_else(rank, size, comm):
    copy = comm.Dup()
    mpi.barrier(comm=copy)  # Everybody has a number for it.
    if rank == 0:
        copy.Send(np.ones(2, np.float32), 1)
    if rank == 1:
        report = report_of(lambda: mpi.recv(jnp.ones(2), 0, comm=copy))
        assert report[-1].startswith(
            "the message from rank 0 with tag 0 was not sent by mpi4jax"
        )
    assert_in_step(size)
    copy.Free()


@pytest.mark.ranks(2)
def test_communicators_with_other_numbers(rank, size, comm):
    """Numbers go by first use, which may differ, and say nothing about the calls."""
    first, second = comm.Dup(), comm.Dup()
    for duplicate in (first, second) if rank == 0 else (second, first):
        # Only sends to itself.
        mpi.sendrecv(jnp.ones(1), jnp.ones(1), rank, rank, comm=duplicate)
    for duplicate in (first, second):
        assert mpi.allreduce(jnp.float32(1), MPI.SUM, comm=duplicate) == size
        op = MPI.MAX if rank else MPI.SUM
        report = report_of(
            jax.jit(lambda x, c=duplicate, op=op: mpi.allreduce(x, op, comm=c)), 1.0
        )
        assert report[-1].endswith("they gave different operators (SUM and MAX).")
    first.Free()
    second.Free()


@pytest.mark.ranks(2)
def test_operators_of_users_count_as_equal(rank, size):
    def first(a, b, datatype):
        b[:] = a

    ops = [MPI.Op.Create(first) for _ in range(2)]
    if rank == 0:
        mpi.allreduce(jnp.ones(1), ops[1], comm=MPI.COMM_SELF)
    mpi.allreduce(jnp.ones(1), ops[0])
    assert_in_step(size)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("ours", "theirs", "finding"),
    [
        (
            np.ones((2, 4), np.int32),
            np.ones((2, 4), np.float32),
            "rank 0 sends int32[4] to rank 1, which expects float32[4].",
        ),
        (
            np.ones((2, 4), np.float32),
            np.ones((2, 5), np.float32),
            "rank 0 sends float32[4] to rank 1, which expects float32[5].",
        ),
    ],
    ids=["types", "sizes"],
)
def test_neighbors(ours, theirs, finding, rank, size, comm):
    """Ranks have to agree with their neighbors: here, on a ring."""
    ring = comm.Create_cart([size], periods=[True])
    report = report_of(mpi.neighbor_alltoall, ours if rank == 0 else theirs, comm=ring)
    assert finding in report
    assert mpi.neighbor_alltoall(jnp.ones((2, 1)), comm=ring).tolist() == [[1], [1]]
    ring.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("jit", [lambda function: function, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"a": X, "b": X}, {"a": X, "c": X}),
        ({"a": X}, {}),
        ([X, X[:2]], [X[:2], X]),
        ([X], [jnp.arange(3)]),
    ],
    ids=["names", "nothing", "shapes", "types"],
)
def test_trees(ours, theirs, jit, monkeypatch, rank, size):
    monkeypatch.setattr(_calls, "settings", settings._replace(check=True))
    mine = ours if rank == 0 else theirs
    for function in (
        lambda tree: mpi.tree.allreduce(tree, MPI.SUM),
        lambda tree: mpi.tree.bcast(tree, 0),
    ):
        report = report_of(jit(function), mine)
        assert "they are about to pass trees that differ in their structure" in report[-1]
    assert mpi.tree.allreduce({"a": 1.0, "b": X}, MPI.SUM)["a"] == size


def test_trees_that_fit(monkeypatch, rank, size):
    monkeypatch.setattr(_calls, "settings", settings._replace(check=True))
    tree = {"a": X, "b": [jnp.float32(2)]}
    scattered = jax.tree.map(lambda x: jnp.stack([x] * size), tree) if rank == 0 else tree
    result = mpi.tree.scatter(scattered, 0)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, result, tree))
    result = mpi.tree.sendrecv(tree, tree, rank, rank)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, result, tree))


@pytest.mark.skipif(
    MPI.get_vendor()[0] != "MPICH", reason="has room for more communicators"
)
def test_no_room_for_the_communicator_of_the_check(size):
    """It is an error of the call, with MPI's text, and the next call finds room."""
    if size == 1:
        pytest.skip("nothing is compared")
    comm = MPI.COMM_WORLD.Dup()
    others = []
    with contextlib.suppress(MPI.Exception):
        while True:
            others.append(MPI.COMM_WORLD.Dup())
    with pytest.raises(Exception, match=r"(?s)MPI_Comm_split returned .*Too many comm"):
        jax.block_until_ready(mpi.allreduce(X, MPI.SUM, comm=comm))
    for other in others:
        other.Free()
    np.testing.assert_array_equal(mpi.allreduce(X, MPI.SUM, comm=comm), size * np.ones(3))
    comm.Free()
