"""Ranks that compute on one GPU, though there is one for each."""

import pytest
from mpi4py import MPI
from processes import run

SUM = """
import cuda_client, os, sys
import jax, jax.numpy as jnp, mpi4jax.notoken as mpi
from mpi4py import MPI

if sys.argv[1:] == ["own"]:
    jax.config.update("jax_default_device", jax.devices()[MPI.COMM_WORLD.rank])
for _ in range(2):
    total = mpi.allreduce(jnp.ones(()), op=MPI.SUM)
assert float(total) == MPI.COMM_WORLD.size
"""
GPU = "GPU-" + "-".join(digits * "01" for digits in (4, 2, 2, 2, 6))


@pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="starts processes itself")
@pytest.mark.parametrize(
    ("ranks", "gpus", "arguments", "is_told"),
    [(2, 4, (), True), (3, 3, (), True), (2, 4, ("own",), False), (3, 2, (), False)],
)
def test_ranks_on_one_gpu(ranks, gpus, arguments, is_told):
    done = run("-P", "-c", SUM, *arguments, ranks=ranks, STAND_IN_DEVICES=str(gpus))
    assert done.returncode == 0, done.stderr
    text = (
        f"mpi4jax: processes of this node compute on the same GPU ({GPU}), though there "
        f"are {gpus} GPUs for {ranks} processes. Start the program by `python -m mpi4jax "
        "run`, or set CUDA_VISIBLE_DEVICES by the rank on the node before JAX begins\n"
    )
    assert done.stderr.count("compute on the same GPU") == is_told
    assert (text in done.stderr) == is_told
