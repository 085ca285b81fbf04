"""Arrays on a GPU on their way through an MPI that takes host memory: how fast they are.

    mpiexec -n 2 python benchmarks/staging.py [--quick]

Two ranks exchange arrays of float32, and sum them. All cases of a size take turns:

- in pieces: mpi4jax on its own communicator, where one part is copied while another travels,
- whole: mpi4jax on COMM_WORLD, in one message,
- pageable: what the original mpi4jax does, with copies to and from memory of malloc's,
- bus: both copies with page-locked memory, and no MPI,
- mpi4py: MPI alone, on arrays in host memory.

Prints a table for each operation: the bytes of the array per second, in GB/s. An array counts
once, though it is copied twice. Without a driver of CUDA's it says so.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import partial
from pathlib import Path
from statistics import median

# Read when mpi4jax is imported: copies, and messages in pieces where mpi4jax decides.
os.environ["MPI4JAX_USE_CUDA_MPI"] = "0"
os.environ.pop("MPI4JAX_STAGING_CHUNK", None)
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# With a CPU beside the GPU, JAX's tokens would be measured too.
os.environ.setdefault("JAX_PLATFORMS", "cuda")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from measure import RANK, SIZE, WORLD, Case, Effort, take_turns  # noqa: E402
from mpi4py import MPI  # noqa: E402
from report import number, over, size_of, table  # noqa: E402

from mpi4jax import notoken as mpi  # noqa: E402

OTHER = 1 - RANK
SIZES = tuple(1 << n for n in range(10, 29, 2))
CASES = ("in pieces", "whole", "pageable", "bus", "mpi4py")
#: What is divided by what, in the last columns.
RATIOS = (
    ("in pieces", "pageable"),
    ("whole", "pageable"),
    ("in pieces", "bus"),
    ("whole", "bus"),
)


def sendrecv(x: jax.Array, comm: MPI.Intracomm | None) -> jax.Array:
    return mpi.sendrecv(x, x, OTHER, OTHER, comm=comm)


def sendrecv_mpi4py(send: object, recv: object) -> None:
    WORLD.Sendrecv(send, OTHER, recvbuf=recv, source=OTHER)


def allreduce(x: jax.Array, comm: MPI.Intracomm | None) -> jax.Array:
    return mpi.allreduce(x, op=MPI.SUM, comm=comm)


def allreduce_mpi4py(send: object, recv: object) -> None:
    WORLD.Allreduce(send, recv, op=MPI.SUM)


#: By mpi4jax, by mpi4py, and what comes of it where rank r has an array of r + 1.
OPERATIONS = {
    "sendrecv": (sendrecv, sendrecv_mpi4py, OTHER + 1),
    "allreduce": (allreduce, allreduce_mpi4py, 3),
}

LIBC = ctypes.CDLL(None)
LIBC.malloc.argtypes, LIBC.malloc.restype = (c_size_t,), c_void_p
LIBC.free.argtypes, LIBC.free.restype = (c_void_p,), None


class DriverError(Exception):
    pass


class Driver:
    """The driver's functions, in the context that JAX uses, and a stream."""

    SIGNATURES = {
        "cuInit": (c_uint,),
        "cuDeviceGetCount": (c_void_p,),
        "cuDeviceGet": (c_void_p, c_int),
        "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
        "cuCtxSetCurrent": (c_void_p,),
        "cuCtxSynchronize": (),
        "cuStreamCreate": (c_void_p, c_uint),
        "cuStreamSynchronize": (c_void_p,),
        "cuMemHostAlloc": (c_void_p, c_size_t, c_uint),
        "cuMemFreeHost": (c_void_p,),
        "cuMemcpyDtoH_v2": (c_void_p, c_size_t, c_size_t),
        "cuMemcpyHtoD_v2": (c_size_t, c_void_p, c_size_t),
        "cuMemcpyDtoHAsync_v2": (c_void_p, c_size_t, c_size_t, c_void_p),
        "cuMemcpyHtoDAsync_v2": (c_size_t, c_void_p, c_size_t, c_void_p),
        "cuGetErrorName": (c_int, c_void_p),
    }

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(str(error)) from None
        for name, types in self.SIGNATURES.items():
            self.library[name].argtypes = types
            # Looked up here: `library[name]` is a new function each time.
            setattr(self, name, partial(self._call, name, self._function(name, types)))
        count = c_int()
        self.cuInit(0)
        self.cuDeviceGetCount(byref(count))
        if count.value == 0:
            raise DriverError("there is no device")

    def _function(self, name: str, types: tuple) -> Callable[..., int]:
        function = getattr(self.library, name)
        function.argtypes = types
        return function

    def _call(self, name: str, function: Callable[..., int], *arguments: object) -> None:
        code = function(*arguments)
        if code != 0:
            text = c_char_p()
            self.library.cuGetErrorName(code, byref(text))
            error = (text.value or b"unknown").decode()
            raise DriverError(f"{name} returned error code {code}: {error}")

    def enter(self, ordinal: int) -> None:
        """Make the device's context the current one, as JAX has it."""
        device, context, self.stream = c_int(), c_void_p(), c_void_p()
        self.cuDeviceGet(byref(device), ordinal)
        self.cuDevicePrimaryCtxRetain(byref(context), device)
        self.cuCtxSetCurrent(context)
        self.cuStreamCreate(byref(self.stream), 1)  # beside the default stream

    @contextmanager
    def locked_memory(self, size: int) -> Iterator[int | None]:
        memory = c_void_p()
        self.cuMemHostAlloc(byref(memory), size, 0)
        yield memory.value
        self.cuMemFreeHost(memory)
