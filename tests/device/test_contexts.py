"""Direct calls are made in the context of their stream, whatever thread makes them."""

import driver
import pytest
from calls import OF_ONE_ARRAY, alone, calls, communicator, on_device, on_host
from driver import count

from mpi4jax import _core

# AMD's streams do not tell their context, and its memory is of one kind.
pytestmark = pytest.mark.skipif(driver.PLATFORM != "cuda", reason="the driver is AMD's")


def contexts():
    """The contexts that may be current when XLA calls, by name."""
    return {"none": None, "other": driver.context(1), "own": driver.context(0)}


@pytest.mark.parametrize("before", ["none", "other", "own"])
@pytest.mark.parametrize("name", OF_ONE_ARRAY)
def test_every_operation(name, before, stream, expect):
    """The driver fails without a context; what was current is so again afterwards."""
    _core.set_direct(True)
    c = communicator()
    for call in calls(name, c, "float32", 5):
        wanted = on_host(call, c)
        driver.set_context(contexts()[before])
        result = on_device(call, c, stream, is_open=True)
        current = driver.current_context()
        driver.set_context(driver.context(0))
        if call.is_defined:
            expect(result, wanted, call)
        expect(current, contexts()[before], call)


@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "staged"])
def test_calls_of_the_driver(is_direct, stream):
    """A direct call asks for its stream's context, and once for each array."""
    _core.set_direct(is_direct)
    (call,) = calls("allreduce", alone(), "float32", 5)
    on_device(call, alone(), stream, is_open=True)
    driver.reset_counts()
    on_device(call, alone(), stream, is_open=True)
    asked = count("cuStreamGetCtx"), count("cuPointerGetAttribute")
    assert asked == ((1, 2) if is_direct else (0, 0))
    # What is current is what has to be: nothing is set.
    assert count("cuCtxSetCurrent") == 0


@pytest.mark.parametrize("function", ["cuStreamGetCtx", "cuPointerGetAttribute"])
def test_what_the_driver_does_not_say(function, stream):
    """Arrays are copied then, or their memory is taken for what the user says it is."""
    _core.set_direct(True)
    (call,) = calls("allreduce", alone(), "float32", 5)
    driver.fail(function, 700)
    result = on_device(call, alone(), stream, is_open=True)
    driver.fail(function, 0)
    assert result == on_host(call, alone())


def test_kinds_of_memory():
    arrays = {kind: driver.DeviceArray("float32", (5,), kind=kind) for kind in driver.KINDS}
    kinds = {kind: _core.memory_kind(array.address) for kind, array in arrays.items()}
    assert kinds == {kind: kind for kind in driver.KINDS}
    assert _core.memory_kind(id(kinds)) == "unknown"
