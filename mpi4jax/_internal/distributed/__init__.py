"""JAX's own collectives over MPI."""
