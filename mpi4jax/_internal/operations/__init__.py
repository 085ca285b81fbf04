"""The operations of MPI, one file each."""
