"""Redistribution and Fourier transforms in programs on a mesh, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI
from sample import seeds

from mpi4jax import fft
from mpi4jax._internal.xla.jax_compat import allows_sharded_programs
from mpi4jax.pencil import Layout

pytestmark = pytest.mark.skipif(
    not allows_sharded_programs(), reason="JAX < 0.9.1 has no operations in a shard_map"
)
SIZE = MPI.COMM_WORLD.Get_size()
KEY = jax.random.key(5)


@pytest.fixture(params=["slabs", "pencils"])
def any_mesh(request, mesh, grid):
    return mesh if request.param == "slabs" else grid


def random_whole(*shape):
    return np.random.default_rng(0).normal(size=shape)


def padded(x, layout):
    sizes = zip(layout.padded_shape, layout.shape, strict=True)
    return np.pad(x, [(0, new - old) for new, old in sizes])


@pytest.fixture
def run(spread):
    """Runs a function of parts on a whole array, and gives the whole result."""

    def call(function, x, layout, result, is_checked):
        program = jax.shard_map(
            function,
            mesh=layout.mesh,
            in_specs=layout.spec,
            out_specs=result.spec,
            check_vma=is_checked,
        )
        array = spread(padded(x, layout), layout.mesh, *layout.spec)
        moved = jax.jit(program)(array)
        whole = jax.jit(lambda x: x, out_shardings=NamedSharding(layout.mesh, P()))(moved)
        return np.asarray(whole)[tuple(map(slice, result.shape))]

    return call


@pytest.mark.parametrize("shape", [(8, 4, 12), (5, 7, 3)], ids=["even", "uneven"])
def test_redistribution(any_mesh, run, shape, is_checked):
    dims = any_mesh.devices.ndim
    whole = random_whole(*shape)
    first = Layout(any_mesh, shape, range(dims))
    last = first.with_axes(range(1, dims + 1))

    def there_and_back(x):
        moved = first.redistribute({"x": x, "y": 2 * x}, to=last)
        assert moved["y"].shape == last.local_shape
        return last.redistribute(moved, to=first)["y"]

    moved = run(lambda x: first.redistribute(x, to=last), whole, first, last, is_checked)
    np.testing.assert_array_equal(moved, whole)
    back = run(there_and_back, whole, first, first, is_checked)
    np.testing.assert_array_equal(back, 2 * whole)


def test_the_sharding_of_a_layout(any_mesh, assert_is):
    dims = any_mesh.devices.shape
    grid = MPI.COMM_WORLD.Create_cart(dims, [False] * len(dims))
    layout = Layout(grid, (2 * SIZE, 3 * SIZE, 5), [1, 0][: len(dims)])
    whole = random_whole(*layout.shape)
    own = whole[layout.slices]
    sharding = layout.sharding(any_mesh)
    array = jax.make_array_from_process_local_data(sharding, own, whole.shape)
    assert_is(array, whole)
    np.testing.assert_array_equal(array.addressable_data(0), own)
    if SIZE > 1:
        with pytest.raises(ValueError, match="expected sizes that are divided evenly"):
            layout.with_shape((2 * SIZE + 1, 3 * SIZE + 1, 5)).sharding(any_mesh)
        reversed_mesh = Mesh(np.flip(any_mesh.devices), any_mesh.axis_names)
        with pytest.raises(ValueError, match="expected those of the layout's communicator"):
            layout.sharding(reversed_mesh)


def test_axes_in_another_order(grid, run):
    """One axis of the mesh after the other, by way of one that is not divided."""
    whole = random_whole(4, 6, 5)
    first = Layout(grid, whole.shape, (0, 1))
    other = first.with_axes((1, 0))
    moved = run(lambda x: first.redistribute(x, to=other), whole, first, other, True)
    np.testing.assert_array_equal(moved, whole)


@pytest.mark.parametrize("is_real", [False, True])
@pytest.mark.parametrize("shape", [(8, 4, 12), (5, 7, 3)], ids=["even", "uneven"])
def test_plan(any_mesh, run, shape, is_real, is_checked):
    whole = random_whole(*shape)
    layout = Layout(any_mesh, shape, range(any_mesh.devices.ndim))
    plan = fft.Plan(layout, real=is_real)
    expected = (np.fft.rfftn if is_real else np.fft.fftn)(whole)
    modes = run(plan.forward, whole, layout, plan.spectral, is_checked)
    np.testing.assert_allclose(modes, expected, atol=1e-12)

    def laplace(x):
        squares = sum(k**2 for k in plan.wavenumbers())
        return plan.backward(-squares * plan.forward(x)).real

    k = np.meshgrid(*(np.fft.fftfreq(n) * n for n in shape), indexing="ij")
    expected = np.fft.ifftn(-sum(n**2 for n in k) * np.fft.fftn(whole)).real
    result = run(laplace, whole, layout, layout, is_checked)
    np.testing.assert_allclose(result, expected, atol=1e-11)


def test_in_a_loop_with_gradients(any_mesh, run, is_checked):
    shape = (4, 5, 6)
    whole = random_whole(*shape)
    layout = Layout(any_mesh, shape, range(any_mesh.devices.ndim))
    plan = fft.Plan(layout, real=True)

    def steps(forward, backward, x):
        return lax.fori_loop(0, 3, lambda _, x: x + 0.1 * backward(forward(x) ** 2), x)

    def gradient(x):
        def loss(x):
            return jnp.sum(jnp.sin(steps(plan.forward, plan.backward, x)) * inside)

        inside = layout.part(np.ones(shape))
        return jax.grad(loss)(x)

    def expected_loss(x):
        return jnp.sum(jnp.sin(steps(jnp.fft.rfftn, lambda y: jnp.fft.irfftn(y, shape), x)))

    result = run(gradient, whole, layout, layout, is_checked)
    np.testing.assert_allclose(result, jax.grad(expected_loss)(whole), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["fftn", "rfftn", "irfftn", "ifft2", "fft"])
def test_sharded_arrays(any_mesh, spread, assert_is, name):
    """Sharded in, sharded out, as JAX's own functions."""
    whole = random_whole(2 * SIZE, 4 * SIZE, 5)
    expected = getattr(np.fft, name)(whole)
    for spec in (any_mesh.axis_names, ()):
        x = spread(whole, any_mesh, *spec)
        result = getattr(fft, name)(x)
        assert result.sharding.is_equivalent_to(x.sharding, x.ndim)
        assert_is(result, expected, rtol=1e-10, atol=1e-10)


def names_of_functions():
    ends = [f"{real}fft{axes}" for real in ("", "r") for axes in ("", "2", "n")]
    return [f"{inverse}{end}" for inverse in ("", "i") for end in ends]


@pytest.mark.parametrize("name", names_of_functions())
@pytest.mark.parametrize("seed", seeds(2))
def test_functions_of_numpy(any_mesh, spread, assert_is, name, seed):
    """Random axes, sizes and norms."""
    random = np.random.default_rng([471, seed])
    multiples = [int(n) for n in random.integers(1, 4, 4)]
    whole = random.normal(size=[SIZE * n for n in multiples])
    if not name.startswith("rfft"):
        whole = whole + 1j * random.normal(size=whole.shape)
    count = {"": 1, "2": 2, "n": int(random.integers(1, 5))}[name.partition("fft")[2]]
    axes = [int(axis) - 4 for axis in random.permutation(4)[:count]]
    # The results can be sharded, too: their sizes are divided evenly.
    sizes = [2 * SIZE * int(n) for n in random.integers(1, 3, count)]
    divided = [int(axis) for axis in random.permutation(3)[: any_mesh.devices.ndim]]
    if "rfft" in name:
        divided = [n for n in divided if n - 4 != axes[-1]]
    spec = [None] * 4
    for axis, mesh_axis in zip(divided, any_mesh.axis_names, strict=False):
        spec[axis] = mesh_axis
    norm = str(random.choice(["backward", "ortho", "forward"]))
    options = (
        {"n": sizes[0], "axis": axes[0]}
        if name.endswith("fft")
        else {"s": sizes, "axes": axes}
    )
    expected = getattr(np.fft, name)(whole, **options, norm=norm)
    result = getattr(fft, name)(spread(whole, any_mesh, *spec), **options, norm=norm)
    assert_is(result, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(8, 4, 12), (5, 7, 3)], ids=["even", "uneven"])
def test_whole_arrays(any_mesh, run, shape, is_checked):
    """`gather` gives what JAX has as the array, and `scatter` what it has as the part."""
    layout = Layout(any_mesh, shape, range(any_mesh.devices.ndim))
    whole = random_whole(*shape)

    def check(x):
        gathered = layout.gather({"x": x})["x"]
        assert gathered.shape == shape
        own = layout.scatter(gathered)
        assert own.shape == x.shape == layout.local_shape
        computed = layout.scatter(
            lambda: jnp.asarray(whole) + jax.random.normal(KEY, shape)
        )
        return own + layout.scatter(jnp.asarray(whole)) + layout.part(whole) + computed

    result = run(check, whole, layout, layout, is_checked)
    expected = 4 * whole + jax.random.normal(KEY, shape)
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_wrong_arguments(mesh, spread):
    layout = Layout(mesh, (4, 5), [0])
    with pytest.raises(TypeError, match="`comm` must be a communicator of comm.Create_"):
        Layout(3, (4, 5), [0])
    of_ranks = Layout(MPI.COMM_WORLD.Create_cart([SIZE]), (4, 5), [0])
    with pytest.raises(ValueError, match="expected layouts of communicators, or two on"):
        layout.redistribute(np.zeros(layout.local_shape), to=of_ranks)
    with pytest.raises(ValueError, match="a layout on a mesh, where one program runs"):
        _ = layout.slices
    with pytest.raises(
        TypeError, match="without a NamedSharding, expected an array that is"
    ):
        fft.fftn(np.zeros((4, 5)))
    if SIZE > 1:
        with pytest.raises(ValueError, match="outside of a program on the plan's mesh"):
            layout.redistribute(np.zeros(layout.local_shape), to=layout.with_axes([1]))
        x = spread(random_whole(3, 2 * SIZE), mesh, None, "i")
        with pytest.raises(ValueError, match="which JAX can't shard as"):
            fft.rfftn(x)
