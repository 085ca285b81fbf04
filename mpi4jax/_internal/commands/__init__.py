"""The commands of `python -m mpi4jax`: a module for each, with a function `main`."""
