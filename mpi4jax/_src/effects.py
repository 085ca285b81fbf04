"""The order of MPI calls, and programs that keep it without JAX's help.

Every operation has an ordered effect, by which JAX chains the operations of a program with
an XLA token, through jit, scan, while and cond. The price is a slow path at every call of a
jitted function, on which JAX passes the token from one call to the next. That is not
needed: XLA runs the programs of a device one after another.

So there are *blocks*: a piece of a program as one equation without the ordered effect,
which makes a token of its own when it is lowered. A program that consists of a block is
dispatched on JAX's fast path. Inside a block the order is JAX's. Beside it, in the same
compiled program, `Chain` orders what stands at the top level of that program, and refuses
what does not.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from .jax_compat import (
    ClosedJaxpr,
    Effect,
    Jaxpr,
    PerModule,
    Primitive,
    ad,
    batching,
    bind_again,
    eval_jaxpr,
    hlo,
    jaxprs_in_params,
    lower_jaxpr,
    module_key,
    never_drop,
    register_effect,
    register_lowering,
    top_level_of_main,
)


class _MPIEffect(Effect):
    """An effect that hashes to the same number in every process."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return int(hashlib.md5(type(self).__name__.encode()).hexdigest(), 16)


class OrderedMPIEffect(_MPIEffect):
    """Calls MPI, in order with all else that does."""

    def __str__(self) -> str:
        return "MPI"


class BlockEffect(_MPIEffect):
    """Calls MPI, in an order of its own. Keeps JAX from dropping unused blocks."""

    def __str__(self) -> str:
        return "MPI block"


ordered_effect = register_effect(OrderedMPIEffect(), ordered=True)
block_effect = register_effect(BlockEffect(), ordered=False)


class Chain:
    """The order of the operations and blocks of one module that is being lowered."""

    _of_module: PerModule[Any, Chain] = PerModule()

    def __init__(self) -> None:
        #: The token after what was last lowered at the top level.
        self.token: Any = None
        #: The last block, and the last operation outside of blocks and the top level.
        self.block: str | None = None
        self.nested: str | None = None
        self.inside_block = False

    @classmethod
    def of(cls, ctx: Any) -> Chain:
        key = module_key(ctx)
        return cls._of_module.setdefault(key, cls())

    def conflict(self, block: str, other: str) -> RuntimeError:
        return RuntimeError(
            f"auto_tokenize({block}) and {other} are compiled into one function in a way "
            "in which their order can't be kept. Apply auto_tokenize to the outermost "
            "function instead (an auto_tokenize inside it does no harm)."
        )

    @contextmanager
    def operation(self, name: str, token: Any) -> Iterator[_Link]:
        """Order an operation, which JAX wants after `token`."""
        link = _Link(token)
        top_level = top_level_of_main()
        if not self.inside_block and self.block is not None:
            if not top_level:
                raise self.conflict(self.block, name)
            link.token = hlo.after_all([token, self.token])
        yield link
        if not self.inside_block:
            if top_level:
                self.token = link.token
            else:
                self.nested = name

    @contextmanager
    def one_block(self, name: str) -> Iterator[_Link]:
        """Order a block."""
        if self.inside_block or not top_level_of_main():
            raise self.conflict(name, "the function around it")
        if self.nested is not None:
            raise self.conflict(name, self.nested)
        link = _Link(hlo.create_token() if self.token is None else self.token)
        self.inside_block = True
        try:
            yield link
        finally:
            self.inside_block = False
        self.block, self.token = name, link.token


class _Link:
    """A token: before the call the one to wait for, after it the one that it gives."""

    def __init__(self, token: Any) -> None:
        self.token = token


block_p = Primitive("mpi4jax_block")
block_p.multiple_results = True


def as_block(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Make a block of a function of arrays (with a list of arrays as result)."""

    def block(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        closed = _without_blocks(closed)
        out = block_p.bind(*closed.consts, *args, jaxpr=closed.jaxpr, name=name)
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shapes), out)

    block.__name__ = name  # for profiles and compilation caches
    return block


def _evaluate(jaxpr: Jaxpr, *args: Any) -> Any:
    """Run what is in a block."""
    split = len(jaxpr.constvars)
    return eval_jaxpr(jaxpr, args[:split], *args[split:])


@block_p.def_effectful_abstract_eval
def _abstract_eval(*avals: Any, jaxpr: Jaxpr, name: str) -> Any:
    effects = {e for e in jaxpr.effects if e != ordered_effect}
    return [v.aval for v in jaxpr.outvars], effects | {block_effect}


@functools.lru_cache(maxsize=256)
def _compiled(jaxpr: Jaxpr, name: str) -> Callable[..., Any]:
    return jax.jit(lambda *args: block_p.bind(*args, jaxpr=jaxpr, name=name))


@block_p.def_impl
def _impl(*args: Any, jaxpr: Jaxpr, name: str) -> Any:
    # Also under jax.disable_jit: an operation can only run compiled.
    with jax.disable_jit(False):
        return _compiled(jaxpr, name)(*args)


def _lower(ctx: Any, *args: Any, jaxpr: Jaxpr, name: str) -> Any:
    split = len(jaxpr.constvars)
    with Chain.of(ctx).one_block(name) as link:
        out, link.token = lower_jaxpr(
            ctx, jaxpr, args[:split], args[split:], link.token, ordered_effect
        )
    return out


def _compile_without_effect(eqn: Any) -> Any:
    # JAX asks for this when the program is about to be compiled. A block without operands
    # keeps its effect: nothing else would hold it in a function that is called by others.
    if not eqn.invars:
        return eqn
    return eqn.replace(effects={e for e in eqn.effects if e != block_effect})


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Jaxpr, name: str
) -> Any:
    return jax.jvp(
        functools.partial(_evaluate, jaxpr),
        tuple(primals),
        tuple(map(ad.instantiate_zeros, tangents)),
    )


def _batch(args: Sequence[Any], axes: Sequence[Any], *, jaxpr: Jaxpr, name: str) -> Any:
    out = jax.vmap(functools.partial(_evaluate, jaxpr), tuple(axes))(*args)
    return out, [0] * len(out)


def _transpose(cotangents: Sequence[Any], *args: Any, jaxpr: Jaxpr, name: str) -> Any:
    is_linear = [ad.is_undefined_primal(arg) for arg in args]

    def function(*linear: Any) -> Any:
        rest = iter(linear)
        merged = [
            next(rest) if linear_ else arg
            for arg, linear_ in zip(args, is_linear, strict=True)
        ]
        return _evaluate(jaxpr, *merged)

    shapes = [arg.aval for arg in args if ad.is_undefined_primal(arg)]
    transposed = jax.linear_transpose(function, *shapes)
    rest = iter(transposed(list(map(ad.instantiate_zeros, cotangents))))
    return [next(rest) if linear else None for linear in is_linear]


register_lowering(block_p, _lower)
never_drop(block_p, _compile_without_effect)
ad.primitive_jvps[block_p] = _jvp
ad.primitive_transposes[block_p] = _transpose
batching.primitive_batchers[block_p] = _batch


# A block inside another one, however deep, is dissolved into it.


def _has_block(jaxpr: Jaxpr) -> bool:
    return any(
        eqn.primitive is block_p or any(map(_has_block, jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _without_blocks(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program with what is in its blocks in their place."""
    if not _has_block(closed.jaxpr):
        return closed
    shapes = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
        for v in closed.jaxpr.invars
    ]
    return jax.make_jaxpr(functools.partial(_evaluate_dissolved, closed))(*shapes)


def _evaluate_dissolved(closed: ClosedJaxpr, *args: Any) -> list[Any]:
    jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for eqn in jaxpr.eqns:
        operands = list(map(read, eqn.invars))
        if eqn.primitive is block_p:
            inner = eqn.params["jaxpr"]
            split = len(inner.constvars)
            out = _evaluate_dissolved(
                ClosedJaxpr(inner, operands[:split]), *operands[split:]
            )
        else:
            params = {k: _dissolve(v) for k, v in eqn.params.items()}
            out = list(bind_again(eqn.primitive, operands, params))
        values.update(zip(eqn.outvars, out, strict=True))
    return list(map(read, jaxpr.outvars))


def _dissolve(param: Any) -> Any:
    if isinstance(param, ClosedJaxpr):
        return _without_blocks(param)
    if isinstance(param, Jaxpr) and not param.constvars:
        return _without_blocks(ClosedJaxpr(param, ())).jaxpr
    if isinstance(param, tuple):
        return tuple(map(_dissolve, param))
    return param
