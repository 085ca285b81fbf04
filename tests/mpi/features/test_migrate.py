"""Particles that move to other processes, compared with NumPy on all particles."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI
from sample import seeds

from mpi4jax._internal.arguments.dtypes import CARRIERS, DATATYPES
from mpi4jax._internal.unstructured import migration
from mpi4jax.unstructured import migrate

comm = MPI.COMM_WORLD
RANK, SIZE = comm.Get_rank(), comm.Get_size()
LAST = SIZE - 1

pytestmark = pytest.mark.usefixtures("enable_x64")
FORMS = {
    "eager": migrate,
    "jit": jax.jit(migrate, static_argnames=("capacity", "neighbors")),
}
compiled = pytest.mark.parametrize("function", FORMS.values(), ids=FORMS)


def fields_of(numbers):
    """Fields of several types, which follow from the number of a particle."""
    numbers = np.asarray(numbers)
    return {
        "number": numbers.astype(np.int32),
        "x": numbers[:, np.newaxis] + np.array([0.25, 0.5, 0.75]),
        "flags": (numbers % 3 == 0, (numbers % 251).astype(np.uint8)),
        "spin": (numbers * 1j).astype(np.complex64),
        "tensor": (numbers[:, np.newaxis, np.newaxis] * np.eye(2)).astype(np.float32),
    }


def assert_fields(particles, numbers):
    """Each particle is whole, and other slots are empty."""
    slots = len(particles["number"])
    expected = jax.tree.map(
        lambda x: np.concatenate([x, np.zeros((slots - len(x), *x.shape[1:]), x.dtype)]),
        fields_of(numbers),
    )
    jax.tree.map(np.testing.assert_array_equal, particles, expected)
    assert jax.tree.map(jnp.result_type, particles) == jax.tree.map(
        lambda x: x.dtype, expected
    )


class Ranks:
    """What each process has, as lists of particles, of which each has a destination."""

    def __init__(self, seed):
        random = np.random.default_rng([46, seed])
        self.slots = random.integers(0, 12, SIZE)
        if seed % 5 == 0:
            self.slots[random.integers(SIZE)] = 0
        self.capacities = self.slots + random.integers(0, [1, 3, 30][seed % 3], SIZE)
        masks = [random.random(n) < random.choice([0.5, 1.0]) for n in self.slots]
        #: The numbers of the particles in the slots of each process, or -1.
        self.filled = [
            np.where(mask, rank * 100 + np.arange(len(mask)), -1)
            for rank, mask in enumerate(masks)
        ]
        #: By number.
        self.destinations = random.integers(0, SIZE, 100 * SIZE)
        if seed % 4 == 0:  # some that are no rank
            invalid = random.random(100 * SIZE) < 0.2
            wrong = random.choice([-1, SIZE, 2**31 - 1, -(2**31)], 100 * SIZE)
            self.destinations = np.where(invalid, wrong, self.destinations)
        if seed % 7 == 0:  # all to one
            self.destinations[:] = random.integers(SIZE)
        self.neighbors = None
        if seed % 2:
            links = random.random((SIZE, SIZE)) < 0.5
            links |= links.T
            self.neighbors = [tuple(map(int, np.flatnonzero(row))) for row in links]

    @property
    def numbers(self):
        """The numbers of the particles of each process."""
        return [slots[slots >= 0] for slots in self.filled]

    def is_reached(self, rank, destination):
        if not 0 <= destination < SIZE:
            return False
        return self.neighbors is None or destination in (rank, *self.neighbors[rank])

    def targets(self):
        """The pairs (rank, destination) of all particles that are not where they belong."""
        return [
            (rank, target)
            for rank, numbers in enumerate(self.numbers)
            for target in self.destinations[numbers]
            if rank != target
        ]

    def waiting(self):
        """Those pairs of particles that wait to be sent."""
        return [pair for pair in self.targets() if self.is_reached(*pair)]

    def unreachable(self):
        return len(self.targets()) - len(self.waiting())

    def follow(self, received):
        """Check what each process has after a migration, and take it as the state.

        The numbers that have moved may be any that are allowed to.
        """
        before = self.numbers
        home = {n: rank for rank, numbers in enumerate(before) for n in numbers}
        assert sorted(n for numbers in received for n in numbers) == sorted(home)
        for rank, numbers in enumerate(received):
            assert len(numbers) <= self.capacities[rank]
            stayed = [n for n in numbers if home[n] == rank]
            arrived = [n for n in numbers if home[n] != rank]
            # Those that stayed are first: those at home, in order, and those that wait.
            assert [*stayed, *arrived] == [*numbers]
            assert arrived == sorted(arrived, key=home.get)
            orders = {n: self.order_of(rank, n) for n in stayed}
            in_slots = [n for n in before[rank] if n in orders]
            assert stayed == sorted(in_slots, key=orders.get)
            assert all(self.destinations[n] == rank for n in arrived)
            for source in range(SIZE):  # a message has the first ones
                sent = [n for n in before[source] if self.destinations[n] == rank]
                from_source = [n for n in arrived if home[n] == source]
                assert source == rank or from_source == sent[: len(from_source)]
        self.filled = received
        self.slots = self.capacities

    def order_of(self, rank, particle):
        """Those at home are first, then those that wait, by their destinations."""
        target = self.destinations[particle]
        waits = rank != target and self.is_reached(rank, target)
        return 1 + target if waits else 0

    def fits(self):
        """Whether each process has room for all that it has if nothing waits."""
        counts = np.array([len(numbers) for numbers in self.numbers])
        for rank, destination in self.waiting():
            counts[rank] -= 1
            counts[destination] += 1
        return (counts <= self.capacities).all()


@pytest.mark.parametrize("seed", seeds(24))
def test_random(seed):
    """Round after round, until all have arrived, or wait for processes that are full."""
    function = FORMS["jit" if seed // 2 % 2 else "eager"]
    ranks = Ranks(seed)
    slots = ranks.filled[RANK]
    neighbors = ranks.neighbors and ranks.neighbors[RANK]
    particles, mask = fields_of(slots), slots >= 0
    for _ in range(100):
        destination = ranks.destinations[np.asarray(particles["number"])]
        fits, unreachable = ranks.fits(), ranks.unreachable()
        waiting = len(ranks.waiting())
        capacity = int(ranks.capacities[RANK])
        particles, mask, deferred, beyond = function(
            particles, destination, mask=mask, capacity=capacity, neighbors=neighbors
        )
        count = int(mask.sum())
        np.testing.assert_array_equal(mask, np.arange(capacity) < count)
        numbers = np.asarray(particles["number"])[:count]
        assert_fields(particles, numbers)
        ranks.follow(comm.allgather(numbers))
        assert deferred == len(ranks.waiting())
        assert beyond == unreachable == ranks.unreachable()
        assert deferred == 0 or not fits
        if deferred in (0, waiting):
            break
    else:
        raise AssertionError("it has no end")
    pairs = zip(ranks.numbers, ranks.capacities, strict=True)
    full = [len(numbers) == capacity for numbers, capacity in pairs]
    assert all(full[destination] for _, destination in ranks.waiting())
    for rank, numbers in enumerate(ranks.numbers):
        there = [n for n in numbers if ranks.is_reached(rank, ranks.destinations[n])]
        assert deferred or (ranks.destinations[there] == rank).all()


def test_full_processes_in_a_circle():
    """All leave at once, as each has room for what comes when its own have left."""
    particles = fields_of(RANK * 100 + np.arange(5))
    result = migrate(particles, np.full(5, (RANK + 1) % SIZE))
    assert_fields(result.particles, (RANK - 1) % SIZE * 100 + np.arange(5))
    assert result.deferred == 0
    assert result.mask.all()


def test_a_row_of_full_processes():
    """The last one takes a particle each time, and all others move up."""
    count = 3 if RANK < LAST else 0
    numbers = RANK * 100 + np.arange(count)
    mask = np.arange(3) < count
    slots = np.append(numbers, np.zeros(3 - count, int))
    destination = np.full(3, min(RANK + 1, LAST))
    result = migrate(slots, destination, mask=mask)
    assert result.deferred == 0
    assert result.mask.sum() == (0 if RANK == 0 < LAST else min(3, 3 * LAST))


@pytest.mark.ranks(4)
def test_others_need_not_wait_for_those_that_have_no_room():
    """Ranks 0 and 1, which are full, exchange all they have, and rank 2 takes none."""
    destination = np.full(3, {0: 1, 1: 0, 3: 2}.get(RANK, RANK))
    result = migrate(np.full(3, RANK), destination)
    assert result.deferred == 3
    np.testing.assert_array_equal(result.particles, {0: 1, 1: 0}.get(RANK, RANK))


@pytest.mark.ranks(3)
def test_circles_that_take_long_to_withdraw_end(sequence_of):
    """Each round takes one from a circle of full processes, as there is one too many."""
    slots = 50
    members = SIZE - 1
    if RANK != LAST:
        destination = np.full(slots, (RANK + 1) % members)
        destination[-1] = RANK  # so that nothing can leave for the one of the last rank
    else:
        destination = np.zeros(slots, int)
    mask = np.arange(slots) < (1 if RANK == LAST else slots)
    numbers = RANK * 100 + np.arange(slots)
    result, sequence = sequence_of(
        lambda: migrate(numbers, destination, mask=mask, capacity=slots)
    )
    assert len(sequence) <= 3 + migration.ROUNDS + 1 + 2 + 1
    before = numbers[mask]
    after = np.asarray(result.particles)[np.asarray(result.mask)]
    before, after = (np.concatenate(comm.allgather(x)) for x in (before, after))
    np.testing.assert_array_equal(np.sort(after), np.sort(before))


@compiled
@pytest.mark.parametrize("with_neighbors", [False, True])
def test_one_message_for_all_fields(function, with_neighbors, calls_of):
    particles = fields_of(np.arange(4))
    destination = np.arange(4) % SIZE
    neighbors = tuple(range(SIZE)) if with_neighbors else None
    options = {"capacity": 4 * SIZE, "neighbors": neighbors}
    _, calls = calls_of(lambda: function(particles, destination, **options))
    expected = Counter(Allreduce=1, Alltoallv=1)
    if not with_neighbors:
        expected["Alltoall"] = 1
    elif SIZE > 1:
        expected["Waitall"] = 1
    assert calls == expected


@pytest.mark.on_cpus
def test_an_eager_call_is_one_program():
    particles = fields_of(np.arange(4))
    destination = jnp.arange(4) % SIZE
    migrate(particles, destination, capacity=4 * SIZE)
    with jax.log_compiles(), jax.no_tracing():
        result = migrate(particles, destination, capacity=4 * SIZE)
    assert result.deferred == 0


@compiled
def test_all_types(function):
    """Each bit arrives."""
    random = np.random.default_rng(RANK)
    particles = {}
    for name in (*DATATYPES, *CARRIERS):
        dtype = jnp.dtype(name)
        if name in CARRIERS or name == "bool":
            particles[name] = random.integers(0, 2, (SIZE, 2)).astype(dtype)
        else:
            raw = random.integers(0, 256, (SIZE, 2 * dtype.itemsize), np.uint8)
            # XLA computes with short floats as with longer ones, which changes NaNs.
            values = raw.view(dtype)
            particles[name] = np.where(np.isnan(values), np.ones((), dtype), values)
    result = function(particles, np.arange(SIZE))
    by_rank = comm.allgather(particles)
    order = [RANK, *(rank for rank in range(SIZE) if rank != RANK)]
    for name, x in result.particles.items():
        expected = np.stack([by_rank[rank][name][RANK] for rank in order])
        assert x.dtype == expected.dtype
        assert np.asarray(x).tobytes() == expected.tobytes(), name


EMPTY = {}, np.zeros((3, 0)), (np.zeros((3, 2, 0)), 1.5 * np.arange(3))


@pytest.mark.parametrize("particles", EMPTY)
def test_without_numbers(particles):
    result = migrate(particles, np.full(3, LAST), capacity=3 * SIZE)
    assert result.mask.sum() == (3 * SIZE if RANK == LAST else 0)
    assert jax.tree.structure(result.particles) == jax.tree.structure(particles)
    for x, y in zip(*map(jax.tree.leaves, (result.particles, particles)), strict=True):
        assert x.shape == (3 * SIZE, *y.shape[1:])


def test_in_a_loop():
    """Each goes to the next process, in each step, and its age goes with it."""
    steps = 2 * SIZE + 1

    def step(_, state):
        particles, mask = state
        destination = jnp.full(mask.shape, (RANK + 1) % SIZE)
        particles, mask, _, _ = migrate(particles, destination, mask=mask)
        return (particles[0], particles[1] + 0.5), mask

    count = RANK % 3
    numbers = jnp.pad(100 * RANK + jnp.arange(count), (0, 3 - count))
    state = (numbers, jnp.zeros(3)), jnp.arange(3) < count
    (numbers, ages), mask = jax.jit(lambda state: jax.lax.fori_loop(0, steps, step, state))(
        state
    )
    home = (RANK - steps) % SIZE
    np.testing.assert_array_equal(numbers[mask], 100 * home + np.arange(home % 3))
    np.testing.assert_array_equal(ages[mask], steps / 2)


def random_move(seed):
    """Particles with numbers as names, and destinations, of which some do not fit."""
    random = np.random.default_rng([seed, RANK])
    names = 100.0 * RANK + np.arange(6)
    x = random.normal(size=(6, 2))
    z = random.normal(size=6) + 1j * random.normal(size=6)
    return names, x, z, random.integers(0, SIZE, 6), random.random(6) < 0.8


def by_name(names, mask, *arrays):
    """Arrays of all particles of all processes, in the order of their names."""
    names, mask = np.asarray(names), np.asarray(mask)
    parts = comm.allgather([np.asarray(x)[mask] for x in (names, *arrays)])
    names, *joined = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(names)
    return [x[order] for x in (names, *joined)]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint])
@pytest.mark.parametrize("seed", range(4))
def test_derivatives(transform, seed):
    """Tangents move with their particles, and cotangents move back."""
    names, x, z, destination, mask = random_move(seed)
    random = np.random.default_rng([seed, RANK, 1])
    capacity = 7

    def move(x, z):
        fields = {"name": names, "x": x, "z": z, "small": x[:, 0].astype(np.float32)}
        return migrate(fields, destination, mask=mask, capacity=capacity)

    moved = jax.jit(move)(x, z)
    new_names, new_mask = moved.particles["name"], moved.mask

    def inexact(x, z):
        particles = move(x, z).particles
        return particles["x"], particles["z"], particles["small"]

    tangents = (random.normal(size=x.shape), z[::-1] * 2j)
    results, pushed = jax.jvp(transform(inexact), (x, z), tangents)
    jax.block_until_ready((results, pushed))
    before = by_name(names, mask, x, z, *tangents, tangents[0][:, 0].astype(np.float32))
    after = by_name(new_names, new_mask, results[0], results[1], *pushed)
    for expected, value in zip(before, after, strict=True):
        np.testing.assert_array_equal(value, expected)
    for tangent in pushed:
        np.testing.assert_array_equal(tangent[~new_mask], 0)

    cotangents = (
        random.normal(size=(capacity, 2)),
        random.normal(size=capacity) + 1j,
        random.normal(size=capacity).astype(np.float32),
    )
    pulled = jax.vjp(transform(inexact), x, z)[1](tuple(map(jnp.asarray, cotangents)))
    at_end = by_name(new_names, new_mask, *cotangents)
    at_begin = by_name(names, mask, *pulled)
    at_end[1][:, 0] += at_end.pop()
    for expected, value in zip(at_end, at_begin, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12)
    for cotangent in pulled:
        np.testing.assert_array_equal(cotangent[~mask], 0)


def test_gradient_through_a_loop_where_destinations_follow_from_positions():
    """The positions are what is differentiated, and say who owns a particle."""
    capacity = 4 * SIZE

    def advance(state, _):
        x, v, mask = state
        x = (x + 0.1 * jnp.sin(v)) % SIZE
        v = v + 0.1 * x**2
        moved = migrate((x, v), jnp.floor(x).astype(int), mask=mask)
        return (*moved.particles, moved.mask), None

    def loss(x, v):
        mask = jnp.arange(capacity) < 4
        state = jnp.pad(x, (0, capacity - 4)), jnp.pad(v, (0, capacity - 4)), mask
        (x, v, mask), _ = jax.lax.scan(advance, state, length=7)
        return jnp.sum(jnp.where(mask, x * v, 0))

    def loss_alone(x, v):
        for _ in range(7):
            x = (x + 0.1 * jnp.sin(v)) % SIZE
            v = v + 0.1 * x**2
        return jnp.sum(x * v)

    random = np.random.default_rng(RANK)
    x, v = RANK + random.random(4), 20 * random.normal(size=4)
    gradient = jax.jit(jax.grad(loss, (0, 1)))(x, v)
    expected = jax.grad(loss_alone, (0, 1))(x, v)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9)
    # Forward over reverse, along a direction.
    _, second = jax.jvp(jax.grad(loss), (x, v), (v, x))
    _, expected = jax.jvp(jax.grad(loss_alone), (x, v), (v, x))
    np.testing.assert_allclose(second, expected, rtol=1e-9)


def test_a_batch_of_fields_is_one_message(calls_of):
    names, x, _, destination, mask = random_move(1)
    batch = jnp.stack([x, 2 * x, 3 * x], axis=1)

    def move(x):
        fields = names, x
        return migrate(fields, destination, mask=mask, capacity=7)

    result, calls = calls_of(jax.jit(jax.vmap(move, in_axes=1)), batch)
    expected = move(x)
    for n in range(3):
        member = jax.tree.map(lambda x, n=n: x[n], result)
        np.testing.assert_array_equal(member.particles[0], expected.particles[0])
        np.testing.assert_array_equal(member.particles[1], (n + 1) * expected.particles[1])
        np.testing.assert_array_equal(member.mask, expected.mask)
        assert member.deferred == expected.deferred
    assert calls["Alltoallv"] == 1


@pytest.mark.parametrize("with_neighbors", [False, True])
def test_a_batch_of_destinations(with_neighbors):
    members = [random_move(seed) for seed in range(4)]
    names, x, _, destinations, masks = map(np.stack, zip(*members, strict=True))
    neighbors = range(SIZE) if with_neighbors else None

    def move(names, x, destination, mask):
        fields = names, x
        return migrate(fields, destination, mask=mask, neighbors=neighbors)

    result = jax.jit(jax.vmap(move))(names, x, destinations, masks)
    for n in range(4):
        expected = move(names[n], x[n], destinations[n], masks[n])
        jax.tree.map(
            lambda y, z, n=n: np.testing.assert_array_equal(y[n], z), result, expected
        )

    def loss(x, *others):
        return jnp.sum(move(others[0], x, *others[1:]).particles[1] ** 2) / 2

    gradient = jax.vmap(jax.grad(loss))(x, names, destinations, masks)
    np.testing.assert_array_equal(gradient, np.where(masks[..., np.newaxis], x, 0))


X = np.ones((3, 2))
TO = np.zeros(3, int)
WRONG = {
    "fractions": (
        lambda: migrate(X, np.zeros(3)),
        TypeError,
        "unstructured.migrate got an array of type float64 and shape (3,) for argument "
        "`destination`, expected integers with one axis",
    ),
    "one destination": (
        lambda: migrate(X, 1),
        TypeError,
        "unstructured.migrate got an array of type int64 and shape () for argument "
        "`destination`, expected integers with one axis",
    ),
    "mask of numbers": (
        lambda: migrate(X, TO, mask=TO),
        TypeError,
        "unstructured.migrate got an array of type int64 and shape (3,) for argument "
        "`mask`, expected booleans with one axis",
    ),
    "other slots": (
        lambda: migrate({"a": X, "b": [X[:2]]}, TO),
        ValueError,
        "unstructured.migrate got an array of shape (2, 2) for argument "
        "`particles['b'][0]`, expected (3, ...), with a row for each of `destination`",
    ),
    "mask of others": (
        lambda: migrate(X, TO, mask=np.ones(4, bool)),
        ValueError,
        "unstructured.migrate got an array of shape (4,) for argument `mask`, expected "
        "(3, ...), with a row for each of `destination`",
    ),
    "no array": (
        lambda: migrate({"a": "text"}, TO),
        TypeError,
        "unstructured.migrate: `particles['a']` must be an array or a number, not 'text'",
    ),
    "keys": (
        lambda: migrate([jax.random.split(jax.random.key(0), 3)], TO),
        TypeError,
        'for argument "particles[0]": PRNG keys can\'t be sent as they are',
    ),
    "capacity": (
        lambda: migrate(X, TO, capacity=2),
        ValueError,
        "unstructured.migrate got 2 for argument `capacity`, expected 3 or more: the "
        "number of slots that the particles have now",
    ),
    "capacity that is traced": (
        lambda: jax.jit(lambda n: migrate(X, TO, capacity=n))(3),
        TypeError,
        "unstructured.migrate: `capacity` must be an integer, not a traced array of type "
        "int",
    ),
    "neighbor": (
        lambda: migrate(X, TO, neighbors=1),
        TypeError,
        "unstructured.migrate: `neighbors` must be a sequence of ranks, not 1",
    ),
    "neighbors": (
        lambda: migrate(X, TO, neighbors=[0, SIZE]),
        ValueError,
        f"unstructured.migrate got [0, {SIZE}] for argument `neighbors`, expected ranks "
        f"of the communicator (0 to {LAST})",
    ),
    "comm": (
        lambda: migrate(X, TO, comm=1),
        TypeError,
        "unstructured.migrate: `comm` must be an MPI communicator",
    ),
}


@pytest.mark.parametrize("has_64_bits", [False, True])
def test_numbers_that_are_a_rank_in_their_lower_bits(has_64_bits):
    jax.config.update("jax_enable_x64", has_64_bits)  # the fixture resets it
    x = np.arange(3.0)
    for destination in (2**32 + LAST, -(2**32), 2**32 - 1):
        result = migrate(x, np.full(3, destination))
        assert result.unreachable == 3 * SIZE
        np.testing.assert_array_equal(result.particles, x)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    function, error, text = WRONG[name]
    with pytest.raises(error) as caught:
        function()
    assert text in str(caught.value)
