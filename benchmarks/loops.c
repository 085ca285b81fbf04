// The operations of the workload `c`, called in a loop from C: what MPI itself takes.
//
// Both buffers have room for `count` floats. Where MPI can't work in place, they are swapped
// between two rounds, so that nothing is copied.

#include <mpi.h>

typedef void loop(int rounds, int count, float *x, float *y);

static MPI_Comm comm(void) {
    static MPI_Comm own = MPI_COMM_NULL;
    if (own == MPI_COMM_NULL) MPI_Comm_dup(MPI_COMM_WORLD, &own);
    return own;
}

static void swap(float **x, float **y) {
    float *other = *x;
    *x = *y;
    *y = other;
}

loop allreduce, bcast, sendrecv, allgather, alltoall;

void allreduce(int rounds, int count, float *x, float *y) {
    while (rounds-- > 0) MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_MAX, comm());
}

void bcast(int rounds, int count, float *x, float *y) {
    while (rounds-- > 0) MPI_Bcast(x, count, MPI_FLOAT, 0, comm());
}

void sendrecv(int rounds, int count, float *x, float *y) {
    int rank, size;
    MPI_Comm_rank(comm(), &rank);
    MPI_Comm_size(comm(), &size);
    for (; rounds-- > 0; swap(&x, &y))
        MPI_Sendrecv(x, count, MPI_FLOAT, (rank + 1) % size, 0, y, count, MPI_FLOAT,
                     (rank + size - 1) % size, 0, comm(), MPI_STATUS_IGNORE);
}

void allgather(int rounds, int count, float *x, float *y) {
    int size;
    MPI_Comm_size(comm(), &size);
    while (rounds-- > 0)
        MPI_Allgather(x, count / size, MPI_FLOAT, y, count / size, MPI_FLOAT, comm());
}

void alltoall(int rounds, int count, float *x, float *y) {
    int size;
    MPI_Comm_size(comm(), &size);
    for (; rounds-- > 0; swap(&x, &y))
        MPI_Alltoall(x, count / size, MPI_FLOAT, y, count / size, MPI_FLOAT, comm());
}
