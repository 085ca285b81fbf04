"""The bytes of the C structs that mpi4jax 0.3 to 0.7 hand to their handlers on GPUs.

The handlers here take no such structs. These are for the handlers of other packages.
"""

import ctypes
from collections.abc import Callable

from mpi4py import MPI

#: A communicator, data type or operator.
_handle = ctypes.c_int if MPI._sizeof(MPI.Comm) == 4 else ctypes.c_void_p
_TYPES = {"i": ctypes.c_int, "h": _handle, "p": ctypes.c_void_p}


def _builder(fields: str) -> Callable[..., bytes]:
    """A function of the fields: ints, handles and pointers, the last two as numbers."""
    types = [_TYPES[field] for field in fields]

    class Descriptor(ctypes.Structure):
        _fields_ = [(f"field_{n}", type_) for n, type_ in enumerate(types)]

    def build(*values: int) -> bytes:
        if len(values) != len(types):
            raise TypeError(f"expected {len(types)} values, got {len(values)}")
        members = (type_(int(value)) for type_, value in zip(types, values, strict=True))
        return bytes(Descriptor(*members))

    return build


build_allgather_descriptor = _builder("ihihh")
build_allreduce_descriptor = _builder("ihhh")
build_alltoall_descriptor = _builder("ihihh")
build_barrier_descriptor = _builder("h")
build_bcast_descriptor = _builder("iihh")
build_gather_descriptor = _builder("ihihih")
build_recv_descriptor = _builder("iiihhp")
build_reduce_descriptor = _builder("ihihh")
build_scan_descriptor = _builder("ihhh")
build_scatter_descriptor = _builder("ihihih")
build_send_descriptor = _builder("iiihh")
build_sendrecv_descriptor = _builder("iiihiiihhp")
