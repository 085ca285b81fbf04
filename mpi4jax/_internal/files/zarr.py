"""Metadata of arrays and groups in the format Zarr v3."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ..._manifest import METADATA as METADATA
from ..._manifest import Json
from .chunks import Sizes


def array_metadata(
    shape: Sequence[int],
    chunks: Sizes,
    dtype: str,
    dims: Sequence[str],
    attributes: Mapping[str, Json],
) -> dict[str, Json]:
    """The metadata of an array with a checksum behind the bytes of each chunk."""
    has_bytes_alone = dtype in ("bool", "int8", "uint8")
    order = {} if has_bytes_alone else {"configuration": {"endian": "little"}}
    zero = 0.0 if dtype.startswith("float") else False if dtype == "bool" else 0
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": [0.0, 0.0] if dtype.startswith("complex") else zero,
        "codecs": [{"name": "bytes", **order}, {"name": "crc32c"}],
        "dimension_names": list(dims),
        "attributes": dict(attributes),
        "storage_transformers": [],
    }


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
