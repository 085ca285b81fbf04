"""The MPI of this environment, and the variables of launchers."""

from mpi4py import MPI

from mpi4jax._launcher import library_name

LIBRARY = library_name(MPI.Get_library_version())
IS_OPEN_MPI = LIBRARY.startswith("Open MPI")

_VARIABLES = [
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE"),
]
#: The launcher of this MPI, and the launcher that belongs to another MPI: the name, and the
#: variables with the rank and the number of processes.
(OWN, OWN_RANK, _), (OTHER, RANK, SIZE) = _VARIABLES if IS_OPEN_MPI else _VARIABLES[::-1]
