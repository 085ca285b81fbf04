"""Leaves of trees: what a file has of them, and how they are made again."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._manifest import MANIFEST, METADATA, Json
from ..arguments.checks import TRACER_HINT, describe
from ..arguments.dtypes import CARRIERS, DATATYPES
from ..arguments.types import Unchecked
from ..blocks.on_host import Host as Host
from ..xla.jax_compat import Tracer

#: Characters of a name, of which file systems take 255 bytes.
_LONGEST_NAME = 60

#: The types that Zarr v3 names as NumPy does. Elements of others are stored as their bits.
ZARR_TYPES = frozenset(
    [
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *(f"float{bits}" for bits in (16, 32, 64)),
        *(f"complex{bits}" for bits in (64, 128)),
    ]
)

_TYPES = {np.dtype(jnp.dtype(name)): name for name in (*DATATYPES, *CARRIERS)}
_BY_NAME = {name: dtype for dtype, name in _TYPES.items()}


class Leaf(NamedTuple):
    """A leaf of a tree, as a file has it."""

    #: "jax", "numpy", "number" (one of NumPy's), "key" (of a random generator), the name of
    #: a type of Python's, or "none".
    kind: str
    #: The name of the type of an array.
    dtype: str = ""
    #: The name of the generator of keys.
    generator: str = ""
    #: The value of a leaf of Python's, as JSON.
    value: Json = None

    @property
    def is_array(self) -> bool:
        return bool(self.dtype)

    def as_json(self) -> dict[str, Json]:
        """The fields that say something."""
        fields = {name: value for name, value in self._asdict().items() if value != ""}
        if self.is_array or self.kind == "none":
            del fields["value"]
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Json]) -> Leaf:
        return cls(**{name: fields[name] for name in cls._fields if name in fields})


def leaf_of(function: str, path: str, value: Unchecked) -> Leaf:
    """The description of a leaf. Raise TypeError if files can't have it."""
    name = f"`tree{path}`"
    if isinstance(value, Tracer):
        raise TypeError(
            f"{function} got {describe(value)} for {name}, expected values: call it "
            f"outside of jax.jit. {TRACER_HINT}"
        )
    match value:
        case None:
            return Leaf("none")
        case np.generic():
            return Leaf("number", _type_name(function, name, value.dtype))
        case bool() | int() | str():
            return Leaf(type(value).__name__, value=value)
        case float():
            return Leaf("float", value=_float_to_json(value))
        case complex():
            return Leaf("complex", value=[*map(_float_to_json, (value.real, value.imag))])
        case jax.Array() if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            generator = str(jax.random.key_impl(value))
            return Leaf("key", str(jax.random.key_data(value).dtype), generator)
        case jax.Array():
            return Leaf("jax", _type_name(function, name, value.dtype))
        case np.ma.MaskedArray():
            raise TypeError(
                f"{function} got a masked array for {name}, of which the mask would be "
                "lost. Save x.data and x.mask"
            )
        case np.ndarray():
            return Leaf("numpy", _type_name(function, name, value.dtype))
    raise TypeError(
        f"{function} got {describe(value)} for {name}, expected an array, a number, a "
        "string or None"
    )


def _type_name(function: str, name: str, dtype: np.dtype[Any]) -> str:
    if dtype in _TYPES and dtype.isnative:
        return _TYPES[dtype]
    raise TypeError(
        f"{function} got an array of type {dtype.str if not dtype.isnative else dtype} for "
        f"{name}, expected one of {', '.join(_BY_NAME)}, in this machine's order of bytes"
    )


def _float_to_json(value: float) -> Json:
    return value if math.isfinite(value) else str(value)


def stored_type(dtype: str) -> str:
    """The type of an array in a file, whose elements may be the bits of another one."""
    return dtype if dtype in ZARR_TYPES else f"uint{8 * _BY_NAME[dtype].itemsize}"


def to_host(leaf: Leaf, value: Any) -> Host:
    """The array that a file has of a leaf: on the host, and of a type that Zarr names.

    Keys have one more axis, or several, at the end.
    """
    if leaf.kind == "key":
        value = jax.random.key_data(value)
    return _view(np.asarray(value), np.dtype(stored_type(leaf.dtype)))


def _view(array: Host, dtype: np.dtype[Any]) -> Host:
    """The bits of an array as another type of the same size."""
    return array.view(dtype) if array.ndim else array.reshape(1).view(dtype).reshape(())


def own_axes(leaf: Leaf) -> tuple[int, ...]:
    """The axes of the data of one key, at the end of the shape; none of other leaves."""
    if leaf.kind != "key":
        return ()
    data = jax.eval_shape(
        lambda: jax.random.key_data(jax.random.key(0, impl=leaf.generator))
    )
    return tuple(data.shape)


def check_can_be_made(function: str, path: str, leaf: Leaf) -> None:
    """Raise ValueError if JAX would narrow a leaf's type."""
    if leaf.kind != "jax":
        return
    narrowed = jax.dtypes.canonicalize_dtype(_BY_NAME[leaf.dtype])
    if narrowed != _BY_NAME[leaf.dtype]:
        raise ValueError(
            f"{function} found {leaf.dtype} for `tree{path}`, which JAX would make "
            f"{narrowed}, as it has 64-bit types off, expected these on: by "
            'jax.config.update("jax_enable_x64", True), or JAX_ENABLE_X64=1'
        )


def from_host(leaf: Leaf, array: Host) -> Any:
    """The leaf with the values of an array of a file."""
    array = _view(array, _BY_NAME[leaf.dtype])
    match leaf.kind:
        case "numpy":
            return array
        case "number":
            return array[()]
        case "key":
            return jax.random.wrap_key_data(jnp.asarray(array), impl=leaf.generator)
    return jnp.asarray(array)


def from_json(leaf: Leaf) -> Any:
    """The leaf of Python's with the value that JSON has."""
    match leaf.kind:
        case "none":
            return None
        case "float":
            return float(leaf.value)
        case "complex":
            return complex(*map(float, leaf.value))
    return leaf.value


def names_of(paths: Iterable[str]) -> list[str]:
    """The names of arrays: those of their paths, of letters that all file systems know.

    No two are equal, also where upper and lower case are.
    """
    names: list[str] = []
    known = {METADATA, MANIFEST}
    for path in paths:
        parts = path.replace("][", ".").replace("].", ".").strip("[].").replace("[", ".")
        kept = "".join(
            c if c.isalnum() or c in "-_." else "_" for c in parts.replace("'", "")
        )
        name = kept.strip("._")[:_LONGEST_NAME] or "value"
        base, count = name, 1
        while name.casefold() in known:
            count += 1
            name = f"{base}_{count}"
        known.add(name.casefold())
        names.append(name)
    return names
