"""Sums and linear solvers on vectors that are divided among the processes."""
