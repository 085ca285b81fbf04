"""Types and checks of arguments, and the MPI data type of each dtype."""
