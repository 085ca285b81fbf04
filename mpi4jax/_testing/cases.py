"""The table of operations: how to call each one, what it gives, and what it calls of MPI.

Each class below with `operations` is an entry. It stands for a call that every process of a
communicator makes with an array of its own, so an instance is the part of one process:

    case.call(x)        the call, with an array of the shape `case.shape(block)`
    case.result(xs)     what it has to give here, if `xs` are the arrays of all processes
    case.log(n, m)      the functions of MPI that it calls, with what the debug lines say

`python -m mpi4jax selftest` and the tests take their cases from here (tests/mpi/every.py),
so that an operation with an entry is tested with every type, transformation and kind of
memory. test_cases.py fails if a public operation has none. What is special about an
operation is tested in the files of tests themselves.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import notoken as mpi

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]
Arrays = Sequence[Array]


class Operator(NamedTuple):
    """A reduction operator, and what NumPy has for it."""

    name: str
    op: MPI.Op
    function: Callable[[Any, Any], Any]
    #: What is left of no arrays at all, by their type.
    nothing: Callable[[Any], Any] = lambda dtype: 0

    @np.errstate(all="ignore")
    def reduce(self, arrays: Arrays) -> Array:
        # NumPy, too, adds short floats in single precision and rounds after every sum.
        return functools.reduce(lambda a, b: self.function(a, b).astype(a.dtype), arrays)


def _one(dtype: Any) -> int:
    return 1


def _all_bits(dtype: Any) -> Any:
    return ~np.zeros((), dtype)


def _lowest(dtype: Any) -> Any:
    return jnp.iinfo(dtype).min if jnp.issubdtype(dtype, jnp.integer) else -np.inf


def _highest(dtype: Any) -> Any:
    return jnp.iinfo(dtype).max if jnp.issubdtype(dtype, jnp.integer) else np.inf


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("SUM", MPI.SUM, np.add),
        Operator("PROD", MPI.PROD, np.multiply, _one),
        Operator("MAX", MPI.MAX, np.maximum, _lowest),
        Operator("MIN", MPI.MIN, np.minimum, _highest),
        Operator("LAND", MPI.LAND, np.logical_and, _one),
        Operator("LOR", MPI.LOR, np.logical_or),
        Operator("LXOR", MPI.LXOR, np.logical_xor),
        Operator("BAND", MPI.BAND, np.bitwise_and, _all_bits),
        Operator("BOR", MPI.BOR, np.bitwise_or),
        Operator("BXOR", MPI.BXOR, np.bitwise_xor),
    )
}
SUM = OPERATORS["SUM"]

_entries: list[type[Case]] = []


class Case:
    """One process's part in a call. The classes below say what differs.

    Arguments:
        comm: The communicator; by default that of calls without one.
        root: The root of a rooted operation; by default its `usual_root`.
        operator: The operator of a reduction.
        status: What a receiving operation fills.

    """

    #: The public functions that are called.
    operations: tuple[str, ...] = ()
    #: What tells a further case of an operation from the first one.
    variant = ""
    #: Which process is the root where a test does not say so (-1: the last one).
    usual_root: int | None = None
    is_reduction = False
    #: Whether the result is one value that all processes share (docs/autodiff.md).
    is_shared = False
    has_derivative = True
    #: Whether the core may split a long array into several messages.
    goes_in_pieces = False
    #: How many processes it takes.
    least_size = 1

    def __init_subclass__(cls) -> None:
        if cls.operations:
            _entries.append(cls)

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        root: int | None = None,
        operator: Operator = SUM,
        status: MPI.Status | None = None,
    ) -> None:
        group = MPI.COMM_WORLD if comm is None else comm
        self.comm = comm
        self.rank, self.size = group.Get_rank(), group.Get_size()
        self.given_root = root
        #: A rank, if the operation has a root.
        self.root: Any = root
        if root is None and self.usual_root is not None:
            self.root = self.usual_root % self.size
        self.operator = operator
        self.status = status

    def call(self, x: Any) -> Any:
        """Call the operation, in a program or outside."""
        raise NotImplementedError

    def shape(self, block: Shape) -> Shape:
        """The shape of this process's array, made of blocks (or rows) of one shape."""
        return block

    def result(self, xs: Arrays) -> Array:
        """What this process gets, bit by bit, from the arrays of all in rank order."""
        raise NotImplementedError

    def parts(self, length: int) -> list[int] | None:
        """The elements that each process gets of a reduction, for blocks of so many.

        None where all get the whole of it, or one process does.
        """
        return None

    def log(self, sent: int, received: int) -> dict[str, str]:
        """The functions of MPI that are called, in order, and their debug lines.

        Arguments:
            sent: The number of elements of the array.
            received: That of the result.

        """
        raise NotImplementedError

    @property
    def is_read(self) -> bool:
        """Whether this process's array is read. If not, it lends its shape and type."""
        return True

    def but(self, **changes: Any) -> Case:
        """The same call with other arguments."""
        arguments = {
            "comm": self.comm,
            "root": self.given_root,
            "operator": self.operator,
            "status": self.status,
        }
        return type(self)(**{**arguments, **changes})

    def of(self, rank: int) -> Case:
        """The part of another process."""
        other = copy.copy(self)
        other.rank = rank
        return other

    def arrays(self, make: Callable[[int, Shape], Array], block: Shape) -> list[Array]:
        """The arrays of all processes, by a function of the rank and the shape."""
        return [make(rank, self.of(rank).shape(block)) for rank in range(self.size)]

    @property
    def name(self) -> str:
        operator = "" if self.operator.name == "SUM" else self.operator.name
        parts = " and ".join(self.operations), self.variant, operator
        return "-".join(filter(None, parts))

    @property
    def calls(self) -> Counter[str]:
        """How often it calls what of MPI."""
        return Counter(self.log(0, 0).keys())

    @property
    def roots(self) -> Sequence[int | None]:
        """The roots to test with: the first process, and the last one."""
        return [None] if self.root is None else sorted({0, self.size - 1})

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    @property
    def is_linear(self) -> bool:
        return not self.is_reduction or self.operator.name == "SUM"

    @property
    def left(self) -> int:
        return (self.rank - 1) % self.size

    @property
    def right(self) -> int:
        return (self.rank + 1) % self.size

    @property
    def counts(self) -> list[int]:
        """The rows of each process: unequal, and none on the third."""
        return [(1, 3, 0, 2)[rank % 4] for rank in range(self.size)]

    def rows_to_each(self, sender: int) -> list[int]:
        """The rows that a process sends to each: none to some, and not what it gets."""
        return [(sender - receiver + 1) % 3 for receiver in range(self.size)]


def _split(x: Array, counts: Sequence[int]) -> list[Array]:
    """The rows of each process, of which there are so many."""
    return np.split(x, np.cumsum(counts)[:-1])


def _first_rows(x: Any, counts: Any, rows: int) -> Any:
    """The rows that came, which is none if their counts are wrong."""
    return jnp.where(counts.sum() == rows, x[:rows], jnp.zeros((), x.dtype))


class Allgather(Case):
    """Everyone gets the arrays of all, stacked."""

    operations = ("allgather",)
    is_shared = True

    def call(self, x: Any) -> Any:
        return mpi.allgather(x, comm=self.comm)

    def result(self, xs: Arrays) -> Array:
        return np.stack(xs)

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Allgather": f"({sent} items)"}


class Allgatherv(Case):
    """Everyone gets the rows of all, one after the other."""

    operations = ("allgatherv",)
    is_shared = True

    def call(self, x: Any) -> Any:
        return mpi.allgatherv(x, self.counts, comm=self.comm)

    def shape(self, block: Shape) -> Shape:
        return (self.counts[self.rank], *block)

    def result(self, xs: Arrays) -> Array:
        return np.concatenate(xs)

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Allgatherv": f"({sent} items)"}


class AllgathervOfAnyRows(Allgatherv):
    """The same, with counts that only the running program knows."""

    operations = ("allgatherv",)
    variant = "capacity"

    def call(self, x: Any) -> Any:
        own, rows = jnp.asarray(self.counts[self.rank]), sum(self.counts)
        result, counts = mpi.allgatherv(x, own, capacity=rows + 2, comm=self.comm)
        return _first_rows(result, counts, rows)

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Allgather": "(3 items)", **super().log(sent, received)}


class Allreduce(Case):
    """Everyone gets the arrays of all, reduced to one."""

    operations = ("allreduce",)
    is_reduction = True
    is_shared = True
    goes_in_pieces = True

    def call(self, x: Any) -> Any:
        return mpi.allreduce(x, self.operator.op, comm=self.comm)

    def result(self, xs: Arrays) -> Array:
        return self.operator.reduce(xs)

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Allreduce": f"with {sent} items"}


class Alltoall(Case):
    """Everyone has a block for each process, and gets one from each."""

    operations = ("alltoall",)

    def call(self, x: Any) -> Any:
        return mpi.alltoall(x, comm=self.comm)

    def shape(self, block: Shape) -> Shape:
        return (self.size, *block)

    def result(self, xs: Arrays) -> Array:
        return np.stack([x[self.rank] for x in xs])

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Alltoall": f"({sent // self.size} items)"}


class Alltoallv(Case):
    """Everyone has some rows for each process, and gets some from each."""

    operations = ("alltoallv",)

    def call(self, x: Any) -> Any:
        received = [self.rows_to_each(sender)[self.rank] for sender in range(self.size)]
        return mpi.alltoallv(x, self.rows_to_each(self.rank), received, comm=self.comm)

    def shape(self, block: Shape) -> Shape:
        return (sum(self.rows_to_each(self.rank)), *block)

    def result(self, xs: Arrays) -> Array:
        return np.concatenate(
            [_split(x, self.rows_to_each(sender))[self.rank] for sender, x in enumerate(xs)]
        )

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Alltoallv": f"({sent} items sent, {received} items received)"}


class AlltoallvOfAnyRows(Alltoallv):
    """The same, with counts that only the running program knows."""

    operations = ("alltoallv",)
    variant = "capacity"

    def call(self, x: Any) -> Any:
        sent = jnp.asarray(self.rows_to_each(self.rank))
        rows = sum(self.rows_to_each(sender)[self.rank] for sender in range(self.size))
        result, counts = mpi.alltoallv(x, sent, capacity=rows + 1, comm=self.comm)
        return _first_rows(result, counts, rows)

    def log(self, sent: int, received: int) -> dict[str, str]:
        counts = {"Alltoall": "(1 items)", "Allreduce": "with 1 items"}
        return {**counts, **super().log(sent, received)}


class Barrier(Case):
    """Nothing moves."""

    operations = ("barrier",)

    def call(self, x: Any) -> Any:
        mpi.barrier(comm=self.comm)
        return x

    def result(self, xs: Arrays) -> Array:
        return xs[self.rank]

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Barrier": ""}


class Bcast(Case):
    """Everyone gets root's array."""

    operations = ("bcast",)
    usual_root = -1
    is_shared = True
    goes_in_pieces = True

    def call(self, x: Any) -> Any:
        return mpi.bcast(x, self.root, comm=self.comm)

    def result(self, xs: Arrays) -> Array:
        return xs[self.root]

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Bcast": f"({sent} items, root={self.root})"}

    @property
    def is_read(self) -> bool:
        return self.is_root


class Exchange(Case):
    """Everyone sends its array to the right and to the left, and gets both neighbors'."""

    operations = ("exchange",)
    goes_in_pieces = True

    def call(self, x: Any) -> Any:
        from_left, _from_right = mpi.exchange(
            [x, x],
            [x, x],
            source=[self.left, self.right],
            dest=[self.right, self.left],
            sendtag=[3, 4],
            recvtag=[3, 4],
            comm=self.comm,
        )
        return from_left

    def result(self, xs: Arrays) -> Array:
        return xs[self.left]

    def log(self, sent: int, received: int) -> dict[str, str]:
        left, right = self.left, self.right
        return {
            "Waitall": f"<- {left} (tag 3, {sent} items), <- {right} (tag 4, {sent} items) "
            f"/ -> {right} (tag 3, {sent} items), -> {left} (tag 4, {sent} items)"
        }


class ExchangeOfTrees(Case):
    """Two arrays are one message. The last process sends to nobody."""

    operations = ("exchange",)
    variant = "tree"

    def call(self, x: Any) -> Any:
        received = mpi.exchange(
            {"first": x, "second": 2 * x},
            {"first": 3 * x, "second": x},
            source=self.left if self.rank > 0 else MPI.PROC_NULL,
            dest=self.right if self.rank < self.size - 1 else MPI.PROC_NULL,
            comm=self.comm,
        )
        return received["first"]

    def result(self, xs: Arrays) -> Array:
        return xs[self.left] if self.rank > 0 else 3 * xs[0]

    def log(self, sent: int, received: int) -> dict[str, str]:
        come = [f"<- {self.left} (tag 0, {2 * sent} items)"] * (self.rank > 0)
        go = [f"-> {self.right} (tag 0, {2 * sent} items)"] * (self.rank < self.size - 1)
        return {"Waitall": " / ".join(come + go)}


class Exscan(Case):
    """Everyone gets the arrays of those before, reduced to one."""

    operations = ("exscan",)
    is_reduction = True
    goes_in_pieces = True

    def call(self, x: Any) -> Any:
        return mpi.exscan(x, self.operator.op, comm=self.comm)

    def result(self, xs: Arrays) -> Array:
        if self.rank == 0:
            return np.full_like(xs[0], self.operator.nothing(xs[0].dtype))
        return self.operator.reduce(xs[: self.rank])

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Exscan": f"({sent} items)"}


class Gather(Case):
    """Root gets the arrays of all, stacked. The others keep theirs."""

    operations = ("gather",)
    usual_root = -1

    def call(self, x: Any) -> Any:
        return mpi.gather(x, self.root, comm=self.comm)

    def result(self, xs: Arrays) -> Array:
        return np.stack(xs) if self.is_root else xs[self.rank]

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Gather": f"({sent} items, root={self.root})"}


class Gatherv(Case):
    """Root gets the rows of all, one after the other. The others keep theirs."""

    operations = ("gatherv",)
    usual_root = 0

    def call(self, x: Any) -> Any:
        return mpi.gatherv(x, self.counts, self.root, comm=self.comm)

    def shape(self, block: Shape) -> Shape:
        return (self.counts[self.rank], *block)

    def result(self, xs: Arrays) -> Array:
        return np.concatenate(xs) if self.is_root else xs[self.rank]

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Gatherv": f"({sent} items, root={self.root})"}


class Topology:
    """Who has which neighbors, by rank, for any number of processes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def sources(self, rank: int) -> list[int]:
        """Those that send to a process, in MPI's order."""
        raise NotImplementedError

    def destinations(self, rank: int) -> list[int]:
        """Those that it sends to."""
        raise NotImplementedError

    def origins(self, rank: int) -> list[tuple[int, int] | None]:
        """Of each block that a process gets, the sender, and which of its blocks it is."""
        raise NotImplementedError

    def make(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        """A communicator that has it."""
        raise NotImplementedError


class Graph(Topology):
    """None to two edges between any two processes, and from each to itself."""

    def _edges(self, sender: int, receiver: int) -> int:
        return (sender + 2 * receiver + 1) % 3

    def sources(self, rank: int) -> list[int]:
        return [p for p in range(self.size) for _ in range(self._edges(p, rank))]

    def destinations(self, rank: int) -> list[int]:
        ranks = range(self.size - 1, -1, -1)
        return [p for p in ranks for _ in range(self._edges(rank, p))]

    def origins(self, rank: int) -> list[tuple[int, int] | None]:
        sources = self.sources(rank)
        found: list[tuple[int, int] | None] = []
        for number, source in enumerate(sources):
            first = self.destinations(source).index(rank)
            found.append((source, first + sources[:number].count(source)))
        return found

    def make(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        rank = comm.Get_rank()
        return comm.Create_dist_graph_adjacent(self.sources(rank), self.destinations(rank))


class Grid(Topology):
    """Two axes, the second of which is periodic. It may have one or two processes."""

    @property
    def sides(self) -> list[int]:
        return [int(side) for side in MPI.Compute_dims(self.size, 2)]

    def sources(self, rank: int) -> list[int]:
        rows, columns = self.sides
        row, column = divmod(rank, columns)
        return [
            rank - columns if row > 0 else MPI.PROC_NULL,
            rank + columns if row < rows - 1 else MPI.PROC_NULL,
            row * columns + (column - 1) % columns,
            row * columns + (column + 1) % columns,
        ]

    def destinations(self, rank: int) -> list[int]:
        return self.sources(rank)

    def origins(self, rank: int) -> list[tuple[int, int] | None]:
        # What comes from the one before went to the one behind.
        return [
            None if source == MPI.PROC_NULL else (source, block ^ 1)
            for block, source in enumerate(self.sources(rank))
        ]

    def make(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        return comm.Create_cart(self.sides, [False, True], reorder=False)


@functools.cache
def _topologies() -> int:
    """The attribute of a communicator under which it has those that were made of it."""

    def free(comm: MPI.Comm, keyval: int, made: dict[type[Topology], MPI.Comm]) -> None:
        for topology in made.values():
            topology.Free()

    return MPI.Comm.Create_keyval(delete_fn=free)


class BetweenNeighbors(Case):
    """What the cases with neighbors have in common. All processes make the first call."""

    kind: type[Topology] = Graph

    @property
    def topology(self) -> Topology:
        return self.kind(self.size)

    @property
    def neighborhood(self) -> MPI.Intracomm:
        """The communicator of the call, which is made once of the given one."""
        comm = MPI.COMM_WORLD if self.comm is None else self.comm
        made: Any = comm.Get_attr(_topologies())
        if made is None:
            made = {}
            comm.Set_attr(_topologies(), made)
        if self.kind not in made:
            made[self.kind] = self.topology.make(comm)
        found: MPI.Intracomm = made[self.kind]
        return found

    @property
    def blocks_sent(self) -> int:
        return len(self.topology.destinations(self.rank))

    @property
    def origins(self) -> list[tuple[int, int] | None]:
        return self.topology.origins(self.rank)

    def rows_to(self, sender: int, block: int) -> int:
        """The rows in a block that a process sends: none to some."""
        return (sender + block + 1) % 3

    def rows_sent(self, sender: int) -> list[int]:
        blocks = range(len(self.topology.destinations(sender)))
        return [self.rows_to(sender, block) for block in blocks]


class NeighborAllgather(BetweenNeighbors):
    """Everyone gets the arrays of its neighbors, stacked."""

    operations = ("neighbor_allgather",)

    def call(self, x: Any) -> Any:
        return mpi.neighbor_allgather(x, comm=self.neighborhood)

    def result(self, xs: Arrays) -> Array:
        nothing = np.zeros_like(xs[self.rank])
        return np.stack([nothing if o is None else xs[o[0]] for o in self.origins])

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Neighbor_allgather": f"({sent} items)"}


class NeighborAllgatherv(BetweenNeighbors):
    """Everyone gets the rows of its neighbors, one after the other."""

    operations = ("neighbor_allgatherv",)

    @property
    def rows_received(self) -> list[int]:
        # There are two rows where there is no process.
        return [2 if o is None else self.counts[o[0]] for o in self.origins]

    def call(self, x: Any) -> Any:
        return mpi.neighbor_allgatherv(x, self.rows_received, comm=self.neighborhood)

    def shape(self, block: Shape) -> Shape:
        return (self.counts[self.rank], *block)

    def result(self, xs: Arrays) -> Array:
        x = xs[self.rank]
        nothing = np.zeros((2, *x.shape[1:]), x.dtype)
        return np.concatenate([nothing if o is None else xs[o[0]] for o in self.origins])

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Neighbor_allgatherv": f"({sent} items)"}


class NeighborAlltoall(BetweenNeighbors):
    """Everyone has a block for each neighbor, and gets one from each."""

    operations = ("neighbor_alltoall",)

    def call(self, x: Any) -> Any:
        return mpi.neighbor_alltoall(x, comm=self.neighborhood)

    def shape(self, block: Shape) -> Shape:
        return (self.blocks_sent, *block)

    def result(self, xs: Arrays) -> Array:
        nothing = np.zeros_like(xs[self.rank][0])
        return np.stack([nothing if o is None else xs[o[0]][o[1]] for o in self.origins])

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Neighbor_alltoall": f"({sent // self.blocks_sent} items)"}


class NeighborAlltoallv(BetweenNeighbors):
    """Everyone has some rows for each neighbor, and gets some from each."""

    operations = ("neighbor_alltoallv",)

    @property
    def rows_received(self) -> list[int]:
        # There are two rows where there is no process.
        return [2 if origin is None else self.rows_to(*origin) for origin in self.origins]

    def call(self, x: Any) -> Any:
        return mpi.neighbor_alltoallv(
            x, self.rows_sent(self.rank), self.rows_received, comm=self.neighborhood
        )

    def shape(self, block: Shape) -> Shape:
        return (sum(self.rows_sent(self.rank)), *block)

    def result(self, xs: Arrays) -> Array:
        x = xs[self.rank]
        nothing = np.zeros((2, *x.shape[1:]), x.dtype)
        parts = [_split(x, self.rows_sent(sender)) for sender, x in enumerate(xs)]
        return np.concatenate(
            [nothing if o is None else parts[o[0]][o[1]] for o in self.origins]
        )

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Neighbor_alltoallv": f"({sent} items sent, {received} items received)"}


class NeighborAllgatherInGrid(NeighborAllgather):
    """The same where neighbors are missing, or are one process."""

    variant = "grid"
    kind = Grid


class NeighborAllgathervInGrid(NeighborAllgatherv):
    """The same where neighbors are missing, or are one process."""

    variant = "grid"
    kind = Grid


class NeighborAlltoallInGrid(NeighborAlltoall):
    """The same where neighbors are missing, or are one process."""

    variant = "grid"
    kind = Grid


class NeighborAlltoallvInGrid(NeighborAlltoallv):
    """The same where neighbors are missing, or are one process."""

    variant = "grid"
    kind = Grid


class Reduce(Case):
    """Root gets the arrays of all, reduced to one. The others keep theirs."""

    operations = ("reduce",)
    usual_root = -1
    is_reduction = True
    goes_in_pieces = True

    def call(self, x: Any) -> Any:
        return mpi.reduce(x, self.operator.op, self.root, comm=self.comm)

    def result(self, xs: Arrays) -> Array:
        return self.operator.reduce(xs) if self.is_root else xs[self.rank]

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Reduce": f"({sent} items, root={self.root})"}


class ReduceScatter(Case):
    """Everyone has a block for each process, and gets those for it, reduced to one."""

    operations = ("reduce_scatter",)
    is_reduction = True

    def call(self, x: Any) -> Any:
        return mpi.reduce_scatter(x, self.operator.op, comm=self.comm)

    def shape(self, block: Shape) -> Shape:
        return (self.size, *block)

    def result(self, xs: Arrays) -> Array:
        return self.operator.reduce([x[self.rank] for x in xs])

    def parts(self, length: int) -> list[int] | None:
        return [length] * self.size

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Reduce_scatter_block": f"({received} items)"}


class ReduceScatterv(Case):
    """Everyone has some rows for each process, and gets those for it, reduced to one."""

    operations = ("reduce_scatterv",)
    is_reduction = True

    def call(self, x: Any) -> Any:
        return mpi.reduce_scatterv(x, self.operator.op, self.counts, comm=self.comm)

    def shape(self, block: Shape) -> Shape:
        return (sum(self.counts), *block)

    def result(self, xs: Arrays) -> Array:
        return self.operator.reduce([_split(x, self.counts)[self.rank] for x in xs])

    def parts(self, length: int) -> list[int] | None:
        return [length * rows for rows in self.counts]

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Reduce_scatter": f"({received} items)"}


class Scan(Case):
    """Everyone gets its own array and those of all before, reduced to one."""

    operations = ("scan",)
    is_reduction = True
    goes_in_pieces = True

    def call(self, x: Any) -> Any:
        return mpi.scan(x, self.operator.op, comm=self.comm)

    def result(self, xs: Arrays) -> Array:
        return self.operator.reduce(xs[: self.rank + 1])

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Scan": f"({sent} items)"}


class Scatter(Case):
    """Root has a block for each process. The arrays of the others have a block's shape."""

    operations = ("scatter",)
    usual_root = 0

    def call(self, x: Any) -> Any:
        return mpi.scatter(x, self.root, comm=self.comm)

    def shape(self, block: Shape) -> Shape:
        return (self.size, *block) if self.is_root else block

    def result(self, xs: Arrays) -> Array:
        return xs[self.root][self.rank]

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Scatter": f"({received} items, root={self.root})"}

    @property
    def is_read(self) -> bool:
        return self.is_root


class Scatterv(Case):
    """Root has some rows for each process. The arrays of the others have as many."""

    operations = ("scatterv",)
    usual_root = -1

    def call(self, x: Any) -> Any:
        return mpi.scatterv(x, self.counts, self.root, comm=self.comm)

    def shape(self, block: Shape) -> Shape:
        rows = sum(self.counts) if self.is_root else self.counts[self.rank]
        return (rows, *block)

    def result(self, xs: Arrays) -> Array:
        return _split(xs[self.root], self.counts)[self.rank]

    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Scatterv": f"({received} items, root={self.root})"}

    @property
    def is_read(self) -> bool:
        return self.is_root


class SendAndRecv(Case):
    """Everyone sends to the right and receives from the left, whatever MPI buffers."""

    operations = ("send", "recv")
    has_derivative = False  # JAX does not follow a message from one process to another.
    goes_in_pieces = True
    least_size = 2  # MPI need not buffer a message, so none goes to its own sender.

    def call(self, x: Any) -> Any:
        if self.rank == 0:
            self._send(x)
            return self._recv(x)
        y = self._recv(x)
        self._send(x)
        return y

    def _send(self, x: Any) -> None:
        mpi.send(x, self.right, tag=1, comm=self.comm)

    def _recv(self, x: Any) -> Any:
        return mpi.recv(x, self.left, tag=1, comm=self.comm, status=self.status)

    def result(self, xs: Arrays) -> Array:
        return xs[self.left]

    def log(self, sent: int, received: int) -> dict[str, str]:
        send = {"Send": f"-> {self.right} (tag 1, {sent} items)"}
        recv = {"Recv": f"<- {self.left} (tag 1, {received} items)"}
        return send | recv if self.rank == 0 else recv | send


class Sendrecv(Case):
    """Everyone sends to the right and receives from the left, in one call."""

    operations = ("sendrecv",)
    goes_in_pieces = True

    @property
    def source(self) -> int:
        return self.left

    @property
    def dest(self) -> int:
        return self.right

    @property
    def tags(self) -> tuple[int, int]:
        """The tag to send with, and the one to receive."""
        return 0, MPI.ANY_TAG

    def buffer(self, x: Any) -> Any:
        """An array like what is received."""
        return x

    def call(self, x: Any) -> Any:
        sendtag, recvtag = self.tags
        return mpi.sendrecv(
            x,
            self.buffer(x),
            self.source,
            self.dest,
            sendtag=sendtag,
            recvtag=recvtag,
            comm=self.comm,
            status=self.status,
        )

    def result(self, xs: Arrays) -> Array:
        return xs[self.left]

    def log(self, sent: int, received: int) -> dict[str, str]:
        sendtag, recvtag = self.tags
        return {
            "Sendrecv": f"<- {self.source} (tag {recvtag}, {received} items) / "
            f"-> {self.dest} (tag {sendtag}, {sent} items)"
        }


class SendrecvWithTags(Sendrecv):
    """Every message has a tag of its own, and the buffer an array of its own."""

    variant = "tags"

    @property
    def tags(self) -> tuple[int, int]:
        return self.rank + 5, self.left + 5

    def buffer(self, x: Any) -> Any:
        return jnp.zeros_like(x)


class SendrecvInLine(Sendrecv):
    """The last process sends to nobody, and the first one gets its buffer back."""

    variant = "line"

    @property
    def source(self) -> int:
        return self.left if self.rank > 0 else MPI.PROC_NULL

    @property
    def dest(self) -> int:
        return self.right if self.rank < self.size - 1 else MPI.PROC_NULL

    def buffer(self, x: Any) -> Any:
        return 3 * x

    def result(self, xs: Arrays) -> Array:
        return xs[self.left] if self.rank > 0 else 3 * xs[0]


class SendrecvOfUnequal(Sendrecv):
    """What is received has another shape than what is sent."""

    variant = "unequal"

    def shape(self, block: Shape) -> Shape:
        return (self.rank + 1, *block)

    def buffer(self, x: Any) -> Any:
        return jnp.zeros((self.left + 1, *x.shape[1:]), x.dtype)


def _table(cases: Sequence[Case]) -> dict[str, Case]:
    return {case.name: case for case in cases}


#: One case for each operation.
OPERATIONS = _table([entry() for entry in _entries if not entry.variant])
#: These, their variants, and reductions with the other operators that have a derivative.
CASES = OPERATIONS | _table(
    [entry() for entry in _entries if entry.variant]
    + [
        # Also with another root.
        entry(operator=OPERATORS[name], root=None if entry.usual_root is None else 0)
        for entry in _entries
        if entry.is_reduction
        for name in ("PROD", "MAX", "MIN")
    ]
)
