"""The types and checks of arguments, and MPI's data type for each dtype."""
