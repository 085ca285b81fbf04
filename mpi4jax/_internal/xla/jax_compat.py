"""Private parts of JAX, and differences between its versions.

Nothing else in this package but `programs.py` uses the names in `private_names.py`, or asks
for JAX's version. By subject: versions and their bugs, effects and primitives, lowering,
devices, and how JAX waits. Each branch names the versions that need it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
)

import jax
import jaxlib
from jax._src.core import abstract_token as abstract_token
from jax._src.effects import lowerable_effects, ordered_effects
from jax._src.lib.mlir import ir as ir
from jax._src.lib.mlir.dialects import hlo as hlo
from jax.core import ShapedArray as ShapedArray
from jax.core import Tracer as Tracer
from jax.ffi import register_ffi_target as register_ffi_target
from jax.interpreters import ad as ad
from jax.interpreters import batching as batching
from jax.interpreters import mlir
from jax.interpreters.mlir import ir_constant as ir_constant
from jax.typing import ArrayLike

from mpi4jax._override import override

from ..environment import flag
from ..versions import versiontuple
from .private_names import (
    COMPILING,
    LATEST_TESTED_JAX,
    SHUTTING_DOWN,
    WAITING,
    essential,
    lacks,
    optional,
    paths_of,
    require,
)

if TYPE_CHECKING:
    from jax._src.core import AbstractValue as Aval
    from jax._src.core import Atom as Atom
    from jax._src.core import ClosedJaxpr as ClosedJaxpr
    from jax._src.core import Jaxpr as Jaxpr
    from jax._src.core import JaxprEqn as Equation
    from jax._src.core import Literal as Literal
    from jax._src.core import Primitive as Primitive
    from jax._src.core import Token as Token
    from jax._src.core import Var as Var
    from jax._src.effects import Effect as Effect
    from jax.interpreters.ad import UndefinedPrimal as UndefinedPrimal
    from jax.interpreters.ad import Zero as Zero
    from jax.interpreters.mlir import LoweringRuleContext

    class LoweringContext(LoweringRuleContext):
        """The context of a lowering rule whose operands and results are arrays."""

        avals_in: Sequence[ShapedArray]
        avals_out: Sequence[ShapedArray]

        @override
        def replace(self, **changes: Any) -> LoweringContext: ...
        @override
        def set_tokens_out(self, tokens_out: mlir.TokenSet | None) -> None: ...

    class TypedPrimitive(Primitive):
        """A primitive with the types that JAX's methods lack."""

        @override
        def bind(self, *operands: ArrayLike, **params: object) -> Results: ...
        @override
        def def_impl(self, rule: Rule) -> Rule: ...
        @override
        def def_abstract_eval(self, rule: Rule) -> Rule: ...
        @override
        def def_effectful_abstract_eval(self, rule: Rule) -> Rule: ...

    #: A value in a program that is lowered.
    Value: TypeAlias = ir.Value[Any]
    #: A tangent or a cotangent: an array, or JAX's symbolic zero.
    Tangent: TypeAlias = jax.Array | Zero
    #: A lowering rule, which takes the parameters of the primitive by name.
    LoweringRule: TypeAlias = Callable[..., Sequence[Value]]
    # For JAX, a result may be several values, which arrays are not.
    ffi_lowering: Callable[..., LoweringRule]
else:
    from jax.ffi import ffi_lowering as ffi_lowering

    Literal = essential("jax._src.core:Literal")
    Primitive = TypedPrimitive = essential("jax._src.core:Primitive")
    Token = essential("jax._src.core:Token")
    Effect = essential("jax._src.effects:Effect")
    # Only in annotations.
    Aval = Atom = ClosedJaxpr = Equation = Jaxpr = LoweringContext = object
    LoweringRule = Tangent = UndefinedPrimal = Value = Var = Zero = object

#: The result of any primitive, or its type: one, or a list if the primitive has several
#: (`multiple_results`). Where the primitive is known, a `VaryingPrimitive[...]` says which.
Results: TypeAlias = Any
#: `jax.config`, whose settings are attributes that it has only at run time.
Settings: TypeAlias = Any
#: An attribute in a lowered program, of a subclass of `ir.Attribute` that its name implies:
#: an array, a dictionary, a number or a text. MLIR's bindings return the base class.
Attribute: TypeAlias = Any


class Traceback(Protocol):
    """JAX's record of the place where a value is traced or lowered."""

    def raw_frames(self) -> tuple[Sequence[CodeType], Sequence[int]]:
        """The functions on the stack, and the offset of an instruction in each."""


P = ParamSpec("P")
R = TypeVar("R")
Rule = TypeVar("Rule", bound=Callable[..., Results])

# Versions, and their bugs.

_JAXLIB_VERSION = versiontuple(jaxlib.__version__)


def check_jax_version() -> None:
    """Warn if JAX is newer than the versions with which this release was tested."""
    name = "MPI4JAX_NO_WARN_JAX_VERSION"
    if flag(name):
        return
    if versiontuple(jax.__version__) > versiontuple(LATEST_TESTED_JAX):
        lacking = (
            "It lacks something that mpi4jax uses: `python -m mpi4jax doctor` says what is "
            "slower or off.\n"
            if lacks()
            else ""
        )
        warnings.warn(
            f"\nThis release of mpi4jax was tested with JAX up to {LATEST_TESTED_JAX}, "
            f"but you have {jax.__version__}. {lacking}Should you run into problems, use "
            f"the tested JAX:\n\n"
            f"    $ pip install jax=={LATEST_TESTED_JAX}\n\n"
            f"or a newer mpi4jax:\n\n"
            f"    $ pip install -U mpi4jax\n\n"
            f"Set the environment variable `{name}=1` to silence this warning.",
            stacklevel=2,
        )


def avoid_broken_cache() -> None:
    """Turn off JAX's persistent cache if programs from the cache have wrong results.

    If the number of iterations of a while loop on the CPU is unknown, jaxlib 0.6.0 writes 0
    into the cache, and takes 0 for the number when it reads the program again.
    """
    if _JAXLIB_VERSION != (0, 6, 0):
        return
    settings: Settings = jax.config
    if settings.jax_enable_compilation_cache and settings.jax_compilation_cache_dir:
        warnings.warn(
            f"\njaxlib {jaxlib.__version__} gets while loops wrong that come from JAX's "
            "persistent compilation\ncache. mpi4jax turns the cache off. JAX 0.6.1 has it "
            "right:\n\n    $ pip install -U 'jax>=0.6.1'\n",
            stacklevel=2,
        )
    settings.update("jax_enable_compilation_cache", False)
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    # JAX looks once, and may have done so for a program from before.
    reset_cache()


#: Whether XLA for GPUs makes a call twice whose operand or result is a contiguous slice: it
#: puts the call into a fusion, and leaves the old one where it was.
CALLS_ON_SLICES_ARE_REPEATED = (0, 11, 1) <= _JAXLIB_VERSION < (0, 12)

#: Number of bytes in jaxlib's number of a device (`GlobalDeviceId`).
DEVICE_BYTES = 4 if _JAXLIB_VERSION >= (0, 9, 1) else 8

_JAXLIB = os.path.join(os.path.dirname(jaxlib.__file__), "")
#: The shared library of jaxlib, which contains MPItrampoline.
JAXLIB_LIBRARY = os.path.join(_JAXLIB, "libjax_common.so")

#: The versions that errors in jaxlib's collectives name.
VERSIONS = (
    f"jaxlib {jaxlib.__version__} (mpi4jax was tested with JAX up to {LATEST_TESTED_JAX})"
)


# Effects and primitives.


#: The first JAX with which the tests of operations in a `shard_map` over processes pass.
_FIRST_WITH_SHARDED_PROGRAMS = "0.9.1"


def allows_sharded_programs() -> bool:
    """Whether operations can be in a `shard_map` over several processes."""
    is_tested = versiontuple(jax.__version__) >= versiontuple(_FIRST_WITH_SHARDED_PROGRAMS)
    return is_tested and _shardable_effects is not None


_shardable_effects = optional("jax._src.effects:shardable_ordered_effects")


def register_effect_type(effect_type: type[Effect], *, is_ordered: bool) -> Effect:
    """Make an effect of a type, and register that the effect may appear everywhere.

    If the effect is ordered, each device of a sharded program has a separate order.
    """
    for types in (
        lowerable_effects,
        optional("jax._src.effects:control_flow_allowed_effects"),
        optional("jax._src.effects:custom_derivatives_allowed_effects"),
        optional("jax._src.effects:remat_allowed_effects"),
        optional("jax._src.effects:partial_eval_kept_effects"),
        ordered_effects if is_ordered else None,
        _shardable_effects if is_ordered and allows_sharded_programs() else None,
    ):
        if types is not None:
            types.add_type(effect_type)
    return effect_type()


def is_ordered(effect: Effect) -> bool:
    """Whether equations with an effect keep their order."""
    return ordered_effects.contains(effect)


def is_ref(aval: Aval) -> bool:
    """Whether a type is the type of a ref, which can be read and written."""
    return isinstance(aval, require("jax._src.state.types:AbstractRef"))


#: Primitive that hashes pairs of numbers by a key, None if JAX has no such name.
hash_primitive: Primitive | None = optional("jax.extend.random:threefry2x32_p")

# The axes of a `shard_map` over which a value varies are a part of its type.
_vary_alike = optional("jax._src.core:auto_insert_reshard")


def varying_axes(aval: Aval | jax.Array) -> frozenset[Hashable]:
    """The manual axes of the mesh over which a value of this type, or a tracer, varies."""
    if hasattr(aval, "mat"):
        return frozenset(aval.mat.varying)
    return getattr(aval, "vma", frozenset())  # JAX < 0.11 or so, and tokens


def vary(x: jax.Array, axes: Sequence[Hashable]) -> jax.Array:
    """An array of a `shard_map`, which varies over these axes for JAX from here on."""
    missing = tuple(axis for axis in axes if axis not in varying_axes(jax.typeof(x)))
    if not missing:
        return x
    if hasattr(jax.lax, "pcast"):  # JAX >= 0.9 or so
        x = jax.lax.pcast(x, missing, to="varying")
    else:
        x = jax.lax.pvary(x, missing)  # type: ignore[attr-defined]
    return x


def vary_like(x: jax.Array, other: jax.Array | ShapedArray) -> jax.Array:
    """The array, varying also over the axes over which another array varies."""
    axes = varying_axes(other if isinstance(other, ShapedArray) else jax.typeof(other))
    return vary(x, sorted(axes, key=str))  # in one order on all processes


def vary_alike(operands: Sequence[ArrayLike]) -> Sequence[Any]:
    """The operands, varying over the same axes of a `shard_map`."""
    if len(operands) < 2 or _vary_alike is None:
        return operands
    alike: Sequence[Any] = _vary_alike(*operands)
    return alike


def has_types_of_axes(x: jax.Array, axes: Sequence[Hashable]) -> bool:
    """Whether an array varies over these axes for JAX, which tracks them (`check_vma`)."""
    return varying_axes(jax.typeof(x)).issuperset(axes)


class VaryingPrimitive(TypedPrimitive, Generic[R]):
    """A primitive whose results vary over the same axes of a `shard_map` as its operands.

    Where these differ, they are made to vary alike, as for JAX's own primitives.
    """

    def invariant_axes(self, **params: object) -> Sequence[Hashable]:
        """The axes along which the results are equal, so that they do not vary."""
        return ()

    @override
    def bind(self, *operands: ArrayLike, **params: object) -> R:
        results: R = super().bind(*vary_alike(operands), **params)
        return results

    @override
    def def_abstract_eval(self, rule: Rule) -> Rule:
        def varying_rule(*avals: ShapedArray, **params: object) -> Results:
            return self._vary_like(avals, rule(*avals, **params), params)

        super().def_abstract_eval(varying_rule)
        return rule

    @override
    def def_effectful_abstract_eval(self, rule: Rule) -> Rule:
        def varying_rule(*avals: ShapedArray, **params: object) -> tuple[Results, object]:
            results, effects = rule(*avals, **params)
            return self._vary_like(avals, results, params), effects

        super().def_effectful_abstract_eval(varying_rule)
        return rule

    def _vary_like(
        self,
        avals: Sequence[ShapedArray],
        results: Results,
        params: Mapping[str, object],
    ) -> Results:
        """The types of the results, varying over the axes of the operands."""
        if not avals or not varying_axes(avals[0]):
            return results
        invariant = self.invariant_axes(**params)
        if self.multiple_results:
            return [_varying_like(avals[0], result, invariant) for result in results]
        return _varying_like(avals[0], results, invariant)


def _varying_like(
    aval: ShapedArray, result: ShapedArray, invariant: Sequence[Hashable]
) -> ShapedArray:
    """A type that varies over the same axes as another one, apart from some of these."""
    # Manual axes, which are those that a value varies over, shard no array.
    spec = jax.sharding.PartitionSpec(*[None] * len(result.shape))
    sharding = jax.sharding.NamedSharding(aval.sharding.mesh, spec)
    changes = {"shape": result.shape, "dtype": result.dtype, "sharding": sharding}
    if invariant:
        axes = varying_axes(aval).difference(invariant)
        if hasattr(aval, "mat"):
            changes["manual_axis_type"] = aval.mat.update(varying=axes)
        else:  # JAX < 0.11 or so
            changes["vma"] = axes
    varying: ShapedArray = aval.update(**changes, weak_type=False)
    return varying


#: Whether calls run eagerly, and are not traced.
trace_state_clean: Callable[[], bool] = essential("jax._src.core:trace_state_clean")
if trace_state_clean.__name__ == "get_opaque_trace_state":
    _trace_state: Callable[[], object] = trace_state_clean
    _outside = _trace_state()

    def trace_state_clean() -> bool:
        return bool(_trace_state() == _outside)


@functools.cache
def _program_of(
    primitive: Primitive, params: frozenset[tuple[str, object]]
) -> Callable[..., Results]:
    def run(*operands: jax.Array) -> Results:
        return primitive.bind(*operands, **dict(params))

    run.__name__ = run.__qualname__ = primitive.name  # for profiles
    return jax.jit(run)


def apply_primitive(
    primitive: Primitive, *operands: ArrayLike, **params: object
) -> Results:
    """Compile a primitive and run it by itself."""
    with jax.disable_jit(False):
        return _program_of(primitive, frozenset(params.items()))(*operands)


def def_eager(primitive: Primitive) -> None:
    """Set how eager calls of a primitive run: each compiled, as a separate program."""
    primitive.def_impl(functools.partial(apply_primitive, primitive))


def eval_equation(equation: Equation, operands: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """The results of an equation of a jaxpr."""
    bind_params = equation.primitive.get_bind_params(equation.params)
    # JAX < 0.8 has functions among the parameters apart.
    functions, params = bind_params if isinstance(bind_params, tuple) else ((), bind_params)
    results = equation.primitive.bind(*functions, *operands, **params)
    return results if equation.primitive.multiple_results else [results]


def new_equation(
    function: Callable[..., Results], operands: Sequence[Atom], results: Sequence[Var]
) -> tuple[Equation, list[Var]]:
    """An equation that calls a function, with variables for its first results.

    Also return the variables of the other results.
    """
    avals: list[Any] = [x.aval for x in operands]
    types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    (call,) = jax.make_jaxpr(jax.jit(function))(*types).jaxpr.eqns
    others = call.outvars[len(results) :]
    return call.replace(invars=[*operands], outvars=[*results, *others]), others


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A function that is traced once for operands of each type, and leaves no call."""
    jitted: Callable[P, R] = jax.jit(function, inline=True)
    return jitted


def register_checkpoint_rule(primitive: Primitive, rule: Callable[..., object]) -> None:
    """Register the rule with which `jax.checkpoint` keeps the results of a primitive."""
    rules = optional("jax.interpreters.partial_eval:partial_eval_jaxpr_custom_rules")
    if rules is not None:
        rules[primitive] = rule


@contextlib.contextmanager
def source_info_of(equation: Equation) -> Iterator[None]:
    """Give all equations that are traced in the block the source line of an equation."""
    current = optional("jax._src.source_info_util:current_name_stack")
    context = optional("jax._src.source_info_util:user_context")
    with contextlib.ExitStack() as contexts:
        if current is not None and context is not None:
            info = equation.source_info
            stack = current() + info.name_stack
            contexts.enter_context(context(info.traceback, name_stack=stack))
        contexts.enter_context(equation.ctx.manager)
        yield


def traceback_of_equation(equation: Equation) -> Iterator[tuple[CodeType, int]]:
    """The functions that called an equation when it was traced, if JAX keeps them.

    Each comes with the offset of the instruction.
    """
    traceback: Traceback | None = equation.source_info.traceback
    return zip(*traceback.raw_frames(), strict=True) if traceback else iter(())


# Lowering: `ctx` is the argument of a rule, values belong to the program that is lowered.

# JAX >= 0.7 may lower equal equations once, out of line. Our rules depend on the place of
# the equation.
_UNCACHED = (
    {"cacheable": False}
    if "cacheable" in inspect.signature(mlir.register_lowering).parameters
    else {}
)


def register_lowering(
    primitive: Primitive, rule: LoweringRule, platform: str | None = None
) -> None:
    mlir.register_lowering(primitive, rule, platform=platform, **_UNCACHED)


def lower_function(
    function: Callable[..., Results], *, multiple_results: bool = False
) -> LoweringRule:
    """The lowering rule of a primitive that computes what a traceable function does."""
    return mlir.lower_fun(function, multiple_results=multiple_results)


def lower_with(
    ctx: LoweringContext,
    function: Callable[..., Sequence[jax.Array]],
    values: Sequence[Value],
    avals: Sequence[ShapedArray],
) -> list[Value]:
    """Lower a function without effects within another rule.

    The function takes all values, and returns a sequence of arrays.
    """
    # The tokens belong to the rule of which this is a part.
    inner = ctx.replace(avals_in=avals, tokens_in=mlir.TokenSet(), tokens_out=None)
    return list(lower_function(function, multiple_results=True)(inner, *values))


def lower_part(
    ctx: LoweringContext,
    rule: Callable[..., Sequence[Value]],
    values: Sequence[Any],
    **types: Sequence[ShapedArray],
) -> list[Value]:
    """Lower an operation with effects as a part of another one, by its lowering rule.

    The rule takes all values. `types` are the types of the values (`avals_in`) and of the
    results (`avals_out`).
    """
    inner = ctx.replace(tokens_out=None, **types)
    lowered = list(rule(inner, *values))
    ctx.set_tokens_out(inner.tokens_out)
    return lowered


def convert(value: Value, aval: ShapedArray) -> Value:
    """Convert a value to a data type."""
    element = mlir.dtype_to_ir_type(aval.dtype)
    if ir.RankedTensorType(value.type).element_type == element:
        return value
    return hlo.convert(ir.RankedTensorType.get(aval.shape, element), value)


def optimization_barrier(values: Sequence[Value]) -> list[Value]:
    """The values behind a barrier, across which XLA combines no operations."""
    return list(hlo.OptimizationBarrierOp(values).results) if values else []


def token_type() -> ir.Type:
    """The type of XLA's tokens."""
    return hlo.TokenType.get()


#: Whether a program with an effect was lowered. JAX has devices then.
_has_lowered = False


def get_token(ctx: LoweringContext, effect: Effect) -> Value:
    """The XLA token by which JAX orders an effect."""
    global _has_lowered
    _has_lowered = True
    return ctx.tokens_in.get(effect)


def lowered_equations() -> Iterator[Equation]:
    """The equations whose rules are running, the innermost first, if JAX shows them."""
    lower = optional("jax._src.interpreters.mlir:jaxpr_subcomp")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if lower is not None and frame.f_code is lower.__code__:
            equation = frame.f_locals.get("eqn")
            if equation is not None:
                yield equation
        frame = frame.f_back


def has_token(ctx: LoweringContext, effect: Effect) -> bool:
    """Whether JAX orders an effect here."""
    return effect in ctx.tokens_in.effects()


def set_token(ctx: LoweringContext, effect: Effect, token: Value) -> None:
    """Set the token that orders the operations that are lowered from here on."""
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({effect: token})))


#: JAX's platforms whose arrays are in device memory.
GPU_PLATFORMS = ("cuda", "rocm")


def is_for_gpus(ctx: LoweringContext) -> bool:
    """Whether the program is for GPUs."""
    platforms = ctx.platforms or ctx.module_context.platforms
    return not set(GPU_PLATFORMS).isdisjoint(platforms)


def operand_of_call(result: Value, target: str) -> Value | None:
    """The first operand of the call of a handler that has this result, None for others."""
    call = result.owner
    if isinstance(call, ir.Block) or target_of(call.operation) != target:
        return None
    operand: Value = call.operands[0]
    return operand


def target_of(operation: ir.Operation) -> str:
    """The handler that a custom call calls, empty for any other operation."""
    attributes, name = operation.attributes, "call_target_name"
    return ir.StringAttr(attributes[name]).value if name in attributes else ""


def operation_of_module(ctx: LoweringContext) -> ir.Operation:
    """The program: its `module.operation`, once it is lowered."""
    return ctx.module_context.module.operation


def traceback_of(ctx: LoweringContext) -> Iterator[tuple[CodeType, int]]:
    """The functions that called the lowered equation, with the offsets of instructions."""
    traceback: Traceback | None = getattr(ctx, "traceback", None)
    current = optional("jax._src.source_info_util:current")
    if traceback is None and current is not None:  # JAX < 0.8
        traceback = current().traceback
    return zip(*traceback.raw_frames(), strict=True) if traceback else iter(())


#: The attribute by which an argument of a program lends its memory to a result.
ALIAS = "tf.aliasing_output"


def is_undonated_argument(value: Value) -> bool:
    """Whether a value is an argument of the program that its caller has not donated."""
    try:
        argument: ir.BlockArgument[ir.Type] = ir.BlockArgument(value)
    except (TypeError, ValueError):  # made by an operation
        return False
    function_attributes = argument.owner.owner.attributes
    if "arg_attrs" not in function_attributes or "sym_name" not in function_attributes:
        return False
    of_arguments = ir.ArrayAttr(function_attributes["arg_attrs"])
    attributes: Attribute = of_arguments[argument.arg_number]
    is_donated = ALIAS in attributes or "jax.buffer_donor" in attributes
    is_main = ir.StringAttr(function_attributes["sym_name"]).value == "main"
    return is_main and not is_donated


def forget_runtime_tokens() -> None:
    """Forget the tokens with which JAX orders this thread's programs with effects."""
    tokens = optional("jax._src.dispatch:runtime_tokens")
    if tokens is not None:
        # In place: JAX may be about to look one up.
        tokens.current_tokens.clear()
        tokens.output_runtime_tokens.clear()


def forget_failed_tokens() -> None:
    """Wait for this thread's tokens, and forget them if one has the error of a program."""
    tokens = optional("jax._src.dispatch:runtime_tokens")
    try:
        for token in () if tokens is None else tuple(tokens.current_tokens.values()):
            token.block_until_ready()
    except Exception:
        forget_runtime_tokens()


# Devices and meshes.


def backends_are_initialized() -> bool:
    """Whether JAX has made its devices."""
    are_initialized = optional("jax._src.xla_bridge:backends_are_initialized")
    return _has_lowered if are_initialized is None else bool(are_initialized())


def devices_in_use() -> list[jax.Device]:
    """The devices of this process on which a program may have run."""
    if not backends_are_initialized():
        return []
    backends = optional("jax._src.xla_bridge:backends")
    if backends is None:
        return list(jax.local_devices())
    return [device for client in backends().values() for device in client.local_devices()]


def has_execution_stream() -> bool:
    """Whether the programs of this thread run in a stream that the thread has chosen.

    That is by jaxlib's `xla_client.execution_stream_id`: XLA orders a stream's programs.
    """
    stream_id = optional("jaxlib.xla_client:_xla.get_execution_stream_id")
    return stream_id is not None and stream_id() != 0


def may_use_cuda() -> bool:
    """Whether JAX may compute on NVIDIA's GPUs: by a setting, or with a plugin."""
    settings: Settings = jax.config
    platforms = settings.jax_platforms
    if platforms:
        return not {"cuda", "gpu"}.isdisjoint(platforms.split(","))
    plugins = find_spec("jax_plugins")  # a namespace, in which each plugin has a package
    folders = plugins.submodule_search_locations if plugins else None
    return any("cuda" in module.name for module in pkgutil.iter_modules(folders or []))


def visible_gpus() -> list[int]:
    """The ordinals of the GPUs to which JAX was restricted, empty if it takes all."""
    setting = optional("jax._src.xla_bridge:CUDA_VISIBLE_DEVICES")
    if setting is None or setting.value == "all":
        return []
    return list(map(int, setting.value.split(",")))


def gpu_in_use() -> int | None:
    """The ordinal of the GPU on which JAX computes, None if JAX has none (yet)."""
    if not backends_are_initialized():
        return None
    device = jax.local_devices()[0]
    return device.local_hardware_id if device.platform in ("cuda", "gpu") else None


def local_rank() -> int | None:
    """The rank of this process on its host, by JAX's detection of clusters."""
    types = optional("jax._src.clusters:ClusterEnv._cluster_types") or ()
    clusters = [env for env in types if not env.opt_in_only_method]
    cluster = next((env for env in clusters if env.is_env_present()), None)
    return cluster.get_local_process_id() if cluster else None


_mesh_in_use = optional("jax._src.mesh:device_context")
_abstract_mesh = optional("jax._src.mesh:abstract_mesh_context_manager")


def has_mesh() -> bool:
    """Whether `jax.set_mesh` has set a mesh in this thread, on which programs run."""
    if _mesh_in_use is None or _abstract_mesh is None:
        return False
    mesh = _mesh_in_use.value
    return mesh is not None and not mesh.empty


class MeshAxes(NamedTuple):
    """The axes of the mesh on which a program is traced, and their sizes."""

    names: tuple[Hashable, ...]
    sizes: tuple[int, ...]
    #: The axes of the `shard_map`. JAX divides arrays along the other axes automatically.
    manual: tuple[Hashable, ...]

    @property
    def size(self) -> int:
        """The number of devices in the mesh."""
        return math.prod(self.sizes)

    @property
    def is_partly_automatic(self) -> bool:
        """Whether JAX divides arrays automatically along an axis with several devices."""
        pairs = zip(self.names, self.sizes, strict=True)
        return any(size > 1 and name not in self.manual for name, size in pairs)


def axes_of_shard_map() -> MeshAxes | None:
    """The axes of a `shard_map` that is being traced, if any."""
    mesh = None if _abstract_mesh is None else _abstract_mesh.value
    if mesh is None or not getattr(mesh, "manual_axes", ()):
        return None
    manual = tuple(name for name in mesh.axis_names if name in mesh.manual_axes)
    return MeshAxes(tuple(mesh.axis_names), tuple(mesh.shape.values()), manual)


def is_automatic(ctx: LoweringContext) -> bool:
    """Whether JAX divides arrays of a program automatically over several devices."""
    axis_context = ctx.module_context.axis_context
    mesh = getattr(axis_context, "mesh", None)
    if mesh is None:
        return getattr(axis_context, "num_devices", 1) > 1
    manual = getattr(axis_context, "manual_axes", ())
    return any(size > 1 for name, size in mesh.shape.items() if name not in manual)


def is_for_export(ctx: LoweringContext) -> bool:
    """Whether the program is lowered to be run elsewhere, by jax.export."""
    return bool(ctx.module_context.lowering_parameters.for_export)


@contextlib.contextmanager
def without_mesh() -> Iterator[None]:
    """Run the programs in the block on the devices of their arguments, not on a mesh."""
    if _mesh_in_use is None or _abstract_mesh is None:
        yield
        return
    states = (_abstract_mesh, _mesh_in_use)
    previous = [state.swap_local(state.get_global()) for state in states]
    try:
        yield
    finally:
        for state, value in zip(states, previous, strict=True):
            state.set_local(value)


# JAX's files and functions, by which the activity of a thread is known.

_JAX = os.path.join(os.path.dirname(jax.__file__), "")
_COMPILING, _SHUTTING_DOWN, _WAITING = map(paths_of, (COMPILING, SHUTTING_DOWN, WAITING))


def is_user_file(file: str) -> bool:
    """Whether a file does not belong to JAX."""
    is_users = optional("jax._src.source_info_util:is_user_filename")
    is_jax = file.startswith(_JAX) if is_users is None else not is_users(file)
    return not is_jax and not file.startswith(_JAXLIB)


def is_compiling(file: str) -> bool:
    """Whether a thread that is in this file compiles."""
    return file in _COMPILING


def is_waiting_for_arrays(file: str) -> bool:
    """Whether a thread that is asleep in this file waits for an array."""
    return file in _WAITING


def is_shutting_down(code: CodeType) -> bool:
    """Whether a thread that is asleep in a function waits for the JAX of all processes."""
    return code.co_name == "shutdown" and code.co_filename in _SHUTTING_DOWN


def is_jitted(function: object) -> bool:
    """Whether an object is a jitted function, which JAX calls without a Python frame."""
    kind = type(function)
    return kind.__name__ == "PjitFunction" and kind.__module__.startswith("jaxlib")
