"""XLA's compiler for GPUs, and how to read what it makes."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies
from jax.extend.core import ClosedJaxpr, Jaxpr

from mpi4jax import _core
from mpi4jax._internal.mpi.binding import operations

why_not = ""
if importlib.util.find_spec("jax_cuda12_plugin") is None:
    why_not = "JAX's CUDA plugin is not installed"

#: An H100, as far as the compiler wants to know: XLA's GpuTargetConfigProto. Without the
#: versions it would not consider CUDA graphs.
TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  device_address_bits: 64
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  device_vendor: "NVIDIA Corporation"
  name: "NVIDIA H100 80GB HBM3"
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

#: How XLA may be told to schedule, and what to put into CUDA graphs.
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "latency hiding": {"xla_gpu_enable_latency_hiding_scheduler": True},
    "no graphs": {"xla_gpu_enable_command_buffer": ""},
    "all graphs": {
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUDNN,CUSTOM_CALL,"
        "DYNAMIC_SLICE_FUSION,COLLECTIVES,CONDITIONAL,WHILE",
        "xla_gpu_graph_min_graph_size": 1,
    },
}

#: Where XLA writes the steps of each program that it compiles.
DUMPS = Path(tempfile.mkdtemp(prefix="programs"))
atexit.register(shutil.rmtree, DUMPS, ignore_errors=True)
# Nothing looks for the GPU that is compiled for.
jax.config.update("jax_platforms", "cpu")
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={DUMPS} --xla_dump_hlo_as_text"
)


@functools.cache
def devices(processes: int = 1) -> list[jax.Device]:
    """The GPUs of some processes, one for each, that programs are compiled for."""
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=TARGET, topology=f"1x{processes}x1"
    )
    return list(topology.devices)


#: The attributes that name other computations, in the order in which these run: the branch
#: for false comes first, as in JAX.
_CALLED = "calls to_apply condition body false_computation true_computation".split()

#: The handler between tokens and the bytes that order calls. It does nothing.
ORDER = "mpi_order_ffi"


class Instruction(NamedTuple):
    """An instruction of a scheduled program."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    #: All that stands behind the operands.
    attributes: str

    @property
    def target(self) -> str:
        """The handler that a custom call calls."""
        return _first(r'custom_call_target="([^"]*)"', self.attributes)

    @property
    def types(self) -> list[str]:
        """The types of the results, without layouts."""
        return re.findall(r"\w+\[[\d,]*\]", re.sub(r"\{[^{}]*\}", "", self.type))

    @property
    def is_mpi(self) -> bool:
        return self.target.startswith("mpi_") and self.target != ORDER

    @property
    def parameter(self) -> int:
        """Which parameter of a computation it is."""
        return int(self.operands[0])

    @property
    def has_aliases(self) -> bool:
        return "output_to_operand_aliasing" in self.attributes

    def numbers(self) -> dict[str, int]:
        """The integers that the handler gets."""
        numbers = re.findall(r"\b(\w+) = (-?\d+) : i64", self.attributes)
        return {name: int(value) for name, value in numbers}

    def called(self) -> list[str]:
        """The computations that it runs, in order."""
        branches = _first(r"branch_computations=\{([^}]*)\}", self.attributes)
        names = [
            _first(rf"\b{attribute}=%?([\w.\-]+)", self.attributes) for attribute in _CALLED
        ]
        return [*filter(None, names), *re.findall(r"%?([\w.\-]+)", branches)]


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$"
)


class Program:
    """A scheduled program: its instructions stand in the order in which they run."""

    def __init__(self, text: str, thunks: str) -> None:
        self.text = text
        #: The steps of the runtime, one line for each.
        self.thunks = thunks
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        current: list[Instruction] = []
        for line in text.splitlines():
            if match := _COMPUTATION.match(line):
                current = self.computations[match[2]] = []
                self.entry = match[2] if match[1] else self.entry
            elif match := _INSTRUCTION.match(line):
                current.append(_instruction(*match.groups()))

    def run(self, computation: str = "") -> Iterator[Instruction]:
        """All instructions, each followed by those that it runs. A loop runs once."""
        for instruction in self.computations[computation or self.entry]:
            yield instruction
            for called in instruction.called():
                yield from self.run(called)

    def calls(self) -> list[Instruction]:
        """The calls of MPI, in the order in which they are made."""
        return [instruction for instruction in self.run() if instruction.is_mpi]

    def has_calls(self, instruction: Instruction) -> bool:
        """Whether an instruction calls MPI, or runs others that do."""
        return instruction.is_mpi or any(
            inner.is_mpi for called in instruction.called() for inner in self.run(called)
        )

    def chain(self, computation: str) -> Iterator[tuple[Instruction, set[Instruction]]]:
        """The instructions that call MPI, each with the operand that orders its calls.

        That is what called MPI before, or nothing in this computation.
        """
        makers = {x.name: x for x in self.computations[computation]}
        for instruction in self.computations[computation]:
            if self.has_calls(instruction):
                inputs = self._order_inputs(instruction, makers)
                yield instruction, {self._origin(makers[x], makers) for x in inputs}

    def _order_inputs(
        self, instruction: Instruction, makers: dict[str, Instruction]
    ) -> Iterator[str]:
        """The operands that order the calls of an instruction."""
        if instruction.is_mpi:
            yield instruction.operands[-1]
        elif instruction.opcode == "fusion":
            body = {x.name: x for x in self.computations[instruction.called()[0]]}
            (call,) = (x for x in body.values() if x.is_mpi)
            yield instruction.operands[body[call.operands[-1]].parameter]
        else:
            for operand in instruction.operands:
                if "token[]" in makers[operand].type:
                    yield from _tokens(makers[operand], makers)

    def _origin(
        self, instruction: Instruction, makers: dict[str, Instruction]
    ) -> Instruction:
        """The instruction that made a byte or token, or the parameter that contains it."""
        follows = "get-tuple-element", "bitcast", "copy"
        while instruction.opcode in follows or instruction.target == ORDER:
            instruction = makers[instruction.operands[0]]
        return instruction

    def copies(self) -> int:
        """How many arrays are copied as they are."""
        copies = (x for x in self.run() if x.opcode in ("copy", "copy-start"))
        return sum(_is_array(x.types[0]) for x in copies)

    def kernels(self) -> int:
        """How many kernels XLA starts. A slice that it cuts out takes one."""
        kinds = "kind=kLoop", "kind=kInput"
        return sum(any(kind in x.attributes for kind in kinds) for x in self.run())


def _tokens(instruction: Instruction, makers: dict[str, Instruction]) -> Iterator[str]:
    """The tokens in an operand, which may be a tuple."""
    if instruction.opcode != "tuple":
        yield instruction.name
        return
    for element in instruction.operands:
        if "token[]" in makers[element].type:
            yield from _tokens(makers[element], makers)


def _is_array(type_: str) -> bool:
    return bool(re.search(r"\[\d", type_))


def _instruction(name: str, type_: str, opcode: str, rest: str) -> Instruction:
    depth, end = 1, 0
    while depth and end < len(rest):
        depth += {"(": 1, ")": -1}.get(rest[end], 0)
        end += 1
    pattern = r"^\d+$" if opcode == "parameter" else r"%([\w.\-]+)"
    operands = re.findall(pattern, rest[: end - 1])
    return Instruction(name, type_, opcode, tuple(operands), rest[end:])


@functools.cache
def compile_for_gpu(
    function: Callable[..., Any], *avals: Any, options: str = "default"
) -> Program:
    """A function of arrays with these shapes and types, compiled for a GPU.

    It is for the GPUs that the arrays are sharded over, if they are. Each is compiled only
    once, as JAX keeps what is compiled, and XLA would write nothing again.
    """
    one_gpu = jax.sharding.SingleDeviceSharding(devices()[0])
    avals = tuple(
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or one_gpu)
        for x in avals
    )
    lowered = jax.jit(function).trace(*avals).lower(lowering_platforms=("cuda",))
    compiled = lowered.compile(OPTIONS[options])
    thunks = DUMPS.glob("*.thunk_sequence_after_thunk_passes.txt")
    program = Program(compiled.as_text(), "\n".join(x.read_text() for x in thunks))
    shutil.rmtree(DUMPS, ignore_errors=True)
    return program


class Call(NamedTuple):
    """A call of MPI, as far as both a traced and a compiled program know it."""

    operation: str
    comm_number: int | None
    #: Parameters that tell calls of one operation apart.
    parameters: tuple[tuple[str, int], ...]


#: The parameters by which programs tell their calls apart.
TOLD_APART_BY = ("dest", "op_number", "recvtag", "root", "sendtag", "source", "tag")


def calls_of(function: Callable[..., Any], *avals: Any) -> list[Call]:
    """The calls of MPI that a function makes, in order. A loop runs once."""
    return list(_calls_in(jax.make_jaxpr(function)(*avals)))


def _calls_in(jaxpr: Any) -> Iterator[Call]:
    for equation in (jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr).eqns:
        name, params = equation.primitive.name.removesuffix("_mpi"), equation.params
        flight = params.get("flight")
        if flight is not None:
            operation = "wait" if name == "wait" else flight.handler
            yield Call(operation, flight.communicator.number, ())
        elif name == "ordering_barrier":
            yield Call("in_order", None, ())
        elif name == "exchange_blocks":
            yield Call("exchange", params["operation"].communicator.number, ())
        elif "operation" in params and name in operations:
            fields = vars(params["operation"])
            parameters = ((key, fields[key]) for key in TOLD_APART_BY if key in fields)
            yield Call(
                params["operation"].name, fields["communicator"].number, tuple(parameters)
            )
        if name == "while":
            # JAX puts calls of the condition in front of the loop, and behind its body.
            condition = list(_calls_in(params["cond_jaxpr"]))
            yield from [*condition, *_calls_in(params["body_jaxpr"]), *condition]
        else:
            for inner in _jaxprs_in(params.values()):
                yield from _calls_in(inner)


def _jaxprs_in(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, ClosedJaxpr | Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _jaxprs_in(value)


def calls_in(program: Program) -> list[Call]:
    """The calls of MPI that a compiled program makes, in order."""
    return [_call_of(instruction) for instruction in program.calls()]


def _call_of(instruction: Instruction) -> Call:
    # A handler for computed ranks has a name of its own.
    handler = instruction.target.removeprefix("mpi_").removesuffix("_ffi")
    operation = handler.removesuffix("_computed")
    numbers = instruction.numbers()
    # As the jaxpr has them: those of nonblocking operations are in the flight.
    is_blocking = operation not in _core.NONBLOCKING
    parameters = [(key, numbers[key]) for key in TOLD_APART_BY if key in numbers]
    return Call(
        operation, numbers.get("comm_number"), tuple(parameters) if is_blocking else ()
    )


def check_chain(program):
    """Data makes XLA keep the order: each call takes something from the one before it."""
    for computation in program.computations:
        last = None
        for instruction, origins in program.chain(computation):
            if last is None:
                assert {x.opcode for x in origins} <= {"parameter", "after-all"}
            else:
                assert origins == {last}
            assert not instruction.is_mpi or instruction.types[-1] == "u8[1]"
            last = instruction


def check_outside_of_graphs(program):
    """XLA would make a call once, while it records the graph."""
    graph = None
    for line in program.thunks.splitlines():
        indent = len(line) - len(line.lstrip())
        if graph is not None and indent > graph:
            assert "kCustomCall" not in line
            assert "kDynamicSliceFusion" not in line
        else:
            graph = indent if "kCommandBuffer" in line else None
