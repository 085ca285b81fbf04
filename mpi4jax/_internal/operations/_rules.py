"""JAX's rules for operations, which call the methods of the operation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from mpi4jax._override import override

from ..arguments.types import Array, ArrayLike
from ..xla.effects import ordered_effect
from ..xla.held_functions import declare_held_effects
from ..xla.jax_compat import (
    Effect,
    LoweringContext,
    ShapedArray,
    Tangent,
    Value,
    VaryingPrimitive,
    ad,
    batching,
)
from ._alone import lower_alone
from ._batching import batch_at, batch_one_by_one
from ._checkpoint import keep_complex_results
from ._lowering import lower_everywhere
from ._operation import Operation
from ._transposes import Jvp, Operand, array_or_aval, cotangents_of, instantiated, known

Declared = TypeVar("Declared", bound=Operation)


class OperationPrimitive(VaryingPrimitive[list[Array]]):
    """The primitive of a class of operations."""

    @override
    def bind(self, *operands: ArrayLike, **params: object) -> list[Array]:
        operation = params["operation"]
        assert isinstance(operation, Operation)
        if operation.communicator.axes:
            operation, varying = operation.with_varying(operands)
            return super().bind(*varying, operation=operation)
        return super().bind(*operands, **params)

    @override
    def invariant_axes(  # type: ignore[override]
        self, operation: Operation
    ) -> Sequence[Hashable]:
        return operation.invariant_axes()


def as_primitive(operation_type: type[Declared]) -> type[Declared]:
    """Give a class of operations its primitive, with all of JAX's rules for that."""
    primitive = OperationPrimitive(f"{operation_type.name}_mpi")
    primitive.multiple_results = True
    primitive.def_impl(_evaluate)
    primitive.def_effectful_abstract_eval(_abstract_eval)
    lower_everywhere(primitive, lower)
    keep_complex_results(primitive)
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = _jvp
    ad.primitive_transposes[primitive] = transpose
    operation_type.primitive = primitive
    return operation_type


def _evaluate(*operands: Array, operation: Operation) -> list[Array]:
    return operation.evaluate(*operands)


def _abstract_eval(
    *avals: ShapedArray, operation: Operation
) -> tuple[list[ShapedArray], set[Effect]]:
    operation.check_avals(operation.name, *avals)
    operation.communicator.check_mesh(operation.name)
    declare_held_effects()
    return operation.result_avals(*avals), {ordered_effect}


def lower(ctx: LoweringContext, *operands: Value, operation: Operation) -> Sequence[Value]:
    """JAX's rule: the results of the call in a program, which may leave out the call."""
    results = lower_alone(ctx, operation, operands)
    return operation.lower(ctx, *operands) if results is None else results


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Tangent], *, operation: Operation
) -> Jvp:
    return operation.jvp(primals, tangents)


def transpose(
    cotangents: Sequence[Tangent], *operands: Operand, operation: Operation
) -> list[Array | None]:
    """JAX's rule: a cotangent for each operand that the operation is transposed by.

    A process whose cotangent is zero has to call MPI nevertheless: others wait for it.
    """
    operation.check_transpose()
    arrays, numbers = operation.split_operands(operands)
    transposed = operation.transpose(
        instantiated(cotangents), list(map(array_or_aval, arrays)), known(numbers)
    )
    transposed = [ct if ct is None else operation.vary(ct) for ct in transposed]
    others = [None] * (len(operands) - len(transposed))
    return cotangents_of(operands, [*transposed, *others])


def batch(
    operands: Sequence[Array], axes: Sequence[int | None], *, operation: Operation
) -> tuple[list[Array], list[int]]:
    """The results of a batch of operands, and the axes at which they have the batch.

    The batch axis has one position for all processes. Otherwise, what one process sends
    would not be what another one expects, as they trace the program separately.
    """
    operation.check_batch(axes)
    arrays, numbers = operation.split_operands(operands)
    if any(axis is not None for axis in axes[len(arrays) :]):
        results = batch_one_by_one(operation.bind, operands, axes)
        return results, [0] * len(results)
    operand_axis, result_axis = operation.batch_axes()
    moved = batch_at(operand_axis, arrays, axes[: len(arrays)])
    results = operation.bind(*moved, *numbers)
    return results, [result_axis] * len(results)
