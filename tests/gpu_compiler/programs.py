"""Programs of all kinds, for XLA's compiler for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi
from mpi4jax.halo import Plan
from mpi4jax.pencil import Layout

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE
OTHER = COMM.Dup()
RING = COMM.Create_cart([SIZE], [True])
PLAN = Plan(COMM.Create_cart([SIZE, 1], [True, True]), width=1, shape=(32 * SIZE, 64))
ROWS = Layout(RING, (4 * SIZE, 4 * SIZE, 64), [0])
COLUMNS = ROWS.with_axes([1])

#: XLA hands over the addresses of slices whose bytes are a multiple of 128.
X = jax.ShapeDtypeStruct((4, 64), "float32")
SMALL = jax.ShapeDtypeStruct((4, 3), "float32")
FIELD = jax.ShapeDtypeStruct((34, 66), "float32")
SLAB = jax.ShapeDtypeStruct(ROWS.local_shape, "float32")
LARGE = jax.ShapeDtypeStruct((1024, 1024), "float32")


class Example(NamedTuple):
    """A function, the arrays that it takes, and the work that it makes for a GPU."""

    function: Callable[..., Any]
    operands: tuple[jax.ShapeDtypeStruct, ...]
    #: The copies of arrays and the kernels, where XLA cuts slices out, and where it hands
    #: over their addresses.
    work: tuple[tuple[int, int], tuple[int, int]]


EXAMPLES: dict[str, Example] = {}


def example(
    *operands: jax.ShapeDtypeStruct, cut: tuple[int, int], handed_over: tuple[int, int]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function into the table."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        EXAMPLES[function.__name__] = Example(function, operands, (cut, handed_over))
        return function

    return enter


def shift(x: Any, like: Any = None, **tags: int) -> Any:
    """The array of the neighbor on the left."""
    like = x if like is None else like
    return mpi.sendrecv(x, like, source=LEFT, dest=RIGHT, **tags)


def add(x: Any, **options: Any) -> Any:
    return mpi.allreduce(x, MPI.SUM, **options)


# Slices.


@example(X, cut=(0, 1), handed_over=(0, 0))
def row(x):
    return shift(x[0])


@example(X, cut=(0, 1), handed_over=(0, 0))
def rows(x):
    return add(x[:2])


@example(X, cut=(0, 1), handed_over=(0, 1))
def column(x):
    return shift(x[:, 0])


@example(SMALL, cut=(0, 1), handed_over=(0, 1))
def row_that_is_not_aligned(x):
    return shift(x[0])


@example(X, cut=(0, 1), handed_over=(0, 1))
def row_that_was_computed(x):
    return shift((x * 2)[1])


@example(X, cut=(0, 2), handed_over=(0, 1))
def row_put_back(x):
    y = x * 2
    return y.at[1].set(shift(y[1]))


@example(X, cut=(0, 2), handed_over=(0, 1))
def row_put_elsewhere(x):
    y = x * 2
    return y.at[0].set(shift(y[2]))


@example(X, cut=(1, 2), handed_over=(0, 1))
def rows_put_where_they_overlap(x):
    y = x * 2
    return y.at[0:2].set(shift(y[1:3]))


@example(X, cut=(1, 2), handed_over=(0, 1))
def reduced_rows_put_where_they_overlap(x):
    y = x * 2
    return y.at[0:2].set(add(y[1:3]))


@example(X, cut=(0, 1), handed_over=(0, 0))
def row_received(x):
    return (
        x.at[0].set(mpi.recv(x[0], LEFT, tag=3)) if RANK else mpi.send(x[1], RIGHT, tag=3)
    )


@example(X, cut=(1, 3), handed_over=(0, 2))
def halo_by_hand(x):
    y = x * 2
    y = y.at[0].set(shift(y[2], y[0], sendtag=1, recvtag=1))
    return y.at[3].set(mpi.sendrecv(y[1], y[3], RIGHT, LEFT, sendtag=2, recvtag=2))


@example(X, cut=(2, 4), handed_over=(1, 4))
def each_row_in_a_loop(x):
    return lax.fori_loop(0, 4, lambda i, y: y.at[i].set(shift(y[i])), x)


@example(X, cut=(2, 5), handed_over=(0, 5))
def rows_of_a_scan(x):
    return lax.scan(lambda total, row: (total + add(row), shift(row)), x[0], x)


@example(X, cut=(1, 4), handed_over=(1, 3))
def halo_in_a_loop(x):
    def step(_, y):
        y = y.at[0].set(shift(y[2], y[0], sendtag=1, recvtag=1))
        return y * 0.5

    return lax.fori_loop(0, 10, step, x)


# Order, in control flow of all kinds.


@example(X, cut=(0, 1), handed_over=(0, 1))
def straight_line(x):
    y = mpi.bcast(add(x), 0)
    z = mpi.scan(x * 2, MPI.SUM)
    mpi.barrier()
    return y, mpi.reduce(z, MPI.MAX, 0), mpi.allgather(y)


@example(X, cut=(0, 1), handed_over=(0, 1))
def nothing_depends_on_anything(x):
    return [shift(x + n, sendtag=n, recvtag=n) for n in range(6)]


@example(X, cut=(0, 1), handed_over=(0, 1))
def only_sends(x):
    mpi.send(x, RIGHT, tag=1)
    return x + 1


@example(X, cut=(1, 3), handed_over=(1, 3))
def loop(x):
    return lax.fori_loop(0, 10, lambda _, y: shift(y, sendtag=1, recvtag=1) * 0.5, x)


@example(X, cut=(2, 5), handed_over=(2, 5))
def loop_in_a_loop(x):
    def inner(_, y):
        return add(y) * 0.5

    def outer(_, y):
        return shift(lax.fori_loop(0, 3, inner, y))

    return lax.fori_loop(0, 5, outer, x)


@example(X, cut=(1, 3), handed_over=(1, 3))
def while_loop(x):
    return lax.while_loop(lambda y: y.sum() < 100, lambda y: add(y) + 1, x)


@example(X, cut=(1, 4), handed_over=(1, 4))
def call_in_a_condition(x):
    return lax.while_loop(lambda y: add(y.sum()) < 100, lambda y: shift(y) + 1, x)


@example(X, cut=(2, 2), handed_over=(2, 2))
def branches(x):
    y = lax.cond(x[0, 0] > 0, add, lambda y: mpi.bcast(y, 0), x)
    index = x[0, 1].astype("int32")
    return lax.switch(index, [lambda y: y, shift, lambda y: mpi.scan(y, MPI.SUM)], y)


@example(X, cut=(2, 3), handed_over=(2, 3))
def branches_in_a_loop(x):
    def step(i, y):
        y = lax.cond(i % 2 == 0, lambda y: add(y), lambda y: shift(y, sendtag=4), y)
        return mpi.bcast(y, 0)

    return lax.fori_loop(0, 10, step, x)


@example(X, cut=(0, 2), handed_over=(0, 2))
def jitted_functions(x):
    inner = jax.jit(lambda y: shift(y) * 2)
    return add(inner(inner(x)))


@example(X, cut=(0, 1), handed_over=(0, 1))
def two_communicators(x):
    y = add(x, comm=COMM)
    z = add(x * 2, comm=OTHER)
    return shift(y, comm=OTHER), shift(z, comm=COMM)


@example(jax.ShapeDtypeStruct((), "float32"), LARGE, cut=(0, 1), handed_over=(0, 1))
def large_beside_small(small, large):
    return add(small), shift(large), add(small * 2), add(large @ large)


@example(jax.ShapeDtypeStruct((0, 3), "float32"), X, cut=(2, 0), handed_over=(2, 0))
def empty_beside_others(empty, x):
    return add(empty), shift(x), shift(empty)


# What is made of several calls.


@example(FIELD, FIELD, cut=(6, 9), handed_over=(2, 13))
def halo_plan(u, v):
    return PLAN.exchange([u, v])


@example(FIELD, cut=(3, 10), handed_over=(1, 12))
def halo_plan_in_a_loop(u):
    def step(_, u):
        (u,) = PLAN.exchange([u])
        inner = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        return u.at[1:-1, 1:-1].set(inner / 4)

    return lax.fori_loop(0, 10, step, u)


@example(SLAB, cut=(0, 4), handed_over=(0, 2))
def redistribution(x):
    return COLUMNS.redistribute(ROWS.redistribute(x, to=COLUMNS), to=ROWS)


@example(
    X, SMALL, SMALL, X, jax.ShapeDtypeStruct((5,), "int32"), cut=(6, 5), handed_over=(6, 5)
)
def tree(*leaves):
    return mpi.tree.allreduce(leaves, MPI.SUM), mpi.tree.bcast(leaves, 0)


@example(X, cut=(0, 1), handed_over=(0, 1))
def neighbors(x):
    blocks = jnp.stack([x, x * 2])
    return mpi.neighbor_alltoall(blocks, comm=RING), mpi.neighbor_allgather(x, comm=RING)


@example(X, cut=(0, 1), handed_over=(0, 0))
def counts(x):
    rows = [1, 3] + [0] * (SIZE - 2)
    part = x[: rows[RANK]]
    return mpi.allgatherv(part, rows)


@example(X, cut=(0, 2), handed_over=(0, 1))
def nonblocking(x):
    sent = mpi4jax.isend(x[0], RIGHT, tag=5)
    received = mpi4jax.irecv(x[1], LEFT, tag=5)
    total = mpi4jax.iallreduce(x, MPI.SUM)
    y = jnp.sin(x)
    mpi4jax.wait(sent)
    return mpi4jax.wait(received), mpi4jax.wait(total), y


@example(X, cut=(1, 3), handed_over=(1, 3))
def request_in_a_loop(x):
    def step(_, carry):
        y, request = carry
        return mpi4jax.wait(request) * 0.5, mpi4jax.iallreduce(y, MPI.SUM)

    return mpi4jax.wait(lax.fori_loop(0, 5, step, (x, mpi4jax.iallreduce(x, MPI.SUM)))[1])


@example(X, LARGE, cut=(1, 1), handed_over=(1, 0))
def overlap(x, large):
    return mpi4jax.overlap(lambda: shift(x[0]), during=lambda: large @ large)


@example(X, cut=(0, 2), handed_over=(0, 0))
def exchange(x):
    return mpi.exchange([x[0], x[3]], [x[1], x[2]], [LEFT, RIGHT], [RIGHT, LEFT])


# Transformations.


@example(X, cut=(0, 0), handed_over=(0, 0))
def batched(x):
    return jax.vmap(lambda row: shift(add(row)))(x)


@example(X, cut=(0, 2), handed_over=(0, 2))
def gradient(x):
    return jax.grad(lambda x: (add(jnp.sin(x)) ** 2).sum())(x)


@example(X, cut=(2, 11), handed_over=(1, 12))
def gradient_of_a_scan(x):
    def step(y, row):
        y = shift(y) * row
        return y, add(y)

    return jax.grad(lambda x: sum(jnp.sum(y) for y in lax.scan(step, x[0], x)))(x)


@example(X, cut=(0, 1), handed_over=(0, 0))
def tangent(x):
    return jax.jvp(lambda x: add(shift(x[1])), (x,), (x,))


@example(X, cut=(0, 2), handed_over=(0, 2))
def rematerialised(x):
    return jax.grad(jax.checkpoint(lambda x: jnp.sin(add(jnp.sin(x))).sum()))(x)


@example(X, cut=(0, 1), handed_over=(0, 0))
def with_tokens(x):
    y, token = mpi4jax.allreduce(x[0], MPI.SUM)
    z, token = mpi4jax.sendrecv(y, y, LEFT, RIGHT, token=token)
    return mpi4jax.bcast(z, 0, token=token)[0]
