"""JAX and XLA: private names, the order of calls, and the Python lines of calls."""
