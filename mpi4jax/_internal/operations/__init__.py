"""The operations of MPI, one file each."""

from . import _transpose_table as _transpose_table
