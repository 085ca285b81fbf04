"""Fourier transforms of divided arrays, against NumPy's of the whole ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI
from sample import seeds

from mpi4jax import fft
from mpi4jax.pencil import Layout

comm = MPI.COMM_WORLD
RANK, SIZE = comm.Get_rank(), comm.Get_size()
ROW = comm.Create_cart([SIZE], [True])
SQUARE = comm.Create_cart(MPI.Compute_dims(SIZE, 2), [True, True])

pytestmark = pytest.mark.usefixtures("enable_x64")
TRANSFORMS = {"eager": lambda f: f, "jit": jax.jit}
compiled = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


class Case:
    """A layout, with a whole real and a whole complex array."""

    def __init__(self, seed):
        self.random = random = np.random.default_rng([470, seed])
        grid = (ROW, SQUARE)[seed % 2]
        ndim = grid.ndim + int(random.integers(1, 3))
        sizes = [1, 2, 3, 4, 5, 7, 8, 12]
        self.shape = tuple(map(int, random.choice(sizes, ndim)))
        axes = random.permutation(ndim)[: grid.ndim]
        self.layout = Layout(grid, self.shape, [int(axis) for axis in axes])
        batch = tuple(map(int, random.integers(1, 3, seed // 2 % 2)))
        self.real = random.normal(size=(*batch, *self.shape))
        self.complex = self.real + 1j * random.normal(size=self.real.shape)
        count = int(random.integers(1, ndim + 1))
        self.axes = tuple(int(axis) - ndim for axis in random.permutation(ndim)[:count])
        self.norm = str(random.choice(["backward", "ortho", "forward"]))

    def part(self, x, layout=None):
        return x[(..., *(layout or self.layout).slices)]

    def plan(self, **options):
        return fft.Plan(self.layout, axes=self.axes, norm=self.norm, **options)


@compiled
@pytest.mark.parametrize("is_real", [False, True])
@pytest.mark.parametrize("seed", seeds(8))
def test_random_plans(seed, is_real, transform):
    case = Case(seed)
    plan = case.plan(real=is_real)
    whole = case.real if is_real else case.complex
    expected = (np.fft.rfftn if is_real else np.fft.fftn)(whole, None, case.axes, case.norm)
    modes = transform(plan.forward)({"u": case.part(whole), "v": 2 * case.part(whole)})
    assert plan.spectral.shape == expected.shape[expected.ndim - len(case.shape) :]
    assert_close(modes["u"], case.part(expected, plan.spectral))
    assert_close(modes["v"], 2 * modes["u"])
    assert_close(transform(plan.backward)(modes)["u"], case.part(whole))


def test_single_precision_stays():
    layout = Layout(ROW, (6, 5), [0])
    plan = fft.Plan(layout, real=True)
    modes = plan.forward(jnp.ones(layout.local_shape, jnp.float32))
    assert modes.dtype == jnp.complex64
    assert plan.backward(modes).dtype == jnp.float32
    k = plan.wavenumbers()[0]
    assert (modes * k).dtype == jnp.complex64


@pytest.mark.parametrize("grid", [ROW, SQUARE], ids=["slabs", "pencils"])
def test_a_plan_and_its_inverse_move_as_often_as_needed(grid, calls_of):
    layout = Layout(grid, (8, 8, 8), range(grid.ndim))
    plan = fft.Plan(layout)
    x = np.ones(layout.local_shape)
    forward, backward = jax.jit(plan.forward), jax.jit(plan.backward)
    _, calls = calls_of(lambda: backward(forward(x)))
    assert calls["Waitall"] == 2 * grid.ndim


@pytest.mark.parametrize("is_real", [False, True])
@pytest.mark.parametrize("seed", seeds(6))
def test_modes(seed, is_real):
    """The modes that are kept are NumPy's modes with the same wavenumbers."""
    case = Case(seed)
    points = [case.shape[axis] for axis in case.axes]
    modes = [int(case.random.integers(1, n + 1)) for n in points]
    plan = case.plan(real=is_real, modes=modes)
    whole = case.real if is_real else case.complex
    expected = (np.fft.rfftn if is_real else np.fft.fftn)(whole, None, case.axes, case.norm)
    for axis, n, count in zip(case.axes, points, modes, strict=True):
        is_half = is_real and axis == case.axes[-1]
        numbers = np.arange(count // 2 + 1) if is_half else np.fft.fftfreq(count) * count
        index = numbers.round().astype(int) % n
        expected = np.take(expected, index, axis=axis)
        if count < n:
            shape = [1] * expected.ndim
            shape[axis] = -1
            expected = np.where((2 * abs(numbers) == count).reshape(shape), 0, expected)
    result = plan.forward(case.part(whole))
    assert_close(result, case.part(expected, plan.spectral))
    filtered = plan.backward(result)
    assert filtered.shape == case.part(whole).shape
    assert_close(plan.forward(filtered), result)


@pytest.mark.parametrize("seed", seeds(6))
def test_wavenumbers(seed):
    """The derivative of a wave is its wavenumber."""
    case = Case(seed)
    plan = case.plan(real=bool(seed % 2))
    wavenumbers = plan.wavenumbers()
    for n, (axis, k) in enumerate(zip(case.axes, wavenumbers, strict=True)):
        size = case.shape[axis]
        is_half = seed % 2 and n == len(case.axes) - 1
        whole = np.arange(size // 2 + 1) if is_half else np.fft.fftfreq(size) * size
        if size > 1:
            own = whole[plan.spectral.slices[axis]].round()
            np.testing.assert_array_equal(k.ravel(), own)
        assert k.shape[axis] == k.size
        assert np.issubdtype(k.dtype, np.integer)


@pytest.mark.parametrize("seed", seeds(6))
def test_weights(seed):
    """Parseval's theorem, whichever modes are computed."""
    case, is_real = Case(seed), bool(seed % 2)
    plan = fft.Plan(case.layout, axes=case.axes, norm="ortho", real=is_real)
    whole = case.real if is_real else case.complex
    modes, weights = plan.forward(case.part(whole)), plan.weights()
    assert (weights * modes).shape == modes.shape
    energy = comm.allreduce(float(np.sum(weights * np.abs(modes) ** 2)))
    assert_close(energy, np.sum(np.abs(whole) ** 2))


@pytest.mark.parametrize("is_real", [False, True])
@pytest.mark.parametrize("seed", seeds(6))
def test_parts(seed, is_real):
    """An operator for all modes acts as its part does on the modes that are kept."""
    case = Case(seed)
    points = [case.shape[axis] for axis in case.axes]
    modes = [int(case.random.integers(1, n + 1)) for n in points]
    plan, full = (
        fft.Plan(case.layout, axes=case.axes, real=is_real, modes=kept)
        for kept in (modes, None)
    )
    shape = [n if case.random.integers(3) else 1 for n in full.spectral.shape]
    operator = case.random.normal(size=shape)
    part = plan.part(operator)
    assert isinstance(part, np.ndarray)
    # The modes of a filtered field, by the plan of all modes and its own operator.
    field = plan.backward(plan.forward(case.part(case.real if is_real else case.complex)))
    everything = full.backward(full.part(operator) * full.forward(field))
    modes, changed = plan.forward(field), plan.forward(everything)
    if not is_real:
        assert_close(changed, part * modes)
    all_of_it = np.broadcast_to(operator, full.spectral.shape)
    own = np.broadcast_to(full.part(all_of_it), full.spectral.local_shape)
    assert_close(own, all_of_it[full.spectral.slices])
    on_device = jax.jit(lambda: plan.part(jnp.asarray(operator)))()
    assert_close(on_device, part)
    # Of an even number of modes, the last one is zero.
    assert_close(plan.part(all_of_it) * modes, part * modes)


@pytest.mark.parametrize("count", [5, 6, 7, 12])
def test_the_two_thirds_rule(count):
    """A product of two fields of such modes has no aliasing errors in them."""
    layout = Layout(ROW, (count, 4), [1])
    plan = fft.Plan(layout, axes=[0], modes="2/3")
    (kept,) = plan.modes
    assert (kept, plan.spectral.shape[0]) == (2 * ((count - 1) // 3) + 1,) * 2
    whole = np.random.default_rng(1).normal(size=(2, count, 4))
    f, g = (plan.backward(plan.forward(x[layout.slices].astype(complex))) for x in whole)
    fine = Layout(ROW, (4 * count, 4), [1])
    exact = fft.Plan(fine, axes=[0], modes=[kept])
    f4, g4 = (4 * exact.backward(plan.forward(x)) for x in (f, g))
    assert_close(4 * plan.forward(f * g), exact.forward(f4 * g4))


def test_which_axes_of_the_modes_are_divided():
    for axes in ([0, 1], [1, 2], [2, 0], [1, 0]):
        layout = Layout(SQUARE, (6, 5, 4), [0, 1])
        plan = fft.Plan(layout, spectral_axes=axes)
        assert plan.spectral.axes == tuple(axes)
        whole = np.random.default_rng(0).normal(size=layout.shape)
        modes = plan.forward(whole[layout.slices])
        assert_close(modes, np.fft.fftn(whole)[plan.spectral.slices])
        assert_close(plan.backward(modes), whole[layout.slices])
    with pytest.raises(ValueError, match="expected a different one of the 3 axes"):
        fft.Plan(layout, spectral_axes=[0])


def test_the_chosen_axis_takes_no_more_messages(calls_of):
    layout = Layout(ROW, (4 * SIZE, 4 * SIZE, 4 * SIZE), [0])
    x = np.ones(layout.local_shape)
    for axis in (1, 2):
        forward = jax.jit(fft.Plan(layout, spectral_axes=[axis]).forward)
        _, calls = calls_of(functools.partial(forward, x))
        assert calls["Waitall"] == 1


def test_a_poisson_equation():
    shape = 12, 9, 10
    layout = Layout(ROW, shape, [0])
    plan = fft.Plan(layout, real=True)
    x, y, z = (2 * np.pi * np.arange(n) / n for n in shape)
    u = np.sin(x)[:, None, None] * np.cos(2 * y)[:, None] * np.sin(3 * z + 1)
    k2 = sum(k**2 for k in plan.wavenumbers())

    @jax.jit
    def solve(f):
        return plan.backward(jnp.where(k2 > 0, plan.forward(f) / -np.maximum(k2, 1), 0))

    assert_close(solve(-14 * u[layout.slices]), u[layout.slices])


def inner(x, y):
    """The inner product of parts of real or complex arrays, as real numbers."""
    return comm.allreduce(float(jnp.sum(jnp.real(jnp.conj(x) * y))))


@pytest.mark.parametrize("is_real", [False, True])
@pytest.mark.parametrize("seed", seeds(6))
def test_adjoints(seed, is_real):
    """JAX's transposes of both directions, which are linear, in both modes."""
    case = Case(seed)
    points = [case.shape[axis] for axis in case.axes]
    modes = [max(1, n - seed % 3) for n in points]
    plan = case.plan(real=is_real, modes=modes)
    x = jnp.asarray(case.part(case.real if is_real else case.complex))
    random = np.random.default_rng([seed, RANK])
    for function, operand in ((plan.forward, x), (plan.backward, plan.forward(x))):
        result, pushed = jax.jvp(function, (operand,), (operand,))
        assert_close(pushed, result)
        cotangent = random.normal(size=result.shape)
        if jnp.iscomplexobj(result):
            cotangent = cotangent + 1j * random.normal(size=result.shape)
        _, pull = jax.vjp(jax.jit(function), operand)
        (pulled,) = pull(jnp.asarray(cotangent))
        # JAX's transposes have no conjugates.
        left = comm.allreduce(complex(jnp.sum(cotangent * result)))
        right = comm.allreduce(complex(jnp.sum(pulled * operand)))
        assert_close(left, right) if not is_real else assert_close(left.real, right.real)


@pytest.mark.parametrize("axes", [[0], [1, 0]], ids=["slabs", "pencils"])
def test_the_jacobian(axes):
    """All parts together, column by column, are the matrix of the whole transform."""
    shape = 3, 2, 4
    layout = Layout(ROW if len(axes) == 1 else SQUARE, shape, axes)
    plan = fft.Plan(layout, real=True)

    def energies(x):
        return jnp.abs(plan.forward(layout.scatter(x))) ** 2

    whole = np.random.default_rng(1).normal(size=shape)
    jacobian = jax.jacfwd(energies)(whole)
    expected = jax.jacfwd(lambda x: jnp.abs(jnp.fft.rfftn(x)) ** 2)(whole)
    assert_close(jacobian, expected[plan.spectral.slices])
    gradient = jax.grad(lambda x: energies(x).sum())(whole)
    total = comm.allreduce(np.asarray(gradient))
    assert_close(total, expected.sum((0, 1, 2)))


def test_the_axis_along_which_modes_are_divided():
    """The first one of those that are divided most evenly."""
    even, uneven = (SIZE, 2 * SIZE, 3 * SIZE), (SIZE, 2 * SIZE + 1, 3 * SIZE)
    assert fft.Plan(Layout(ROW, even, [0])).spectral.axes == (1,)
    assert fft.Plan(Layout(ROW, uneven, [0])).spectral.axes == (1 if SIZE == 1 else 2,)


def test_a_batch_is_mapped():
    layout = Layout(ROW, (4, 5), [1])
    plan = fft.Plan(layout)
    whole = np.random.default_rng(1).normal(size=(4, 3, 5))
    mapped = jax.vmap(plan.forward, in_axes=1, out_axes=2)
    result = mapped(whole[:, :, layout.slices[1]])
    expected = np.moveaxis(np.fft.fftn(whole, axes=(0, 2)), 1, 2)
    assert_close(result, expected[plan.spectral.slices])


LAYOUT = Layout(ROW, (4, 5), [0])
PART = np.zeros(LAYOUT.local_shape)
WRONG = {
    "layout": (
        lambda: fft.Plan((4, 5)),
        TypeError,
        "fft.Plan: `layout` must be a pencil.Layout",
    ),
    "axes": (
        lambda: fft.Plan(LAYOUT, axes=[1, -1]),
        ValueError,
        "fft.Plan got [1, -1] for argument `axes`, expected different axes of the 2 of the "
        "layout",
    ),
    "modes": (
        lambda: fft.Plan(LAYOUT, modes=[4, 6]),
        ValueError,
        "fft.Plan got [4, 6] for argument `modes`, expected for each of the axes a number "
        "from 1 to that of its points, [4, 5]",
    ),
    "norm": (
        lambda: fft.Plan(LAYOUT, norm="both"),
        ValueError,
        "fft.Plan got 'both' for argument `norm`, expected one of "
        "('backward', 'ortho', 'forward')",
    ),
    "divided": (
        lambda: fft.Plan(Layout(ROW, (4,), [0])),
        ValueError,
        "mpi4jax.fft got a layout that divides all of its 1 axes, expected one that does "
        "not divide one of them",
    ),
    "shape": (
        lambda: fft.Plan(LAYOUT).forward(np.zeros(3)),
        ValueError,
        "fft.Plan.forward got an array of shape (3,) for `fields`, expected "
        f"{LAYOUT.local_shape} as its last axes",
    ),
    "rule": (
        lambda: fft.Plan(LAYOUT, modes="3/2"),
        TypeError,
        "fft.Plan: `modes` must be a sequence of integers, not '3/2'",
    ),
    "complex": (
        lambda: fft.Plan(LAYOUT, real=True).forward(PART * 1j),
        TypeError,
        "fft.Plan.forward got an array of type complex128, expected real numbers",
    ),
    "integers": (
        lambda: fft.Plan(LAYOUT).forward(PART.astype(int)),
        TypeError,
        "fft.Plan.forward got an array of type int64, expected floating-point or complex",
    ),
    "no modes": (
        lambda: fft.Plan(LAYOUT).backward(np.zeros(fft.Plan(LAYOUT).spectral.local_shape)),
        TypeError,
        "fft.Plan.backward got an array of type float64, expected modes, which are complex",
    ),
    "part": (
        lambda: LAYOUT.part(np.zeros((2, 5))),
        ValueError,
        "pencil.Layout.part got an array of shape (2, 5), expected (4, 5), or 1 in place ",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    function, error, text = WRONG[name]
    with pytest.raises(error) as caught:
        function()
    assert text in str(caught.value)
