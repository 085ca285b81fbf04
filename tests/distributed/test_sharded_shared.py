"""Values that all processes share, in `jax.shard_map`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

import mpi4jax
from mpi4jax import notoken as mpi
from mpi4jax._internal import shared as module
from mpi4jax._internal.environment import settings
from mpi4jax._internal.xla.jax_compat import allows_sharded_programs, varying_axes

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()

#: The rows of all ranks, and parameters that they share.
WHOLE = np.arange(3.0 * SIZE).reshape(SIZE, 3) + 1
PARAMETERS = {"a": np.array([1.0, 2.0, 3.0]), "b": np.array(0.5)}

pytestmark = [
    pytest.mark.skipif(not allows_sharded_programs(), reason="needs JAX 0.9.1"),
]


def part(parameters, x):
    """What a rank adds to the loss."""
    return jnp.sum(jnp.sin(parameters["a"] * x) + parameters["b"] * x**2)


def loss(parameters, x):
    return mpi.allreduce(part(mpi.shared(parameters), x), op=MPI.SUM)


@pytest.fixture
def run(mesh, spread, is_checked):
    """What a function of shared parameters and of a row of each rank gives on this rank.

    `out` says how the results are divided if JAX checks it.
    """

    def call(body, *out):
        def as_rows(*args):
            return jax.tree.map(lambda x: x[None], body(*args))

        function, out = (body, P(*out)) if is_checked else (as_rows, P("i"))
        specs = {"mesh": mesh, "in_specs": (P(), P("i")), "out_specs": out}
        mapped = jax.jit(jax.shard_map(function, check_vma=is_checked, **specs))
        results = mapped(PARAMETERS, spread(WHOLE, mesh, "i"))
        results = jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), results)
        return results if is_checked else jax.tree.map(lambda x: x[0], results)

    return call


def assert_close(actual, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), actual, expected
    )


def test_the_gradient(run, is_checked):
    """Unchecked, all ranks have a loss and parameters of their own, as with `lax.psum`."""
    own = jax.grad(part)(PARAMETERS, WHOLE[RANK])
    of_all = jax.grad(part)(PARAMETERS, WHOLE)
    expected = of_all if is_checked else jax.tree.map(lambda x: SIZE * x, own)
    assert_close(run(jax.grad(loss)), expected)
    theirs = run(jax.grad(lambda w, x: jax.lax.psum(part(w, x), "i")))
    assert_close(theirs, expected)


def test_the_gradient_of_a_gradient(run, is_checked):
    def of_gradient(parameters, x):
        gradient = jax.grad(loss)(parameters, x)
        return jnp.sum(gradient["a"] ** 2) + gradient["b"] * jnp.sum(gradient["a"])

    def alone(parameters):
        gradient = jax.grad(part)(parameters, WHOLE)
        return jnp.sum(gradient["a"] ** 2) + gradient["b"] * jnp.sum(gradient["a"])

    if not is_checked:
        pytest.skip("all ranks have a loss of their own")
    assert_close(run(jax.grad(of_gradient)), jax.grad(alone)(PARAMETERS))


def test_the_gradient_outside(mesh, spread):
    specs = {"mesh": mesh, "in_specs": (P(), P("i")), "out_specs": P()}
    mapped = jax.shard_map(loss, **specs)
    gradient = jax.jit(jax.grad(mapped))(PARAMETERS, spread(WHOLE, mesh, "i"))
    gradient = jax.tree.map(lambda x: x.addressable_data(0), gradient)
    assert_close(gradient, jax.grad(part)(PARAMETERS, WHOLE))


def test_the_axes_along_which_it_is_shared(grid, spread):
    """It varies along the axes of the communicator from there on, and along no others."""
    comm = mpi4jax.axis_comm(grid, "j")

    def body(x):
        y = mpi.shared(x, comm=comm)
        assert varying_axes(jax.typeof(y)) == {"j"}
        return jax.lax.psum(y, "j")

    specs = {"mesh": grid, "in_specs": P(), "out_specs": P()}
    result = jax.jit(jax.shard_map(body, **specs))(jnp.ones(3))
    np.testing.assert_allclose(result.addressable_data(0), np.full(3, grid.shape["j"]))


@pytest.mark.ranks(2)
@pytest.mark.usefixtures("compare_calls")
def test_the_values_are_compared(run, monkeypatch):
    monkeypatch.setattr(module, "settings", settings._replace(check=True))
    of_all = jax.grad(part)(PARAMETERS, WHOLE)
    own = jax.grad(part)(PARAMETERS, WHOLE[RANK])
    gradient = run(jax.grad(loss))
    unchecked = jax.tree.map(lambda x: SIZE * x, own)
    assert_close(gradient, of_all if gradient["b"] == of_all["b"] else unchecked)
    with pytest.raises(Exception, match=r"`x\['b'\]` of rank 1 is not that of rank 0"):
        run(lambda w, x: mpi.shared({"a": w["a"], "b": w["b"] * x})["b"], "i")
