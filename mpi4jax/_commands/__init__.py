"""The commands of `python -m mpi4jax`, each a module with a function `run`.

They are no part of `_internal`, which cannot be imported without MPI and JAX: one of them
has to say why that is so.
"""
