"""MPI: binding the library, handles, topologies, and devices whose memory MPI reads."""
