"""The error where MPI crashes on the memory of a GPU."""

import signal

import pytest
from test_context import FORCED, LATE, LATER, no_context

#: MPI has found no context, and the user wants it to get the memory of GPUs.
WISH = {"MPI4JAX_USE_CUDA_MPI": "1"}
CRASH = """
import on_device

def program(x):
    return mpi4jax.notoken.{call}

on_device.run(program, on_device.ones())
print("it goes on")
"""
LINE = (
    "r0 | {function} crashed on the memory of a GPU, in {name} at program.py:{line}. "
    "MPI4JAX_USE_CUDA_MPI=0 has arrays copied to host memory; `python -m mpi4jax doctor` "
    "says what this MPI can do"
)
CALLS = {
    "allreduce": ("allreduce(x, MPI.SUM)", "MPI_Allreduce"),
    "allgather": ("allgather(x)", "MPI_Allgather"),
    "sendrecv": ("sendrecv(x, x, 0, 0)", "MPI_Sendrecv"),
}


@pytest.fixture
def crash(start):
    """Run a program that ends by a segmentation fault, without a launcher."""

    def crash(code, **environ):
        done = start(code, ranks=0, environ=environ)
        assert done.code == -signal.SIGSEGV, done
        return done

    return crash


def line_of(done, text):
    """Which line of a program has this text."""
    return next(n for n, line in enumerate(done.program, 1) if text in line)


@pytest.mark.parametrize("name", CALLS)
def test_the_line(start, crash, name):
    call, function = CALLS[name]
    done = crash(LATER + CRASH.format(call=call), **WISH)
    assert done.output == []
    where = f"{line_of(done, 'return mpi4jax')} in program"
    assert done.lines == [
        no_context(LATE, FORCED),
        LINE.format(function=function, name=name, line=where),
    ]
    # What is advised helps.
    done = start(LATER + CRASH.format(call=call), environ={"MPI4JAX_USE_CUDA_MPI": "0"})
    assert (done.code, done.output, done.lines) == (0, ["it goes on"], []), done


def test_the_handlers_of_others_get_the_signal(crash):
    """As `faulthandler`, which was there before, and again after the first call."""
    program = LATER + "import faulthandler; faulthandler.enable()\n"
    call, _ = CALLS["allreduce"]
    text = crash(program + CRASH.format(call=call), **WISH).errors
    ours, theirs = "crashed on the memory", "Fatal Python error: Segmentation fault"
    assert text.index(ours) < text.index(theirs)
    assert text.count(ours) == text.count(theirs) == 1


def test_a_handler_set_between_two_calls(crash):
    """It is called, and hands the signal back to ours, which does not call it again."""
    done = crash(
        """
import mpi4jax
from mpi4py import MPI
import faulthandler
import driver, on_device

def program(x):
    return mpi4jax.notoken.allreduce(x, MPI.SUM)

on_device.run(program, on_device.ones())
faulthandler.enable()
on_device.run(program, on_device.ones(), index=1)
""",
        **WISH,
    )
    assert done.errors.count("crashed on the memory") == 1
    assert done.errors.count("Fatal Python error") == 1


def test_eager_calls_have_a_line(crash):
    done = crash(
        LATER
        + """
import driver, frames, on_device
from mpi4jax import _core

SITE = 77
_core.set_call_site(SITE, "")  # as of the program of an eager call
ones = on_device.ones()
mpi4jax.notoken.allreduce(ones, MPI.SUM)
(call,) = on_device.calls_of(lambda x: mpi4jax.notoken.allreduce(x, MPI.SUM), ones)
call.attributes["call_site"] = SITE
x, y = (driver.DeviceArray("float32", (3,)) for _ in range(2))
on_device.make(call, x, y, driver.Stream())
""",
        **WISH,
    )
    line = line_of(done, "notoken.allreduce(ones, MPI.SUM)")
    text = LINE.format(function="MPI_Allreduce", name="allreduce", line=line)
    assert done.lines == [no_context(LATE, FORCED), text]


def test_other_crashes_are_not_ours(crash):
    """Not even after a direct call."""
    done = crash(
        """
import mpi4jax
from mpi4py import MPI
import ctypes
import on_device

def program(x):
    return mpi4jax.notoken.allreduce(x, MPI.SUM)

on_device.run(program, on_device.ones())
print(on_device.copies(), flush=True)
ctypes.string_at(8)
"""
    )
    assert (done.output, done.lines) == (["(True, False)"], [])


def test_calls_on_cpus_leave_the_signal_alone(start):
    done = start(
        """
import mpi4jax
from mpi4py import MPI
import jax.numpy as jnp

def handlers():
    status = open("/proc/self/status").read()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> 10 & 1)

before = handlers()
mpi4jax.notoken.allreduce(jnp.ones(3), MPI.SUM).block_until_ready()
print(before == handlers())
"""
    )
    assert (done.code, done.output) == (0, ["True"]), done
