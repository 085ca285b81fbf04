"""The calls that are refused once JAX runs on all processes."""

import os

import jax
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import distributed
from mpi4jax import notoken as mpi


def test_a_second_time():
    with pytest.raises(RuntimeError) as raised:
        distributed.initialize()
    assert str(raised.value) == (
        "mpi4jax.distributed.initialize() can't be called now: "
        "mpi4jax.distributed.initialize() was called before"
    )


def test_a_wrong_argument():
    with pytest.raises(TypeError, match="initialize: `comm` must be an MPI comm"):
        distributed.initialize("world")


def test_other_programs_are_not_told():
    assert "MPITRAMPOLINE_LIB" not in os.environ


@pytest.mark.ranks(2)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_an_operation_on_what_is_spread(mesh, size, spread, transform):
    """An error with advice, which is JAX's own before 0.10."""
    x = spread(np.arange(2.0 * size), mesh, "i")
    with pytest.raises(ValueError, match="inside of jax.shard_map over all axes") as raised:
        transform(lambda x: mpi.allreduce(x, op=MPI.SUM))(x)
    assert "Or call them outside of it, on the part" in str(raised.value)
    # The advice.
    part = mpi.allreduce(x.addressable_data(0), op=MPI.SUM)
    np.testing.assert_array_equal(part, np.arange(2.0 * size).reshape(size, 2).sum(0))
