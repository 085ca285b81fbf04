"""Owners and neighbors of distributed ids, against those that all ids together give.

A seed makes a partition, which a failure prints. More of them, here the seeds 100 to 599:

    TEST_SEEDS=100:600 mpiexec -n 3 python -P -m pytest \
        --rootdir tests/mpi tests/mpi/features/test_discovery.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI
from partitions import Partition
from sample import seeds

from mpi4jax import notoken as mpi
from mpi4jax._internal.unstructured import discovery, setup_messages
from mpi4jax._internal.unstructured.discovery import (
    from_global,
    from_neighbors,
    positions,
    renumbered,
)

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LAST = SIZE - 1

SEEDS = seeds(48)

several_ranks = pytest.mark.ranks(2)


class Reference:
    """Owners, neighbors and positions on each rank, from the ids of all ranks."""

    def __init__(self, all_ids, all_owned):
        owner_of = {}
        for rank, ids in enumerate(all_ids):
            for row, value in enumerate(ids):
                if all_owned[rank] is None:
                    owner_of.setdefault(value, (rank, row))
                elif all_owned[rank][row]:
                    assert value not in owner_of
                    owner_of[value] = rank, row
        self.owned = [
            [owner_of[value] == (rank, row) for row, value in enumerate(ids)]
            for rank, ids in enumerate(all_ids)
        ]
        #: For a rank and the owner of some ghosts of it: the rows here and there.
        self.received, self.sent = {}, {}
        for rank, ids in enumerate(all_ids):
            for row, value in enumerate(ids):
                owner, owner_row = owner_of[value]
                if not self.owned[rank][row]:
                    self.received.setdefault((rank, owner), []).append(row)
                    self.sent.setdefault((owner, rank), []).append(owner_row)
        sorted_ids = sorted(owner_of)
        self.positions = [
            [sorted_ids.index(value) for row, value in enumerate(ids) if owned[row]]
            for ids, owned in zip(all_ids, self.owned, strict=True)
        ]
        in_new_order = [
            value
            for ids, owned in zip(all_ids, self.owned, strict=True)
            for row, value in enumerate(ids)
            if owned[row]
        ]
        self.new_ids = [[in_new_order.index(value) for value in ids] for ids in all_ids]

    def check(self, neighborhood):
        pairs = self.received.keys() | self.sent.keys()
        ranks = sorted(other for rank, other in pairs if rank == RANK)
        assert list(neighborhood.ranks) == ranks
        assert all(type(rank) is int for rank in neighborhood.ranks)
        for lists, expected in (
            (neighborhood.sent, self.sent),
            (neighborhood.received, self.received),
        ):
            assert [rows.tolist() for rows in lists] == [
                expected.get((RANK, other), []) for other in ranks
            ]
            assert all(rows.dtype == np.int32 for rows in lists)
        assert neighborhood.size == len(self.owned[RANK])
        assert neighborhood.owned.dtype == bool
        assert neighborhood.owned.tolist() == self.owned[RANK]


def error_of(call):
    """The ValueError of a call, which is the same on all ranks."""
    with pytest.raises(ValueError, match="unstructured.Plan") as info:
        call()
    texts = COMM.allgather(str(info.value))
    assert texts == [texts[0]] * SIZE
    return texts[0]


def first_of(count):
    """What an error says if several ranks have one."""
    return f". {count} ranks have errors, of which this is the first" if count > 1 else ""


def on_rank(rank, value, default):
    return value if rank == RANK else default


@pytest.mark.parametrize("seed", SEEDS)
def test_random_partition(seed):
    partition = Partition(seed)
    print(partition.name)
    ids, owned = partition.arguments(RANK)
    neighborhood = from_global(ids, owned, COMM)
    all_ids = COMM.allgather(ids.tolist())
    reference = Reference(all_ids, COMM.allgather(owned))
    reference.check(neighborhood)
    is_large = max(map(max, filter(None, all_ids)), default=0) >= 2**63
    assert neighborhood.global_ids.dtype == (np.uint64 if is_large else np.int64)
    assert neighborhood.global_ids.tolist() == ids.tolist()
    in_order = positions(neighborhood, COMM)
    assert in_order.dtype == np.int64
    assert in_order.tolist() == reference.positions[RANK]
    new_ids = renumbered(neighborhood, COMM)
    assert new_ids.dtype == np.int64
    assert new_ids.tolist() == reference.new_ids[RANK]

    lists = zip(neighborhood.sent, neighborhood.received, strict=True)
    pairs = dict(zip(neighborhood.ranks, lists, strict=True))
    by_lists = from_neighbors(pairs, len(ids), COMM)
    reference.check(by_lists)
    assert by_lists.global_ids is None
    assert positions(by_lists, COMM).tolist() == new_ids[by_lists.owned].tolist()
    assert renumbered(by_lists, COMM).tolist() == new_ids.tolist()


@pytest.mark.parametrize("stride", [1, 1000, 1 << 16, 1 << 32, 1 << 45])
@pytest.mark.parametrize("count", [2, 7, 64])
def test_ids_are_spread_evenly(stride, count):
    homes = discovery._homes(np.arange(64_000, dtype=np.int64) * stride, count)
    counts = np.bincount(homes, minlength=count)
    assert len(counts) == count
    np.testing.assert_allclose(counts, 64_000 / count, rtol=0.15)


def test_lists_and_arrays_of_jax():
    ids, owned = jnp.arange(3) + 3 * RANK, jnp.ones(3, bool)
    for arguments in ((ids, owned), (ids.tolist(), owned.tolist()), (ids, None)):
        assert from_global(*arguments, COMM).owned.all()
    neighborhood = from_neighbors({RANK: (jnp.array([0, 0]), [2, 1])}, 3, COMM)
    assert neighborhood.ranks == (RANK,)
    assert neighborhood.owned.tolist() == [True, False, False]


def test_no_points():
    for neighborhood in (from_global([], [], COMM), from_neighbors({}, 0, COMM)):
        assert (neighborhood.ranks, neighborhood.size) == ((), 0)
        assert (
            len(renumbered(neighborhood, COMM)) == len(positions(neighborhood, COMM)) == 0
        )


def test_arrays_are_copied():
    ids, owned = np.arange(2) + 2 * RANK, np.ones(2, bool)
    neighborhood = from_global(ids, owned, COMM)
    rows = np.array([0], np.int32), np.array([1], np.int32)
    by_lists = from_neighbors({RANK: rows}, 2, COMM)
    for array in (ids, owned, *rows):
        array[...] = 0
    assert neighborhood.global_ids.tolist() == [2 * RANK, 2 * RANK + 1]
    assert neighborhood.owned.all()
    assert by_lists.received[0].tolist() == [1]


def test_neighbors_without_rows_are_none():
    nothing = ([], np.empty(0, int))
    assert from_neighbors({LAST: nothing, 0: nothing}, 3, COMM).ranks == ()


@pytest.mark.parametrize("is_sent_before", [True, False])
def test_messages_meet_no_others(is_sent_before):
    """On the communicator itself, messages here and there would be taken for each other."""

    def find():
        neighborhood = from_global(np.arange(SIZE), np.arange(SIZE) == RANK, COMM)
        from_neighbors({other: ([0], [other + 1]) for other in range(SIZE)}, 7, COMM)
        renumbered(neighborhood, COMM)

    def send():
        return COMM.Isend(np.array([RANK], np.int32), (RANK + 1) % SIZE)

    def receive():
        return COMM.Irecv(received, MPI.ANY_SOURCE, MPI.ANY_TAG)

    received = np.zeros(1, np.int32)
    begin, end = (send, receive) if is_sent_before else (receive, send)
    first = begin()
    find()
    MPI.Request.Waitall([first, end()])
    assert received[0] == (RANK - 1) % SIZE


def test_duplicates_of_the_communicator_are_freed():
    alive = []

    def copy(comm, keyval, value):
        alive.append(1)
        return value

    def delete(comm, keyval, value):
        alive.pop()

    comm = COMM.Dup()
    keyval = MPI.Comm.Create_keyval(copy, delete)
    comm.Set_attr(keyval, "copied")
    alive.append(1)
    neighborhood = from_global([RANK], None, comm)
    renumbered(neighborhood, comm)
    positions(neighborhood, comm)
    error_of(lambda: from_global(["x"], None, comm))
    error_of(lambda: from_neighbors({-1: ([], [])}, 2, comm))
    assert len(alive) == 1
    comm.Free()
    assert not alive
    MPI.Comm.Free_keyval(keyval)


def test_programs_in_flight_and_traces():
    """A program that still runs uses the communicator as well, in another thread."""

    def step(_, x):
        # XLA runs a program in a thread of its own if it computes enough.
        return mpi.allreduce(x @ jnp.eye(200), op=MPI.SUM, comm=COMM) / SIZE

    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 50, step, x))

    @jax.jit
    def sizes(x):
        return x + len(from_global([RANK, SIZE], None, COMM).ranks)

    x = loop(jnp.ones((200, 200))).block_until_ready()
    COMM.Barrier()
    in_flight = [loop(x)]
    neighborhood = from_global([RANK, SIZE], None, COMM)
    in_flight += [loop(x)]
    assert sizes(0.0) == len(neighborhood.ranks)
    expected = list(range(1, SIZE)) if RANK == 0 else [0]
    assert list(neighborhood.ranks) == (expected if SIZE > 1 else [])
    assert all((x == 1).all() for x in in_flight)


# Errors of ids.

GLOBAL = "unstructured.Plan.from_global got"


@several_ranks
def test_an_id_with_two_owners():
    ids = [10 + RANK, on_rank(LAST, 10, 20 + RANK)]
    assert error_of(lambda: from_global(ids, [True, True], COMM)) == (
        f"{GLOBAL} global id 10 as owned by rank 0 (row 0) and by rank {LAST} (row 1), "
        f"expected one owner of each id{first_of(2)}"
    )


def test_an_id_that_is_owned_twice():
    ids = [RANK, on_rank(LAST, LAST, 50 + RANK), 100]
    assert error_of(lambda: from_global(ids, [True, True, RANK == 0], COMM)) == (
        f"{GLOBAL} global id {LAST} twice as owned by rank {LAST}, in rows 0 and 1, "
        "expected one owned row of each id"
    )


def test_an_id_without_an_owner():
    ids = np.array([RANK, on_rank(LAST, 2**63, 0)], np.uint64)
    assert error_of(lambda: from_global(ids, [True, False], COMM)) == (
        f"{GLOBAL} global id {2**63} in row 1 of rank {LAST}, which no rank owns, expected "
        "one owner of each id"
    )


def test_many_wrong_ids():
    """Of the lowest rank, the lowest id, wherever they are looked up."""
    ids = np.arange(100)[::-1] - 7
    assert error_of(lambda: from_global(ids, np.zeros(100, bool), COMM)) == (
        f"{GLOBAL} global id -7 in row 99 of rank 0, which no rank owns, expected one "
        f"owner of each id{first_of(SIZE)}"
    )
    if SIZE > 1:
        assert error_of(lambda: from_global(ids, np.ones(100, bool), COMM)) == (
            f"{GLOBAL} global id -7 as owned by rank 0 (row 99) and by rank 1 (row 99), "
            f"expected one owner of each id{first_of(SIZE)}"
        )


@pytest.mark.parametrize(
    ("ids", "in_words"),
    [
        ([0.5], "an array of type float64 and shape (1,)"),
        ([True], "an array of type bool and shape (1,)"),
        ([[1]], "an array of type int64 and shape (1, 1)"),
        (3, "3"),
        ("x", "'x'"),
        (None, "None"),
        ([[1], [1, 2]], "[[1], [1, 2]]"),
        ([2**64], "an array of type object and shape (1,)"),
    ],
)
def test_ids_of_a_wrong_type(ids, in_words):
    """On one rank: the others would wait for it."""
    assert error_of(lambda: from_global(on_rank(LAST, ids, [RANK]), None, COMM)) == (
        f"{GLOBAL} {in_words} for argument `global_ids` on rank {LAST}, expected an array "
        "of integers with one dimension"
    )


@pytest.mark.parametrize(
    ("owned", "in_words"),
    [
        ([1, 1], "an array of type int64 and shape (2,)"),
        ([True], "an array of type bool and shape (1,)"),
        ([[True], [True]], "an array of type bool and shape (2, 1)"),
        (True, "True"),
    ],
)
def test_masks_of_a_wrong_type(owned, in_words):
    ids = [2 * RANK, 2 * RANK + 1]
    owned = on_rank(LAST, owned, [True, True])
    assert error_of(lambda: from_global(ids, owned, COMM)) == (
        f"{GLOBAL} {in_words} for argument `owned` on rank {LAST}, expected a boolean for "
        "each of the 2 ids, or None"
    )


@several_ranks
def test_a_mask_on_some_ranks():
    owned = on_rank(LAST, [True], None)
    assert error_of(lambda: from_global([RANK], owned, COMM)) == (
        f"{GLOBAL} a mask for argument `owned` on rank {LAST} and None on rank 0, expected "
        "a mask on all ranks or on none"
    )
    owned = on_rank(LAST, None, [True])
    assert error_of(lambda: from_global([RANK], owned, COMM)) == (
        f"{GLOBAL} None for argument `owned` on rank {LAST} and a mask on rank 0, expected "
        "a mask on all ranks or on none"
    )


@several_ranks
def test_ids_of_no_common_type():
    ids = on_rank(LAST, [2**63], [-3])
    assert error_of(lambda: from_global(ids, None, COMM)) == (
        f"{GLOBAL} global ids from -3 on, and {2**63} on rank {LAST}, expected ids that "
        "fit in one type of 64 bits"
    )


def test_too_many_ids(monkeypatch):
    monkeypatch.setattr(discovery, "MAX_COUNT", 3)
    assert error_of(lambda: from_global([RANK] * on_rank(LAST, 4, 1), None, COMM)) == (
        f"{GLOBAL} 4 integers for argument `global_ids` on rank {LAST}, expected at most 3"
    )
    monkeypatch.setattr(setup_messages, "MAX_COUNT", 2 * SIZE)
    assert error_of(lambda: from_global([5] * 3, None, COMM)) == (
        f"unstructured.Plan would send {3 * SIZE} ids to one rank, expected at most "
        f"{2 * SIZE}. Divide them among more ranks"
    )


# Errors of lists.

NEIGHBORS = "unstructured.Plan.from_neighbors got"
ENTRY = "expected a pair: the rows to send to it, and the rows to receive from it"


@pytest.mark.parametrize(
    ("neighbors", "size", "text"),
    [
        ([], 2, "[] for argument `neighbors` on rank {0}, expected a mapping of ranks to "),
        (
            {},
            -1,
            "-1 for argument `size` on rank {0}, expected a number of rows from 0 to ",
        ),
        ({}, 2.0, "2.0 for argument `size` on rank {0}, expected a number of rows from 0 "),
        (
            {},
            2**31,
            "2147483648 for argument `size` on rank {0}, expected a number of rows",
        ),
        ({-1: ([], [])}, 2, "neighbor -1 on rank {0}, expected a rank from 0 to {0}"),
        ({99: ([], [])}, 2, "neighbor 99 on rank {0}, expected a rank from 0 to {0}"),
        ({"0": ([], [])}, 2, "neighbor '0' on rank {0}, expected a rank from 0 to {0}"),
        ({0: [1]}, 2, f"[1] for neighbor 0 on rank {{0}}, {ENTRY}"),
        ({0: 3}, 2, f"3 for neighbor 0 on rank {{0}}, {ENTRY}"),
        (
            {0: ([0.5], [])},
            2,
            "an array of type float64 and shape (1,) for the rows to send to rank 0 on "
            "rank {0}, expected an array of integers with one dimension",
        ),
        (
            {0: ([], [1, 2, 3])},
            2,
            "row 2 on rank {0} to receive from rank 0, expected rows from 0 to 1, as "
            "`size` is 2",
        ),
        (
            {0: ([-1], [1])},
            2,
            "row -1 on rank {0} to send to rank 0, expected rows from 0 ",
        ),
        (
            {0: ([0, 0], [1, 1])},
            2,
            "row 1 on rank {0} to receive from rank 0 twice, expected one source of each "
            "row",
        ),
        (
            {0: ([0, 1], [2, 1])},
            3,
            "row 1 on rank {0} to send to rank 0 and to receive from rank 0, expected "
            "owned rows to send: rows that are received would be sent as they were before",
        ),
    ],
)
def test_wrong_lists(neighbors, size, text):
    """On one rank, before any counts are compared."""
    arguments = on_rank(LAST, (neighbors, size), ({}, 0))
    error = error_of(lambda: from_neighbors(*arguments, COMM))
    assert error.startswith(f"{NEIGHBORS} {text.format(LAST)}")
    assert "first" not in error


@several_ranks
def test_a_row_of_two_neighbors():
    neighbors = on_rank(LAST, {0: ([], [0, 2]), LAST: ([1], [2])}, {})
    assert error_of(lambda: from_neighbors(neighbors, 3, COMM)) == (
        f"{NEIGHBORS} row 2 on rank {LAST} to receive from ranks 0 and {LAST}, expected "
        "one source of each row"
    )
    neighbors = on_rank(LAST, {0: ([], [2]), LAST: ([2], [1])}, {})
    assert error_of(lambda: from_neighbors(neighbors, 3, COMM)) == (
        f"{NEIGHBORS} row 2 on rank {LAST} to send to rank {LAST} and to receive from rank "
        "0, expected owned rows to send: rows that are received would be sent as they were "
        "before"
    )


def rows(count):
    return f"{count} row{'s' * (count != 1)}" if count else "no rows"


@several_ranks
@pytest.mark.parametrize(
    ("first", "last"),
    [
        ((2, 0), (0, 1)),
        ((1, 2), (2, 3)),
        ((0, 1), (2, 0)),
        ((1, 0), (0, 0)),
        ((0, 0), (0, 2)),
        ((3, 0), None),
        (None, (0, 2)),
        (None, (1, 0)),
    ],
)
def test_lists_that_differ(first, last):
    """Lists of two ranks: how many rows they send and receive, or None without an entry."""

    def neighbors():
        counts = {0: first, LAST: last}.get(RANK)
        if counts is None:
            return {}
        sent, received = counts
        return {LAST - RANK: (np.zeros(sent, int), 1 + np.arange(received))}

    (sent, received), (others_sent, others_received) = first or (0, 0), last or (0, 0)
    if sent != others_received:
        ways, count, expected = ("send to", "receive from"), sent, others_received
    else:
        ways, count, expected = ("receive from", "send to"), received, others_sent
    said = f"{rows(expected)} to {ways[1]} rank 0" if last else "no entry for rank 0"
    assert error_of(lambda: from_neighbors(neighbors(), 9, COMM)) == (
        f"{NEIGHBORS} {rows(count)} on rank 0 to {ways[0]} rank {LAST}, expected "
        f"{expected or 'none'}, as rank {LAST} got {said}{first_of(2)}"
    )


def test_a_process_that_sends_itself_other_rows():
    neighbors = on_rank(LAST, {LAST: ([0, 0], [1])}, {})
    assert error_of(lambda: from_neighbors(neighbors, 2, COMM)) == (
        f"{NEIGHBORS} 2 rows on rank {LAST} to send to rank {LAST}, expected 1, as rank "
        f"{LAST} got 1 row to receive from rank {LAST}"
    )


@several_ranks
def test_many_wrong_lists():
    """Nobody expects what the next rank sends."""
    neighbors = {(RANK + 1) % SIZE: ([0], [])}
    error = error_of(lambda: from_neighbors(neighbors, 2, COMM))
    assert error.startswith(
        f"{NEIGHBORS} 1 row on rank 0 to send to rank 1, expected none, "
    )
    assert error.endswith(first_of(SIZE))
