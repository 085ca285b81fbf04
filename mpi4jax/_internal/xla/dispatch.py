"""Calls of jitted functions at the speed of functions without MPI operations.

For a program with an ordered effect, JAX makes the XLA token an argument and a result, so
that each call waits for the token of the last call of its thread. JAX passes the token in
Python, which takes some thirty times as long as the call of a program without effects. On a
single device the token is not needed: there, XLA runs the programs of a thread one after
another. docs/developer-guide.md names the lines of XLA's source that ensure this.

So before such a program is compiled, its token becomes one that the program makes itself,
and JAX is told that there is no token to pass. The chain of tokens *inside* the program
stays as it is. A program of an unexpected form is left alone, and is called JAX's way.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence

import jax
import numpy as np

from mpi4jax import _launcher
from mpi4jax._override import override

from . import programs
from .effects import OrderedMPIEffect, ordered_effect
from .jax_compat import (
    ALIAS,
    Attribute,
    LoweringContext,
    Primitive,
    Value,
    devices_in_use,
    forget_failed_tokens,
    get_token,
    has_execution_stream,
    hlo,
    ir,
    register_lowering,
    set_token,
    without_mesh,
)
from .private_names import LOWERED
from .programs import CompiledProgram, LoweredProgram


def _drop_token(program: LoweredProgram) -> None:
    global _dropped
    if (
        _is_off
        or program.ordered_effects != [ordered_effect]
        # Nothing but JAX's token orders the programs of several devices. Beside a GPU there
        # is a CPU, unless JAX_PLATFORMS leaves it out.
        or len(devices_in_use()) != 1
        # XLA orders the programs of a stream. Each thread has one, if it chooses no others.
        or has_execution_stream()
        # The order of an exported program is up to the program that will call it.
        or program.is_for_export
    ):
        return
    with program.module.context, ir.Location.unknown():
        dropped = _make_token_inside(program.module)
    if dropped:
        program.ordered_effects.clear()
        _dropped += 1


def _make_token_inside(module: ir.Module) -> bool:
    """Replace the token that the main function takes and returns by a token of its own."""
    try:
        main = ir.SymbolTable(module.operation)["main"]
        arguments = list(ir.ArrayAttr(main.attributes["arg_attrs"]))
        results = list(ir.ArrayAttr(main.attributes["res_attrs"]))
        (argument,), (result,) = _tokens(arguments), _tokens(results)
    except (KeyError, ValueError):
        return False  # JAX passes a token in another form.
    if len(results) == 1:
        return False  # Without the token, there would be no result to wait for.

    entry = main.regions[0].blocks[0]
    with ir.InsertionPoint.at_block_begin(entry):
        entry.arguments[argument].replace_all_uses_with(hlo.create_token())
    entry.erase_argument(argument)
    end = entry.operations[len(entry.operations) - 1]
    values = list(end.operands)
    del arguments[argument], results[result], values[result]
    with ir.InsertionPoint(end):
        ir.Operation.create(end.operation.name, operands=values)
    end.operation.erase()

    types = [value.type for value in entry.arguments], [value.type for value in values]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
    arguments = [_with_result_moved(attributes, result) for attributes in arguments]
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)
    main.attributes["res_attrs"] = ir.ArrayAttr.get(results)
    return True


def _tokens(attributes: Sequence[Attribute]) -> list[int]:
    """The indices of the tokens among a function's arguments or results."""
    return [n for n, attribute in enumerate(attributes) if "jax.token" in attribute]


def _with_result_moved(attributes: Attribute, dropped: int) -> Attribute:
    """The attributes of an argument, after one of the results was dropped."""
    named = {a.name: a.attr for a in attributes}
    alias = named.get(ALIAS)
    if alias is not None and alias.value > dropped:
        named[ALIAS] = ir.IntegerAttr.get(alias.type, alias.value - 1)
    return ir.DictAttr.get(named)


def _call_in_python(program: CompiledProgram) -> None:
    """Make JAX pass the token to every call of a program that still takes one.

    From the second call on, `jax.stages.Compiled` would call the program without Python,
    and leave out the token. It does so unless the program has effects that are not ordered;
    jitted functions look at both kinds of effects.
    """
    if ordered_effect in program.ordered_effects and not program.unordered_effects:
        program.unordered_effects.append(ordered_effect)


class _EffectOfCalls(OrderedMPIEffect):
    """The effect by which JAX looks up the token for a call of a program.

    JAX passes the token of a program that failed, too, and every later program fails with
    its error. The lookup is the one part of a call that is not JAX's own: here such a token
    is forgotten. JAX waits for the token in any case.
    """

    @override
    def __hash__(self) -> int:
        forget_failed_tokens()
        return super().__hash__()


_effect_of_calls = _EffectOfCalls()


def _outlive_failures(program: CompiledProgram) -> None:
    """Let a program that takes a token run after one that failed."""
    effects = program.ordered_effects
    effects[:] = [_effect_of_calls if x == ordered_effect else x for x in effects]


programs.on_compilation(_call_in_python)
programs.on_compilation(_outlive_failures)

_lock = threading.Lock()
_is_tried = _is_off = False
#: Number of programs that have lost their token.
_dropped = 0


def enable() -> None:
    """Drop JAX's token from all programs that are lowered from now on."""
    programs.on_lowering(_drop_token)
    programs.before_lowering(try_once)


def try_once() -> None:
    """Try to drop the token of a program of our own, once. If this fails, turn it off.

    So a JAX that announces no programs, or has another list of tokens, is noticed before a
    program of the user's is changed, and a warning says so.
    """
    global _is_tried, _is_off
    with _lock:
        if _is_tried or len(devices_in_use()) != 1:
            return
        _is_tried = True
        why = _why_it_fails()
        _is_off = why is not None
    if why is not None and _launcher.is_first():
        warnings.warn(
            "calls of jitted functions with operations of mpi4jax take about 30 times "
            f"as long as they could, as JAX passes them a token: {why}",
            stacklevel=2,
        )


def _why_it_fails() -> str | None:
    before = _dropped
    try:
        # Independent of the settings for the user's program.
        with (
            without_mesh(),
            jax.disable_jit(False),
            jax.ensure_compile_time_eval(),
            jax.transfer_guard("allow"),
        ):
            jax.block_until_ready(jax.jit(_nothing_p.bind)(np.zeros((), bool)))
    except Exception as error:
        return f"without it, JAX {jax.__version__} raises {type(error).__name__}: {error}"
    if _dropped > before:
        return None
    form = f"JAX {jax.__version__} has it in an unknown form"
    return programs.why_unseen(LOWERED) or form


def lacks() -> list[str]:
    """A sentence for each announcement that JAX lacks, empty until a program was tried."""
    return programs.lacks() if _is_tried else []


#: An operation that calls nothing, and returns its operand.
_nothing_p = Primitive("mpi4jax_nothing")
_nothing_p.def_effectful_abstract_eval(lambda x: (x, {ordered_effect}))


def _lower_nothing(ctx: LoweringContext, x: Value) -> list[Value]:
    set_token(ctx, ordered_effect, get_token(ctx, ordered_effect))
    return [x]


register_lowering(_nothing_p, _lower_nothing)
