"""Several threads call at once, each with a stream, a context and a communicator."""

import threading

import driver
import pytest
from calls import calls, communicator, on_host, start_on_device
from mpi4py import MPI

from mpi4jax import _core

NAMES = ("allreduce", "bcast", "sendrecv", "scan", "allgather")
ROUNDS = 12


@pytest.mark.parametrize("limit", [1 << 30, 1 << 18], ids=["roomy", "tight"])
@pytest.mark.parametrize("contexts", [(0, 1), (0, 0)], ids=["two_contexts", "one_context"])
def test_two_threads(contexts, limit):
    """A block that both had at once would give one of them the data of the other."""
    _core.set_staging_limit(limit)
    comms = [MPI.COMM_WORLD.Dup() for _ in contexts]
    chunks = (0, 48)
    cases = [
        [
            (call, communicator(chunk, comm), on_host(call, communicator(chunk, comm)))
            for chunk in chunks
            for name in NAMES
            for call in calls(name, communicator(chunk, comm), dtype, 37)
        ]
        # Both threads have data of their own.
        for comm, dtype in zip(comms, ("float32", "int64"), strict=True)
    ]
    wrong, pending = [], []

    def work(index, cases):
        try:
            driver.set_context(driver.context(index))
            stream = driver.Stream(index)
            for _ in range(ROUNDS):
                for call, c, expected in cases:
                    pending.append((start_on_device(call, c, stream, delay=0), expected))
            streams.append(stream)
        except BaseException as error:
            wrong.append(error)

    streams = []
    threads = [
        threading.Thread(target=work, args=arguments)
        for arguments in zip(contexts, cases, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(pending) == ROUNDS * sum(map(len, cases))
    for result, expected in pending:
        assert result.get() == expected
    _core.free_staging()
    assert driver.live("host_bytes") == driver.live("events") == 0
