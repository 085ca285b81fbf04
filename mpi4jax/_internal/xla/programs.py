"""Programs, when JAX has lowered them and when it has compiled them.

JAX announces both by its public monitoring API, but says only that it happened. The program
is among the variables of the function that announces it, or of one that called this.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import NamedTuple

import jax

from mpi4jax._override import override

from .jax_compat import Attribute, Effect, LoweringContext, Value, hlo, ir
from .private_names import ANNOUNCEMENTS, COMPILED, LOWERED, Announcement


class LoweredProgram(NamedTuple):
    """A program that JAX has lowered and is about to compile."""

    module: ir.Module
    #: JAX's own list of the effects for which it will pass tokens to every call.
    ordered_effects: list[Effect]
    is_for_export: bool


class CompiledProgram(NamedTuple):
    """A program that XLA has compiled. The lists are JAX's own."""

    module: ir.Module
    #: The effects for which JAX will pass tokens to every call.
    ordered_effects: list[Effect]
    #: If there is one of these, JAX makes all calls in Python.
    unordered_effects: list[Effect]
    devices: Iterable[jax.Device]


#: The placeholder for elements of a large array in the text of a program.
_ELIDED = "<__elided__>"


class _Digest:
    """A hash of all text written to it, as to a file."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def write(self, text: bytes) -> None:
        self._hash.update(text)

    @override
    def __str__(self) -> str:
        return self._hash.hexdigest()


def program_text(program: LoweredProgram) -> str:
    """The text of a program, without lines, and with a hash of large arrays' elements."""
    operation = program.module.operation
    text = str(operation.get_asm(enable_debug_info=False, large_elements_limit=16))
    if _ELIDED not in text:
        return text
    digest = _Digest()
    operation.print(file=digest, binary=True, enable_debug_info=False)
    return f"{text}\nthe elements of large arrays in it, with hash {digest}"


#: Of a custom call: the attributes that its handler gets, and how results alias operands.
_CONFIG, _ALIASES = "mhlo.backend_config", "output_operand_aliases"


def calls_with(program: LoweredProgram, attribute: str) -> list[ir.Operation]:
    """The custom calls whose handlers get an attribute of this name."""
    calls = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if _CONFIG in operation.attributes:
            config: Attribute = operation.attributes[_CONFIG]
            # An untyped custom call has a string.
            if not isinstance(config, ir.StringAttr) and attribute in config:
                calls.append(operation)
        return ir.WalkResult.ADVANCE

    program.module.operation.walk(visit)
    return calls


def call_attribute(call: ir.Operation, attribute: str) -> int:
    """An attribute that the handler of a custom call gets."""
    config: Attribute = call.attributes[_CONFIG]
    value: int = config[attribute].value
    return value


def _attributes_of_handler(call: ir.Operation) -> dict[str, Attribute]:
    """All attributes that the handler of a custom call gets."""
    config: Attribute = call.attributes[_CONFIG]
    return {entry.name: entry.attr for entry in config}


def map_call_attribute(
    call: ir.Operation, attribute: str, function: Callable[[int], int]
) -> None:
    """Change an attribute that the handler of a custom call gets."""
    with call.context:
        attributes = _attributes_of_handler(call)
        old = attributes[attribute]
        attributes[attribute] = ir.IntegerAttr.get(old.type, function(old.value))
        call.attributes[_CONFIG] = ir.DictAttr.get(attributes)


def describe_attributes(call: ir.Operation, *, without: Sequence[str]) -> str:
    """The attributes that the handler of a custom call gets, apart from some of them."""
    # An integer is written as `1 : i64`.
    values = {
        name: str(value).partition(" :")[0]
        for name, value in _attributes_of_handler(call).items()
    }
    return ", ".join(f"{name}={values[name]}" for name in values if name not in without)


def has_attribute(call: ir.Operation, attribute: str) -> bool:
    """Whether the handler of a custom call gets an attribute of this name."""
    config: Attribute = call.attributes[_CONFIG]
    return attribute in config


def aliased_operands(call: ir.Operation) -> list[Value]:
    """The operands of a custom call whose memory results take."""
    attributes = call.attributes
    aliases = ir.ArrayAttr(attributes[_ALIASES]) if _ALIASES in attributes else ()
    return [call.operands[hlo.OutputOperandAlias(x).operand_index] for x in aliases]


def forbid_aliasing(call: ir.Operation) -> None:
    """Keep the results of a custom call from taking the memory of its operands."""
    with call.context:
        call.attributes[_ALIASES] = ir.ArrayAttr.get([])


def on_lowering(callback: Callable[[LoweredProgram], None]) -> None:
    """Show every program to `callback` after it was lowered, before it is compiled."""

    _callbacks[LOWERED].append(lambda *variables: callback(LoweredProgram(*variables)))
    _listen_once()


def on_compilation(callback: Callable[[CompiledProgram], None]) -> None:
    """Show every program to `callback` after it was compiled, before it can be called."""
    _callbacks[COMPILED].append(lambda *variables: callback(CompiledProgram(*variables)))
    _listen_once()


def before_lowering(callback: Callable[[], None]) -> None:
    """Call `callback` before a program with operations is lowered."""
    _before_lowering.append(callback)


#: Functions that are called with the variables of an announcement.
_callbacks: dict[Announcement, list[Callable[..., None]]] = {
    announcement: [] for announcement in ANNOUNCEMENTS
}
_before_lowering: list[Callable[[], None]] = []
#: Description of the object that was not found where a program should be.
_not_found: dict[Announcement, str] = {}
#: The announcements that were heard.
_heard: set[Announcement] = set()


def why_unseen(announcement: Announcement) -> str | None:
    """Reason why no program was seen, although JAX announces programs."""
    if announcement not in _heard:
        return f"JAX {jax.__version__} does not announce {announcement.event}"
    lack = _not_found.get(announcement)
    return lack and f"JAX {jax.__version__} has no {lack}"


def lacks() -> list[str]:
    """A sentence for each announcement without a program, after one was compiled."""
    reasons = {announcement: why_unseen(announcement) for announcement in ANNOUNCEMENTS}
    return [f"{why}: {each.without}" for each, why in reasons.items() if why]


def _listener(event: str, *_: object, **__: object) -> None:
    global _module_context
    if event == _OWN_EVENT:
        _is_listening.set()
    if event == LOWERED.event:
        _module_context = None
    for announcement, callbacks in _callbacks.items():
        if event == announcement.event:
            _heard.add(announcement)
            variables = _variables(announcement, inspect.currentframe())
            if variables is not None:
                for callback in callbacks:
                    callback(*variables)


def _variables(announcement: Announcement, frame: FrameType | None) -> list[object] | None:
    """The variables with the program, None if this JAX has no such variables."""
    while frame is not None and not (
        frame.f_code.co_name == announcement.function
        and frame.f_globals["__name__"].startswith("jax.")
    ):
        frame = frame.f_back
    if frame is None:
        _not_found[announcement] = f"function {announcement.function}"
        return None
    values = []
    for path in announcement.variables:
        value = _NOTHING
        for candidate in path.split("|"):
            name, _, attribute = candidate.partition(".")
            if value is _NOTHING:
                value = frame.f_locals.get(name, _NOTHING)
                value = getattr(value, attribute, _NOTHING) if attribute else value
        if value is _NOTHING:
            _not_found[announcement] = f"variable {path} in {announcement.function}"
            return None
        values.append(value)
    return values


_NOTHING = object()


_OWN_EVENT = "/mpi4jax/lowering"
_is_listening = threading.Event()
_lock = threading.RLock()
#: Context that all rules share that lower a program, until the program is lowered.
_module_context: object = None


def listen(ctx: LoweringContext) -> None:
    """Hear of the program that is being lowered. `ctx` is the argument of a rule."""
    global _module_context
    if _module_context is ctx.module_context:
        return
    _module_context = ctx.module_context
    _listen_once()
    for callback in _before_lowering:
        callback()


def _listen_once() -> None:
    """Listen, unless JAX calls the listener already.

    `jax.monitoring.clear_event_listeners()` makes JAX forget it.
    """
    with _lock:
        _is_listening.clear()
        jax.monitoring.record_event_duration_secs(_OWN_EVENT, 0.0)
        if not _is_listening.is_set():
            jax.monitoring.register_event_duration_secs_listener(_listener)
