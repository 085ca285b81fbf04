"""Programs of the tests, run on the stand-in for a device."""

import ctypes
import sys

import compiled
import driver
import frames
import jax
import numpy as np

#: That a stream may be late.
DELAY = 200


def calls_of(function, x):
    """The calls that a function of an array makes when it is compiled for a GPU."""
    return compiled.calls_of(function, jax.ShapeDtypeStruct(x.shape, x.dtype))


def run(function, x, kind="plain", index=0, is_entered=True):
    """The result of a function with one call for an array on a GPU.

    The arrays are in memory of this kind, and the stream is in the context `index`.
    XLA makes that current for its calls, unless this is to be without.
    """
    (call,) = calls_of(function, x)
    stream = driver.Stream(index)
    operand = driver.DeviceArray(x.dtype, x.shape, kind=kind)
    operand.write_later(x, stream, DELAY)
    dtype, shape = call.result
    result = driver.DeviceArray(dtype, shape, kind=kind)
    before = driver.current_context()
    if is_entered:
        driver.set_context(driver.context(index))
    make(call, operand, result, stream)
    if is_entered:
        driver.set_context(before)
    used = result.copy_later(stream)
    driver.idle()
    return used.read()


def make(call, operand, result, stream):
    """Make a call, as XLA does."""
    frames.call(
        frames.ON_DEVICE[call.name], [operand], [result], call.attributes, stream.handle
    )


def ones():
    return np.arange(3, dtype=np.float32)


def copies():
    """Whether arrays got to MPI and back by its own copies, and whether by ours."""
    aware = ctypes.CDLL(None).aware_mpi_copies()
    return aware > 0, driver.count("cuMemcpyDtoHAsync") > 0


def report(rank, *values):
    """Print a line that no other rank's mixes with."""
    sys.stdout.write(f"{rank}: {' '.join(map(str, values))}\n")
    sys.stdout.flush()
