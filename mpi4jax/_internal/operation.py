"""The factory that turns the declaration of an MPI operation into JAX primitives.

What holds for all operations is here: eager calls and traced ones, types, a batch that
travels as one message, tangents that are pushed by the operation itself. How its cotangents
come back, an operation says itself (docs/autodiff.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import device, handles
from .bridge import custom_call_target
from .decorators import ensure_device
from .dtypes import carried, check_dtype, check_reduction
from .effects import ordered_effect
from .handles import Communicator
from .jax_compat import (
    Primitive,
    ShapedArray,
    abstract_token,
    ad,
    batching,
    convert,
    ffi_lowering,
    is_kept_argument,
    lower_function,
    register_lowering,
    tokens,
    trace_state_clean,
)
from .validation import ARRAY_TYPES, reject

_known_array_types: set[type] = set()

#: What stands in a compiled program for an MPI object is its number.
_ATTRIBUTES = {"comm": "comm_number", "op": "op_number", "status": "status_number"}


class Operation:
    """An MPI operation on arrays.

    Arguments:
        name: The name of the operation, of its handler, and of its primitive.
        operands: The names of the array arguments.
        results: Gives the abstract values of what MPI writes on this process, from those
            of the operands and the parameters: one at most.
        sent: Gives, from the parameters, how many of the operands the handler gets (by
            default all). The others only lend their shape and type.
        kept: Gives, from the parameters, the position of the operand that this process
            gets as its result, instead of what MPI writes, or None.
        in_place: Whether the result takes the memory of the first operand, if XLA has
            no further use for that.
        batch_axes: Gives, from the parameters, the axes at which operands and result
            have a batch in a message: 1 where the first axis is one of processes.
        traced: The names of the parameters that only JAX's rules look at. They don't
            stand in the compiled program, as the others do.

    The parameters of a call are integers, or tuples of them. One of them, `comm`, is the
    communicator's number.
    """

    def __init__(
        self,
        name: str,
        *,
        operands: Sequence[str] = ("x",),
        results: Callable[..., Sequence[ShapedArray]],
        sent: Callable[..., int] | None = None,
        kept: Callable[..., int | None] = lambda **_: None,
        in_place: bool = False,
        batch_axes: Callable[..., tuple[int, int]] = lambda **_: (0, 0),
        traced: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.operands = operands
        self.batch_axes = batch_axes
        self._results = results
        self._sent = sent or (lambda **_: len(operands))
        self._kept = kept
        self._in_place = in_place
        self._traced = traced

        self.primitive = Primitive(f"{name}_mpi")
        self.primitive.multiple_results = True
        self.primitive.def_impl(self._evaluate)
        self.primitive.def_effectful_abstract_eval(self._abstract_eval)
        register_lowering(self.primitive, self._lower, platform="cpu")
        for platform in device.PLATFORMS:
            rule = functools.partial(self._lower_on_device, platform)
            register_lowering(self.primitive, rule, platform=platform)
        batching.primitive_batchers[self.primitive] = self._batch

    def def_linear(self, transpose: Callable[..., Any]) -> None:
        """Say that the operation is linear, and how it is transposed."""
        self.def_jvp(self.push)
        self.def_transpose(transpose)

    def def_jvp(self, rule: Callable[..., Any]) -> None:
        ad.primitive_jvps[self.primitive] = rule

    def def_transpose(self, transpose: Callable[..., Any]) -> None:
        """Say how the operation is transposed.

        Arguments:
            transpose: Gives the operand's cotangent, or a tuple of all operands', from
                the result's, the operands (or only their types), and the parameters.

        """

        def rule(cotangents: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
            (cotangent,) = map(ad.instantiate_zeros, cotangents)
            is_linear = list(map(ad.is_undefined_primal, operands))
            given = zip(operands, is_linear, strict=True)
            found = transpose(cotangent, *(x.aval if n else x for x, n in given), **params)
            found = found if isinstance(found, tuple) else (found,)
            return [x if n else None for x, n in zip(found, is_linear, strict=True)]

        ad.primitive_transposes[self.primitive] = rule

    def push(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        """Apply the operation to arrays, and then to their tangents."""
        results = self.primitive.bind(*primals, **params)
        tangents = [ad.instantiate_zeros(tangent) for tangent in tangents]
        return results, self.primitive.bind(*tangents, **params)

    def bind(self, *operands: Any, **params: Any) -> Any:
        """Add a call to the program that is being traced. Gives the result."""
        (result,) = self.primitive.bind(*operands, **params)
        return result

    def __call__(self, group: Communicator, *operands: Any, **params: Any) -> list[Any]:
        """Call MPI, now or whenever the program that is being traced runs."""
        for operand in operands:
            if type(operand) not in _known_array_types:
                self._check_operands(operands)
        if not trace_state_clean():
            return self.primitive.bind(*operands, **params, comm=group.number)
        return self._run(group, *operands, **params)

    def _run(self, group: Communicator, *operands: Any, **params: Any) -> list[Any]:
        # Rules of JAX's give the parameters in any order.
        compiled = group.programs.get((self, frozenset(params.items())))
        if compiled is None:
            compiled = self._compile(group, params)
        program, kept = compiled
        results = program(*operands)
        if type(results) is list:
            return results
        # No result that the caller could wait for, so the call itself waits.
        results.block_until_ready()
        return [] if kept is None else [operands[kept]]

    def receive(
        self, group: Communicator, *operands: Any, status: Any, **params: Any
    ) -> list[Any]:
        """Call MPI, and have it fill `status` (if not None)."""
        if status is None or not trace_state_clean():
            return self(
                group, *operands, status=handles.status(self.name, status), **params
            )
        number = handles.borrow_status(self.name, status)
        try:
            # The status is filled when the call has run, and its number is free then.
            return jax.block_until_ready(self(group, *operands, status=number, **params))
        finally:
            handles.return_status(number)

    def _check_operands(self, operands: Sequence[Any]) -> None:
        for name, operand in zip(self.operands, operands, strict=True):
            if not isinstance(operand, ARRAY_TYPES) and not hasattr(
                operand, "__jax_array__"
            ):
                reject(self.name, name, (jax.Array,), operand)
            _known_array_types.add(type(operand))

    def _evaluate(self, *operands: Any, comm: int, **params: Any) -> list[Any]:
        # Also under jax.disable_jit: an operation can only run compiled.
        with jax.disable_jit(False):
            results = self._run(handles.communicator_at(comm), *operands, **params)
        return list(map(jnp.asarray, results))

    def _compile(self, group: Communicator, params: dict[str, Any]) -> Any:
        """A jitted function that does nothing but this operation, and what is kept."""
        kept = self._kept(**params, comm=group.number)

        def run(*operands: Any) -> Any:
            results = self.primitive.bind(*operands, **params, comm=group.number)
            return results if results and kept is None else jnp.zeros((), bool)

        run.__name__ = self.name  # for profiles and compilation caches
        compiled = jax.jit(run), kept
        group.programs[(self, frozenset(params.items()))] = compiled
        return compiled

    def _abstract_eval(self, *avals: Any, **params: Any) -> Any:
        for name, aval in zip(self.operands, avals, strict=True):
            check_dtype(self.name, name, aval.dtype)
        if "op" in params:
            check_reduction(self.name, params["op"], avals[0].dtype)
        kept = self._kept(**params)
        if kept is None:
            results = list(self._results(*avals, **params))
        else:
            results = [ShapedArray(avals[kept].shape, avals[kept].dtype)]
        return results, {ordered_effect}

    def _lower(self, ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        read = ctx.avals_in[: self._sent(**params)]
        written = list(self._results(*ctx.avals_in, **params))
        in_place = (
            self._in_place
            and len(written) == 1
            # XLA would copy an argument of the program to have it overwritten.
            and not is_kept_argument(operands[0])
        )
        rule = ffi_lowering(
            custom_call_target(self.name),
            has_side_effect=True,
            operand_output_aliases={0: 0} if in_place else None,
        )
        carriers = list(map(carried, read))
        *results, token = rule(
            ctx.replace(
                avals_in=[*carriers, abstract_token],
                avals_out=[*map(carried, written), abstract_token],
            ),
            *map(convert, operands, carriers),
            tokens.get(ctx, ordered_effect),
            **{
                _ATTRIBUTES.get(name, name): np.array(value, np.int64)[()]  # 0-d: a scalar
                for name, value in params.items()
                if name not in self._traced
            },
        )
        tokens.set(ctx, ordered_effect, token)
        kept = self._kept(**params)
        return list(map(convert, results, written)) if kept is None else [operands[kept]]

    def _lower_on_device(
        self, platform: str, ctx: Any, *operands: Any, **params: Any
    ) -> Sequence[Any]:
        ensure_device(platform)
        device.check_mpi()
        return self._lower(ctx, *operands, **params)

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
        """One message for the whole batch, which is at the same place on all processes."""
        axis, result_axis = self.batch_axes(**params)
        batched = zip(operands, axes, strict=True)
        size = next(x.shape[n] for x, n in batched if n is not None)
        moved = [batch_at(axis, size, x, n) for x, n in zip(operands, axes, strict=True)]
        results = self.primitive.bind(*moved, **params)
        return results, [result_axis] * len(results)


def batch_at(axis: int, size: int, x: Any, batch_axis: int | None) -> Any:
    """An array with its batch at `axis`: moved there, or made if it has none."""
    if batch_axis is not None:
        return jnp.moveaxis(x, batch_axis, axis)
    shape = jnp.shape(x)
    return jnp.broadcast_to(jnp.expand_dims(x, axis), (*shape[:axis], size, *shape[axis:]))


class SharedTranspose:
    """The transpose of an operation whose result is one value that all processes share.

    Each process has the cotangent of that one value already, so nothing is sent. This is
    a primitive because its own transpose is the operation again.

    Arguments:
        operation: The operation.
        function: Gives the operand's cotangent from the result's and the parameters.

    """

    def __init__(self, operation: Operation, function: Callable[..., Any]) -> None:
        self._operation = operation
        self.primitive = Primitive(f"{operation.name}_transpose_mpi")
        self.primitive.def_impl(function)
        self.primitive.def_abstract_eval(
            lambda y, **params: ShapedArray(
                jax.eval_shape(functools.partial(function, **params), y).shape, y.dtype
            )
        )
        register_lowering(self.primitive, lower_function(function))
        ad.primitive_jvps[self.primitive] = self._push
        ad.primitive_transposes[self.primitive] = self._transpose
        batching.primitive_batchers[self.primitive] = self._batch

    def __call__(self, cotangent: Any, *_: Any, **params: Any) -> Any:
        return self.primitive.bind(cotangent, **params)

    def _push(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        return self(*primals, **params), self(*tangents, **params)

    def _transpose(self, cotangent: Any, _: Any, **params: Any) -> list[Any]:
        return [self._operation.bind(ad.instantiate_zeros(cotangent), **params)]

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
        operand_axis, result_axis = self._operation.batch_axes(**params)
        moved = jnp.moveaxis(operands[0], axes[0], result_axis)
        return self(moved, **params), operand_axis
