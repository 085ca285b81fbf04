"""Calls are in order, each is made once, and nothing is copied for them."""

import gpu
import jax
import pytest
from mpi4py import MPI
from programs import EXAMPLES, RANK, X

from mpi4jax import notoken as mpi

#: Whether XLA hands the addresses of slices to calls.
HAS_SLICES = jax.__version_info__ >= (0, 12)

pytestmark = pytest.mark.ranks(2)
every_example = pytest.mark.parametrize("name", EXAMPLES)


@every_example
@pytest.mark.parametrize("options", gpu.OPTIONS)
def test_order(name, options):
    example = EXAMPLES[name]
    program = gpu.compile_for_gpu(example.function, *example.operands, options=options)
    assert gpu.calls_in(program) == gpu.calls_of(example.function, *example.operands)
    gpu.check_chain(program)
    if options == "all graphs":
        gpu.check_outside_of_graphs(program)


def test_graphs_are_made():
    example = EXAMPLES["large_beside_small"]
    program = gpu.compile_for_gpu(example.function, *example.operands, options="all graphs")
    assert "kCommandBuffer" in program.thunks


@every_example
def test_work_of_the_gpu(name):
    """A lost alias shows as a copy, and a slice that is cut out as a kernel."""
    example = EXAMPLES[name]
    # All ranks compile it: communicators are numbered when they are first used.
    program = gpu.compile_for_gpu(example.function, *example.operands)
    if RANK == 0:  # The table is of rank 0, and some programs differ.
        assert (program.copies(), program.kernels()) == example.work[HAS_SLICES]


@pytest.mark.parametrize("name", ["allreduce", "bcast", "exscan", "reduce", "scan"])
def test_results_take_the_memory_of_operands(name):
    """As on CPUs."""
    functions = {
        "allreduce": lambda x: mpi.allreduce(x, MPI.SUM),
        "bcast": lambda x: mpi.bcast(x, 1 - RANK),
        "exscan": lambda x: mpi.exscan(x, MPI.SUM),
        "reduce": lambda x: mpi.reduce(x, MPI.SUM, RANK),
        "scan": lambda x: mpi.scan(x, MPI.SUM),
    }
    program = gpu.compile_for_gpu(lambda x: functions[name](x * 2), X)
    (call,) = program.calls()
    assert call.has_aliases
    assert program.copies() == 0


@pytest.mark.skipif(not HAS_SLICES, reason="XLA cuts slices out")
@pytest.mark.parametrize(
    "name", ["row", "rows", "row_that_was_computed", "row_put_back", "row_put_elsewhere"]
)
def test_slices_are_handed_over(name):
    example = EXAMPLES[name]
    program = gpu.compile_for_gpu(example.function, *example.operands)
    (call,) = program.calls()
    (body,) = (
        name for name, instructions in program.computations.items() if call in instructions
    )
    assert body.startswith("dynamic-slice-fusion")


def test_calls_in_held_functions():
    """The primitive of lineax does not tell JAX of effects. The order is as on CPUs."""
    lineax = pytest.importorskip("lineax")

    def solve(x):
        x = mpi.bcast(x, 0)
        operator = lineax.FunctionLinearOperator(
            lambda v: mpi.allreduce(v, MPI.SUM),
            jax.eval_shape(lambda: x),
            lineax.positive_semidefinite_tag,
        )
        x = mpi.bcast(x, 1)
        y = lineax.linear_solve(operator, x, lineax.CG(1e-3, 1e-3), throw=False).value
        return mpi.scan(y, MPI.SUM)

    program = gpu.compile_for_gpu(solve, X)
    gpu.check_chain(program)
    on_cpu = gpu.Program(jax.jit(solve).lower(X).compile().as_text(), "")
    operations = [call.operation for call in gpu.calls_in(program)]
    assert operations == [call.operation for call in gpu.calls_in(on_cpu)]
    assert operations[:2] == ["bcast", "bcast"]
    assert set(operations[2:-1]) == {"allreduce"}
    assert operations[-1] == "scan"
