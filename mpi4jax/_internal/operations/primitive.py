"""The factory that turns the declaration of an MPI operation into JAX primitives.

What holds for all operations is here: eager calls and traced ones, types, a batch that
travels as one message, tangents that are pushed by the operation itself. How its cotangents
come back, an operation says itself (docs/autodiff.md).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.checks import PLAIN_TYPES, array
from ..arguments.dtypes import carrier_aval, check_dtype, check_reduction
from ..environment import settings
from ..layout.packing import Tree, packed, parcels, unpacked
from ..mpi import device, handles
from ..mpi.handles import Communicator
from ..xla import call_sites
from ..xla.effects import custom_call_target, lower_in_order, ordered_effect
from ..xla.jax_compat import (
    LoweredProgram,
    Primitive,
    ShapedArray,
    VaryingPrimitive,
    ad,
    batching,
    calls_with,
    convert,
    forbid_aliasing,
    has_aliases,
    has_mesh,
    is_undonated_argument,
    lower_function,
    lower_with,
    on_lowering,
    register_lowering,
    trace_state_clean,
    without_mesh,
)

T = TypeVar("T")

_operations: dict[str, Operation] = {}

#: The operations in which two processes take part, and not all of them.
MESSAGES = ("exchange", "recv", "send", "sendrecv", "wait")


def named(name: str) -> Operation:
    """The operation with this name.

    So derivatives refer to other operations, which refer to them: no file of `operations`
    imports another.
    """
    return _operations[name]


_makers: list[Any] = []
_wrappers: list[Callable[[Callable[..., Any]], Any]] = []


def on_own_devices(function: Callable[..., T]) -> Callable[..., T]:
    """Have a function run on the devices of its arguments where it is called eagerly.

    A mesh that is set is for programs on several processes.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        if not (has_mesh() and trace_state_clean()):
            return function(*args, **kwargs)
        with without_mesh():
            return function(*args, **kwargs)

    return call


def makes_eager_calls(cls: type[T]) -> type[T]:
    """Say that the method `_run` of a class makes calls outside of any program."""
    maker: Any = cls
    call_sites.mark_eager(maker._run)
    maker._run = on_own_devices(maker._run)
    for wrapper in _wrappers:
        maker._run = wrapper(maker._run)
    _makers.append(maker)
    return cls


def wrap_eager_calls(wrapper: Callable[[Callable[..., Any]], Any]) -> None:
    """Put a function around all eager calls from now on."""
    _wrappers.append(wrapper)
    for maker in _makers:
        maker._run = wrapper(maker._run)


@makes_eager_calls
class Operation:
    """An MPI operation on arrays.

    Arguments:
        name: The name of the operation, of its handler, and of its primitive.
        operands: The names of the array arguments.
        result: Gives the abstract value of what MPI writes on this process, from those of
            the operands and the parameters, or None.
        sent: Gives, from the parameters, how many of the operands the handler gets (by
            default all). The others only lend their shape and type.
        kept: Gives, from the parameters, the position of the operand that this process
            gets as its result, instead of what MPI writes, or None.
        in_place: Whether the result takes the memory of the first operand, if XLA has
            no further use for that.
        batch_axes: Gives, from the parameters, the axes at which operands and result
            have a batch in a message: 1 where the first axis is one of processes.
        not_lowered: The names of the parameters that only JAX's rules look at. They don't
            stand in the compiled program, as the others do.
        not_written: Gives, from the parameters, the parts of the result that MPI leaves
            as they are, which are zeros then: each as a first row and a number of rows.
        envelopes: Gives, from the abstract values of the operands and the parameters, the
            messages of a call that has several.
        constants: The names of the operands, behind all others, that have no derivative,
            and no batch in a message: counts.

    The parameters of a call are integers, or tuples of them, which `_number` at the end
    tells to stand for an MPI object, and `communicator`, a :class:`Communicator`.
    """

    def __init__(
        self,
        name: str,
        *,
        operands: Sequence[str] = ("x",),
        result: Callable[..., ShapedArray | None],
        sent: Callable[..., int] | None = None,
        kept: Callable[..., int | None] = lambda **_: None,
        in_place: bool = False,
        batch_axes: Callable[..., tuple[int, int]] = lambda **_: (0, 0),
        not_lowered: Sequence[str] = (),
        not_written: Callable[..., Sequence[tuple[int, int]]] = lambda **_: (),
        envelopes: Callable[..., call_sites.Envelopes | None] = lambda *_, **__: None,
        constants: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.operands = operands
        #: How many of the operands, the last ones, have no derivative.
        self.constants = len(constants)
        self.batch_axes = batch_axes
        self._result = result
        self._sent = sent or (lambda **_: len(operands))
        self._kept = kept
        self._in_place = in_place
        self._not_lowered = not_lowered
        self._not_written = not_written
        self._envelopes = envelopes

        self.primitive = VaryingPrimitive(f"{name}_mpi")
        self.primitive.multiple_results = True
        self.primitive.def_impl(self._evaluate)
        self.primitive.def_effectful_abstract_eval(self._abstract_eval)
        lower_everywhere(self.primitive, self._lower)
        batching.primitive_batchers[self.primitive] = self._batch
        _operations.setdefault(name, self)

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
        number = len(primals) - self.constants
        pushed = *tangents[:number], *primals[number:]
        return results, self.primitive.bind(*pushed, **params)

    def apply(self, *operands: Any, **params: Any) -> Any:
        """Call MPI, in whatever is being traced or differentiated.

        Gives the result, or None where this process has none.
        """
        results = self.primitive.bind(*operands, **params)
        return results[0] if results else None

    def apply_to_leaves(self, *operands: Sequence[Any], **params: Any) -> Any:
        """The same with the leaves of a tree for each operand, in as few calls as pay.

        Gives the results for the leaves of the last one.
        """
        axis, result_axis = self.batch_axes(**params)
        arrays = [list(map(jnp.asarray, leaves)) for leaves in operands]
        together = [parcels(leaves, axis) for leaves in arrays]
        results: dict[int, Any] = {}
        for places in itertools.zip_longest(*together):
            parts = [
                None if places is None else [leaves[n] for n in places]
                for leaves, places in zip(arrays, places, strict=True)
            ]
            given = [None if part is None else packed(part, axis) for part in parts]
            result = self.apply_to_parcel(*given, **params)
            if result is None or parts[-1] is None:
                continue
            found = unpacked(result, parts[-1], axis, result_axis)
            results.update(zip(places[-1], found, strict=True))
        return [results[place] for place in sorted(results)]

    def apply_to_parcel(self, *operands: Any, **params: Any) -> Any:
        """Call MPI for some leaves, packed into an array for each operand.

        An operand is None where the tree of another one takes more calls.
        """
        return self.apply(*operands, **params)

    def __call__(self, communicator: Communicator, *operands: Any, **params: Any) -> Any:
        """Call MPI for a user, whose arrays are still to be checked."""
        for operand in operands:
            if type(operand) not in PLAIN_TYPES:
                if type(operand) is Tree:
                    return self._call_with_trees(communicator, *operands, **params)
                operands = self._check(operands)
                break
        if not trace_state_clean():
            return self.apply(*operands, **params, communicator=communicator)
        return self._run(communicator, *operands, **params)

    def _call_with_trees(
        self, communicator: Communicator, *trees: Tree, **params: Any
    ) -> Any:
        """Call MPI for all leaves of trees, with a result like the last of these."""
        try:
            operands = [tree.arrays(self.name) for tree in trees]
            if settings.check and self.name not in MESSAGES:
                is_root = communicator.rank == params.get("root")
                digest = trees[0].digest(has_more_axes=self.name == "scatter" and is_root)
                named("barrier")(communicator, structure=digest)
            if not any(operands):
                results: Any = None
            elif not trace_state_clean():
                params["communicator"] = communicator
                results = self.apply_to_leaves(*operands, **params)
            else:
                results = self._run(communicator, *operands, **params)
        except TypeError as error:
            raise (self._wrong_leaf(trees, params) or error) from None
        last = trees[-1]
        if last.leaves and not results:  # nothing comes back
            return None
        return jax.tree_util.tree_unflatten(last.structure, results or [])

    def _wrong_leaf(
        self, trees: Sequence[Tree], params: dict[str, Any]
    ) -> TypeError | None:
        """What is wrong with the first leaf of which something is, with its path."""

        def check(name: str, leaf: Any) -> None:
            dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
            check_dtype(self.name, name, dtype)
            if "op_number" in params:
                check_reduction(self.name, params["op_number"], dtype, name)

        try:
            for tree in trees:
                tree.check(self.name, check)
        except TypeError as error:
            return error
        return None

    def receive(
        self, communicator: Communicator, *operands: Any, status: Any, **params: Any
    ) -> Any:
        """The same, and have MPI fill `status` (if not None)."""
        if status is None or not trace_state_clean():
            number = handles.status_number(self.name, status)
            return self(communicator, *operands, status_number=number, **params)
        number = handles.borrow_status_number(self.name, status)
        try:
            # The status is filled when the call has run, and its number is free then.
            return jax.block_until_ready(
                self(communicator, *operands, status_number=number, **params)
            )
        finally:
            handles.return_status_number(number)

    def _check(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        given = zip(self.operands, operands, strict=True)
        return tuple(array(self.name, name, operand) for name, operand in given)

    def _run(self, communicator: Communicator, *operands: Any, **params: Any) -> Any:
        # Rules of JAX's give the parameters in any order.
        compiled = communicator.programs.get((self, frozenset(params.items())))
        if compiled is None:
            compiled = self._compile(communicator, params)
        program, kept = compiled
        result = program(*operands)
        if type(result) is not tuple:
            return result
        # No result that the caller could wait for, so the call itself waits.
        result[0].block_until_ready()
        if kept is None:
            return None
        given = operands[kept]
        return list(map(_as_array, given)) if type(given) is list else _as_array(given)

    def _evaluate(
        self, *operands: Any, communicator: Communicator, **params: Any
    ) -> list[Any]:
        # Also under jax.disable_jit: an operation can only run compiled.
        with jax.disable_jit(False):
            result = self._run(communicator, *operands, **params)
        return [] if result is None else [result]

    def _compile(self, communicator: Communicator, params: dict[str, Any]) -> Any:
        """A jitted function that does nothing but this operation, and what is kept.

        Where MPI writes nothing, it gives a tuple of something to wait for.
        """
        kept = self._kept(**params, communicator=communicator)

        def run(*operands: Any) -> Any:
            # A list has the leaves of a tree.
            is_list = bool(operands) and type(operands[0]) is list
            apply = self.apply_to_leaves if is_list else self.apply
            result = apply(*operands, **params, communicator=communicator)
            has_result = kept is None and bool(jax.tree_util.tree_leaves(result))
            return result if has_result else (jnp.zeros((), bool),)

        call_sites.mark_eager(run)
        run.__name__ = self.name  # for profiles and compilation caches
        compiled = jax.jit(run), kept
        communicator.programs[(self, frozenset(params.items()))] = compiled
        return compiled

    def _abstract_eval(self, *avals: Any, **params: Any) -> Any:
        for name, aval in zip(self.operands, avals, strict=True):
            check_dtype(self.name, name, aval.dtype)
        if "op_number" in params:
            check_reduction(self.name, params["op_number"], avals[0].dtype)
        kept = self._kept(**params)
        if kept is None:
            result = self._result(*avals, **params)
        else:
            result = ShapedArray(avals[kept].shape, avals[kept].dtype)
        return [] if result is None else [result], {ordered_effect}

    def _lower(self, ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        read = ctx.avals_in[: self._sent(**params)]
        result = self._result(*ctx.avals_in, **params)
        written = [] if result is None else [result]
        in_place = (
            self._in_place
            and len(written) == 1
            # XLA would copy an argument of the program to have it overwritten.
            and not is_undonated_argument(operands[0])
        )
        carriers = list(map(carrier_aval, read))
        results = self._call(
            ctx,
            list(map(convert, operands, carriers)),
            self._attributes(**params),
            envelopes=self._envelopes(*carriers, **params),
            avals_in=carriers,
            avals_out=list(map(carrier_aval, written)),
            aliases={0: 0} if in_place else None,
        )
        parts = self._not_written(**params)
        if parts:
            cleared = functools.partial(fill, value=0, parts=parts)
            results = lower_with(
                ctx, lambda x: [cleared(x)], results, [carrier_aval(written[0])]
            )
        kept = self._kept(**params)
        return list(map(convert, results, written)) if kept is None else [operands[kept]]

    def _call(
        self,
        ctx: Any,
        operands: Sequence[Any],
        attributes: dict[str, Any],
        envelopes: call_sites.Envelopes | None = None,
        **types: Any,
    ) -> list[Any]:
        return call_in_program(ctx, self.name, operands, attributes, envelopes, **types)

    def _attributes(self, communicator: Communicator, **params: Any) -> dict[str, Any]:
        """The parameters as the handler gets them."""
        attributes = {"comm_number": communicator.number, **params}
        return {
            name: np.array(value, np.int64)[()]  # a scalar of what is none
            for name, value in attributes.items()
            if name not in self._not_lowered
        }

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
        """One message for the whole batch, which is at the same place on all processes."""
        bind = functools.partial(self.primitive.bind, **params)
        number = len(operands) - self.constants
        if any(n is not None for n in axes[number:]):
            return one_by_one(bind, operands, axes)
        axis, result_axis = self.batch_axes(**params)
        batched = list(zip(operands[:number], axes[:number], strict=True))
        size = next(x.shape[n] for x, n in batched if n is not None)
        moved = [batch_at(axis, size, x, n) for x, n in batched]
        results = bind(*moved, *operands[number:])
        return results, [result_axis] * len(results)


def _as_array(x: Any) -> Any:
    # JAX takes 10 us to find that an array is one.
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def lower_everywhere(primitive: Primitive, rule: Callable[..., Sequence[Any]]) -> None:
    """Register a rule that calls a handler, on all platforms that have handlers."""

    def lower_on_device(
        platform: str, ctx: Any, *operands: Any, **params: Any
    ) -> Sequence[Any]:
        device.prepare(platform)
        return rule(ctx, *operands, **params)

    register_lowering(primitive, rule, platform="cpu")
    for platform in device.PLATFORMS:
        on_device = functools.partial(lower_on_device, platform)
        register_lowering(primitive, on_device, platform=platform)


def call_in_program(
    ctx: Any,
    handler: str,
    operands: Sequence[Any],
    attributes: dict[str, Any],
    envelopes: call_sites.Envelopes | None = None,
    awaited: call_sites.Envelopes | None = None,
    **types: Any,
) -> list[Any]:
    """Call a handler, in order with all other calls, and have its line noted.

    `envelopes` are the messages that it sends and receives, and `awaited` those that it
    waits for, if these are others.
    """
    if handler in MESSAGES:
        awaited = awaited or envelopes
    place = call_sites.note(ctx, envelopes, awaited)
    attributes = {call_sites.CALL_SITE: np.int64(place), **attributes}
    return lower_in_order(ctx, custom_call_target(handler), operands, attributes, **types)


def fill(array: Any, value: Any, parts: Sequence[tuple[int, int]]) -> Any:
    """An array with a value in some parts, each a first row and a number of rows.

    XLA overwrites these and no more, where nothing else needs the array.
    """
    value = jnp.asarray(value, array.dtype)
    for first, rows in parts:
        part = jnp.broadcast_to(value, (rows, *array.shape[1:]))
        array = jax.lax.dynamic_update_slice_in_dim(array, part, first, 0)
    return array


def tangents_of(results: Sequence[Any], pushed: Sequence[Any]) -> list[Any]:
    """The tangents of results, from those that were pushed. Integers have none."""
    remaining, nothing = iter(pushed), jax.dtypes.float0
    return [
        next(remaining) if is_inexact(x) else ad.Zero(ShapedArray(x.shape, nothing))
        for x in results
    ]


def inexact_tangents(primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """The tangents of those arrays that have any, with zeros where JAX knows of none."""
    pairs = zip(primals, tangents, strict=True)
    return [ad.instantiate_zeros(tangent) for x, tangent in pairs if is_inexact(x)]


def is_inexact(x: Any) -> bool:
    """Whether an array, or what is like one, has tangents."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def batch_at(axis: int, size: int, x: Any, batch_axis: int | None) -> Any:
    """An array with its batch at `axis`: moved there, or made if it has none."""
    if batch_axis is not None:
        return jnp.moveaxis(x, batch_axis, axis)
    shape = jnp.shape(x)
    return jnp.broadcast_to(jnp.expand_dims(x, axis), (*shape[:axis], size, *shape[axis:]))


def one_by_one(
    bind: Callable[..., Any], operands: Sequence[Any], axes: Sequence[Any]
) -> tuple[Any, Any]:
    """A message for each member of a batch, one after the other."""
    given = list(zip(operands, axes, strict=True))
    batched = [jnp.moveaxis(x, n, 0) for x, n in given if n is not None]

    def call(members: Sequence[Any]) -> Any:
        remaining = iter(members)
        return bind(*(x if n is None else next(remaining) for x, n in given))

    results = jax.lax.map(call, batched)
    return results, jax.tree_util.tree_map(lambda _: 0, results)


def _finish(program: LoweredProgram) -> None:
    """See to what is known of the calls of a program when all of it is lowered."""
    if not call_sites.is_noted(program):
        return
    calls = calls_with(program, call_sites.CALL_SITE)
    for call in calls:
        # XLA would have to copy an operand that others read as well before a result can
        # take its memory. It takes long to find that out: the time to compile grows with
        # the square of the number of such operations.
        if has_aliases(call) and len(list(call.operands[0].uses)) > 1:
            forbid_aliasing(call)
    call_sites.tell(program, calls)


on_lowering(_finish)


class SharedTranspose:
    """The transpose of an operation whose result is one value that all processes share.

    Each process has the cotangent of that one value already, so nothing is sent. This is
    a primitive because its own transpose is the operation again.

    Arguments:
        operation: The operation.
        function: Gives the operand's cotangent from the result's, the operation's
            constants, and the parameters.

    """

    def __init__(self, operation: Operation, function: Callable[..., Any]) -> None:
        self._operation = operation
        self.primitive = VaryingPrimitive(f"{operation.name}_transpose_mpi")
        self.primitive.def_impl(function)
        self.primitive.def_abstract_eval(
            lambda *avals, **params: ShapedArray(
                jax.eval_shape(functools.partial(function, **params), *avals).shape,
                avals[0].dtype,
            )
        )
        register_lowering(self.primitive, lower_function(function))
        ad.primitive_jvps[self.primitive] = self._push
        ad.primitive_transposes[self.primitive] = self._transpose
        batching.primitive_batchers[self.primitive] = self._batch

    def __call__(self, cotangent: Any, *operands: Any, **params: Any) -> Any:
        number = len(operands) - self._operation.constants
        return self.primitive.bind(cotangent, *operands[number:], **params)

    def _push(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        bind = functools.partial(self.primitive.bind, **params)
        return bind(*primals), bind(ad.instantiate_zeros(tangents[0]), *primals[1:])

    def _transpose(
        self, cotangent: Any, _: Any, *constants: Any, **params: Any
    ) -> list[Any]:
        cotangent = ad.instantiate_zeros(cotangent)
        found = self._operation.apply(cotangent, *constants, **params)
        return [found, *(None for _ in constants)]

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
        bind = functools.partial(self.primitive.bind, **params)
        if any(n is not None for n in axes[1:]):
            return one_by_one(bind, operands, axes)
        operand_axis, result_axis = self._operation.batch_axes(**params)
        moved = jnp.moveaxis(operands[0], axes[0], result_axis)
        return bind(moved, *operands[1:]), operand_axis
