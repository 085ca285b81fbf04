"""The neighbors of a process in a mesh that is divided among processes, found collectively.

Ids are looked up in a distributed directory: each id has a home, a process given by a hash
of the id, to which all processes that have the id send it. There they are sorted, which
finds owners. Whoever has a ghost gets the rank of its owner and the row there, sorts its
ghosts by owner, and sends the rows to the owners, which do not know of it before. So all
arrays are as long as the rows of a process, or as its share of all rows in the directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from ..arguments.checks import describe
from ..arguments.types import Unchecked
from . import setup_messages
from .setup_messages import MAX_COUNT, Integers, Mask, Problem, Routes, agree, private

FROM_GLOBAL = "unstructured.Plan.from_global"
FROM_NEIGHBORS = "unstructured.Plan.from_neighbors"

#: Number of ids that a process proposes as ends of the parts of a distributed sort.
_SAMPLES = 64


@dataclass(frozen=True, eq=False)
class Neighborhood:
    """The rows that a process sends to each neighbor, and receives from it."""

    #: The number of rows.
    size: int
    #: The neighbors, ascending. This process is one if it has an id in several rows.
    ranks: tuple[int, ...]
    #: For each neighbor, the rows that it gets, in the order in which it receives them.
    sent: tuple[Integers, ...]
    #: For each neighbor, the rows (ghosts) that come from it.
    received: tuple[Integers, ...]
    #: Whether this process owns a row.
    owned: Mask
    #: Number of rows that each process owns.
    counts: tuple[int, ...]
    #: The ids, int64, or uint64 if one of any process is above the range of int64.
    global_ids: Integers | None


def from_global(
    global_ids: Unchecked, owned: Unchecked, comm: MPI.Intracomm
) -> Neighborhood:
    """The neighborhood of processes that know the ids of their rows.

    Arguments:
        global_ids: The ids of the rows of this process, integers in any order.
        owned: Whether this process owns a row. Without it (None on all processes), the
            lowest rank that has an id owns it, in its first row.
        comm: The communicator, whose processes call this together.

    """
    with private(FROM_GLOBAL, comm) as comm:
        ids, is_owned = _checked_points(comm, global_ids, owned)
        rows = np.arange(len(ids), dtype=np.int32)
        homes = _homes(ids, comm.Get_size())
        to_home = Routes(comm, rows, homes)
        # What is not owned is a negative number.
        signed_rows = rows if is_owned is None else np.where(is_owned, rows, ~rows)
        directory = _Directory(
            to_home, to_home.send(ids), to_home.send(signed_rows), elects=is_owned is None
        )
        agree(comm, directory.problem)
        if is_owned is None:
            is_owned = np.empty(len(ids), np.bool_)
            is_owned[to_home.rows] = to_home.answer(directory.owns())
        ghosts = rows[~is_owned]
        to_ask = Routes(comm, ghosts, homes[~is_owned])
        owners, owner_rows = map(to_ask.answer, directory.owners_of_others())
        order = np.lexsort((to_ask.rows, owners))
        ranks, begins = np.unique(owners[order], return_index=True)

        def by_rank(values: Integers) -> dict[int, Integers]:
            parts = np.split(values[order], begins[1:])
            return dict(zip(ranks.tolist(), parts, strict=False))

        received = by_rank(to_ask.rows)
        sent = setup_messages.send_sparsely(comm, by_rank(owner_rows))
        return _neighborhood(comm, len(ids), sent, received, is_owned, ids)


def from_neighbors(
    neighbors: Unchecked, size: Unchecked, comm: MPI.Intracomm
) -> Neighborhood:
    """The neighborhood of processes that know their neighbors, once they agree.

    Arguments:
        neighbors: For the rank of each neighbor, the rows that are sent to it and those
            that are received from it.
        size: The number of rows of this process.
        comm: The communicator, whose processes call this together.

    """
    with private(FROM_NEIGHBORS, comm) as comm:
        rank = comm.Get_rank()
        problem = None
        try:
            lists = _Lists(neighbors, size, rank, comm.Get_size())
        except ValueError as error:
            problem = _own_problem(comm, str(error))
        agree(comm, problem)
        counts = {
            other: np.array([len(rows) for rows in pair], np.int32)
            for other, pair in lists.pairs.items()
        }
        others_counts = setup_messages.send_sparsely(comm, counts)
        for other in sorted(counts.keys() | others_counts.keys()):
            text = _difference(rank, other, counts.get(other), others_counts.get(other))
            if text:
                problem = _own_problem(comm, text)
                break
        agree(comm, problem)
        sent = {other: pair[0] for other, pair in lists.pairs.items() if len(pair[0])}
        received = {other: pair[1] for other, pair in lists.pairs.items() if len(pair[1])}
        owned = ~lists.is_received
        return _neighborhood(comm, lists.size, sent, received, owned, None)


def renumbered(neighborhood: Neighborhood, comm: MPI.Intracomm) -> Integers:
    """New ids of all rows, int64: from 0, by the owner's rank and its order of rows."""
    owned = neighborhood.owned
    with private("unstructured.Plan.renumber", comm) as comm:
        count = int(np.count_nonzero(owned))
        new_ids = np.empty(neighborhood.size, np.int64)
        new_ids[owned] = _offset(comm, count) + np.arange(count)
        setup_messages.update(
            comm, neighborhood.ranks, neighborhood.sent, neighborhood.received, new_ids
        )
        return new_ids


def positions(neighborhood: Neighborhood, comm: MPI.Intracomm) -> Integers:
    """The position of each owned row in a whole field, int64.

    A whole field is in the order of ids, or without them, of ranks and their rows. Ids are
    sorted among all processes, each of which has a range of them.
    """
    owned = neighborhood.owned
    with private("unstructured.Plan.gather", comm) as comm:
        if neighborhood.global_ids is None:
            count = int(np.count_nonzero(owned))
            return _offset(comm, count) + np.arange(count)
        ids = neighborhood.global_ids[owned]
        sample = ids[:: max(1, len(ids) // _SAMPLES)]
        samples = np.sort(np.concatenate(comm.allgather(sample)))
        size = comm.Get_size()
        ends = samples[np.arange(1, size) * len(samples) // size] if len(samples) else ids
        targets = _compact(np.searchsorted(ends, ids, side="right"), size)
        routes = Routes(comm, np.arange(len(ids), dtype=np.int32), targets)
        values = routes.send(ids)
        places = np.empty(len(values), np.int64)
        places[np.argsort(values, kind="stable")] = _offset(comm, len(values)) + np.arange(
            len(values)
        )
        result = np.empty(len(ids), np.int64)
        result[routes.rows] = routes.answer(places)
        return result


def _offset(comm: MPI.Intracomm, count: int) -> int:
    """The sum of the counts of lower ranks."""
    return comm.exscan(count) or 0  # None on rank 0


def _neighborhood(
    comm: MPI.Intracomm,
    size: int,
    sent: Mapping[int, Integers],
    received: Mapping[int, Integers],
    owned: Mask,
    global_ids: Integers | None,
) -> Neighborhood:
    ranks = tuple(sorted(sent.keys() | received.keys()))
    nothing = np.empty(0, np.int32)
    return Neighborhood(
        size,
        ranks,
        tuple(sent.get(rank, nothing) for rank in ranks),
        tuple(received.get(rank, nothing) for rank in ranks),
        owned,
        tuple(comm.allgather(int(np.count_nonzero(owned)))),
        global_ids,
    )


def _own_problem(comm: MPI.Intracomm, text: str) -> Problem:
    rank = comm.Get_rank()
    return Problem(rank, 0, text, frozenset([rank]))


# The directory.


class _Directory:
    """The ids whose home is here, with the ranks and rows that have them."""

    def __init__(
        self, routes: Routes, ids: Integers, signed_rows: Integers, *, elects: bool
    ) -> None:
        self._routes = routes
        self._ids = ids
        self._rows = signed_rows
        # By id, and those of an id by rank and row.
        self._order = np.argsort(ids, kind="stable")
        is_first = _changes(ids[self._order])
        self._is_owner = is_first if elects else (signed_rows >= 0)[self._order]
        #: For each id the place of its owner in this order, if each has one.
        self._owners = np.flatnonzero(self._is_owner)
        #: The places that are no owners', in the order in which they were received.
        unowned = np.flatnonzero(~self._is_owner)
        self._others = unowned[np.argsort(self._order[unowned])]
        #: Index of each id among the different ones.
        self._index = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
        self.problem = None if elects else self._find_problem()

    def owns(self) -> Mask:
        """For each that was received, whether it is the owner."""
        result = np.empty(len(self._order), np.bool_)
        result[self._order] = self._is_owner
        return result

    def owners_of_others(self) -> tuple[Integers, Integers]:
        """The ranks and rows of owners, for all that are none, as they were received."""
        owners = self._order[self._owners[self._index[self._others]]]
        return self._routes.sources(owners), self._rows[owners]

    def _find_problem(self) -> Problem | None:
        """The first id that has several owners or none."""
        owned = self._index[self._owners]
        count = int(self._index[-1]) + 1 if len(self._index) else 0
        if len(owned) == count and _changes(owned).all():
            return None
        owner_counts = np.bincount(owned, minlength=count)
        # Of ids with several owners only these, and all that have an id without.
        counts = owner_counts[self._index]
        bad = np.flatnonzero(np.where(self._is_owner, counts > 1, counts == 0))
        entries = self._order[bad]
        ranks = self._routes.sources(entries)
        lowest = ranks.min()
        first = bad[np.argmax(ranks == lowest)]  # its lowest id
        same = bad[self._index[bad] == self._index[first]]
        return Problem(
            int(lowest),
            int(self._ids[self._order[first]]),
            self._text(same),
            frozenset(ranks.tolist()),
        )

    def _text(self, places: Integers) -> str:
        """The error for an id at these places: those of its owners, or all."""
        entries = self._order[places[:2]]
        global_id = self._ids[entries[0]]
        rank, *other_ranks = self._routes.sources(entries).tolist()
        row, *other_rows = self._rows[entries].tolist()
        if row < 0:
            return (
                f"{FROM_GLOBAL} got global id {global_id} in row {~row} of rank {rank}, "
                "which no rank owns, expected one owner of each id"
            )
        if rank == other_ranks[0]:
            return (
                f"{FROM_GLOBAL} got global id {global_id} twice as owned by rank {rank}, "
                f"in rows {row} and {other_rows[0]}, expected one owned row of each id"
            )
        return (
            f"{FROM_GLOBAL} got global id {global_id} as owned by rank {rank} (row {row}) "
            f"and by rank {other_ranks[0]} (row {other_rows[0]}), expected one owner of "
            "each id"
        )


def _changes(values: Integers) -> Mask:
    """Whether each value is not the one before it."""
    result = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=result[1:])
    return result


def _homes(ids: Integers, size: int) -> Integers:
    """The ranks at which the ids are looked up.

    Each bit of an id changes the upper bits of its hash, as at the end of MurmurHash3.
    """
    bits = ids.astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        bits ^= bits >> np.uint64(33)
        bits *= np.uint64(factor)
    # The upper 32 bits as a fraction of `size`.
    bits >>= np.uint64(32)
    bits *= np.uint64(size)
    bits >>= np.uint64(32)
    return _compact(bits, size)


def _compact(ranks: Integers, size: int) -> Integers:
    """Ranks in 16 bits if they fit, which NumPy sorts in linear time."""
    return ranks.astype(np.uint16 if size <= 1 << 16 else np.uint32)


# Checks of what one process has.


def _checked_points(
    comm: MPI.Intracomm, global_ids: Unchecked, owned: Unchecked
) -> tuple[Integers, Mask | None]:
    """Copies of the ids and of the mask, if all processes have such as fit together."""
    rank = comm.Get_rank()
    problem = None
    is_elected = comm.bcast(owned is None)
    try:
        ids = _integers(FROM_GLOBAL, "argument `global_ids`", global_ids, rank)
        is_owned = None if owned is None else _mask(owned, len(ids), rank)
        if is_elected != (owned is None):
            here, there = ("None", "a mask") if owned is None else ("a mask", "None")
            raise ValueError(
                f"{FROM_GLOBAL} got {here} for argument `owned` on rank {rank} and {there} "
                "on rank 0, expected a mask on all ranks or on none"
            )
    except ValueError as error:
        problem = _own_problem(comm, str(error))
    agree(comm, problem)
    lowest = comm.allreduce(int(ids.min(initial=0)), op=MPI.MIN)
    highest = int(ids.max(initial=0))
    if lowest < 0 and highest > np.iinfo(np.int64).max:
        problem = _own_problem(
            comm,
            f"{FROM_GLOBAL} got global ids from {lowest} on, and {highest} on rank {rank}, "
            "expected ids that fit in one type of 64 bits",
        )
    agree(comm, problem)
    is_signed = comm.allreduce(highest, op=MPI.MAX) <= np.iinfo(np.int64).max
    return ids.astype(np.int64 if is_signed else np.uint64), is_owned


def _integers(function: str, name: str, value: Unchecked, rank: int) -> Integers:
    """An array of integers, as many as a process can have."""
    array = _array(value)
    if array is None or array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{function} got {_describe(value, array)} for {name} on rank "
            f"{rank}, expected an array of integers with one dimension"
        )
    if array.size > MAX_COUNT:
        raise ValueError(
            f"{function} got {array.size} integers for {name} on rank "
            f"{rank}, expected at most {MAX_COUNT}"
        )
    return array if array.size else np.empty(0, np.int64)


def _mask(value: Unchecked, size: int, rank: int) -> Mask:
    array = _array(value)
    if array is None or array.shape != (size,) or (size and array.dtype != np.bool_):
        raise ValueError(
            f"{FROM_GLOBAL} got {_describe(value, array)} for argument `owned` on rank "
            f"{rank}, expected a boolean for each of the {size} ids, or None"
        )
    return array.astype(np.bool_)


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _array(value: Unchecked) -> Integers | None:
    try:
        return np.asarray(value)
    except (TypeError, ValueError):  # rows of unlike lengths, a tracer
        return None


def _describe(value: Unchecked, array: Integers | None) -> str:
    return describe(value if array is None or not array.ndim else array)


class _Lists:
    """The lists of a process, if they are right by themselves."""

    def __init__(
        self, neighbors: Unchecked, size: Unchecked, rank: int, rank_count: int
    ) -> None:
        if not _is_integer(size) or not 0 <= size <= MAX_COUNT:
            raise ValueError(
                f"{FROM_NEIGHBORS} got {describe(size)} for argument `size` on rank "
                f"{rank}, expected a number of rows from 0 to {MAX_COUNT}"
            )
        if not isinstance(neighbors, Mapping):
            raise ValueError(
                f"{FROM_NEIGHBORS} got {describe(neighbors)} for argument `neighbors` on "
                f"rank {rank}, expected a mapping of ranks to pairs of rows"
            )
        self.size = int(size)
        self._rank = rank
        for other in neighbors:
            if not _is_integer(other) or not 0 <= other < rank_count:
                raise ValueError(
                    f"{FROM_NEIGHBORS} got neighbor {describe(other)} on rank {rank}, "
                    f"expected a rank from 0 to {rank_count - 1}"
                )
        #: For each neighbor, the rows that are sent, and those that are received.
        self.pairs = {
            int(other): self._pair(int(other), neighbors[other])
            for other in sorted(neighbors)
        }
        received = [rows for _, rows in self.pairs.values()]
        counts = np.bincount(
            np.concatenate([*received, []]).astype(np.int32), minlength=size
        )
        self._check_received_once(counts)
        #: Whether a row is a ghost.
        self.is_received = counts > 0
        self._check_not_passed_on()

    def _pair(self, other: int, pair: Unchecked) -> tuple[Integers, Integers]:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(
                f"{FROM_NEIGHBORS} got {describe(pair)} for neighbor {other} on rank "
                f"{self._rank}, expected a pair: the rows to send to it, and the rows to "
                "receive from it"
            )
        return (
            self._rows(pair[0], f"to send to rank {other}"),
            self._rows(pair[1], f"to receive from rank {other}"),
        )

    def _rows(self, value: Unchecked, purpose: str) -> Integers:
        array = _integers(FROM_NEIGHBORS, f"the rows {purpose}", value, self._rank)
        is_outside = (array < 0) | (array >= self.size)
        if is_outside.any():
            raise ValueError(
                f"{FROM_NEIGHBORS} got row {array[is_outside][0]} on rank {self._rank} "
                f"{purpose}, expected rows from 0 to {self.size - 1}, as `size` is "
                f"{self.size}"
            )
        return array.astype(np.int32)

    def _check_received_once(self, counts: Integers) -> None:
        if counts.max(initial=0) < 2:
            return
        row = int(np.argmax(counts > 1))
        first, second = [
            other
            for other, (_, rows) in self.pairs.items()
            for _ in range(np.count_nonzero(rows == row))
        ][:2]
        sources = (
            f"rank {first} twice" if first == second else f"ranks {first} and {second}"
        )
        raise ValueError(
            f"{FROM_NEIGHBORS} got row {row} on rank {self._rank} to receive from "
            f"{sources}, expected one source of each row"
        )

    def _check_not_passed_on(self) -> None:
        for other, (rows, _) in self.pairs.items():
            is_received = self.is_received[rows]
            if not is_received.any():
                continue
            row = int(rows[is_received][0])
            source = next(
                source for source, (_, rows) in self.pairs.items() if (rows == row).any()
            )
            raise ValueError(
                f"{FROM_NEIGHBORS} got row {row} on rank {self._rank} to send to rank "
                f"{other} and to receive from rank {source}, expected owned rows to send: "
                "rows that are received would be sent as they were before"
            )


def _difference(
    rank: int, other: int, counts: Integers | None, others_counts: Integers | None
) -> str:
    """The error if two ranks have lists of unlike lengths, or nothing.

    The counts are those of the rows that a rank sends and receives, or None if it does not
    list the other one.
    """
    sent, received = (0, 0) if counts is None else map(int, counts)
    others_sent, others_received = (
        (0, 0) if others_counts is None else map(int, others_counts)
    )
    if sent != others_received:
        here, there = f"to send to rank {other}", f"to receive from rank {rank}"
        count, expected = sent, others_received
    elif received != others_sent:
        here, there = f"to receive from rank {other}", f"to send to rank {rank}"
        count, expected = received, others_sent
    else:
        return ""
    said = (
        f"no entry for rank {rank}"
        if others_counts is None
        else f"{_describe_count(expected)} {there}"
    )
    return (
        f"{FROM_NEIGHBORS} got {_describe_count(count)} on rank {rank} {here}, expected "
        f"{expected or 'none'}, as rank {other} got {said}"
    )


def _describe_count(count: int) -> str:
    return f"{count or 'no'} row{'s' * (count != 1)}"
