"""Two threads of the program call at once, each on a communicator of its own."""

import threading

import jax
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import notoken as mpi


@pytest.mark.usefixtures("every_call")
def test_two_threads(way):
    """A staging buffer that both had at once would give one the data of the other."""
    # Of this rank alone: two ranks might meet in different orders.
    comms = [MPI.COMM_SELF.Dup() for _ in range(2)]
    programs = [
        jax.jit(lambda x, comm=comm: mpi.allreduce(x, MPI.SUM, comm=comm)) for comm in comms
    ]
    outcomes = [[], []]

    def work(index):
        for turn in range(20):
            x = np.full(300, index + 10 * turn, np.float32)
            outcomes[index].append((x, programs[index](jax.device_put(x))))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in outcomes:
        assert len(results) == 20
        for x, result in results:
            np.testing.assert_array_equal(result, x)
    for comm in comms:
        comm.Free()
