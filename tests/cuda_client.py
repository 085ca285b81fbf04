"""A plugin of pytest's that starts JAX's client for CUDA on the stand-in for a driver.

JAX's private names are used here only.
"""

import pytest
from jax._src import hardware_utils

# JAX looks for NVIDIA's device files before it starts the client.
hardware_utils.has_visible_nvidia_gpu = lambda: True

#: Tests of tests/mpi that can't be run on the stand-in, and why.
LEFT_OUT = {
    "test_many_requests_take_no_memory": "has a hundred thousand turns, and each is late",
    "test_overlap": "calls Python, which needs a CPU device",
    "test_overlap_keeps_the_order_of_callbacks": "calls Python, which needs a CPU device",
    "test_programs_run_one_after_another": "multiplies matrices, which cuBLAS does",
}


def pytest_collection_modifyitems(items):
    for item in items:
        reason = LEFT_OUT.get(item.originalname)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
