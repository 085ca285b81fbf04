"""A driver function that fails is an error of the call, and nothing stays behind."""

import driver
import numpy as np
import pytest
from calls import (
    alone,
    calls,
    communicator,
    on_device,
    on_host,
    start_on_device,
)
from driver import count, live
from frames import INTERNAL, XlaError
from mpi4py import MPI
from test_pool import BLOCK, allreduce, receive

from mpi4jax import _core

CODES = (2, 700, 12345)

#: Functions without which there is no result.
NEEDED = (
    "cuCtxGetCurrent",
    "cuMemHostAlloc",
    "cuEventCreate",
    "cuMemcpyDtoHAsync",
    "cuEventSynchronize",
    "cuMemcpyHtoDAsync",
)
#: Functions that only make memory ready for other calls.
TIDYING = ("cuMemFreeHost", "cuEventDestroy", "cuEventQuery", "cuCtxSetCurrent")


def error_text(function, code, rank=0):
    return f"r{rank} | {function} returned error code {code}: {driver.ERRORS[code]}"


def outcome(call, c, stream, **options):
    """The result of a call, or its error: the line that says what failed."""
    try:
        return start_on_device(call, c, stream, **options)
    except XlaError as error:
        return error.text.splitlines()[0] if error.code == INTERNAL else error


def check_works(call, c, stream, **options):
    assert on_device(call, c, stream, **options) == on_host(
        call, c, options.get("in_place")
    )


def check_nothing_is_left():
    driver.idle()
    _core.free_staging()
    assert [live(name) for name in ("host_bytes", "events")] == [0, 0]
    assert count("violations") == 0


#: Calls that this rank makes alone, by what the staging memory is for.
CASES = {
    "two blocks": ("allreduce", False),
    "one block": ("allreduce", True),
    "operand only": ("bcast", False),
    "exchange": ("sendrecv", False),
}


@pytest.mark.parametrize("chunk", [0, 48])
@pytest.mark.parametrize("case", CASES)
def test_each_call_of_each_function(case, chunk, stream):
    name, in_place = CASES[case]
    c = alone(chunk)
    call = calls(name, c, "float32", 40)[0]
    expected = on_host(call, c)

    def run():
        return outcome(call, c, stream, in_place=in_place)

    _core.free_staging()
    driver.reset_counts()
    assert run().get() == expected
    numbers = {function: count(function) for function in (*NEEDED, "cuEventRecord")}
    last = live("host_blocks") if call.bytes_written else 0
    for function, calls_made in numbers.items():
        # The last records say when a result was copied. Without, the stream is waited for.
        needed = calls_made - last if function == "cuEventRecord" else calls_made
        for skip in range(calls_made):
            for code in CODES if skip < 2 else CODES[1:2]:
                check_nothing_is_left()
                driver.fail(function, code, skip)
                result = run()
                driver.fail(function, 0)
                if skip < needed:
                    assert result == error_text(function, code), (function, skip)
                else:
                    assert result.get() == expected, (function, skip)
                check_nothing_is_left()
                check_works(call, c, stream, in_place=in_place)


@pytest.mark.parametrize("function", ["cuEventRecord", "cuEventSynchronize"])
@pytest.mark.parametrize("is_freed", [True, False], ids=["freed", "used"])
def test_a_copy_that_is_still_to_come(is_freed, function, stream):
    """The memory of a call that has failed is not to be used before the copy is over."""
    driver.fail(function, 700)
    call = allreduce(10)
    result = outcome(call, alone(), stream, in_place=True, delay=50_000)
    assert result == error_text(function, 700)
    if is_freed:
        _core.free_staging()
        assert live("host_bytes") == 0
    else:
        other = driver.Stream()
        check_works(call, alone(), other, in_place=True)
    check_nothing_is_left()


@pytest.mark.parametrize("code", CODES)
def test_on_all_ranks(code, stream):
    c = communicator()
    (call,) = calls("allreduce", c, "float32", 5)
    driver.fail("cuMemcpyDtoHAsync", code)
    assert outcome(call, c, stream) == error_text("cuMemcpyDtoHAsync", code, c.rank)
    check_works(call, c, stream)


def test_the_text(stream):
    driver.fail("cuMemcpyDtoHAsync", 700)
    with pytest.raises(XlaError) as error:
        on_device(allreduce(4), alone(), stream)
    message, call = error.value.text.splitlines()
    assert (error.value.code, message) == (
        13,
        "r0 | cuMemcpyDtoHAsync returned error code 700: CUDA_ERROR_ILLEGAL_ADDRESS: an "
        "illegal memory access was encountered",
    )
    assert call.startswith("  in allreduce #")


@pytest.mark.parametrize("code", CODES)
def test_direct(code, stream):
    _core.set_direct(True)
    call = allreduce(40)
    driver.fail("cuStreamSynchronize", code)
    result = outcome(call, alone(), stream, is_open=True)
    assert result == error_text("cuStreamSynchronize", code)
    check_works(call, alone(), stream, is_open=True)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("function", TIDYING)
def test_tidying_is_no_error(function, code, stream):
    """Where memory is short, a call frees what it can't use."""
    check_works(allreduce(4 * BLOCK), alone(), stream)
    in_other_context(allreduce(4 * BLOCK))
    _core.set_staging_limit(4 * BLOCK)
    blocks = live("host_blocks")
    driver.reset_counts()
    driver.fail(function, code)
    check_works(allreduce(3 * BLOCK), alone(), stream)
    assert count(function) > 0
    driver.fail(function, 0)
    assert live("host_blocks") < blocks
    check_works(allreduce(3 * BLOCK), alone(), stream)
    assert driver.current_context() == driver.context(0)
    _core.free_staging()
    # What the driver did not free stays, but no more than that.
    lost = live("host_blocks"), live("events")
    driver.forget_lost()
    assert lost == {"cuMemFreeHost": (1, 0), "cuEventDestroy": (0, 1)}.get(function, (0, 0))


def in_other_context(call):
    driver.set_context(driver.context(1))
    assert on_device(call, alone(), driver.Stream(1)) == on_host(call, alone())
    driver.set_context(driver.context(0))


@pytest.mark.parametrize("code", CODES)
def test_an_event_that_can_not_be_asked(code, stream):
    """The block may still be busy: the result in it must not be overwritten."""
    busy = driver.DeviceArray("int32", (1,))
    busy.write_later(np.zeros(1, "int32"), stream, 100_000)
    first = receive(1, stream)
    driver.fail("cuEventQuery", code)
    second = receive(2, stream)
    driver.fail("cuEventQuery", 0)
    assert (first.get()[0], second.get()[0]) == (1, 2)


@pytest.mark.parametrize("code", CODES)
def test_memory_that_is_kept_makes_room(code, stream):
    """Where there is no more memory, what the pool holds is freed before the next try."""
    check_works(allreduce(1), alone(), stream)
    driver.reset_counts()
    driver.fail("cuMemHostAlloc", code)
    check_works(allreduce(2 * BLOCK), alone(), stream, in_place=True)
    assert count("cuMemHostAlloc") == 2
    assert live("host_bytes") == 2 * BLOCK


def test_a_thread_without_a_context(stream):
    driver.set_context(None)
    result = outcome(allreduce(4), alone(), stream)
    driver.set_context(driver.context(0))
    assert result == (
        "r0 | cuMemHostAlloc returned error code 201: CUDA_ERROR_INVALID_CONTEXT: invalid "
        "device context"
    )
    check_nothing_is_left()


def test_an_error_of_mpi(stream):
    """The copy of the operand is over, or waited for, and the memory goes back."""
    for chunk in (0, 48):
        (call,) = calls("reduce", alone(), "float32", 40)
        call = call._replace(attributes={**call.attributes, "root": 5}, result=None)
        result = outcome(call, alone(chunk), stream)
        assert result.startswith("r0 | MPI_Reduce returned error code ")
        check_nothing_is_left()
        MPI.COMM_WORLD.Barrier()
