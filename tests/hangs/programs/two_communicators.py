"""Two communicators of the same ranks, which rank 1 uses in the other order."""

from mpi4py import MPI

from mpi4jax import notoken as mpi

rank = MPI.COMM_WORLD.Get_rank()
rows, columns = MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
rows.Set_name("rows")
columns.Set_name("columns")
mpi.barrier()
for comm in (rows, columns) if rank == 0 else (columns, rows):
    mpi.barrier(comm=comm)
