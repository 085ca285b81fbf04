"""Compiled programs hold nothing that differs from run to run."""

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


def test_second_process_compiles_nothing(launch, tmp_path):
    cache = tmp_path / "cache"
    environ = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def entries():
        done = launch(PROGRAM, **environ)
        assert done.stdout == "done\n", done.stderr
        return {file.name for file in cache.iterdir() if file.name.endswith("-cache")}

    first = entries()
    assert any("program" in name for name in first)
    assert entries() == first
