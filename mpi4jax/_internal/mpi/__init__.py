"""MPI: loading the library, its handles, topologies, and devices whose memory it reads."""
