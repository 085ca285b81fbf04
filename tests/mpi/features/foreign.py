"""An operation that is not mpi4jax's: its handler is in Python, and calls MPI by mpi4py.

XLA calls it as any handler, with a frame (`xla/ffi/api/c_api.h`). It exchanges a number
with another process.
"""

from __future__ import annotations

import ctypes
import traceback
from ctypes import POINTER, Structure, c_int, c_int64, c_size_t, c_void_p, cast

import jax
import numpy as np
from mpi4py import MPI

from mpi4jax import extend

TOKEN, METADATA = 17, 1


def _struct(name, **fields):
    return type(name, (Structure,), {"_fields_": list(fields.items())})


def _sized(name, **fields):
    return _struct(name, struct_size=c_size_t, extension_start=c_void_p, **fields)


Extension = _struct("Extension", struct_size=c_size_t, type=c_int, next=c_void_p)
Version = _sized("Version", major=c_int, minor=c_int)
Metadata = _struct(
    "Metadata", struct_size=c_size_t, version=Version, traits=ctypes.c_uint32
)
MetadataExtension = _struct("MetadataExtension", base=Extension, metadata=POINTER(Metadata))
Api = _sized("Api", version=Version)
Buffer = _sized("Buffer", dtype=c_int, data=c_void_p, rank=c_int64, dims=c_void_p)
Buffers = _sized("Buffers", size=c_int64, types=c_void_p, buffers=POINTER(POINTER(Buffer)))
Span = _struct("Span", ptr=POINTER(ctypes.c_char), len=c_size_t)
Scalar = _struct("Scalar", dtype=c_int, value=POINTER(c_int64))
Attributes = _sized(
    "Attributes",
    size=c_int64,
    types=c_void_p,
    names=POINTER(POINTER(Span)),
    values=POINTER(POINTER(Scalar)),
)
CallFrame = _sized(
    "CallFrame",
    api=POINTER(Api),
    context=c_void_p,
    stage=c_int,
    operands=Buffers,
    results=Buffers,
    attributes=Attributes,
)
Registry = _struct(
    "Registry",
    struct_size=c_size_t,
    communicator=ctypes.CFUNCTYPE(
        c_int, c_int64, POINTER(c_size_t), POINTER(c_int), POINTER(c_int)
    ),
    operator=ctypes.CFUNCTYPE(c_int, c_int64, POINTER(c_size_t)),
    datatype=ctypes.CFUNCTYPE(c_int, c_int, POINTER(c_size_t), POINTER(c_size_t)),
)


def registry() -> Registry:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Registry.from_address(get(extend.registry(), b"mpi4jax.registry"))


def arrays(buffers):
    """The numbers that a handler gets or gives, without the token."""
    contents = [buffers.buffers[n].contents for n in range(buffers.size)]
    pointers = [cast(b.data, POINTER(ctypes.c_float)) for b in contents if b.dtype != TOKEN]
    return [np.ctypeslib.as_array(pointer, (1,)) for pointer in pointers]


def attributes_of(frame):
    attributes = frame.attributes
    names = [attributes.names[n].contents for n in range(attributes.size)]
    return {
        name.ptr[: name.len].decode(): attributes.values[n].contents.value[0]
        for n, name in enumerate(names)
    }


@ctypes.CFUNCTYPE(c_void_p, POINTER(CallFrame))
def _handler(pointer):
    frame = pointer.contents
    if frame.extension_start:
        extension = MetadataExtension.from_address(frame.extension_start)
        if extension.base.type == METADATA:
            version = extension.metadata.contents.version
            # jaxlib < 0.7 asks without its functions, and thus its version.
            own_version = (
                frame.api.contents.version if frame.api else Version(major=0, minor=1)
            )
            version.major, version.minor = own_version.major, own_version.minor
            return None
    try:
        (sent,), (received,) = arrays(frame.operands), arrays(frame.results)
        attributes = attributes_of(frame)
        comm, partner = MPI.Comm.fromhandle(handle_of(attributes)), attributes["partner"]
        comm.Sendrecv(sent, partner, 0, received, partner, 0)
    except BaseException:
        # There is nobody here to raise it to, and the other process waits.
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
    return None


def handle_of(attributes):
    """The communicator's handle: as it is, or from its number."""
    if "comm" in attributes:
        return attributes["comm"] % 2**64
    handle = c_size_t()
    assert registry().communicator(attributes["comm_number"], handle, None, None) == 0
    return handle.value


jax.ffi.register_ffi_target("foreign_exchange", jax.ffi.pycapsule(_handler), platform="cpu")
