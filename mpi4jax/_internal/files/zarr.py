"""Metadata of arrays and groups in the format Zarr v3."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from ..._manifest import METADATA as METADATA
from ..._manifest import Json
from .chunks import Storage

_CHECKSUM: dict[str, Json] = {"name": "crc32c"}


def array_metadata(
    shape: Sequence[int],
    storage: Storage,
    dtype: str,
    dims: Sequence[str],
    attributes: Mapping[str, Json],
) -> dict[str, Json]:
    """The metadata of an array with a checksum behind the bytes of each chunk."""
    zero = 0.0 if dtype.startswith("float") else False if dtype == "bool" else 0
    codecs = [_bytes(dtype), *_compression(storage, dtype), _CHECKSUM]
    if storage.is_sharded:
        configuration = {
            "chunk_shape": list(storage.chunk),
            "codecs": codecs,
            "index_codecs": [_bytes("uint64"), _CHECKSUM],
            "index_location": "end",
        }
        codecs = [{"name": "sharding_indexed", "configuration": configuration}]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": list(storage.file)},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": [0.0, 0.0] if dtype.startswith("complex") else zero,
        "codecs": codecs,
        "dimension_names": list(dims),
        "attributes": dict(attributes),
        "storage_transformers": [],
    }


def storage_of(metadata: Mapping[str, Json]) -> Storage:
    """How an array with this metadata is stored, which `array_metadata` has made."""
    file = chunk = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    codecs = metadata["codecs"]
    if codecs[0]["name"] == "sharding_indexed":
        chunk, codecs = (
            codecs[0]["configuration"][key] for key in ("chunk_shape", "codecs")
        )
    names = [each["configuration"]["cname"] for each in codecs if each["name"] == "blosc"]
    return Storage(tuple(file), tuple(chunk), *names)


def _bytes(dtype: str) -> dict[str, Json]:
    """The codec for the bytes of elements."""
    has_order = dtype not in ("bool", "int8", "uint8")
    order = {"configuration": {"endian": "little"}} if has_order else {}
    return {"name": "bytes", **order}


def _compression(storage: Storage, dtype: str) -> list[dict[str, Json]]:
    if not storage.compression:
        return []
    size = element_size(np.dtype(dtype))
    configuration = {
        "cname": storage.compression,
        "clevel": 5,
        "shuffle": "shuffle" if size > 1 else "noshuffle",
        "typesize": size,
        "blocksize": 0,
    }
    return [{"name": "blosc", "configuration": configuration}]


def element_size(dtype: np.dtype[np.generic]) -> int:
    """The bytes of a number: complex elements have two."""
    return dtype.itemsize // (2 if dtype.kind == "c" else 1)


def group_metadata(
    arrays: Mapping[str, dict[str, Json]], attributes: Mapping[str, Json]
) -> dict[str, Json]:
    """The metadata of a group, which has those of its arrays, too."""
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": dict(attributes),
        "consolidated_metadata": {
            "kind": "inline",
            "must_understand": False,
            "metadata": dict(arrays),
        },
    }


def encode(metadata: dict[str, Json]) -> bytes:
    return json.dumps(metadata, indent=2).encode()


def dims_of(shape: Sequence[int]) -> list[str]:
    """Names for axes that have none: the same for arrays that have the same size there."""
    return [f"dim{n}_{size}" for n, size in enumerate(shape)]
