"""Operations of others, in order with ours."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import foreign
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from mpi4py import MPI

from mpi4jax import _core, extend
from mpi4jax import notoken as mpi
from mpi4jax._internal.environment import settings
from mpi4jax.experimental import auto_tokenize

#: The foreign operations have rules for CPUs only.
pytestmark = pytest.mark.on_cpus

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
DOCS = Path(__file__).resolve().parents[3] / "docs"


def in_public():
    """An exchange that is made with `mpi4jax.extend`."""
    primitive = Primitive("foreign_exchange")

    @primitive.def_effectful_abstract_eval
    def _(x, *, comm_number, partner):
        return jax.core.ShapedArray(x.shape, x.dtype), {extend.ordered_effect}

    extend.call_in_order(primitive, "foreign_exchange")
    return lambda x, partner, comm: primitive.bind(
        x, partner=partner, comm_number=extend.communicator_number(comm)
    )


def as_the_original_does():
    """One that is made with what public programs import from private modules."""
    from jax.ffi import ffi_lowering
    from jax.interpreters import mlir

    from mpi4jax._src.decorators import translation_rule_cpu
    from mpi4jax._src.jax_compat import (
        abstract_token,
        get_token_effect,
        register_lowering,
        set_token_effect,
    )
    from mpi4jax._src.utils import (
        default_primitive_impl,
        get_default_comm,
        ordered_effect,
        to_mpi_handle,
        unpack_hashable,
        wrap_as_hashable,
    )

    primitive = Primitive("old_foreign_exchange")
    primitive.def_impl(default_primitive_impl(primitive))

    @primitive.def_effectful_abstract_eval
    def _(x, *, comm, partner):
        return jax.core.ShapedArray(x.shape, x.dtype), {ordered_effect}

    @translation_rule_cpu
    def lower(ctx, x, *, comm, partner):
        assert set(ctx.tokens_in.effects()) == {ordered_effect}
        token = get_token_effect(ctx, ordered_effect)
        rule = ffi_lowering("foreign_exchange", has_side_effect=True)
        result, token = rule(
            ctx.replace(
                avals_in=[*ctx.avals_in, abstract_token],
                avals_out=[*ctx.avals_out, abstract_token],
            ),
            x,
            token,
            comm=np.array(to_mpi_handle(unpack_hashable(comm))).astype(np.int64)[()],
            partner=np.int64(partner),
        )
        set_token_effect(ctx, ordered_effect, token)
        return [result]

    assert mlir  # with its own function of this name, programs register rules as well
    register_lowering(primitive, lower, platform="cpu")

    def exchange(x, partner, comm):
        comm = wrap_as_hashable(get_default_comm() if comm is None else comm)
        return primitive.bind(x, comm=comm, partner=partner)

    return exchange


EXCHANGES = {"public": in_public(), "private": as_the_original_does()}
exchanges = pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)


def conversation(exchange, x, comm=None):
    """The n-th exchange of each rank is with the n-th of the other: ours, or a foreign one.

    Taken in another order, numbers of other exchanges arrive. Ranks take turns in which is
    which, so ours meet foreign ones.
    """
    partner = 1 - RANK

    def ours(x):
        return mpi.sendrecv(x, x, partner, partner, sendtag=0, recvtag=0, comm=comm)

    def foreign(x):
        return exchange(x, partner, comm)

    received = []
    for n in range(6):
        call = ours if (n + RANK) % 2 else foreign
        # Each is independent of the others.
        received.append(call(x + 10 * n))
        if n == 2:
            mpi.barrier(comm=comm)
    return jnp.stack(received)


def expected(x=0.0):
    return x + 1 - RANK + 10 * np.arange(6.0)


MODES = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "nested": lambda f: jax.jit(lambda x: jax.jit(f)(x)),
    "auto_tokenize": auto_tokenize,
    "cond": lambda f: jax.jit(
        lambda x: jax.lax.cond(x < 5, f, lambda x: -jnp.ones(6, jnp.float32), x)
    ),
    "loop": lambda f: jax.jit(
        lambda x: jax.lax.fori_loop(0, 3, lambda _, y: f(x), jnp.zeros(6, jnp.float32))
    ),
    "scan": lambda f: jax.jit(
        lambda x: jax.lax.scan(lambda c, _: (c, f(x)), 0, jnp.zeros(3))[1][2]
    ),
    "while": lambda f: jax.jit(
        lambda x: jax.lax.while_loop(
            lambda state: state[0] < 3,
            lambda state: (state[0] + 1, f(x)),
            (0, jnp.zeros(6, jnp.float32)),
        )[1]
    ),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@exchanges
def test_order(exchange, mode):
    if RANK > 1:
        return
    pair = COMM.Create_group(COMM.Get_group().Incl([0, 1]))
    for comm in (pair, None):
        call = mode(lambda x, comm=comm: conversation(exchange, x, comm))
        for _ in range(2):
            if comm is None and SIZE > 2:
                continue  # the barrier is of all ranks
            np.testing.assert_array_equal(call(jnp.float32(RANK)), expected())
    pair.Free()


@pytest.mark.ranks(2)
@exchanges
def test_from_call_to_call(exchange):
    """Programs with foreign calls and with ours, one after another, not awaited."""
    if RANK > 1:
        return
    partner, pair = 1 - RANK, COMM.Create_group(COMM.Get_group().Incl([0, 1]))

    def ours(x):
        return mpi.sendrecv(x, x, partner, partner, sendtag=0, recvtag=0, comm=pair)

    def foreign(x):
        return exchange(x, partner, pair)

    def slow(x):
        y = jnp.ones((300, 300)) + x
        for _ in range(3):
            y = y @ y / 300
        return foreign(x + 0 * jnp.nan_to_num(y).sum())

    calls = [jax.jit(foreign), ours, jax.jit(slow), foreign, jax.jit(ours)]
    results = [calls[(n + RANK) % 5](jnp.float32(n)) for n in range(40)]
    assert [float(x) for x in results] == list(range(40))
    pair.Free()


@pytest.mark.skipif(not settings.fast_dispatch, reason="turned off")
@exchanges
def test_fast_path(exchange):
    """A program with foreign calls takes no token of JAX's, and no Python, to be called."""
    program = jax.jit(lambda x: exchange(mpi.allreduce(x, MPI.SUM), 0, MPI.COMM_SELF))
    x = jnp.float32(1)
    for _ in range(3):
        assert program(x) == SIZE
    main = program.lower(x).as_text().partition("@main")[2]
    assert "token" not in main[: main.index(")")]
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call" and f"{os.sep}jax{os.sep}" in frame.f_code.co_filename

    sys.setprofile(profile)
    program(x)
    sys.setprofile(None)
    assert count == 0


def test_numbers_and_handles():
    comm = COMM.Dup()
    comm_number, handle = (
        extend.communicator_number(comm),
        MPI._handleof(comm) & (2**64 - 1),
    )
    assert extend.mpi_handle(comm) % 2**64 == handle
    assert -(2**63) <= extend.mpi_handle(comm) < 2**63
    assert extend.communicator_number(comm) == comm_number
    assert extend.communicator_number() == 0
    assert extend.operator_number(MPI.MAX) == _core.OPERATORS.index("MAX")

    table = foreign.registry()
    assert table.struct_size == ctypes.sizeof(foreign.Registry)
    found_handle, rank, size = ctypes.c_size_t(), ctypes.c_int(-1), ctypes.c_int(-1)
    assert table.communicator(comm_number, found_handle, rank, size) == 0
    assert found_handle.value % 2**32 == handle % 2**32
    assert (rank.value, size.value) == (RANK, SIZE)
    assert MPI.Comm.fromhandle(found_handle.value) == comm
    assert table.operator(extend.operator_number(MPI.MAX), found_handle) == 0
    assert MPI.Op.fromhandle(found_handle.value) == MPI.MAX
    float32, bytes_ = 11, ctypes.c_size_t()
    assert table.datatype(float32, found_handle, bytes_) == 0
    assert MPI.Datatype.fromhandle(found_handle.value) == MPI.FLOAT
    assert bytes_.value == 4

    comm.Free()
    assert table.communicator(comm_number, found_handle, rank, size) == 1
    assert table.communicator(10**6, None, None, None) == 1
    assert table.operator(10**6, found_handle) == 1
    assert table.datatype(99, found_handle, bytes_) == 1


def test_names_of_operators_are_those_of_mpi():
    assert len(set(_core.OPERATORS)) == len(_core.OPERATORS) == 14
    for index, name in enumerate(_core.OPERATORS):
        assert extend.operator_number(getattr(MPI, name)) == index


def test_wrong_arguments():
    with pytest.raises(
        TypeError, match="communicator_number: `comm` must be an MPI communicator such as"
    ):
        extend.communicator_number(3)
    with pytest.raises(
        TypeError, match="operator_number: `op` must be an MPI operator .* the function sum"
    ):
        extend.operator_number(sum)


def test_documented_example(tmp_path_factory, monkeypatch):
    """All of the page: its handler is compiled as the page says, if it can be."""
    compiler = Path(sys.executable).with_name("mpicxx")
    can_compile = compiler.exists() and shutil.which("c++") is not None
    if not COMM.allreduce(can_compile, MPI.LAND):
        pytest.skip("this machine has no compiler of C++ for this MPI")
    page = (DOCS / "extend.md").read_text()
    code = {
        language: "\n".join(
            re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```$", page, re.M | re.S)
        )
        for language in ("cpp", "sh", "python")
    }
    folder = COMM.bcast(tmp_path_factory.mktemp("maxloc") if RANK == 0 else None)
    if RANK == 0:
        (folder / "maxloc.cc").write_text(code["cpp"])
        path = os.pathsep.join([str(compiler.parent), os.environ["PATH"]])
        shell = ["sh", "-c", code["sh"].replace("python -c", "python -P -c")]
        done = subprocess.run(
            shell, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
    COMM.Barrier()
    monkeypatch.chdir(folder)
    names = {}
    exec(compile(code["python"], "extend.md", "exec"), names)
    maxloc = names["maxloc"]
    # Eagerly, in a loop, and on other communicators.
    assert tuple(map(float, maxloc(-float(RANK)))) == (0, 0)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: maxloc(y)[0] + 1, x))
    assert looped(jnp.float32(RANK)) == SIZE + 2
    comm = COMM.Split(0, -RANK)
    program = jax.jit(lambda x: maxloc(x, comm=comm)[1])
    assert program(float(RANK)) == 0
    comm.Free()
    with pytest.raises(Exception, match="the communicator was freed"):
        jax.block_until_ready(program(float(RANK)))
