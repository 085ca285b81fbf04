"""Arrays on a GPU on their way through an MPI that takes host memory: how fast they are.

    mpiexec -n 2 python benchmarks/staging.py [--quick]

Two ranks exchange arrays of float32, and sum them. All cases of a size take turns:

- in pieces: mpi4jax on its own communicator, where copies and messages overlap,
- whole: mpi4jax on COMM_WORLD, in one message,
- pageable: what the original mpi4jax does, with copies to and from memory of malloc's,
- bus: both copies with page-locked memory, and no MPI,
- mpi4py: MPI alone, on arrays in host memory.

Prints a table for each operation: the bytes of the array per second, in GB/s. They count
once, though they are copied down and up. Without a driver of CUDA's it says so.
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
from statistics import median
from typing import ClassVar

# Read when mpi4jax is imported: copies, and messages in pieces where mpi4jax decides.
os.environ["MPI4JAX_USE_CUDA_MPI"] = "0"
os.environ.pop("MPI4JAX_STAGING_CHUNK", None)
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# With a CPU beside the GPU, JAX's tokens would be measured too.
os.environ.setdefault("JAX_PLATFORMS", "cuda")

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax._commands.tables import Row, over, table
from mpi4jax._commands.workloads import QUICK, RANK, SIZE, WORLD, Effort, Thunk, take_turns
from mpi4jax._text import format_size

OTHER = 1 - RANK
SIZES = tuple(1 << n for n in range(10, 29, 2))
CASES = ("in pieces", "whole", "pageable", "bus", "mpi4py")
#: The dividends and divisors of the last columns.
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

    SIGNATURES: ClassVar = {
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
            function = getattr(self.library, name)
            function.argtypes = types
            setattr(self, name, partial(self._call, name, function))
        count = c_int()
        self.cuInit(0)
        self.cuDeviceGetCount(byref(count))
        if count.value == 0:
            raise DriverError("there is no device")

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


def copy_rate(driver: Driver, x: jax.Array, y: jax.Array, memory: int | None) -> Thunk:
    source, target = x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer()

    def case() -> None:
        driver.cuMemcpyDtoHAsync_v2(memory, source, x.nbytes, driver.stream)
        driver.cuMemcpyHtoDAsync_v2(target, memory, x.nbytes, driver.stream)
        driver.cuStreamSynchronize(driver.stream)

    return case


def pageable(driver: Driver, call: Callable, x: jax.Array, y: jax.Array) -> Thunk:
    source, target = x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer()

    def as_floats(memory: int) -> list:
        return [MPI.memory.fromaddress(memory, x.nbytes), MPI.FLOAT]

    def case() -> None:
        x.block_until_ready()
        send, recv = LIBC.malloc(x.nbytes), LIBC.malloc(x.nbytes)
        driver.cuMemcpyDtoH_v2(send, source, x.nbytes)
        call(as_floats(send), as_floats(recv))
        driver.cuMemcpyHtoD_v2(target, recv, x.nbytes)
        LIBC.free(send)
        LIBC.free(recv)

    return case


def rates(driver: Driver, operation: str, size: int, effort: Effort) -> dict[str, float]:
    """The throughput of each case, in GB/s."""
    with_jax, with_mpi4py, expected = OPERATIONS[operation]
    x = jnp.full(size // 4, RANK + 1, jnp.float32)
    # The driver writes to these behind JAX's back.
    copied, received = (jnp.zeros_like(x).block_until_ready() for _ in range(2))
    send, recv = np.full(x.size, RANK + 1, np.float32), np.zeros(x.size, np.float32)
    programs = {
        "in pieces": jax.jit(partial(with_jax, comm=None)),
        "whole": jax.jit(partial(with_jax, comm=WORLD)),
    }
    x.block_until_ready()
    with driver.locked_memory(size) as memory:
        cases: dict[str, Thunk] = {
            name: lambda program=program: program(x).block_until_ready()
            for name, program in programs.items()
        }
        cases["pageable"] = pageable(driver, with_mpi4py, x, received)
        cases["bus"] = copy_rate(driver, x, copied, memory)
        cases["mpi4py"] = lambda: with_mpi4py(send, recv)
        samples = take_turns(cases, effort)
    driver.cuCtxSynchronize()
    results = {name: program(x) for name, program in programs.items()}
    results |= {"pageable": received, "bus": copied, "mpi4py": recv}
    for name, result in results.items():
        value = RANK + 1 if name == "bus" else expected
        assert bool((result == value).all()), f"{operation}, {size} bytes: wrong {name}"
    return {name: size / median(seconds) / 1e9 for name, seconds in samples.items()}


def row(operation: str, size: int, rate: dict[str, float]) -> Row:
    ratios = {f"{ours} / {base}": over(rate[ours], rate[base]) for ours, base in RATIOS}
    return {operation: format_size(size), **{case: rate[case] for case in CASES}, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few and small samples")
    quick = parser.parse_args().quick
    if SIZE != 2:
        sys.exit(f"{SIZE} ranks, expected 2")
    try:
        driver = Driver()
    except DriverError as error:
        if RANK == 0:
            print(f"skipped: no driver of CUDA's here: {error}")
        return
    effort = QUICK if quick else Effort(rounds=9, burst=0.02)
    device = jax.devices()[0]
    driver.enter(device.local_hardware_id or 0)
    mpi.barrier()  # All ranks make the own communicator together.
    if RANK == 0:
        library = MPI.Get_library_version().splitlines()[0].strip("\0")
        print(f"{device.device_kind}, JAX {jax.__version__}, {library}", flush=True)
    for operation in OPERATIONS:
        rows = [
            row(operation, size, rates(driver, operation, size, effort))
            for size in SIZES
            if size <= (1 << 20 if quick else SIZES[-1])
        ]
        if RANK == 0:
            print(f"\n{table(rows)}", end="", flush=True)


if __name__ == "__main__":
    main()
