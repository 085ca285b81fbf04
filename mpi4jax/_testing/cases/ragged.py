"""Cases of the collectives whose blocks have different row counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpi4jax import notoken as mpi
from mpi4jax._override import override

from .case import Array, Arrays, Case, Shape


def split(x: Array, counts: Sequence[int]) -> list[Array]:
    """Split an array into blocks of `counts` rows."""
    return np.split(x, np.cumsum(counts)[:-1])


def _first_rows(x: Any, counts: Any, rows: int) -> Any:
    """The first `rows` rows of a result with a capacity, zeroed if `counts` are wrong."""
    is_right = counts.sum() == rows
    return jax.tree.map(lambda y: jnp.where(is_right, y[:rows], jnp.zeros((), y.dtype)), x)


class Allgatherv(Case):
    """All processes get the rows of all, concatenated."""

    operations = ("allgatherv",)
    line = "Allgatherv", "({sent} items)"
    is_shared = True

    @override
    def call(self, x: Any) -> Any:
        return mpi.allgatherv(x, self.counts, comm=self.comm)

    @override
    def shape(self, block: Shape) -> Shape:
        return (self.counts[self.rank], *block)

    @override
    def result(self, xs: Arrays) -> Array:
        return np.concatenate(xs)


class AllgathervWithCapacity(Allgatherv):
    """The counts are arrays, and a capacity bounds the rows of the result."""

    operations = ("allgatherv",)
    variant = "capacity"

    @override
    def call(self, x: Any) -> Any:
        own, rows = jnp.asarray(self.counts[self.rank]), sum(self.counts)
        result, counts = mpi.allgatherv(x, own, capacity=rows + 2, comm=self.comm)
        return _first_rows(result, counts, rows)

    @override
    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Allgather": "(3 items)", **super().log(sent, received)}


class Alltoallv(Case):
    """Each process has rows for each process, and gets rows from each."""

    operations = ("alltoallv",)
    line = "Alltoallv", "({sent} items sent, {received} items received)"

    @override
    def call(self, x: Any) -> Any:
        received = [self.rows_to_each(sender)[self.rank] for sender in range(self.size)]
        return mpi.alltoallv(x, self.rows_to_each(self.rank), received, comm=self.comm)

    @override
    def shape(self, block: Shape) -> Shape:
        return (sum(self.rows_to_each(self.rank)), *block)

    @override
    def result(self, xs: Arrays) -> Array:
        return np.concatenate(
            [split(x, self.rows_to_each(sender))[self.rank] for sender, x in enumerate(xs)]
        )


class AlltoallvWithCapacity(Alltoallv):
    """The counts are arrays, and a capacity bounds the rows of the result."""

    operations = ("alltoallv",)
    variant = "capacity"

    @override
    def call(self, x: Any) -> Any:
        sent = jnp.asarray(self.rows_to_each(self.rank))
        rows = sum(self.rows_to_each(sender)[self.rank] for sender in range(self.size))
        result, counts = mpi.alltoallv(x, sent, capacity=rows + 1, comm=self.comm)
        return _first_rows(result, counts, rows)

    @override
    def log(self, sent: int, received: int) -> dict[str, str]:
        counts = {"Alltoall": "(1 items)", "Allreduce": "with 1 items"}
        return {**counts, **super().log(sent, received)}


class Gatherv(Case):
    """Root gets the rows of all, concatenated; the others keep theirs."""

    operations = ("gatherv",)
    line = "Gatherv", "({sent} items, root={root})"
    usual_root = 0

    @override
    def call(self, x: Any) -> Any:
        return mpi.gatherv(x, self.counts, self.root, comm=self.comm)

    @override
    def shape(self, block: Shape) -> Shape:
        return (self.counts[self.rank], *block)

    @override
    def result(self, xs: Arrays) -> Array:
        return np.concatenate(xs) if self.is_root else xs[self.rank]


class ReduceScatterv(Case):
    """Each process has rows for each process, and gets the reduction of its own rows."""

    operations = ("reduce_scatterv",)
    line = "Reduce_scatter", "({received} items)"
    is_reduction = True

    @override
    def call(self, x: Any) -> Any:
        return mpi.reduce_scatterv(x, self.operator.op, self.counts, comm=self.comm)

    @override
    def shape(self, block: Shape) -> Shape:
        return (sum(self.counts), *block)

    @override
    def result(self, xs: Arrays) -> Array:
        return self.operator.reduce([split(x, self.counts)[self.rank] for x in xs])

    @override
    def parts(self, length: int) -> list[int] | None:
        return [length * rows for rows in self.counts]


class Scatterv(Case):
    """Root has rows for each process. The arrays of the others have that number of rows."""

    operations = ("scatterv",)
    line = "Scatterv", "({received} items, root={root})"
    usual_root = -1
    reads_root_only = True

    @override
    def call(self, x: Any) -> Any:
        return mpi.scatterv(x, self.counts, self.root, comm=self.comm)

    @override
    def shape(self, block: Shape) -> Shape:
        rows = sum(self.counts) if self.is_root else self.counts[self.rank]
        return (rows, *block)

    @override
    def result(self, xs: Arrays) -> Array:
        return split(xs[self.root], self.counts)[self.rank]
