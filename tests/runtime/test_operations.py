"""Every operation, eager and in a program, staged and direct."""

import jax
import numpy as np
import pytest
from every import over

from mpi4jax._testing.cases import CASES

transform = pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit], ids=["eager", "jit"]
)


def mine(rank, shape, dtype=np.float32):
    """An array that differs from rank to rank and within itself."""
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape) + dtype(20 * rank)


@transform
@over(CASES.values())
def test_results(case, transform, way):
    for root in case.roots:
        rooted = case.replace(root=root)
        xs = rooted.arrays(mine, (3, 2))
        result = transform(rooted.call)(jax.device_put(xs[rooted.rank]))
        expected = rooted.result(xs)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)
