"""Arrays that a grid of processes divides: what halo plans and layouts have in common."""
