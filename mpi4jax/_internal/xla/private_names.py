"""The names of JAX that mpi4jax needs and JAX does not promise to keep.

Each has its entry here: what it is for, and what happens in a JAX without it. Only a name
that nothing could work without ends the import, with one error. `jax_compat.py` and
`programs.py` use the names; no other file does. Not listed are the attributes of objects
that JAX hands to rules, such as `ctx.tokens_in`.
"""

from __future__ import annotations

import os
import pkgutil
from typing import Any, NamedTuple

import jax

from ..versions import VERSION, versiontuple

OLDEST_TESTED_JAX = "0.6.0"
LATEST_TESTED_JAX = "0.12.0"


class Name(NamedTuple):
    """A name of JAX, or several names that serve one purpose."""

    #: Each as `module:name`. Of several separated by "|", one is enough: what older
    #: versions of JAX have instead, or a public name that takes long to import.
    paths: tuple[str, ...]
    use: str
    #: The consequence if JAX lacks the name. Empty if nothing can work without it.
    without: str = ""
    #: The first version of JAX in which there is a use for it.
    since: str = OLDEST_TESTED_JAX


class Announcement(NamedTuple):
    """An event that JAX announces, and the function that holds the program at that time."""

    event: str
    #: The function that announces it, or has called the one that does, and its variables.
    #: Of several separated by "|", one is enough.
    function: str
    variables: tuple[str, ...]
    without: str


class Files(NamedTuple):
    """JAX's files by which the activity of a thread is known."""

    names: tuple[str, ...]
    without: str


def _of(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{module}:{name}" for name in names)


NAMES = (
    Name(
        (
            "jax._src.core:Primitive|jax.extend.core:Primitive",
            "jax._src.core:Literal|jax.extend.core:Literal",
            "jax._src.core:Token|jax.extend.core:Token",
            "jax._src.effects:Effect|jax.extend.core:Effect",
            "jax._src.core:abstract_token",
            "jax.core:ShapedArray",
            "jax.core:Tracer",
        ),
        "to declare operations, and to tell what is traced",
    ),
    Name(
        ("jax._src.core:trace_state_clean|jax.extend.core:get_opaque_trace_state",),
        "to tell calls outside of any trace",
    ),
    Name(
        _of("jax._src.effects", "lowerable_effects", "ordered_effects"),
        "to keep operations in order",
    ),
    Name(
        _of(
            "jax.interpreters.ad",
            "UndefinedPrimal",
            "Zero",
            "deflinear2",
            "instantiate_zeros",
            "primitive_jvps",
            "primitive_transposes",
        )
        + _of("jax.interpreters.batching", "bdim_at_front", "primitive_batchers"),
        "for derivatives and vmap",
    ),
    Name(
        _of(
            "jax.interpreters.mlir",
            "TokenSet",
            "dtype_to_ir_type",
            "ir_constant",
            "lower_fun",
            "register_lowering",
        )
        + _of("jax.ffi", "ffi_lowering", "register_ffi_target")
        + ("jax._src.lib.mlir:ir", "jax._src.lib.mlir.dialects:hlo"),
        "to compile operations",
    ),
    Name(
        ("jax._src.effects:control_flow_allowed_effects",),
        "operations in loops and branches",
        "JAX refuses operations in loops and branches (scan, while_loop, cond)",
    ),
    Name(
        ("jax._src.effects:custom_derivatives_allowed_effects",),
        "operations in functions that have derivatives of their own",
        "with jax_enable_checks, JAX refuses operations in functions with custom_jvp",
    ),
    Name(
        ("jax._src.effects:remat_allowed_effects",),
        "operations in jax.checkpoint",
        "JAX refuses operations in jax.checkpoint",
    ),
    Name(
        ("jax.interpreters.partial_eval:partial_eval_jaxpr_custom_rules",),
        "complex results of operations in jax.checkpoint",
        "JAX can't differentiate a jax.checkpoint with complex results of operations",
    ),
    Name(
        ("jax._src.effects:partial_eval_kept_effects",),
        "sends in loops that are differentiated",
        "JAX leaves out a send in a loop that is differentiated",
        since="0.8.0",
    ),
    Name(
        ("jax._src.effects:shardable_ordered_effects",),
        "operations in a shard_map over several processes",
        "JAX refuses operations in a shard_map over several processes",
        since="0.9.1",
    ),
    Name(
        # JAX < 0.9 or so has the second one.
        ("jax._src.core:auto_insert_reshard|jax._src.core:standard_insert_pvary",),
        "operands that vary over different axes of a shard_map",
        "in a shard_map, JAX refuses operations whose operands vary over different axes",
    ),
    Name(
        ("jax.extend.random:threefry2x32_p",),
        "to compute a part of an array of random numbers alone",
        "functions that `scatter` gets compute whole arrays of random numbers",
    ),
    Name(
        ("jax._src.state.types:AbstractRef",),
        "to keep reads and writes of refs in order with messages",
        "overlap() can't be used",
    ),
    Name(
        (
            "jax._src.source_info_util:current_name_stack"
            "|jax.extend.source_info_util:current_name_stack",
            "jax._src.source_info_util:user_context"
            "|jax.extend.source_info_util:user_context",
        ),
        "the lines of operations in overlap()",
        "reports give the line of overlap() for the operations in it",
    ),
    Name(
        ("jax._src.source_info_util:current|jax.extend.source_info_util:current",),
        "the lines of operations, where JAX < 0.8 lowers them",
        "reports have no lines",
    ),
    Name(
        ("jax._src.source_info_util:is_user_filename",),
        "the files that belong to JAX",
        "reports may give the line of a library that belongs to JAX",
    ),
    Name(
        # Its variable `eqn` is the equation that it lowers.
        ("jax._src.interpreters.mlir:jaxpr_subcomp",),
        "to find the primitive that hides the effects of an operation",
        "errors do not name the primitive that hides the effects of an operation",
    ),
    Name(
        ("jax._src.dispatch:runtime_tokens",),
        "to go on after an operation that failed",
        "once an operation has failed, so does each program that JAX passes its token to",
    ),
    Name(
        ("jax._src.xla_bridge:backends|jax.extend.backend:backends",),
        "all devices of this process",
        "of several kinds of devices, only the default one is waited for at exit",
    ),
    Name(
        ("jax._src.xla_bridge:backends_are_initialized",),
        "to look at devices only if JAX has made them",
        "JAX counts as unused until an operation is compiled",
    ),
    Name(
        ("jaxlib.xla_client:_xla.get_execution_stream_id",),
        "to tell programs that XLA orders only with others of their stream",
        "operations are not kept in order where a thread switches between streams",
        since="0.8.0",
    ),
    Name(
        ("jax._src.xla_bridge:CUDA_VISIBLE_DEVICES",),
        "the GPUs that JAX was restricted to",
        "jax_cuda_visible_devices does not count where MPI gets the context of a GPU",
    ),
    Name(
        ("jax._src.clusters:ClusterEnv._cluster_types",),
        "the GPU that JAX takes on a cluster",
        "of several GPUs, MPI gets the context of the one with this process's local rank",
    ),
    Name(
        (
            # JAX < 0.11 has the second ones.
            "jax._src.mesh:device_context|jax._src.config:device_context",
            "jax._src.mesh:abstract_mesh_context_manager"
            "|jax._src.config:abstract_mesh_context_manager",
        ),
        "calls outside of programs where jax.set_mesh has set a mesh",
        "such calls fail where jax.set_mesh has set a mesh of several processes",
    ),
)

LOWERED = Announcement(
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "_cached_lowering_to_hlo",
    (
        "lowering_result.module",
        "ordered_effects",
        "lowering_parameters.for_export",
    ),
    "reports have no lines, and sharded programs are not compared over their ranks",
)
COMPILED = Announcement(
    "/jax/core/compile/backend_compile_duration",
    "from_hlo",
    # JAX 0.6 has the second name of the devices.
    ("hlo", "ordered_effects", "unordered_effects", "device_list|da"),
    "with several devices, `jax.stages.Compiled` can be called only once, and sharded "
    "programs are not compared over their ranks",
)
ANNOUNCEMENTS = (LOWERED, COMPILED)

COMPILING = Files(("compiler.py",), "reports do not say that a rank compiles")
SHUTTING_DOWN = Files(
    ("distributed.py",), "a deadlock is not ended where a rank waits at exit for the others"
)
#: Places where JAX calls functions of jaxlib that wait for an array, or until one more
#: program can be run.
WAITING = Files(
    (
        "api.py",
        "array.py",
        "core.py",
        "dispatch.py",
        "interpreters/pxla.py",
        "numpy/array_methods.py",
        "pjit.py",
        "stages.py",
    ),
    "a deadlock is not ended where a rank waits there for an array",
)
FILES = (COMPILING, SHUTTING_DOWN, WAITING)

#: The folder of JAX's private modules.
FOLDER = os.path.join(os.path.dirname(jax.__file__), "_src", "")


def paths_of(files: Files) -> frozenset[str]:
    """The paths of JAX's files."""
    return frozenset(os.path.join(FOLDER, *name.split("/")) for name in files.names)


def _look_up(candidates: str) -> Any:
    """The value of the first name that this JAX has, None if it has none of them."""
    for path in candidates.split("|"):
        try:
            return pkgutil.resolve_name(path)
        except (ImportError, AttributeError):
            continue
    return None


#: The entry of each name, by the first of its paths.
_entries: dict[str, Name] = {}
_values: dict[str, Any] = {}
for _name in NAMES:
    for _candidates in _name.paths:
        _path = _candidates.partition("|")[0]
        _entries[_path], _values[_path] = _name, _look_up(_candidates)


def essential(path: str) -> Any:
    """The value of a required name."""
    return _values[path]


def optional(path: str) -> Any:
    """The value of an optional name, None if this JAX lacks it."""
    assert _entries[path].without, path
    return _values[path]


def require(path: str) -> Any:
    """The value of a name without which the user's call can't be made."""
    value = optional(path)
    if value is None:
        raise NotImplementedError(_lacks(path))
    return value


def _lacks(path: str) -> str:
    name = path.replace(":", ".")
    return f"JAX {jax.__version__} has no {name}: {_entries[path].without}"


def lacks() -> list[str]:
    """A sentence for each name and each file that this JAX lacks."""
    version = versiontuple(jax.__version__)
    sentences = [
        _lacks(path)
        for path, value in _values.items()
        if value is None and version >= versiontuple(_entries[path].since)
    ]
    for files in FILES:
        sentences += [
            f"JAX {jax.__version__} has no {os.path.relpath(path, FOLDER)}: {files.without}"
            for path in sorted(paths_of(files))
            if not os.path.exists(path)
        ]
    return sentences


def _check() -> None:
    """Raise an ImportError if this JAX lacks a required name."""
    missing = [
        f"{path.replace(':', '.')} ({_entries[path].use})"
        for path, value in _values.items()
        if value is None and not _entries[path].without
    ]
    if missing:
        raise ImportError(
            f"mpi4jax {VERSION} was tested with JAX {OLDEST_TESTED_JAX} to "
            f"{LATEST_TESTED_JAX}, and can't work with JAX {jax.__version__}, which has no "
            f"{', no '.join(missing)}. Install a newer mpi4jax (pip install -U mpi4jax) or "
            f"that JAX (pip install 'jax=={LATEST_TESTED_JAX}')"
        )


_check()
