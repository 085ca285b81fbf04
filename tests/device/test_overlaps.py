"""Results that overlap operands: slices of one array, as XLA hands them to a call.

MPI forbids it (MPI-4.1 §6.2), so it works on copies, of which all of the operand is made
before any of the result is written.
"""

import driver
import numpy as np
import pytest
from calls import OF_ONE_ARRAY, calls, communicator, on_device, on_host, run_on_device

from mpi4jax import _core

#: Of what is sent in pieces of 48 bytes, the last one is shorter.
COUNT = 40
#: Operations that MPI can do in place, if operand and result are one array.
IN_PLACE = {"allreduce", "bcast", "exscan", "reduce", "scan", "sendrecv"}


@pytest.mark.parametrize("direct", [False, True], ids=["staged", "direct"])
@pytest.mark.parametrize("name", OF_ONE_ARRAY)
def test_values(name, direct, stream, expect):
    """The memory faults if MPI gets it, and values differ if a piece comes too soon."""
    _core.set_direct(direct)
    for chunk in (0, 48):
        c = communicator(chunk)
        for call in calls(name, c, "float32", COUNT):
            wanted = on_host(call, c)
            for shift in (-1, 0, 1, 13):
                if shift == 0 and name in IN_PLACE:
                    continue
                if has_both_arrays(call):
                    result = with_overlap(call, c, stream, shift)
                else:
                    result = on_device(call, c, stream, is_open=direct)
                if call.is_defined:
                    expect(result, wanted, call, chunk=chunk, shift=shift)


def has_both_arrays(call):
    return call.operand is not None and call.operand.size > 0 and call.bytes_written > 0


def with_overlap(call, c, stream, shift):
    """The result of a call, which begins `shift` elements behind the operand."""
    result_size = int(np.prod(call.result, dtype=int))
    both = driver.DeviceArray(call.dtype, (call.operand.size + result_size + abs(shift),))
    operand = both.part(call.operand.shape, max(-shift, 0))
    result = both.part(call.result, max(shift, 0))
    operand.write_later(call.operand, stream, 100)
    run_on_device(call, c, operand, result, stream)
    used = result.copy_later(stream)
    driver.idle()
    return used.read().tobytes()


@pytest.mark.parametrize("chunk", [0, 48])
def test_arrays_side_by_side(chunk, stream, expect):
    """Adjacent arrays do not overlap: nothing is copied where MPI takes the memory."""
    _core.set_direct(True)
    c = communicator(chunk)
    (call,) = calls("allreduce", c, "float32", COUNT)
    both = driver.DeviceArray("float32", (2 * COUNT,), is_open=True)
    operand, result = both.part((COUNT,)), both.part((COUNT,), COUNT)
    operand.write_later(call.operand, stream, 100)
    driver.reset_counts()
    run_on_device(call, c, operand, result, stream)
    assert driver.count("bytes_down", "bytes_up") == 0
    driver.idle()
    expect(result.read().tobytes(), on_host(call, c), call)
