"""The commands of `python -m mpi4jax`, a module each.

A command has a function `add_arguments`, and a function `run` that gives the exit code. It
imports MPI and JAX when it runs, since one of them has to say why they cannot be imported.
"""
