"""The stand-in for the driver of a GPU (tests/driver), as the tests use it."""

from __future__ import annotations

import copy
import ctypes
import os
import weakref
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np

#: The functions for tests: what they take, and what they give.
_SIGNATURES = {
    "stand_in_context": ([c_size_t], c_void_p),
    "stand_in_alloc": ([c_size_t], c_size_t),
    "stand_in_alloc_open": ([c_size_t], c_size_t),
    "stand_in_alloc_kind": ([c_size_t, c_int, c_int], c_size_t),
    "stand_in_shares": ([c_int], c_size_t),
    "stand_in_set_open": ([c_int], None),
    "stand_in_free": ([c_size_t], None),
    "stand_in_read": ([c_void_p, c_size_t, c_size_t], None),
    "stand_in_stream": ([c_void_p], c_void_p),
    "stand_in_free_stream": ([c_void_p], None),
    "stand_in_write_later": ([c_size_t, c_void_p, c_size_t, c_void_p, c_uint64], None),
    "stand_in_copy_later": ([c_size_t, c_size_t, c_size_t, c_void_p, c_uint64], None),
    "stand_in_idle": ([], None),
    "stand_in_count": ([c_char_p], c_uint64),
    "stand_in_reset_counts": ([], None),
    "stand_in_live": ([c_char_p], c_uint64),
    "stand_in_fail": ([c_char_p, c_int, c_uint64], None),
    "cuLaunchHostFunc": ([c_void_p, c_void_p, c_void_p], c_int),
    "cuInit": ([c_uint], c_int),
    "cuCtxSetCurrent": ([c_void_p], c_int),
    "cuCtxGetCurrent": ([ctypes.POINTER(c_void_p)], c_int),
}

#: The driver that it stands for.
NAME = os.environ.get("STAND_IN", "libcuda.so.1")
PLATFORM = "cuda" if NAME.startswith("libcuda") else "rocm"

#: Why the tests can't run, if so.
why_not = ""


def _load() -> Any:
    global why_not
    try:
        library = ctypes.CDLL(NAME)
    except OSError as error:
        why_not = f"no stand-in driver: {error}"
        return None
    if not hasattr(library, "stand_in_count"):
        why_not = f"{NAME} is not the stand-in driver of tests/driver"
        return None
    for name, (arguments, result) in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    # As JAX does before it calls any handler.
    assert library.cuInit(0) == 0
    return library


_library = _load()

#: The bytes that fill new device memory.
NEW = 0xCD

#: The name and the text of an error, by its code.
ERRORS = {
    2: "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
    12345: "unknown error",
}


def context(index: int) -> int:
    """A context of the device."""
    return _library.stand_in_context(index)


def set_context(handle: int | None) -> None:
    """Make a context the calling thread's, as XLA does before it calls a handler."""
    assert _library.cuCtxSetCurrent(handle) == 0


def current_context() -> int | None:
    handle = c_void_p()
    assert _library.cuCtxGetCurrent(handle) == 0
    return handle.value


def count(*names: str) -> int:
    """How often these functions were called, or "bytes_down", "bytes_up", "violations"."""
    return sum(_checked(_library.stand_in_count, name) for name in names)


def live(name: str) -> int:
    """The present "host_bytes", "host_blocks" or "events", or the "peak_host_bytes"."""
    return _checked(_library.stand_in_live, name) - _lost.get(name, 0)


_lost: dict[str, int] = {}


def forget_lost() -> None:
    """Count no more what there is now: nobody can free it, as the driver failed to."""
    for name in ("host_bytes", "host_blocks", "events"):
        _lost[name] = _checked(_library.stand_in_live, name)
    _lost["peak_host_bytes"] = _lost["host_bytes"]


def _checked(function: Any, name: str) -> int:
    value = function(name.encode())
    assert value != 2**64 - 1, f"the stand-in knows no {name}"
    return value


def reset_counts() -> None:
    _library.stand_in_reset_counts()


def fail(name: str, code: int, skip: int = 0) -> None:
    """Make one call of a function fail, after `skip` more. Code 0 cancels."""
    _library.stand_in_fail(name.encode(), code, skip)


def set_open(is_open: bool) -> None:
    """Set whether the host can touch the memory that XLA allocates from now on."""
    _library.stand_in_set_open(is_open)


def idle() -> None:
    """Wait for all streams."""
    _library.stand_in_idle()


class Stream:
    """A stream of a context. It goes with this object."""

    def __init__(self, context_index: int = 0) -> None:
        self.handle = _library.stand_in_stream(context(context_index))
        weakref.finalize(self, _library.stand_in_free_stream, self.handle)

    def call(self, function: Callable[[], object]) -> None:
        """Let the stream call a function, and do nothing else meanwhile."""
        called = _HostFunction(lambda _: function() and None)
        _called.append(called)
        assert _library.cuLaunchHostFunc(self.handle, called, None) == 0


_HostFunction = ctypes.CFUNCTYPE(None, c_void_p)
_called: list[Any] = []


def shares(device: int) -> int:
    """How often the primary context of a device was retained."""
    return _library.stand_in_shares(device)


#: The numbers of kinds of memory.
KINDS = {"plain": 0, "pool": 1, "mapped": 2}


class DeviceArray:
    """An array in device memory. Unless it is open, it faults when the host touches it."""

    #: The array that it is a part of, and whose memory it uses.
    whole: DeviceArray | None = None

    def __init__(
        self,
        dtype: Any,
        shape: tuple[int, ...],
        is_open: bool = False,
        kind: str = "plain",
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self.nbytes = self.dtype.itemsize * int(np.prod(shape, dtype=int))
        self.is_open = is_open
        self.address = _library.stand_in_alloc_kind(self.nbytes, KINDS[kind], is_open)
        assert self.address
        weakref.finalize(self, _library.stand_in_free, self.address)

    def part(self, shape: tuple[int, ...], start: int = 0) -> DeviceArray:
        """The elements from one on, as an array of its own."""
        part = copy.copy(self)
        part.whole, part.shape = self, shape
        part.nbytes = self.dtype.itemsize * int(np.prod(shape, dtype=int))
        part.address = self.address + start * self.dtype.itemsize
        return part

    def write_later(self, array: np.ndarray, stream: Stream, delay: int) -> None:
        """Let the stream write this array, after a delay in microseconds."""
        assert array.nbytes == self.nbytes
        assert array.flags.c_contiguous
        _library.stand_in_write_later(
            self.address, array.ctypes.data, self.nbytes, stream.handle, delay
        )

    def copy_later(self, stream: Stream) -> DeviceArray:
        """An array to which the stream copies this one, as a program does that uses it."""
        copy = DeviceArray(self.dtype, self.shape)
        _library.stand_in_copy_later(
            copy.address, self.address, self.nbytes, stream.handle, 0
        )
        return copy

    def read(self) -> np.ndarray:
        """The present contents of the array, whatever the streams are still to do."""
        array = np.empty(self.shape, self.dtype)
        _library.stand_in_read(array.ctypes.data, self.address, self.nbytes)
        return array
