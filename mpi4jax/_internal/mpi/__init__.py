"""MPI: loading the library, its handles, topologies, and the devices that it reads."""
