"""The records of a process's calls: `mpi4jax.diagnostics.recent()`."""

import inspect
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

from mpi4jax import diagnostics
from mpi4jax import notoken as mpi
from mpi4jax._internal.traces.writer import compare_clocks
from mpi4jax._internal.xla.call_sites import is_users, relative_path

pytestmark = pytest.mark.usefixtures("every_call")


X = jnp.ones(3)
FILE = relative_path(__file__)
NOBODY = MPI.PROC_NULL


def calls_of(function, *args):
    """The records of the calls that a function makes."""
    marker = MPI.COMM_SELF.Dup()
    marker.Set_name("marker")
    mpi.barrier(comm=marker)
    jax.block_until_ready(function(*args))
    jax.effects_barrier()
    mpi.barrier(comm=marker)
    calls = diagnostics.recent()
    marker.Free()
    first, last = [n for n, call in enumerate(calls) if call.communicator == "marker"][-2:]
    return calls[first + 1 : last]


def texts_of(function, *args):
    """The calls without their numbers, which depend on the calls before."""
    return [str(call._replace(number=None)) for call in calls_of(function, *args)]


def line_of(function, offset):
    """A record's words for the line `offset` lines below the first one of a function."""
    code = inspect.unwrap(function).__code__
    file, line = relative_path(code.co_filename), code.co_firstlineno + offset
    return f"{file}:{line} in {code.co_name}"


HELPER = """
from mpi4py import MPI
from mpi4jax import notoken as mpi
def total(x):
    return mpi.allreduce(x, op=MPI.SUM)
"""


@pytest.fixture
def helper(tmp_path):
    """A function that calls an operation, in a file of its own."""
    file = Path(tmp_path, "helper.py")
    file.write_text(HELPER)
    return runpy.run_path(str(file))["total"]


def test_a_jitted_call_has_its_line():
    @jax.jit
    def step(x):
        x = mpi.allreduce(x, MPI.SUM)
        return mpi.bcast(x, 0)

    allreduce, bcast = calls_of(step, X)
    assert allreduce.operation == "allreduce"
    assert allreduce.arguments == ("SUM", "float32[3]")
    assert allreduce.communicator == "COMM_WORLD"
    assert allreduce.line == line_of(step, 2)
    assert bcast.number == allreduce.number + 1
    assert 0 <= allreduce.duration <= allreduce.age
    assert str(bcast) == (
        f"bcast #{bcast.number} (root 0, float32[3]) on COMM_WORLD   {line_of(step, 3)}"
    )


def test_an_eager_call_has_no_line():
    (call,) = calls_of(lambda: mpi.allreduce(X, MPI.MAX))
    assert call.line is None
    assert str(call) == f"allreduce #{call.number} (MAX, float32[3]) on COMM_WORLD"


def test_a_helper_and_who_called_it(helper):
    @jax.jit
    def step(x):
        return helper(x) * 2

    assert texts_of(step, X) == [
        f"allreduce (SUM, float32[3]) on COMM_WORLD   "
        f"{line_of(helper, 1)}, from {line_of(step, 2)}"
    ]


def total(x):
    return mpi.allreduce(x, op=MPI.SUM)


def test_a_helper_in_the_same_file_that_is_called_on_two_lines():
    def twice(x):
        # A lambda is a part of the function that it is in.
        return (lambda y: total(y))(x) + total(x)

    def half(x):
        return total(x) / 2

    step = jax.jit(lambda x: half(twice(x)))
    callers = line_of(twice, 2), line_of(twice, 2), line_of(half, 1)
    assert [call.line for call in calls_of(step, X)] == [
        f"{line_of(total, 1)}, from {caller}" for caller in callers
    ]


def test_what_jax_calls_has_no_caller():
    """JAX traces it once, whoever calls it."""
    inner = jax.jit(total)

    @jax.jit
    def step(x):
        x = inner(x)
        return inner(x)

    assert [call.line for call in calls_of(step, X)] == [line_of(total, 1)] * 2


def test_an_installed_helper_and_the_line_that_led_to_it(tmp_path):
    folder = Path(tmp_path, "site-packages")
    folder.mkdir()
    file = folder / "helper.py"
    file.write_text(HELPER)
    helper = jax.jit(runpy.run_path(str(file))["total"])

    def step(x):
        return helper(x)

    assert [call.line for call in calls_of(step, X)] == [
        f"{line_of(helper, 1)}, from {line_of(step, 1)}"
    ]


def test_modules_that_jax_loads_late_are_not_the_users():
    from jaxlib.mlir.dialects import chlo

    assert not is_users(chlo.__file__)
    assert is_users(__file__)


def test_named_scopes():
    @jax.jit
    def step(x):
        with jax.named_scope("outer"), jax.named_scope("inner"):
            return mpi.allreduce(x, MPI.SUM)

    assert [call.line for call in calls_of(step, X)] == [
        f"{FILE}:{step.__wrapped__.__code__.co_firstlineno + 3} in step (outer/inner)"
    ]


def test_a_gradient_is_at_the_line_of_what_it_is_of():
    def loss(x):
        return mpi.sendrecv(x, x, NOBODY, NOBODY).sum()

    calls = calls_of(jax.jit(jax.value_and_grad(loss)), X)
    lines_and_scopes = [call.line.partition(" (") for call in calls]
    assert [line for line, *_ in lines_and_scopes] == [line_of(loss, 1)] * 2
    # JAX < 0.7 does not say which one is which.
    if any(scope for *_, scope in lines_and_scopes):
        assert ["transpose" in scope for *_, scope in lines_and_scopes] == [False, True]


def test_loops_and_branches():
    def body(i, x):
        return mpi.allreduce(x, MPI.MAX)

    def branch(x):
        return mpi.bcast(x, 0)

    @jax.jit
    def step(x):
        x = jax.lax.fori_loop(0, 3, body, x)
        return jax.lax.cond(x[0] > 0, branch, jnp.negative, x)

    lines = [call.line.split(" (")[0] for call in calls_of(step, X)]
    assert lines == [line_of(body, 1)] * 3 + [line_of(branch, 1)]


def test_equal_programs_on_two_lines():
    def first():
        def step(x):
            return mpi.scan(x, MPI.MIN)

        return step

    def second():
        def step(x):
            return mpi.scan(x, MPI.MIN)

        return step

    functions = first(), second()
    jitted = list(map(jax.jit, functions))
    for function in jitted:
        jax.block_until_ready(function(X))
    lines = " or ".join(line_of(function, 1) for function in functions)
    for function in jitted:
        assert [call.line for call in calls_of(function, X)] == [lines]


def test_the_names_of_communicators(comm):
    named, unnamed = comm.Split(0, 0), comm.Dup()
    named.Set_name("ocean")

    def step():
        for each in (comm, MPI.COMM_SELF, named, unnamed):
            mpi.barrier(comm=each)

    calls = calls_of(step)
    *names, last = [call.communicator for call in calls]
    assert names == ["MPI.COMM_WORLD", "MPI.COMM_SELF", "ocean"]
    assert last.startswith("communicator ")
    assert [call.number for call in calls][2:] == [1, 1]
    named.Free()
    unnamed.Free()


def test_messages_in_words(comm, rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size

    def step():
        mpi.sendrecv(X, X, left, right, sendtag=3, recvtag=3)
        mpi.sendrecv(X, jnp.ones(2), NOBODY, NOBODY, sendtag=1)
        mpi.send(X, NOBODY, tag=5)
        mpi.recv(X, NOBODY, tag=6)
        mpi.sendrecv(X, X, MPI.ANY_SOURCE, rank)

    calls = calls_of(step)
    assert [call.number for call in calls] == [None] * 5
    assert [str(call) for call in calls] == [
        f"sendrecv (to {right} with tag 3, from {left} with tag 3, float32[3]) "
        "on COMM_WORLD",
        "sendrecv (to nobody with tag 1, from nobody with any tag, "
        "float32[3], float32[2]) on COMM_WORLD",
        "send (to nobody with tag 5, float32[3]) on COMM_WORLD",
        "recv (from nobody with tag 6, float32[3]) on COMM_WORLD",
        f"sendrecv (to {rank} with tag 0, from anyone with any tag, float32[3]) "
        "on COMM_WORLD",
    ]


def test_operators_in_words(comm):
    op = MPI.Op.Create(lambda a, b, _: None)
    (call,) = calls_of(lambda: mpi.scan(X, op, comm=MPI.COMM_SELF))
    op.Free()
    operator, array = call.arguments
    assert operator.startswith("operator ")
    assert array == "float32[3]"


def test_the_clocks_of_one_machine_are_equal(comm, rank):
    offset, error = compare_clocks(comm)
    # Fails if an answer is taken for that to another question.
    assert abs(offset) <= error
    assert (error == 0) == (rank == 0)
