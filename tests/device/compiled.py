"""The calls of handlers in the programs that JAX compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import driver
import jax

# For the types of 8 and 16 bytes.
jax.config.update("jax_enable_x64", True)

#: The types of arrays, as programs name them.
TYPES = {
    "i8": "int8",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "i64": "int64",
    "f64": "float64",
    "complex<f64>": "complex128",
}


class CompiledCall(NamedTuple):
    """A call of a handler in a program."""

    name: str
    attributes: dict[str, Any]
    #: The type and the shape of what it reads and writes, if it does.
    operand: tuple[str, tuple[int, ...]] | None
    result: tuple[str, tuple[int, ...]] | None
    #: Whether the result may take the memory of the operand.
    in_place: bool
    #: Whether the program has a use for the result.
    is_used: bool


def lowered(
    function: Callable[..., Any], *operands: Any, platform: str = driver.PLATFORM
) -> Any:
    """A function as a program for the device, which XLA need not have for that.

    It has all calls, those of one process, too.
    """
    # Programs import this file before they choose how MPI is to start.
    from mpi4jax._internal.operations import _alone

    _alone.begin_recording()
    try:
        return jax.jit(function).trace(*operands).lower(lowering_platforms=(platform,))
    finally:
        _alone.end_recording()


def calls_in(
    function: Callable[[Any], Any], operands: Sequence[Any]
) -> list[list[CompiledCall]]:
    """The calls that a function of an array makes, for each of several arrays."""

    # All in one program, as each takes a while. Arguments of a program have to stay, while
    # an array that was computed may be overwritten.
    def program(*operands: Any) -> Any:
        return [function(jax.lax.optimization_barrier(x)) for x in operands]

    all_calls = calls_of(program, *operands)
    count = len(all_calls) // len(operands)
    assert len(all_calls) == count * len(operands)
    return [all_calls[n * count : (n + 1) * count] for n in range(len(operands))]


def calls_of(function: Callable[..., Any], *operands: Any) -> list[CompiledCall]:
    """The calls that a function makes, in order."""
    return [
        _read(operation)
        for main in lowered(function, *operands).compiler_ir().body.operations
        if main.attributes["sym_name"].value == "main"
        for block in main.regions[0].blocks
        for operation in block.operations
        if operation.operation.name == "stablehlo.custom_call"
        if operation.attributes["call_target_name"].value != "mpi_order_ffi"
    ]


def _read(operation: Any) -> CompiledCall:
    attributes = operation.attributes
    result = _array(operation.results)
    target = attributes["call_target_name"].value
    return CompiledCall(
        target.removeprefix("mpi_").removesuffix("_ffi"),
        {entry.name: _number(entry.attr) for entry in attributes["mhlo.backend_config"]},
        _array(operation.operands),
        result,
        "output_operand_aliases" in attributes,
        result is not None and any(True for _ in operation.results[0].uses),
    )


def _number(attribute: Any) -> int | list[int]:
    return attribute.value if hasattr(attribute, "value") else list(attribute)


def _array(values: Any) -> tuple[str, tuple[int, ...]] | None:
    """The array among the values, of which the last one is the byte that orders calls."""
    *arrays, byte = (value.type for value in values)
    assert str(byte) == "tensor<1xui8>"
    if not arrays:
        return None
    (array,) = arrays
    return TYPES[str(array.element_type)], tuple(array.shape)
