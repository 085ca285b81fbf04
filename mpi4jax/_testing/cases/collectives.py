"""Cases of the collectives with blocks of one size."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpi4jax import notoken as mpi
from mpi4jax._override import override

from .case import Array, Arrays, Case, Shape


class Allgather(Case):
    """All processes get the arrays of all, stacked."""

    operations = ("allgather",)
    line = "Allgather", "({sent} items)"
    is_shared = True

    @override
    def call(self, x: Any) -> Any:
        return mpi.allgather(x, comm=self.comm)

    @override
    def result(self, xs: Arrays) -> Array:
        return np.stack(xs)


class Allreduce(Case):
    """All processes get the reduction of all arrays."""

    operations = ("allreduce",)
    line = "Allreduce", "with {sent} items"
    is_reduction = True
    is_shared = True
    goes_in_pieces = True

    @override
    def call(self, x: Any) -> Any:
        return mpi.allreduce(x, self.operator.op, comm=self.comm)

    @override
    def result(self, xs: Arrays) -> Array:
        return self.operator.reduce(xs)


class Alltoall(Case):
    """Each process has a block for each process, and gets one from each."""

    operations = ("alltoall",)

    @override
    def call(self, x: Any) -> Any:
        return mpi.alltoall(x, comm=self.comm)

    @override
    def shape(self, block: Shape) -> Shape:
        return (self.size, *block)

    @override
    def result(self, xs: Arrays) -> Array:
        return np.stack([x[self.rank] for x in xs])

    @override
    def log(self, sent: int, received: int) -> dict[str, str]:
        return {"Alltoall": f"({sent // self.size} items)"}


class Barrier(Case):
    """No data moves; the result is the argument."""

    operations = ("barrier",)
    line = "Barrier", ""

    @override
    def call(self, x: Any) -> Any:
        mpi.barrier(comm=self.comm)
        return x

    @override
    def result(self, xs: Arrays) -> Array:
        return xs[self.rank]


class Bcast(Case):
    """All processes get root's array."""

    operations = ("bcast",)
    line = "Bcast", "({sent} items, root={root})"
    usual_root = -1
    reads_root_only = True
    is_shared = True
    goes_in_pieces = True

    @override
    def call(self, x: Any) -> Any:
        return mpi.bcast(x, self.root, comm=self.comm)

    @override
    def result(self, xs: Arrays) -> Array:
        root: int = self.root
        return xs[root]


class Exscan(Case):
    """Each process gets the reduction of the arrays of lower ranks."""

    operations = ("exscan",)
    line = "Exscan", "({sent} items)"
    is_reduction = True
    goes_in_pieces = True

    @override
    def call(self, x: Any) -> Any:
        return mpi.exscan(x, self.operator.op, comm=self.comm)

    @override
    def result(self, xs: Arrays) -> Array:
        if self.rank == 0:
            return np.full_like(xs[0], self.operator.identity(xs[0].dtype))
        return self.operator.reduce(xs[: self.rank])


class Gather(Case):
    """Root gets the arrays of all, stacked. The others keep theirs."""

    operations = ("gather",)
    line = "Gather", "({sent} items, root={root})"
    usual_root = -1

    @override
    def call(self, x: Any) -> Any:
        return mpi.gather(x, self.root, comm=self.comm)

    @override
    def result(self, xs: Arrays) -> Array:
        return np.stack(xs) if self.is_root else xs[self.rank]


class Reduce(Case):
    """Root gets the reduction of all arrays; the others keep theirs."""

    operations = ("reduce",)
    line = "Reduce", "({sent} items, root={root})"
    usual_root = -1
    is_reduction = True
    goes_in_pieces = True

    @override
    def call(self, x: Any) -> Any:
        return mpi.reduce(x, self.operator.op, self.root, comm=self.comm)

    @override
    def result(self, xs: Arrays) -> Array:
        return self.operator.reduce(xs) if self.is_root else xs[self.rank]


class ReduceScatter(Case):
    """Each process has a block for each one, and gets the reduction of its own blocks."""

    operations = ("reduce_scatter",)
    line = "Reduce_scatter_block", "({received} items)"
    is_reduction = True

    @override
    def call(self, x: Any) -> Any:
        return mpi.reduce_scatter(x, self.operator.op, comm=self.comm)

    @override
    def shape(self, block: Shape) -> Shape:
        return (self.size, *block)

    @override
    def result(self, xs: Arrays) -> Array:
        return self.operator.reduce([x[self.rank] for x in xs])

    @override
    def parts(self, length: int) -> list[int] | None:
        return [length] * self.size


class Scan(Case):
    """Each process gets the reduction of the arrays up to its own rank."""

    operations = ("scan",)
    line = "Scan", "({sent} items)"
    is_reduction = True
    goes_in_pieces = True

    @override
    def call(self, x: Any) -> Any:
        return mpi.scan(x, self.operator.op, comm=self.comm)

    @override
    def result(self, xs: Arrays) -> Array:
        return self.operator.reduce(xs[: self.rank + 1])


class Scatter(Case):
    """Root has a block for each process. The arrays of the others have a block's shape."""

    operations = ("scatter",)
    line = "Scatter", "({received} items, root={root})"
    usual_root = 0
    reads_root_only = True

    @override
    def call(self, x: Any) -> Any:
        return mpi.scatter(x, self.root, comm=self.comm)

    @override
    def shape(self, block: Shape) -> Shape:
        return (self.size, *block) if self.is_root else block

    @override
    def result(self, xs: Arrays) -> Array:
        block: Array = xs[self.root][self.rank]
        return block
