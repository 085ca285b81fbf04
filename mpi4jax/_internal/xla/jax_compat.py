"""The names of JAX that are not public, and what differs between its versions.

Nothing else in this package imports from `jax._src` or asks for JAX's version. By subject:
versions and their bugs, effects and primitives, lowering, programs, devices, and how JAX
waits. Each branch names the versions that need it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from types import CodeType
from typing import Any, NamedTuple, TypeVar

import jax
import jaxlib

# jax.extend has Primitive and Token, too, but takes as long to import as all of mpi4jax.
from jax._src import (
    compilation_cache,
    config,
    core,
    dispatch,
    mesh,
    source_info_util,
    xla_bridge,
)
from jax._src.clusters import ClusterEnv
from jax._src.core import Literal as Literal
from jax._src.core import Primitive as Primitive
from jax._src.core import Token as Token
from jax._src.core import abstract_token as abstract_token
from jax._src.core import trace_state_clean as trace_state_clean
from jax._src.dispatch import apply_primitive as apply_primitive
from jax._src.effects import Effect as Effect
from jax._src.effects import (
    control_flow_allowed_effects,
    custom_derivatives_allowed_effects,
    lowerable_effects,
    ordered_effects,
    remat_allowed_effects,
)
from jax._src.interpreters import ad as ad
from jax._src.interpreters import batching as batching
from jax._src.interpreters import mlir, pxla
from jax._src.interpreters.mlir import ir_constant as ir_constant
from jax._src.interpreters.mlir import token_type as token_type
from jax._src.lib.mlir import ir as ir
from jax._src.lib.mlir.dialects import hlo as hlo
from jax._src.state.types import AbstractRef
from jax._src.xla_bridge import backends_are_initialized as backends_are_initialized
from jax.core import ShapedArray as ShapedArray
from jax.core import Tracer as Tracer
from jax.ffi import ffi_lowering as ffi_lowering
from jax.ffi import register_ffi_target as register_ffi_target

from ..environment import flag
from ..versions import versiontuple

T = TypeVar("T")

# Versions, and their bugs.

LATEST_TESTED_JAX = "0.12.0"
_JAXLIB_VERSION = versiontuple(jaxlib.__version__)


def check_jax_version() -> None:
    """Warn if JAX is newer than what this release was tested with."""
    name = "MPI4JAX_NO_WARN_JAX_VERSION"
    if flag(name):
        return
    if versiontuple(jax.__version__) > versiontuple(LATEST_TESTED_JAX):
        warnings.warn(
            f"\nThis release of mpi4jax was tested with JAX up to {LATEST_TESTED_JAX}, "
            f"but you have {jax.__version__}. Should you run into problems, use the "
            f"tested JAX:\n\n"
            f"    $ pip install jax=={LATEST_TESTED_JAX}\n\n"
            f"or a newer mpi4jax:\n\n"
            f"    $ pip install -U mpi4jax\n\n"
            f"Set the environment variable `{name}=1` to silence this warning.",
            stacklevel=2,
        )


def avoid_broken_cache() -> None:
    """Turn JAX's persistent cache off if programs from it have other results.

    Where it is not known how many turns a while loop on the CPU makes, jaxlib 0.6.0 writes
    0 into the cache, and takes it for the number when it reads the program again.
    """
    if _JAXLIB_VERSION != (0, 6, 0):
        return
    settings: Any = jax.config
    if settings.jax_enable_compilation_cache and settings.jax_compilation_cache_dir:
        warnings.warn(
            f"\njaxlib {jaxlib.__version__} gets while loops wrong that come from JAX's "
            "persistent compilation\ncache. mpi4jax turns the cache off. JAX 0.6.1 has it "
            "right:\n\n    $ pip install -U 'jax>=0.6.1'\n",
            stacklevel=2,
        )
    settings.update("jax_enable_compilation_cache", False)
    # JAX looks once, and may have done so for a program from before.
    compilation_cache.reset_cache()


#: Whether XLA for GPUs makes a call twice whose operand or result is a contiguous slice: it
#: puts the call into a fusion, and leaves the old one where it was.
CALLS_ON_SLICES_ARE_REPEATED = (0, 11, 1) <= _JAXLIB_VERSION < (0, 12)

#: In how many bytes jaxlib keeps the number of a device (`GlobalDeviceId`).
DEVICE_BYTES = 4 if _JAXLIB_VERSION >= (0, 9, 1) else 8

_JAXLIB = os.path.join(os.path.dirname(jaxlib.__file__), "")
#: The shared library that all of jaxlib is in, with its MPItrampoline.
JAXLIB_LIBRARY = os.path.join(_JAXLIB, "libjax_common.so")

#: What errors about jaxlib's own affairs name.
VERSIONS = (
    f"jaxlib {jaxlib.__version__} (mpi4jax was tested with JAX up to {LATEST_TESTED_JAX})"
)


# Effects and primitives.


def register_effect_type(effect_type: type[Effect], *, is_ordered: bool) -> Effect:
    """Make an effect of a type, and tell JAX that it may appear everywhere."""
    for types in (
        lowerable_effects,
        control_flow_allowed_effects,
        custom_derivatives_allowed_effects,
        remat_allowed_effects,
        *((ordered_effects,) if is_ordered else ()),
    ):
        types.add_type(effect_type)
    return effect_type()


def is_ordered(effect: Effect) -> bool:
    """Whether what has an effect keeps its place among all else that has this effect."""
    return ordered_effects.contains(effect)


def is_ref(aval: Any) -> bool:
    """Whether a type is that of a ref, which can be read and written."""
    return isinstance(aval, AbstractRef)


# The axes of a `shard_map` over which a value varies are a part of its type.
# JAX < 0.8 or so has another name for what makes operands vary alike.
_is_reshard = hasattr(core, "auto_insert_reshard")
_vary_alike = getattr(
    core, "auto_insert_reshard" if _is_reshard else "standard_insert_pvary"
)


def varying_axes(aval: Any) -> frozenset[Any]:
    """The manual axes of the mesh over which a value of this type varies."""
    if hasattr(aval, "mat"):
        axes: frozenset[Any] = aval.mat.varying
        return axes
    return getattr(aval, "vma", frozenset())  # JAX < 0.11 or so, and tokens


class VaryingPrimitive(Primitive):
    """A primitive whose results vary over the same axes of a `shard_map` as its operands.

    Where these differ, they are made to vary alike, as for JAX's own primitives.
    """

    def bind(self, *operands: Any, **params: Any) -> Any:
        if len(operands) > 1:
            operands = tuple(_vary_alike(*operands))
        return super().bind(*operands, **params)

    def def_abstract_eval(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        def varying_rule(*avals: Any, **params: Any) -> Any:
            return self._vary_like(avals, rule(*avals, **params))

        super().def_abstract_eval(varying_rule)
        return rule

    def def_effectful_abstract_eval(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        def varying_rule(*avals: Any, **params: Any) -> Any:
            results, effects = rule(*avals, **params)
            return self._vary_like(avals, results), effects

        super().def_effectful_abstract_eval(varying_rule)
        return rule

    def _vary_like(self, avals: Sequence[Any], results: Any) -> Any:
        """The types of the results, varying over the axes of the operands."""
        if self.multiple_results:
            return [_varying_like(avals, result) for result in results]
        return _varying_like(avals, results)


def _varying_like(avals: Sequence[Any], result: ShapedArray) -> ShapedArray:
    """A type that varies over the same axes as other ones, which all vary alike."""
    if not avals or not varying_axes(avals[0]):
        return result
    # Manual axes, which are those that a value varies over, shard no array.
    spec = jax.sharding.PartitionSpec(*[None] * len(result.shape))
    sharding = jax.sharding.NamedSharding(avals[0].sharding.mesh, spec)
    changes = {"shape": result.shape, "dtype": result.dtype, "sharding": sharding}
    varying: ShapedArray = avals[0].update(**changes, weak_type=False)
    return varying


def def_eager(primitive: Primitive) -> None:
    """Have a primitive that is called outside of a trace compiled and run by itself."""
    primitive.def_impl(functools.partial(apply_primitive, primitive))


def eval_equation(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation of a jaxpr."""
    bind_params = equation.primitive.get_bind_params(equation.params)
    # JAX < 0.8 has functions among the parameters apart.
    functions, params = bind_params if isinstance(bind_params, tuple) else ((), bind_params)
    results = equation.primitive.bind(*functions, *operands, **params)
    return results if equation.primitive.multiple_results else [results]


@contextlib.contextmanager
def source_info_of(equation: Any) -> Iterator[None]:
    """Give everything that is traced meanwhile the source line of an equation."""
    stack = source_info_util.current_name_stack() + equation.source_info.name_stack
    traceback = equation.source_info.traceback
    with source_info_util.user_context(traceback, name_stack=stack), equation.ctx.manager:
        yield


def traceback_of_equation(equation: Any) -> Iterator[tuple[CodeType, int]]:
    """The functions that called an equation when it was traced, where JAX keeps them.

    Each comes with the offset of the instruction.
    """
    traceback = equation.source_info.traceback
    return zip(*traceback.raw_frames(), strict=True) if traceback else iter(())


# Lowering: `ctx` is the argument of a rule, values belong to the program that is lowered.

# JAX >= 0.7 may lower equal equations once, out of line. Ours look at where they are.
_UNCACHED = (
    {"cacheable": False}
    if "cacheable" in inspect.signature(mlir.register_lowering).parameters
    else {}
)


def register_lowering(
    primitive: Primitive, rule: Callable[..., Any], platform: str | None = None
) -> None:
    mlir.register_lowering(primitive, rule, platform=platform, **_UNCACHED)


def lower_function(
    function: Callable[..., Any], *, multiple_results: bool = False
) -> Callable[..., Any]:
    """The lowering rule of a primitive that JAX could trace as well."""
    return mlir.lower_fun(function, multiple_results=multiple_results)


def lower_with(
    ctx: Any,
    function: Callable[..., Sequence[Any]],
    values: Sequence[Any],
    avals: Sequence[ShapedArray],
) -> list[Any]:
    """Lower a function without effects within another rule.

    It takes all values, and gives a sequence of arrays.
    """
    # The tokens of the rule that this is a part of are its own.
    inner = ctx.replace(avals_in=avals, tokens_in=mlir.TokenSet(), tokens_out=None)
    return list(lower_function(function, multiple_results=True)(inner, *values))


def convert(value: Any, aval: ShapedArray) -> Any:
    """Convert a value to a data type."""
    element = mlir.dtype_to_ir_type(aval.dtype)
    if ir.RankedTensorType(value.type).element_type == element:
        return value
    return hlo.convert(ir.RankedTensorType.get(aval.shape, element), value)


def optimization_barrier(values: Sequence[Any]) -> list[Any]:
    """Values that XLA combines with nothing that comes before."""
    return list(hlo.OptimizationBarrierOp(values).results) if values else []


def get_token(ctx: Any, effect: Effect) -> Any:
    """The XLA token by which JAX orders an effect."""
    return ctx.tokens_in.get(effect)


def set_token(ctx: Any, effect: Effect, token: Any) -> None:
    """Have another token order what is lowered from here on."""
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({effect: token})))


#: JAX's platforms whose arrays are in device memory.
GPU_PLATFORMS = ("cuda", "rocm")


def is_for_gpus(ctx: Any) -> bool:
    """Whether the program is for GPUs."""
    platforms = ctx.platforms or ctx.module_context.platforms
    return not set(GPU_PLATFORMS).isdisjoint(platforms)


def operand_of_call(result: Any, target: str) -> Any:
    """The first operand of the call of a handler that has this result, None for others."""
    call, name = result.owner, "call_target_name"
    if isinstance(call, ir.Block) or name not in call.attributes:
        return None
    is_called = ir.StringAttr(call.attributes[name]).value == target
    return call.operands[0] if is_called else None


def operation_of_module(ctx: Any) -> Any:
    """The program: its `module.operation`, once it is lowered."""
    return ctx.module_context.module.operation


def traceback_of(ctx: Any) -> Iterator[tuple[CodeType, int]]:
    """The functions that called what is lowered, with the offsets of instructions."""
    # JAX < 0.8 has it elsewhere.
    traceback: Any = getattr(ctx, "traceback", None) or source_info_util.current().traceback
    return zip(*traceback.raw_frames(), strict=True)


#: The attribute by which an argument of a program lends its memory to a result.
ALIAS = "tf.aliasing_output"


def is_undonated_argument(value: Any) -> bool:
    """Whether a value is an argument of the program that its caller has not donated."""
    try:
        argument: Any = ir.BlockArgument(value)
    except (TypeError, ValueError):  # made by an operation
        return False
    function_attributes = argument.owner.owner.attributes
    if "arg_attrs" not in function_attributes or "sym_name" not in function_attributes:
        return False
    of_arguments: Any = ir.ArrayAttr(function_attributes["arg_attrs"])
    attributes = of_arguments[argument.arg_number]
    is_donated = ALIAS in attributes or "jax.buffer_donor" in attributes
    is_main = ir.StringAttr(function_attributes["sym_name"]).value == "main"
    return is_main and not is_donated


# Programs, before and after they are compiled.


class LoweredProgram(NamedTuple):
    """A program that JAX has lowered and is about to compile."""

    module: ir.Module
    #: JAX's own list of the effects for which it will pass tokens to every call.
    ordered_effects: list[Effect]
    is_for_export: bool


class CompiledProgram(NamedTuple):
    """A program that XLA has compiled. The lists are JAX's own."""

    #: The effects for which JAX will pass tokens to every call.
    ordered_effects: list[Effect]
    #: If there is one of these, JAX makes all calls in Python.
    unordered_effects: list[Effect]


def program_text(program: LoweredProgram) -> str:
    """A program without its lines, and without the elements of large arrays in it."""
    operation: Any = program.module.operation
    text: str = operation.get_asm(enable_debug_info=False, large_elements_limit=16)
    return text


#: Of a custom call: the attributes that its handler gets, and how results alias operands.
_CONFIG, _ALIASES = "mhlo.backend_config", "output_operand_aliases"


def calls_with(program: LoweredProgram, attribute: str) -> list[ir.Operation]:
    """The custom calls whose handlers get an attribute of this name."""
    calls = []

    def visit(operation: Any) -> Any:
        if _CONFIG in operation.attributes:
            config: Any = operation.attributes[_CONFIG]
            # An untyped custom call has a string.
            if not isinstance(config, ir.StringAttr) and attribute in config:
                calls.append(operation)
        return ir.WalkResult.ADVANCE

    program.module.operation.walk(visit)
    return calls


def map_call_attribute(call: Any, attribute: str, function: Callable[[int], int]) -> None:
    """Change an attribute that the handler of a custom call gets."""
    with call.context:
        config: Any = call.attributes[_CONFIG]
        attributes: Any = {entry.name: entry.attr for entry in config}
        old = attributes[attribute]
        attributes[attribute] = ir.IntegerAttr.get(old.type, function(old.value))
        call.attributes[_CONFIG] = ir.DictAttr.get(attributes)


def has_aliases(call: Any) -> bool:
    """Whether results of a custom call take the memory of its operands."""
    attributes = call.attributes
    return _ALIASES in attributes and len(ir.ArrayAttr(attributes[_ALIASES])) > 0


def forbid_aliasing(call: Any) -> None:
    """Have the results of a custom call take no memory of its operands."""
    with call.context:
        call.attributes[_ALIASES] = ir.ArrayAttr.get([])


def on_lowering(callback: Callable[[LoweredProgram], None]) -> None:
    """Show every program to `callback` after it was lowered, before it is compiled."""

    def program_in(variables: dict[str, Any]) -> LoweredProgram:
        return LoweredProgram(
            variables["lowering_result"].module,
            variables["ordered_effects"],
            variables["lowering_parameters"].for_export,
        )

    event = dispatch.JAXPR_TO_MLIR_MODULE_EVENT
    _on_event(event, "_cached_lowering_to_hlo", program_in, callback)


def on_compilation(callback: Callable[[CompiledProgram], None]) -> None:
    """Show every program to `callback` after it was compiled, before it can be called."""

    def program_in(variables: dict[str, Any]) -> CompiledProgram:
        return CompiledProgram(*(variables[name] for name in CompiledProgram._fields))

    _on_event(dispatch.BACKEND_COMPILE_EVENT, "from_hlo", program_in, callback)


def _on_event(
    announced: str,
    function: str,
    program_in: Callable[[dict[str, Any]], T],
    callback: Callable[[T], None],
) -> None:
    """Show a program to `callback` when JAX announces an event.

    JAX says only that it happened. The program is among the variables of the function that
    announces it, or of one that called this.
    """

    def listener(event: str, *_: Any, **__: Any) -> None:
        if event != announced:
            return
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_name != function:
            frame = frame.f_back
        if frame is None or frame.f_globals is not vars(pxla):
            return
        try:
            program = program_in(frame.f_locals)
        except (KeyError, AttributeError):
            return
        callback(program)

    jax.monitoring.register_event_duration_secs_listener(listener)


def forget_runtime_tokens() -> None:
    """Forget the tokens by which JAX orders one effectful program after another."""
    dispatch.runtime_tokens.clear()


# Devices and meshes.


def devices_in_use() -> list[jax.Device]:
    """The devices of this process on which a program may have run."""
    if not backends_are_initialized():
        return []
    clients = xla_bridge.backends().values()
    return [device for client in clients for device in client.local_devices()]


def may_use_cuda() -> bool:
    """Whether JAX may compute on NVIDIA's GPUs: it was told to, or has a plugin for it."""
    platforms = config.jax_platforms.value
    if platforms:
        return not {"cuda", "gpu"}.isdisjoint(platforms.split(","))
    plugins = find_spec("jax_plugins")  # a namespace, in which each plugin has a package
    folders = plugins.submodule_search_locations if plugins else None
    return any("cuda" in module.name for module in pkgutil.iter_modules(folders or []))


def visible_gpus() -> list[int]:
    """The ordinals of the GPUs that JAX was restricted to: none if it takes all."""
    ordinals = xla_bridge.CUDA_VISIBLE_DEVICES.value
    return [] if ordinals == "all" else list(map(int, ordinals.split(",")))


def gpu_in_use() -> int | None:
    """The ordinal of the GPU that JAX computes on, None if it has none, or none yet."""
    if not backends_are_initialized():
        return None
    device = jax.local_devices()[0]
    return device.local_hardware_id if device.platform in ("cuda", "gpu") else None


def local_rank() -> int | None:
    """The rank of this process on its host, as JAX has it when it starts on a cluster."""
    clusters = [env for env in ClusterEnv._cluster_types if not env.opt_in_only_method]
    cluster = next((env for env in clusters if env.is_env_present()), None)
    return cluster.get_local_process_id() if cluster else None


_mesh_states: Any = mesh if hasattr(mesh, "device_context") else config  # JAX < 0.11
_NO_MESH = getattr(mesh, "empty_concrete_mesh", None)


def has_mesh() -> bool:
    """Whether `jax.set_mesh` has set a mesh in this thread, on which programs run."""
    current = _mesh_states.device_context.value
    return current is not _NO_MESH and current is not None


@contextlib.contextmanager
def without_mesh() -> Iterator[None]:
    """Have programs run on the devices of their arguments, whatever mesh is set."""
    meshes = {
        _mesh_states.abstract_mesh_context_manager: mesh.empty_abstract_mesh,
        _mesh_states.device_context: _NO_MESH,
    }
    previous = {state: state.swap_local(empty) for state, empty in meshes.items()}
    try:
        yield
    finally:
        for state, value in previous.items():
            state.set_local(value)


# The files and functions of JAX that threads are in.

_JAX = os.path.join(os.path.dirname(jax.__file__), "_src", "")
_COMPILER = os.path.join(_JAX, "compiler.py")
_DISTRIBUTED = os.path.join(_JAX, "distributed.py")
#: Where JAX calls functions of jaxlib's that wait for an array, or until one more program
#: can be run.
_WAITING = frozenset(
    os.path.join(_JAX, *name.split("/"))
    for name in (
        "api.py",
        "array.py",
        "core.py",
        "dispatch.py",
        "interpreters/pxla.py",
        "numpy/array_methods.py",
        "pjit.py",
        "stages.py",
    )
)


def is_user_file(file: str) -> bool:
    """Whether a file does not belong to JAX."""
    return source_info_util.is_user_filename(file) and not file.startswith(_JAXLIB)


def is_compiling(file: str) -> bool:
    """Whether a thread that is in this file compiles."""
    return file == _COMPILER


def is_waiting_for_arrays(file: str) -> bool:
    """Whether a thread that is asleep in this file waits for an array."""
    return file in _WAITING


def is_shutting_down(code: CodeType) -> bool:
    """Whether a thread that is asleep in a function waits for the JAX of all processes."""
    return code.co_name == "shutdown" and code.co_filename == _DISTRIBUTED


def is_jitted(function: Any) -> bool:
    """Whether something is a function that JAX calls without a frame of Python's."""
    kind = type(function)
    return kind.__name__ == "PjitFunction" and kind.__module__.startswith("jaxlib")
