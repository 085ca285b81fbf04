"""Interface for packages that call MPI in their own handlers, and for exported programs.

`docs/extend.md` and `docs/usage.md` have examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _core
from ._internal.arguments.hashable import handle, unpack_hashable
from ._internal.arguments.types import Comm, Op
from ._internal.mpi import binding, handles
from ._internal.xla import effects, jax_compat
from ._internal.xla.effects import ordered_effect as ordered_effect

if TYPE_CHECKING:
    from jax.export import DisabledSafetyCheck

    from ._internal.xla.jax_compat import LoweringContext, Value

__all__ = [
    "call_in_order",
    "communicator_number",
    "export_checks",
    "get_token",
    "mpi_handle",
    "operator_number",
    "ordered_effect",
    "registry",
    "set_token",
]


def call_in_order(
    primitive: jax_compat.Primitive,
    target: str,
    *,
    platform: str = "cpu",
    operand_output_aliases: dict[int, int] | None = None,
) -> None:
    """Make a primitive call a handler, in order with all other calls of MPI.

    The primitive's parameters are the handler's attributes. Its abstract evaluation must
    return :data:`ordered_effect` with the types of the results
    (``primitive.def_effectful_abstract_eval``). Outside of :func:`jax.jit`, the primitive
    is compiled and run by itself.

    Arguments:
        primitive (jax.extend.core.Primitive): The primitive.
        target: The name under which the handler was registered, by
            :func:`jax.ffi.register_ffi_target`.
        platform: JAX's platform: ``"cpu"``, ``"cuda"``.
        operand_output_aliases: The index of each result that reuses the memory of an
            operand, by the index of the operand.

    """

    def lower(ctx: LoweringContext, *operands: Value, **params: object) -> list[Value]:
        return effects.lower_in_order(
            ctx,
            target,
            operands,
            params,
            aliases=operand_output_aliases,
            takes_byte=False,
            takes_slices=False,
        )

    jax_compat.def_eager(primitive)
    jax_compat.register_lowering(primitive, lower, platform)


def get_token(ctx: LoweringContext) -> Value:
    """Get the XLA token in a lowering rule, for the last operand of its custom call.

    Arguments:
        ctx: The context that JAX passes to the rule.

    """
    return effects.get_ordered_token(ctx)


def set_token(ctx: LoweringContext, token: Value) -> None:
    """Set the XLA token in a lowering rule, to the last result of its custom call.

    Arguments:
        ctx: The context that JAX passes to the rule.
        token: The token.

    """
    jax_compat.set_token(ctx, ordered_effect, token)


def communicator_number(comm: Comm = None) -> int:
    """The number that represents a communicator in compiled programs.

    Programs with numbers are the same on all processes and in all runs. Handlers look up
    the communicator in the :func:`registry`.

    Arguments:
        comm (mpi4py.MPI.Comm): The communicator (defaults to the communicator of operations
            without ``comm``).

    """
    return handles.communicator("communicator_number", comm).number


def export_checks() -> list[DisabledSafetyCheck]:
    """List mpi4jax's custom calls, as ``disabled_checks`` of :func:`jax.export.export`.

    JAX exports its own custom calls, and others only if they are listed by name. The list
    has all handlers of mpi4jax, as an operation may call several.
    """
    from jax.export import DisabledSafetyCheck  # takes long to import

    targets = map(effects.custom_call_target, binding.operations)
    return [DisabledSafetyCheck.custom_call(target) for target in targets]


def operator_number(op: Op) -> int:
    """The number that represents a reduction operator in compiled programs.

    Arguments:
        op (mpi4py.MPI.Op): The operator.

    """
    return handles.operator_number("operator_number", op)


def mpi_handle(obj: object) -> int:
    """The C handle of an MPI object, as a signed integer of 64 bits.

    The handle differs from run to run and from process to process, and so does a program
    that contains the handle. A :func:`communicator_number` does not.

    Arguments:
        obj: An object of mpi4py.

    """
    unsigned = handle(unpack_hashable(obj))
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def registry() -> object:
    """The table of C functions that return the MPI object for a number.

    The table is in a capsule with the name ``mpi4jax.registry``.
    """
    return _core.registry()
