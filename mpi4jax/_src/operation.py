"""The factory that turns the declaration of an MPI operation into a JAX primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import handles
from .decorators import ensure_cuda_ext
from .effects import ordered_effect
from .handles import Communicator
from .jax_compat import (
    Primitive,
    ShapedArray,
    abstract_token,
    ad,
    batching,
    ffi_lowering,
    is_kept_argument,
    register_lowering,
    tokens,
    trace_state_clean,
)
from .validation import ARRAY_TYPES, reject

#: MPI counts in C ints.
MAX_COUNT = 2**31 - 1

_known_array_types: set[type] = set()


class Operation:
    """An MPI operation on arrays.

    Arguments:
        name: The name of the operation, of its handler, and of its primitive.
        operands: The names of the array arguments.
        results: Gives the abstract values of the results, from those of the operands
            and the parameters.
        sent: Gives, from the parameters, how many of the operands the handler gets (by
            default all). The others only lend their shape and type.
        in_place: Whether the result takes the memory of the first operand, if XLA has
            no further use for that.

    The parameters of a call are integers, one of them, `comm`, the communicator's number.
    They stand in the compiled program.
    """

    def __init__(
        self,
        name: str,
        *,
        operands: Sequence[str] = ("x",),
        results: Callable[..., Sequence[ShapedArray]],
        sent: Callable[..., int] | None = None,
        in_place: bool = False,
    ) -> None:
        self.name = name
        self.operands = operands
        self._results = results
        self._sent = sent or (lambda **_: len(operands))
        self._in_place = in_place

        self.primitive = Primitive(f"{name}_mpi")
        self.primitive.multiple_results = True
        self.primitive.def_impl(self._evaluate)
        self.primitive.def_effectful_abstract_eval(self._abstract_eval)
        register_lowering(self.primitive, self._lower, platform="cpu")
        register_lowering(self.primitive, self._lower_cuda, platform="cuda")

    def def_jvp(self, rule: Callable[..., Any]) -> None:
        ad.primitive_jvps[self.primitive] = rule

    def def_transpose(self, rule: Callable[..., Any]) -> None:
        ad.primitive_transposes[self.primitive] = rule

    def def_batch(self, rule: Callable[..., Any]) -> None:
        batching.primitive_batchers[self.primitive] = rule

    def __call__(self, group: Communicator, *operands: Any, **params: int) -> list[Any]:
        """Call MPI, now or whenever the program that is being traced runs."""
        for operand in operands:
            if type(operand) not in _known_array_types:
                self._check_operands(operands)
        if not trace_state_clean():
            return self.bind(*operands, **params, comm=group.number)
        return self._run(group, *operands, **params)

    def _run(self, group: Communicator, *operands: Any, **params: int) -> list[Any]:
        program = group.programs.get((self.name, *params.values()))
        if program is None:
            program = self._compile(group, params)
        results = program(*operands)
        if type(results) is not list:
            # No result that the caller could wait for, so the call itself waits.
            results.block_until_ready()
            return []
        return results

    def receive(
        self, group: Communicator, *operands: Any, status: Any, **params: int
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

    def bind(self, *operands: Any, **params: int) -> list[Any]:
        """Add the call to the program that is being traced."""
        return self.primitive.bind(*operands, **params)

    def _check_operands(self, operands: Sequence[Any]) -> None:
        for name, operand in zip(self.operands, operands, strict=True):
            if not isinstance(operand, ARRAY_TYPES) and not hasattr(
                operand, "__jax_array__"
            ):
                reject(self.name, name, (jax.Array,), operand)
            _known_array_types.add(type(operand))

    def _evaluate(self, *operands: Any, comm: int, **params: int) -> list[Any]:
        # Also under jax.disable_jit: an operation can only run compiled.
        with jax.disable_jit(False):
            return self._run(handles.communicator_at(comm), *operands, **params)

    def _compile(self, group: Communicator, params: dict[str, int]) -> Callable[..., Any]:
        """A jitted function that does nothing but this operation."""

        def run(*operands: Any) -> Any:
            results = self.bind(*operands, **params, comm=group.number)
            return results or jnp.zeros((), bool)

        run.__name__ = self.name  # for profiles and compilation caches
        program = group.programs[(self.name, *params.values())] = jax.jit(run)
        return program

    def _abstract_eval(self, *avals: Any, **params: int) -> Any:
        for name, aval in zip(self.operands, avals, strict=True):
            if str(aval.dtype) not in handles.DATATYPES:
                raise TypeError(
                    f'{self.name} got an array of type {aval.dtype} for argument "{name}", '
                    f"expected one of {', '.join(handles.DATATYPES)}"
                )
            if aval.size > MAX_COUNT:
                raise ValueError(
                    f"{self.name} got an array of {aval.size} elements for argument "
                    f'"{name}", expected at most {MAX_COUNT} (what MPI takes at once)'
                )
        return list(self._results(*avals, **params)), {ordered_effect}

    def _lower(self, ctx: Any, *operands: Any, **params: int) -> Sequence[Any]:
        sent = self._sent(**params)
        in_place = (
            self._in_place
            and len(ctx.avals_out) == 1
            # XLA would copy an argument of the program to have it overwritten.
            and not is_kept_argument(operands[0])
        )
        rule = ffi_lowering(
            f"mpi4jax_{self.name}",
            has_side_effect=True,
            operand_output_aliases={0: 0} if in_place else None,
        )
        *results, token = rule(
            ctx.replace(
                avals_in=[*ctx.avals_in[:sent], abstract_token],
                avals_out=[*ctx.avals_out, abstract_token],
            ),
            *operands[:sent],
            tokens.get(ctx, ordered_effect),
            **{name: np.int64(value) for name, value in params.items()},
        )
        tokens.set(ctx, ordered_effect, token)
        return results

    def _lower_cuda(self, ctx: Any, *operands: Any, **params: int) -> Sequence[Any]:
        ensure_cuda_ext()
        raise NotImplementedError(f"{self.name} on GPU")
