"""What is said where MPI crashes on the memory of a GPU."""

import re

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
    "MPI4JAX_USE_CUDA_MPI=0 has arrays copied to host memory; `python -m mpi4jax doctor` says "
    "what this MPI can do"
)
CALLS = {
    "allreduce": ("allreduce(x, MPI.SUM)", "MPI_Allreduce"),
    "bcast": ("bcast(x, 0)", "MPI_Bcast"),
    "allgather": ("allgather(x)", "MPI_Allgather"),
    "sendrecv": ("sendrecv(x, x, 0, 0)", "MPI_Sendrecv"),
}


def signals(done):
    """Whether a program was ended by SIGSEGV, as launchers and shells say it."""
    said = re.search(r"signal 11|Segmentation fault|Signal: 11", done.errors + str(done.code))
    return done.code in (-11, 139, 11) or said is not None


@pytest.mark.parametrize("name", ["allreduce", "allgather", "sendrecv"])
def test_the_line(start, name):
    call, function = CALLS[name]
    done = start(LATER + CRASH.format(call=call), environ=WISH)
    assert signals(done), done
    assert done.code != 0
    assert done.output == []
    line = next(n for n, text in enumerate(done.program, 1) if "return mpi4jax" in text)
    where = f"{line} in program"
    assert done.lines == [
        no_context(LATE, FORCED),
        LINE.format(function=function, name=name, line=where),
    ]
    # What is advised helps.
    done = start(LATER + CRASH.format(call=call), environ={"MPI4JAX_USE_CUDA_MPI": "0"})
    assert (done.code, done.output, done.lines) == (0, ["it goes on"], []), done


def test_the_handlers_of_others_get_the_signal(start):
    """As `faulthandler`, which was there before, and again after the first call."""
    program = LATER + "import faulthandler; faulthandler.enable()\n"
    call, _ = CALLS["allreduce"]
    done = start(program + CRASH.format(call=call), environ=WISH)
    text = done.errors
    assert signals(done), done
    assert text.index("crashed on the memory") < text.index("Fatal Python error: Segmentation")
    assert text.count("crashed on the memory") == text.count("Fatal Python error") == 1


def test_a_handler_set_between_two_calls(start):
    """It is called, and hands the signal back to ours: nothing goes round in circles."""
    done = start(
        """
import mpi4jax
from mpi4py import MPI
import faulthandler
import driver, on_device

def program(x):
    return mpi4jax.notoken.allreduce(x, MPI.SUM)

on_device.run(program, on_device.ones())
faulthandler.enable()
on_device.run(program, on_device.ones(), number=1)
""",
        environ=WISH,
    )
    assert signals(done), done
    assert done.errors.count("crashed on the memory") == 1
    assert done.errors.count("Fatal Python error") == 1


def test_eager_calls_have_a_line(start):
    done = start(
        LATER
        + """
import driver, frames, on_device
from mpi4jax import _core

SITE = 77
_core.set_call_site(SITE, "")  # as of the program of an eager call
mpi4jax.notoken.allreduce(on_device.ones(), MPI.SUM)
(call,) = on_device.calls_of(lambda x: mpi4jax.notoken.allreduce(x, MPI.SUM), on_device.ones())
call.attributes["call_site"] = SITE
x = driver.DeviceArray("float32", (3,))
on_device.make(call, x, x, driver.Stream())
""",
        environ=WISH,
    )
    assert signals(done), done
    line = next(n for n, text in enumerate(done.program, 1) if "ones(), MPI.SUM)" in text)
    crash = LINE.format(function="MPI_Allreduce", name="allreduce", line=line)
    assert done.lines == [no_context(LATE, FORCED), crash]


def test_other_crashes_are_not_ours(start):
    """Neither before nor after a direct call."""
    done = start(
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
    assert signals(done), done
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
