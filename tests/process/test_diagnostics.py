"""What `mpi4jax.diagnostics` needs of MPI."""


def test_watch_needs_threads(launch):
    done = launch(
        """
        import mpi4py
        mpi4py.rc.thread_level = "serialized"
        import mpi4jax
        try:
            mpi4jax.diagnostics.watch()
        except RuntimeError as error:
            print(error)
        """
    )
    assert done.stdout == (
        "mpi4jax.diagnostics.watch() needs an MPI that was initialised with "
        "THREAD_MULTIPLE, by which a thread can ask while another one waits\n"
    ), done.stderr
