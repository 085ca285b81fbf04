"""Call frames as XLA makes them, and the handlers called with them.

The structs are those of `xla/ffi/api/c_api.h` in version 0.1 of the interface.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Mapping, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_void_p,
)
from types import SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI

from mpi4jax import _core
from mpi4jax._internal.arguments.dtypes import DATATYPES
from mpi4jax._internal.mpi.binding import abi

INTERNAL = 13
EXECUTE = 3
S64 = DATATYPES["int64"][0]


def _struct(name: str, **fields: Any) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": list(fields.items())})


def _sized(name: str, **fields: Any) -> type[Structure]:
    """A struct that begins with its size and a list of extensions."""
    return _struct(name, struct_size=c_size_t, extension_start=c_void_p, **fields)


Buffer = _sized("Buffer", dtype=c_int, data=c_void_p, rank=c_int64, dims=c_void_p)
ByteSpan = _struct("ByteSpan", ptr=c_char_p, len=c_size_t)
Scalar = _struct("Scalar", dtype=c_int, value=c_void_p)
Array = _struct("Array", dtype=c_int, size=c_size_t, data=c_void_p)
Buffers = _sized("Buffers", size=c_int64, types=c_void_p, buffers=c_void_p)
Attrs = _sized("Attrs", size=c_int64, types=c_void_p, names=c_void_p, attrs=c_void_p)
CallFrame = _sized(
    "CallFrame",
    api=c_void_p,
    ctx=c_void_p,
    stage=c_int,
    args=Buffers,
    rets=Buffers,
    attrs=Attrs,
)
Version = _sized("Version", major=c_int, minor=c_int)
ErrorCreateArgs = _sized("ErrorCreateArgs", message=c_char_p, errc=c_int)
ErrorMessageArgs = _sized("ErrorMessageArgs", error=c_void_p, message=c_char_p)
ErrorDestroyArgs = _sized("ErrorDestroyArgs", error=c_void_p)
StreamGetArgs = _sized("StreamGetArgs", ctx=c_void_p, stream=c_void_p)

ErrorCreate = CFUNCTYPE(c_void_p, POINTER(ErrorCreateArgs))
ErrorMessage = CFUNCTYPE(None, POINTER(ErrorMessageArgs))
ErrorDestroy = CFUNCTYPE(None, POINTER(ErrorDestroyArgs))
StreamGet = CFUNCTYPE(c_void_p, POINTER(StreamGetArgs))
Handler = CFUNCTYPE(c_void_p, POINTER(CallFrame))

Api = _sized(
    "Api",
    api_version=Version,
    internal_api=c_void_p,
    error_create=ErrorCreate,
    error_message=ErrorMessage,
    error_destroy=ErrorDestroy,
    handler_register=c_void_p,
    stream_get=StreamGet,
)

#: The errors that nobody has destroyed: code and text.
errors: dict[int, tuple[int, bytes]] = {}
_error_numbers = itertools.count(1)


@ErrorCreate
def _create_error(args: Any) -> int:
    error = next(_error_numbers)
    errors[error] = args.contents.errc, args.contents.message
    return error


@ErrorMessage
def _error_message(args: Any) -> None:
    args.contents.message = errors[args.contents.error][1]


@ErrorDestroy
def _destroy_error(args: Any) -> None:
    del errors[args.contents.error]


@StreamGet
def _stream_of(args: Any) -> int | None:
    """The context of a call is its stream here, or null where it has none."""
    if args.contents.ctx is None:
        error = next(_error_numbers)
        errors[error] = INTERNAL, b"no stream"
        return error
    args.contents.stream = args.contents.ctx
    return None


def _new(struct: type[Structure], *values: Any) -> Any:
    return struct(ctypes.sizeof(struct), None, *values)


_api = _new(
    Api,
    _new(Version, 0, 1),
    None,
    _create_error,
    _error_message,
    _destroy_error,
    None,
    _stream_of,
)


class XlaError(Exception):
    """The error that a handler gave back."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


def _handlers(capsules: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    target = b"xla._CUSTOM_CALL_TARGET"
    return {name: Handler(pointer(capsule, target)) for name, capsule in capsules}


#: The handlers for host and for device memory, by the name of their operation.
ON_HOST, ON_DEVICE = map(_handlers, _core.load(os.fspath(MPI.__file__), abi()))


#: The byte that orders calls on devices. Nobody touches it.
_BYTE = SimpleNamespace(address=None, dtype="uint8", shape=(1,))


class _Frame:
    """A call frame, and all the memory that it points to."""

    def __init__(
        self,
        operands: Sequence[Any],
        results: Sequence[Any],
        attributes: Mapping[str, Any],
        stream: int | None,
    ) -> None:
        self._kept: list[Any] = []
        self.raw = _new(
            CallFrame,
            ctypes.addressof(_api),
            stream,
            EXECUTE,
            self._buffers(operands),
            self._buffers(results),
            self._attributes(attributes),
        )

    def _keep(self, value: Any) -> int:
        self._kept.append(value)
        return ctypes.addressof(value)

    def _list(self, kind: Any, values: Sequence[int]) -> int:
        return self._keep((kind * len(values))(*values))

    def _buffers(self, arrays: Sequence[Any]) -> Any:
        buffers = [self._keep(self._buffer(array)) for array in arrays]
        kinds = self._list(c_int, [1] * len(arrays))
        return _new(Buffers, len(arrays), kinds, self._list(c_void_p, buffers))

    def _buffer(self, array: Any) -> Any:
        is_host = isinstance(array, np.ndarray)
        address = array.ctypes.data if is_host else array.address
        dims = self._list(c_int64, array.shape)
        code, _ = DATATYPES[str(array.dtype)]
        return _new(Buffer, code, address, len(array.shape), dims)

    def _attributes(self, attributes: Mapping[str, Any]) -> Any:
        spans = [
            self._keep(ByteSpan(name.encode(), len(name.encode()))) for name in attributes
        ]
        kinds, values = [], []
        for value in attributes.values():
            if isinstance(value, Sequence):
                kinds.append(1)
                array = Array(S64, len(value), self._list(c_int64, value))
                values.append(self._keep(array))
            else:
                kinds.append(3)
                values.append(self._keep(Scalar(S64, self._keep(c_int64(value)))))
        return _new(
            Attrs,
            len(values),
            self._list(c_int, kinds),
            self._list(c_void_p, spans),
            self._list(c_void_p, values),
        )


def call(
    handler: Any,
    operands: Sequence[Any],
    results: Sequence[Any],
    attributes: Mapping[str, Any],
    stream: int | None = None,
) -> None:
    """Call a handler with arrays of NumPy's or of the device, or raise its XlaError."""
    order = [_BYTE] if handler in ON_DEVICE.values() else []
    frame = _Frame([*operands, *order], [*results, *order], attributes, stream)
    error = handler(frame.raw)
    if error is not None:
        code, text = errors.pop(error)
        raise XlaError(code, text.decode())
