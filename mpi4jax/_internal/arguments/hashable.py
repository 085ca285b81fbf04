"""Handles of MPI objects: as integers, and as static arguments of `jax.jit`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

from mpi4py import MPI

from mpi4jax._override import override

T = TypeVar("T")


def handle(obj: object) -> int:
    """The handle of an MPI object, as an unsigned integer of pointer size."""
    return int(MPI._handleof(obj)) & (2**64 - 1)


class HashableMPIType(Generic[T]):
    """An MPI object that compares and hashes by its handle."""

    def __init__(self, obj: T) -> None:
        self.wrapped = obj

    def _key(self) -> tuple[type, int]:
        obj: object = self.wrapped
        if isinstance(obj, MPI.Status):
            # A status has no handle, and is identified by its address.
            return MPI.Status, MPI._addressof(obj)
        return type(obj), MPI._handleof(obj)

    @override
    def __hash__(self) -> int:
        return hash(self._key())

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableMPIType) and self._key() == other._key()

    @override
    def __repr__(self) -> str:
        return f"HashableMPIType({self.wrapped!r})"


@overload
def wrap_as_hashable(obj: HashableMPIType[T]) -> HashableMPIType[T]: ...
@overload
def wrap_as_hashable(obj: T) -> HashableMPIType[T]: ...
def wrap_as_hashable(obj: object) -> HashableMPIType[Any]:
    """Make an MPI object usable as a static argument of :func:`jax.jit`.

    Wrapped objects are equal if they contain the same communicator, operator or status.
    All operations also accept wrapped objects.

    Arguments:
        obj: A communicator, an operator or a status, or a wrapped one.

    """
    return obj if isinstance(obj, HashableMPIType) else HashableMPIType(obj)


@overload
def unpack_hashable(obj: HashableMPIType[T]) -> T: ...
@overload
def unpack_hashable(obj: T) -> T: ...
def unpack_hashable(obj: object) -> object:
    """Return the MPI object that :func:`wrap_as_hashable` has wrapped.

    Arguments:
        obj: A wrapped MPI object. Anything else is returned unchanged.

    """
    return obj.wrapped if isinstance(obj, HashableMPIType) else obj
