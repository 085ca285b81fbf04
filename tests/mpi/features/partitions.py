"""Random partitions of points among ranks, for tests of exchange by index lists."""

import numpy as np
from mpi4py import MPI

SIZE = MPI.COMM_WORLD.Get_size()

TYPES = "int8 uint8 int16 uint16 int32 uint32 int64 uint64".split()


class Partition:
    """Ids of all ranks, and which of them each one owns."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.kind = self.random.choice(["strips", "random", "far", "apart", "repeated"])
        self.is_elected = self.random.random() < 0.4
        #: Every rank may pass another type, if the ids fit.
        self.types = [str(self.random.choice(TYPES))]
        if self.random.random() < 0.3:
            self.types = ["int8", "int16", "int64"]
        count = int(self.random.integers(0, 100))
        #: For each point the rank that owns it, and those that have it as a ghost.
        self.owners, self.has_ghost = getattr(self, f"make_{self.kind}")(count)
        if self.random.random() < 0.3:
            self.empty_a_rank()
        self.points_of = [self.make_points(rank) for rank in range(SIZE)]
        self.ids = self.make_ids(count)
        self.name = (
            f"seed {seed}: {count} points, {self.kind}, {self.types}, "
            f"{'elected' if self.is_elected else 'known'} owners"
        )

    def make_strips(self, count):
        x = self.random.random(count) * SIZE
        near = np.abs(x - np.arange(SIZE)[:, None] - 0.5) < 0.7
        return x.astype(int), near

    def make_random(self, count):
        ghosts = self.random.random((SIZE, count)) < self.random.choice([0.1, 0.5])
        return self.random.integers(SIZE, size=count), ghosts

    def make_far(self, count):
        """Ghosts of the rank on the other side only."""
        owners = self.random.integers(SIZE, size=count)
        return owners, np.arange(SIZE)[:, None] == (owners + SIZE // 2) % SIZE

    def make_apart(self, count):
        """No ghosts."""
        return self.random.integers(SIZE, size=count), np.zeros((SIZE, count), bool)

    def make_repeated(self, count):
        return self.make_random(count)

    def empty_a_rank(self):
        """Give the points of a rank to another one."""
        empty, other = self.random.integers(SIZE, size=2)
        if empty != other:
            self.owners[self.owners == empty] = other
            self.has_ghost[empty] = False

    def make_points(self, rank):
        """The points of a rank, and which of them it owns."""
        owned = np.flatnonzero(self.owners == rank)
        ghosts = np.flatnonzero(self.has_ghost[rank] & (self.owners != rank))
        if self.kind == "repeated":
            both = np.concatenate([owned, ghosts])
            ghosts = np.concatenate([ghosts, both[self.random.random(len(both)) < 0.3]])
        points = np.concatenate([owned, ghosts])
        is_owned = np.arange(len(points)) < len(owned)
        order = self.random.permutation(len(points))
        if self.random.random() < 0.3:
            order = np.argsort(points, kind="stable")
        return points[order], is_owned[order]

    def make_ids(self, count):
        limits = np.iinfo(self.types[0])
        span = int(limits.max) - int(limits.min)
        if self.random.random() < 0.3:
            span = min(span, 2 * count)
        ids = set()
        while len(ids) < count:
            ids |= {int(value * span) for value in self.random.random(count)}
        ids = list(ids)[:count]
        if count and self.random.random() < 0.5:
            ids[0] = int(limits.max) - int(limits.min)  # after all others, or one of them
            ids = ids if len(set(ids)) == count else [*range(count)]
        shift = int(limits.min)
        return [value + shift for value in self.random.permutation(np.array(ids, object))]

    def arguments(self, rank):
        points, is_owned = self.points_of[rank]
        dtype = self.types[rank % len(self.types)]
        ids = np.array([self.ids[point] for point in points], dtype)
        return ids, None if self.is_elected else is_owned
