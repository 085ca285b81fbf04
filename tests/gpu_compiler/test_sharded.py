"""Programs over the GPUs of all processes: our calls beside the collectives of NCCL."""

import gpu
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI
from programs import COMM, OTHER, RANK, SIZE, add

import mpi4jax
from mpi4jax import notoken as mpi
from mpi4jax._internal.xla.jax_compat import allows_sharded_programs

pytestmark = [
    pytest.mark.ranks(2),
    pytest.mark.skipif(not allows_sharded_programs(), reason="needs JAX 0.9.1"),
]

#: Each process exchanges with the next one, in NCCL.
RING = [(rank, (rank + 1) % SIZE) for rank in range(SIZE)]


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(gpu.devices(SIZE)), "i")


def neighbors(is_ring=True):
    """The ranks on the left and on the right, as the program computes them."""
    rank = lax.axis_index("i")
    left, right = (rank - 1) % SIZE, (rank + 1) % SIZE
    if is_ring:
        return left, right
    ends = rank > 0, rank < SIZE - 1
    return tuple(map(jnp.where, ends, (left, right), (MPI.PROC_NULL, MPI.PROC_NULL)))


def shift(x, **tags):
    return mpi.sendrecv(x, x, *neighbors(), **tags)


def psum(x):
    return lax.psum(x, "i")


def straight_line(x):
    y = lax.ppermute(add(x), "i", RING)
    return psum(mpi.scan(shift(y), MPI.SUM))


def nothing_depends_on_anything(x):
    ours = [shift(x + n, sendtag=n, recvtag=n) for n in range(3)]
    return sum(ours) + psum(x * 2) + lax.ppermute(x * 3, "i", RING) + add(x * 4)


def messages(x):
    left, right = neighbors(is_ring=False)
    is_even = lax.axis_index("i") % 2 == 0
    mpi.send(psum(x), jnp.where(is_even, right, MPI.PROC_NULL), tag=1)
    return mpi.recv(x, jnp.where(is_even, MPI.PROC_NULL, left), tag=1)


def loop(x):
    def step(_, x):
        x = psum(shift(x)) + lax.ppermute(x, "i", RING)
        return mpi.scan(x, MPI.SUM)

    return add(lax.fori_loop(0, 5, step, x))


def while_loop(x):
    return lax.while_loop(lambda x: psum(x.sum()) < 100, lambda x: shift(x) + psum(x), x)


def branches(x):
    """The first ones are chosen by all processes alike, the others by each on its own."""
    x = lax.cond(psum(x[0, 0]) > 0, lambda x: x * psum(add(x)), shift, x)
    is_first = lax.axis_index("i") == 0
    return lax.cond(is_first, shift, lambda x: 2 * shift(x), x)


def two_communicators(x):
    return psum(add(x)) + add(x * 2, comm=OTHER) + add(x * 3, comm=COMM)


def computed_root(x):
    return mpi.bcast(psum(x), (lax.axis_index("i") * 0 + 1) % SIZE)


def gradient(x):
    def loss(x):
        return psum(jnp.sum(jnp.sin(shift(x)) * add(x)))

    return jax.grad(loss)(x)


def gradient_of_a_loop(x):
    def step(y, row):
        y = shift(y) * row + psum(y)
        return y, mpi.scan(y, MPI.SUM)

    def loss(x):
        y, rows = lax.scan(step, x[0], x)
        return jnp.sum(y) + jnp.sum(jnp.sin(rows))

    return jax.grad(loss)(x)


def rematerialised(x):
    inner = jax.checkpoint(lambda x: jnp.sin(psum(jnp.sin(shift(x)))))
    return jax.grad(lambda x: inner(x).sum())(x)


PROGRAMS = {
    program.__name__: program
    for program in (
        straight_line,
        nothing_depends_on_anything,
        messages,
        loop,
        while_loop,
        branches,
        two_communicators,
        computed_root,
        gradient,
        gradient_of_a_loop,
        rematerialised,
    )
}
#: The instructions by which XLA starts NCCL's collectives.
COLLECTIVES = {"all-reduce-start", "collective-permute-start"}


@pytest.fixture(params=[False, True], ids=["unchecked", "checked"])
def is_checked(request):
    """Whether JAX checks what varies over the mesh."""
    return request.param


@pytest.fixture
def mapped(mesh, is_checked):
    """A function of the whole array, from one of a process's part, and the array."""
    whole = jax.ShapeDtypeStruct(
        (4 * SIZE, 64), "float32", sharding=NamedSharding(mesh, P("i"))
    )

    def call(body):
        def varying(x):
            # A result that is the same everywhere is no part of an array.
            return body(x) + 0 * x

        specs = {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i")}
        return jax.shard_map(varying, check_vma=is_checked, **specs), whole

    return call


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("options", gpu.OPTIONS)
def test_order(mapped, name, options):
    """Ours is the program's, and all processes have the same one of ours and NCCL's.

    Processes with different orders of the two would wait for each other for ever.
    """
    function, whole = mapped(PROGRAMS[name])
    program = gpu.compile_for_gpu(function, whole, options=options)
    assert gpu.calls_in(program) == gpu.calls_of(function, whole)
    gpu.check_chain(program)
    assert COLLECTIVES & {instruction.opcode for instruction in program.run()}
    for text in program.text, program.thunks:
        assert COMM.allgather(text) == [text] * SIZE
    if options == "all graphs":
        gpu.check_outside_of_graphs(program)


def test_a_program_that_differs_is_refused(mapped):
    """By the comparison before it runs, which knows the calls with bytes, too."""
    function, whole = mapped(lambda x: psum(mpi.sendrecv(x, x, RANK, RANK)))
    with pytest.raises(RuntimeError, match="on rank 1: sendrecv .*source=1") as raised:
        gpu.compile_for_gpu(function, whole)
    assert "is not the same on all ranks" in str(raised.value)


def test_axes_of_a_grid(is_checked):
    """Our communicators of the axes, and NCCL's."""
    grid = Mesh(np.array(gpu.devices(SIZE)).reshape(1, SIZE), ("row", "column"))
    comm = mpi4jax.axis_comm(grid, "column")

    def body(x):
        return lax.psum(mpi.scan(x, MPI.SUM, comm=comm), "column")

    spec = P("row", "column")
    mapped = jax.shard_map(
        body, mesh=grid, in_specs=spec, out_specs=P("row"), check_vma=is_checked
    )
    whole = jax.ShapeDtypeStruct(
        (4, 64 * SIZE), "float32", sharding=NamedSharding(grid, spec)
    )
    program = gpu.compile_for_gpu(mapped, whole)
    assert [call.operation for call in gpu.calls_in(program)] == ["scan"]
    gpu.check_chain(program)
    assert COMM.allgather(program.text) == [program.text] * SIZE
