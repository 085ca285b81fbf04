"""`mpi4jax.diagnostics.profile()`: what calls cost, and who waits for whom."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import _core, diagnostics
from mpi4jax import notoken as mpi
from mpi4jax._internal.mpi import binding
from mpi4jax._internal.traces.reader import ENTRY, NONE, CommunicatorInfo
from mpi4jax._internal.traces.waiting import wait_for_messages, wait_in_collectives
from mpi4jax._internal.xla import call_sites
from mpi4jax._internal.xla.call_sites import Envelope, Envelopes, relative_path

X = jnp.ones(3)
BYTES = 12


def test_a_helper_has_a_row_for_each_line_that_calls_it(size):
    def helper(x):
        return mpi.allreduce(x, MPI.MAX)

    @jax.jit
    def step(x):
        x = helper(x)
        return helper(helper(x))

    with diagnostics.profile(quiet=True) as profile:
        step(X)
    first = step.__wrapped__.__code__.co_firstlineno
    assert {row.line.rpartition(", from ")[2]: row.calls for row in profile.rows} == {
        f"{relative_path(__file__)}:{first + 2} in step": size,
        f"{relative_path(__file__)}:{first + 3} in step": 2 * size,
    }


def test_rows(comm, rank, size, capsys):
    right, left = (rank + 1) % size, (rank - 1) % size

    @jax.jit
    def step(x):
        x = mpi.allreduce(x, MPI.MAX)
        return jax.lax.fori_loop(0, 5, lambda i, x: mpi.sendrecv(x, x, left, right), x)

    jax.block_until_ready(step(X))
    with diagnostics.profile() as profile:
        for _ in range(2):
            step(X)
        mpi.bcast(X[:2], 0)
    step(X)  # is none of it

    first = step.__wrapped__.__code__.co_firstlineno
    file = relative_path(__file__)
    rows = {
        (row.operation, row.line.split(" (")[0]): (row.calls, row.bytes)
        for row in profile.rows
    }
    assert rows == {
        ("allreduce", f"{file}:{first + 2} in step"): (2 * size, 2 * size * BYTES),
        ("sendrecv", f"{file}:{first + 3} in <lambda>"): (
            10 * size,
            10 * size * BYTES,
        ),
        # Where there is nothing to send, what is received counts.
        ("bcast", ""): (size, size * 8),
    }
    expected = np.zeros((size, size), int)
    for sender in range(size):
        expected[sender, (sender + 1) % size] += 10 * BYTES
    assert (profile.traffic == expected).all()

    assert len(profile.seconds) == len(profile.waiting) == size
    assert (profile.seconds > 0).all()
    assert (profile.waiting <= profile.seconds).all()
    assert profile.seconds.sum() <= profile.elapsed * size
    # Rank 0 prints it.
    printed = capsys.readouterr().out
    assert printed == (f"{profile}\n" if rank == 0 else "")


def test_messages_of_an_exchange(rank, size):
    """Each counts, in the row and in the matrix: four floats forth, two ints back."""
    right, left = (rank + 1) % size, (rank - 1) % size
    last = rank == size - 1
    forth, back = jnp.ones(4), jnp.ones(2, jnp.int32)

    @jax.jit
    def step():
        return mpi.exchange(
            [(forth, back), forth],
            [forth, (forth, back)],
            [MPI.PROC_NULL if rank == 0 else left, right],
            [left, MPI.PROC_NULL if last else right],
            sendtag=[1, 2],
            recvtag=[2, 1],
        )

    jax.block_until_ready(step())
    with diagnostics.profile(quiet=True) as profile:
        jax.block_until_ready(step())
    (row,) = profile.rows
    assert row.operation == "exchange"
    assert row.bytes == size * 24 + (size - 1) * 16
    expected = np.zeros((size, size), int)
    for sender in range(size):
        expected[sender, (sender - 1) % size] += 24
        if sender < size - 1:
            expected[sender, sender + 1] += 16
    assert (profile.traffic == expected).all()


ROW = jnp.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "forth", "back"),
    [
        (lambda line: mpi.neighbor_allgather(X, comm=line), 12, 12),
        (lambda line: mpi.neighbor_alltoall(ROW, comm=line), 12, 12),
        (lambda line: mpi.neighbor_allgatherv(ROW, [2, 2], comm=line), 24, 24),
        # Two rows to the right, and one to the left.
        (
            lambda line: mpi.neighbor_alltoallv(
                jnp.ones((3, 3)), [1, 2], [2, 1], comm=line
            ),
            24,
            12,
        ),
        (
            lambda line: jax.vmap(lambda x: mpi.neighbor_alltoall(x, comm=line))(
                jnp.ones((5, 2, 3))
            ),
            60,
            60,
        ),
    ],
)
def test_messages_between_neighbors(call, forth, back, comm, rank, size):
    line = comm.Create_cart([size])
    with diagnostics.profile(quiet=True) as profile:
        jax.block_until_ready(call(line))
    expected = np.diag([forth] * (size - 1), 1) + np.diag([back] * (size - 1), -1)
    assert (profile.traffic == expected).all()
    line.Free()


def test_parts_of_the_processes(comm, rank, size):
    """Communicators that some processes have, under a number that differs."""
    if rank == 0:
        first = MPI.COMM_SELF.Dup()
        mpi.barrier(comm=first)
    halves = comm.Split(rank % 2, rank)
    with diagnostics.profile(quiet=True) as profile:
        mpi.allreduce(X, MPI.SUM, comm=halves)
        mpi.barrier(comm=MPI.COMM_SELF)
    rows = {row.operation: (row.calls, row.bytes) for row in profile.rows}
    assert rows == {"allreduce": (size, size * BYTES), "barrier": (size, 0)}
    halves.Free()
    if rank == 0:
        first.Free()


def test_profiles_within_each_other():
    with diagnostics.profile(quiet=True) as outer:
        mpi.barrier()
        with diagnostics.profile(quiet=True) as inner:
            mpi.allreduce(X, MPI.SUM)
        mpi.bcast(X, 0)
    assert {row.operation for row in inner.rows} == {"allreduce"}
    assert {row.operation for row in outer.rows} == {"barrier", "allreduce", "bcast"}


def test_nothing_happened(size):
    with diagnostics.profile(quiet=True) as profile:
        pass
    assert profile.rows == ()
    assert profile.seconds.tolist() == [0] * size


def test_a_profile_that_is_not_finished():
    with (
        diagnostics.profile(quiet=True) as profile,
        pytest.raises(RuntimeError, match="the `with` block is under way"),
    ):
        _ = profile.rows
    assert profile.elapsed > 0


def test_after_an_exception():
    with pytest.raises(KeyError), diagnostics.profile():
        raise KeyError
    with diagnostics.profile(quiet=True) as profile:
        mpi.barrier()
    assert [row.operation for row in profile.rows] == ["barrier"]


def recorded(comm, *calls):
    """Calls as the core writes them, of which each begins and ends at some time."""
    entries = np.zeros(len(calls), ENTRY)
    for name in ("root", "dest", "source"):
        entries[name] = NONE
    for entry, (operation, begin, end, fields) in zip(entries, calls, strict=True):
        entry["operation"] = binding.operations.index(operation)
        entry["begin"], entry["end"] = begin, end
        for name, value in fields.items():
            entry[name] = value
    members = tuple(range(comm.Get_size()))
    return entries, {0: CommunicatorInfo(0, members)}, comm


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        # All wait for the last one to begin.
        ("allreduce", lambda rank, size: (size - 1 - rank) * 100),
        # All that come earlier wait for the root, which is the last one.
        ("bcast", lambda rank, size: (size - 1 - rank) * 100),
        # The root needs all others, which don't need each other.
        ("reduce", lambda rank, size: 0),
    ],
)
def test_waiting_in_collective_calls(operation, expected, comm, rank, size):
    # Rank by rank, they begin 100 ns apart.
    call = operation, rank * 100, 10_000, {"sequence": 1, "root": size - 1}
    waiting = wait_in_collectives(*recorded(comm, call))
    assert waiting == expected(rank, size)


def test_waiting_ends_with_the_call(comm, rank, size):
    """Who is done before the last one begins has not waited for it to the end."""
    call = "allreduce", rank * 100, rank * 100 + 30, {"sequence": 1}
    waiting = wait_in_collectives(*recorded(comm, call))
    assert waiting == (30 if rank < size - 1 else 0)


def test_waiting_for_messages(comm, rank, size):
    """From the left, which sends later than this process receives, or earlier."""
    left, right = (rank - 1) % size, (rank + 1) % size
    calls = [
        ("recv", 100, 900, {"source": left, "recv_tag": 1}),
        ("send", 500, 600, {"dest": right, "send_tag": 1, "sent": 4, "sent_type": 11}),
        ("send", 700, 800, {"dest": right, "send_tag": 2, "sent": 1, "sent_type": 11}),
        ("recv", 950, 990, {"source": left, "recv_tag": 2}),
    ]
    waiting, traffic = wait_for_messages(*recorded(comm, *calls))
    assert waiting.tolist() == [400, 0, 0, 0]
    assert traffic[right] == traffic.sum() == 20


def ring_of(rank, size, monkeypatch):
    """The site of a call that swaps two messages with both neighbors."""
    left, right = (rank - 1) % size, (rank + 1) % size
    monkeypatch.setitem(
        call_sites._envelopes,
        SITE,
        Envelopes(
            (
                Envelope(left, 1, 100),
                Envelope(right, 2, 200),
                Envelope(MPI.PROC_NULL, 2, 999),
            ),
            (
                Envelope(right, 1, 100),
                Envelope(left, 2, 200),
                Envelope(MPI.PROC_NULL, 2, 999),
            ),
        ),
    )
    return left, right


SITE = 12345


@pytest.mark.parametrize("name", ["exchange", "neighbor_alltoall"])
def test_waiting_for_several_messages(name, comm, rank, size, monkeypatch):
    """For both neighbors: the one that begins last counts, and no other process."""
    left, right = ring_of(rank, size, monkeypatch)
    call = name, rank * 100, 10_000, {"call_site": SITE, "sequence": name != "exchange"}
    calls = recorded(comm, call)
    waiting, traffic = wait_for_messages(*calls)
    waiting += wait_in_collectives(*calls)
    assert waiting == max(100 * (max(left, right) - rank), 0)
    expected = np.zeros(size)
    expected[left] += 100
    expected[right] += 200
    assert (traffic == expected).all()


def test_neighbors_have_messages_of_their_own(comm, rank, size, monkeypatch):
    """Fails if a receive is taken to get what a call between neighbors has sent."""
    left, right = ring_of(rank, size, monkeypatch)
    calls = [
        ("neighbor_alltoall", 100, 900, {"call_site": SITE, "sequence": 1}),
        ("recv", 1000, 2000, {"source": right, "recv_tag": 1}),
        ("send", 1500, 1600, {"dest": left, "send_tag": 1}),
    ]
    waiting, _ = wait_for_messages(*recorded(comm, *calls))
    assert waiting.tolist() == [0, 500, 0]


@pytest.mark.parametrize(
    ("sent", "received", "expected"),
    [
        ([5, 6, 7], [-1, -1], [0, 1]),
        ([5], [-1, -1], [0, -1]),
        ([5, 6, 5], [5, 5, 6, 6], [0, 2, 1, -1]),
        ([5, 6, 5], [6, -1, 5], [1, 0, 2]),
        ([], [1, -1], [-1, -1]),
    ],
)
def test_which_message_a_receive_gets(sent, received, expected):
    assert _core.match_messages(sent, received) == expected
