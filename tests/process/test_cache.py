"""Compiled programs hold nothing that differs from run to run."""

import pytest

PROGRAM = """
    import jax, jax.numpy as jnp
    from mpi4py import MPI
    from mpi4jax import notoken as mpi
    from mpi4jax.experimental import auto_tokenize

    comm = MPI.COMM_WORLD.Dup()
    op = MPI.Op.Create(lambda a, b, t: None)
    status = MPI.Status()

    def program(x):
        x = mpi.allreduce(x, MPI.SUM, comm=comm)
        x = mpi.allreduce(x, MPI.MAX)
        x = mpi.bcast(x, 0, comm=MPI.COMM_WORLD)
        mpi.barrier()
        return mpi.sendrecv(x, x, 0, 0, comm=MPI.COMM_SELF, status=status)

    x = jnp.ones(3)
    jax.jit(program)(x).block_until_ready()
    jax.jit(auto_tokenize(program))(x).block_until_ready()
    mpi.scan(x, op, comm=comm).block_until_ready()
    print("done")
"""


@pytest.fixture
def run(launch, tmp_path):
    """Run a program with JAX's persistent cache, and give its output and what is cached."""
    cache = tmp_path / "cache"
    environ = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run(program, ranks=1):
        done = launch(program, ranks=ranks, **environ)
        assert done.returncode == 0, done.stderr
        files = {file.name for file in cache.iterdir() if file.name.endswith("-cache")}
        return done.stdout, files

    return run


def test_second_process_compiles_nothing(run):
    output, first = run(PROGRAM)
    assert output == "done\n"
    assert any("program" in name for name in first)
    assert run(PROGRAM) == ("done\n", first)


LINES = """
    import jax, jax.numpy as jnp
    from mpi4py import MPI
    from mpi4jax import diagnostics, notoken as mpi

    {moved}
    @jax.jit
    def program(x):
        return mpi.allreduce(x, MPI.SUM)

    jax.block_until_ready(program(jnp.ones(3)))
    if MPI.COMM_WORLD.rank == 0:
        print(diagnostics.recent()[-1].line.rpartition("/")[2])
"""


def test_a_cached_program_knows_its_lines_where_they_are_now(run):
    """Fails if lines are a part of what is compiled, or come from there."""
    output, first = run(LINES.format(moved=""), ranks=2)
    assert output == "program.py:9 in program\n"
    assert any("program" in name for name in first)
    output, second = run(LINES.format(moved="# a comment" + 4 * "\n"), ranks=2)
    assert output == "program.py:13 in program\n"
    assert second == first
