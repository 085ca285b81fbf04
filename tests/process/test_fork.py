"""Processes that are forked from one that has initialised MPI."""

import sys

import pytest

PROGRAM = """
    import atexit, os, warnings
    import jax, jax.numpy as jnp, mpi4jax
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    def program(x):
        return mpi.allreduce(x, op=MPI.SUM)

    warnings.simplefilter("ignore")  # JAX warns of forks
    jitted = jax.jit(program)
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    x = jnp.ones(3)
    requests = []
    {before}

    def in_child():
        for call in {calls}:
            try:
                jax.block_until_ready(call())
            except Exception as error:
                text = str(error).removeprefix("FAILED_PRECONDITION: ")
                print(text.partition(":")[0], flush=True)
    {fork}
    assert program(x).tolist() == [size] * 3
    for request in requests:
        assert mpi4jax.wait(request).tolist() == [1] * 3
"""

FIRST_CALL = "[lambda: program(x)]"

CALLS_BEFORE = """
    program(x), jitted(x)
    requests.append(mpi4jax.isendrecv(x, x, rank, rank))
"""

CALLS = """[
    lambda: program(x),
    lambda: jitted(x),
    lambda: jax.jit(lambda x: mpi.bcast(x, 0))(x),
    lambda: mpi.bcast(x, 0, comm=MPI.COMM_SELF),
    lambda: mpi4jax.wait(requests[0]),
]"""

FORK = """
    child = os.fork()
    if child == 0:
        in_child()
        atexit._run_exitfuncs()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""

MULTIPROCESSING = """
    import multiprocessing

    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    child.join()
    assert child.exitcode == 0, child.exitcode
"""

ERROR = (
    "mpi4jax can't be used in a process that was forked from one that has initialised MPI"
)


@pytest.mark.skipif(sys.platform != "linux", reason="forks from a process with threads")
@pytest.mark.parametrize("fork", [FORK, MULTIPROCESSING], ids=["fork", "multiprocessing"])
@pytest.mark.parametrize(
    ("before", "calls"), [("", FIRST_CALL), (CALLS_BEFORE, CALLS)], ids=["first", "later"]
)
def test_calls_in_a_child_are_errors(launch, before, calls, fork):
    """Fails if the child waits for ever, there or at exit, or its parent is disturbed."""
    calls = calls.replace("\n", "")
    done = launch(PROGRAM.format(before=before, calls=calls, fork=fork), ranks=2)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.replace("\n", "") == ERROR * (2 * calls.count("lambda:"))
