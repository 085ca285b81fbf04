"""Operations on trees: what each leaf by itself gives, in fewer messages."""

import functools
import inspect
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every import over
from mpi4py import MPI

import mpi4jax
import mpi4jax.experimental.notoken
from mpi4jax import notoken as mpi
from mpi4jax._internal.environment import settings
from mpi4jax._internal.layout import packing
from mpi4jax._internal.older_api.token import EmptyToken
from mpi4jax._testing.cases import CASES, NAMES, OPERATORS
from mpi4jax.experimental import tokens

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
NULL = MPI.PROC_NULL

X = np.ones(2)

#: Elements of float32 that are too many to be packed.
MANY = packing.LARGEST_PACKED // 4 + 1

#: The blocks of a tree: small ones of two types, an empty one, and two large ones.
BLOCKS = {
    "weights": [((2, 3), np.float32), ((), np.float32), ((MANY,), np.float32)],
    "counts": (((4,), np.int32), ((2, 1), np.int32)),
    "nothing": ((0, 2), np.float32),
    "large": ((MANY // 8 + 1, 8), np.int32),
}
#: Small ones of each type together, and each large one.
MESSAGES = 4


@pytest.fixture
def calls_of(calls_of):
    """Counts calls, without the barrier by which MPI4JAX_CHECK compares trees."""

    def call(function, *args):
        result, calls = calls_of(function, *args)
        if settings.check:
            calls.pop("Barrier", None)
        return result, calls

    return call


#: `exchange` packs leaves of all types, and a barrier has none.
on_trees = [
    case
    for case in CASES.values()
    if case.is_linear and not {*case.operations} & {"barrier", "exchange"}
]
#: Where trees are unequal, a call may only receive. JAX differentiates that only if its
#: buffer depends on what is differentiated (docs/autodiff.md), as here it does not.
differentiable = [
    case for case in on_trees if case.has_derivative and case.variant != "unequal"
]


def is_block(x):
    return isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], type)


def arrays_of(case):
    """The trees of all processes, as lists of leaves: small numbers, for exact products."""
    blocks, structure = jax.tree.flatten(BLOCKS, is_leaf=is_block)

    def array(seed, dtype, rank, shape):
        generator = np.random.default_rng([seed, rank])
        return generator.integers(1, 4, shape).astype(dtype)

    leaves = [
        case.arrays(functools.partial(array, seed, dtype), shape)
        for seed, (shape, dtype) in enumerate(blocks)
    ]
    return leaves, structure


def calls_with(case, messages):
    """The number of calls of each MPI function with a tree of some number of messages.

    Counts are exchanged once."""
    is_ragged = case.variant == "capacity"
    return Counter(
        {
            name: count if is_ragged and not name.endswith("v") else messages * count
            for name, count in case.calls.items()
        }
    )


@pytest.mark.parametrize("mode", ["eager", "jit", "loop"])
@over(on_trees)
def test_values(case, mode, calls_of):
    leaves, structure = arrays_of(case)
    mine = jax.tree.unflatten(structure, [xs[RANK] for xs in leaves])
    call = case.call
    jax.block_until_ready(call(mine))  # which may make a communicator
    repeats = 1
    if mode == "jit":
        call = jax.jit(call)
    elif mode == "loop":
        repeats = 2

        @jax.jit
        def call(tree, call=call):
            def step(_, result):
                return call(tree)

            return jax.lax.fori_loop(0, 2, step, call_shapes(case, tree))

    result, calls = calls_of(call, mine)
    for leaf, xs in zip(jax.tree.leaves(result), leaves, strict=True):
        np.testing.assert_array_equal(leaf, case.result(xs), strict=True)
    assert jax.tree.structure(result) == structure
    expected = calls_with(case, MESSAGES)
    assert calls == Counter({name: repeats * n for name, n in expected.items()})


def call_shapes(case, tree):
    """Zeros of the shapes that a call gives."""
    shapes = jax.eval_shape(case.call, tree)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


@pytest.mark.parametrize("name", NAMES)
def test_older_names(name):
    """`tree.allreduce` is `allreduce`, in each namespace."""
    for namespace in (mpi4jax, mpi, tokens, mpi4jax.experimental.notoken):
        assert getattr(namespace.tree, name) is getattr(namespace, name)
    function = getattr(mpi, name)
    arguments = inspect.getfullargspec(function).args
    with pytest.raises(RuntimeError, match=f"{name} got a token"):
        function(*arguments, token=None)


def test_with_tokens():
    tree = {"a": jnp.ones(3), "b": (2.0, np.arange(2))}
    passed = EmptyToken()
    result, token = mpi4jax.allreduce(tree, MPI.SUM, token=passed)
    assert token is passed
    expected = {"a": SIZE * np.ones(3), "b": (2.0 * SIZE, SIZE * np.arange(2))}
    jax.tree.map(np.testing.assert_array_equal, result, expected)
    assert isinstance(mpi4jax.send(tree, NULL), EmptyToken)

    @jax.jit
    def chain(tree, token):
        tree, token = mpi4jax.bcast(tree, 0, token=token)
        return mpi4jax.allreduce(tree, op=MPI.MAX, token=token)

    jax.tree.map(np.testing.assert_array_equal, chain(tree, passed)[0], tree)


def test_200_small_leaves_are_one_message(calls_of):
    tree = [jnp.full(256, float(n)) for n in range(200)]
    call = functools.partial(mpi.allreduce, op=MPI.SUM)
    for function in (call, jax.jit(call)):
        result, calls = calls_of(function, tree)
        assert calls == Counter(Allreduce=1)
        for n, leaf in enumerate(result):
            np.testing.assert_array_equal(leaf, SIZE * np.full(256, n))


@pytest.mark.usefixtures("every_call")
def test_a_large_leaf_is_not_copied():
    """It is the operation itself, which may be in place; the small ones are packed."""
    tree = [jnp.ones(MANY), jnp.ones(MANY), jnp.ones(2), jnp.ones(3)]
    program = jax.jit(lambda x: mpi.allreduce([2 * y for y in x], op=MPI.SUM))
    text = program.lower(tree).as_text()
    assert text.count("stablehlo.concatenate") == 1
    assert text.count("mpi_allreduce_ffi") == 3
    assert text.count("output_operand_alias<") == 3


def test_an_eager_call_is_compiled_once():
    compiled = []

    def listener(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    tree = {"a": jnp.ones(5), "b": [jnp.ones((5, 5)), jnp.arange(5)]}
    comm = COMM.Dup()
    jax.monitoring.register_event_duration_secs_listener(listener)
    # With MPI4JAX_CHECK, another one compares the trees.
    programs = 2 if settings.check else 1
    for _ in range(2):
        jax.block_until_ready(mpi.allreduce(tree, MPI.SUM, comm=comm))
        assert len(compiled) == programs
    comm.Free()


def test_trees_without_leaves(calls_of):
    for tree in ({}, [], None, {"a": (None, [])}):
        for transform in (lambda f: f, jax.jit):
            call = transform(lambda t: mpi.allreduce(t, op=MPI.SUM))
            assert calls_of(call, tree) == (tree, Counter())
            call = transform(lambda t: mpi.sendrecv(t, t, LEFT, RIGHT))
            assert calls_of(call, tree) == (tree, Counter())
        assert mpi.send(tree, RIGHT) is None


@pytest.mark.parametrize("name", ["bcast", "gather", "reduce", "allreduce"])
def test_the_last_leaf_is_empty(name):
    """Fails if XLA has to concatenate it, where its compiler aborts the process."""
    arguments = {
        "bcast": (0,),
        "gather": (0,),
        "reduce": (MPI.SUM, 0),
        "allreduce": (MPI.SUM,),
    }
    call = getattr(mpi, name)
    tree = [jnp.ones(5), jnp.ones(0)]
    full, empty = jax.jit(lambda tree: call(tree, *arguments[name]))(tree)
    assert full.size
    assert empty.size == 0


def test_scalars_and_arrays_of_numpys():
    tree = [1, 2.0, np.float32(3), np.arange(3), True, 1j]
    result = mpi.bcast(tree, SIZE - 1)
    assert all(isinstance(leaf, jax.Array) for leaf in result)
    for leaf, x in zip(result, tree, strict=True):
        single = mpi.bcast(x, SIZE - 1)
        np.testing.assert_array_equal(leaf, single, strict=True)
        assert leaf.dtype == single.dtype


def every_type():
    names = "bool int8 int16 int32 uint8 uint16 uint32 float16 bfloat16 float32 complex64"
    return [
        *names.split(),
        *(n for n in ("int4", "uint4", "float8_e4m3fn") if hasattr(jnp, n)),
    ]


@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_types(mode, calls_of):
    """Two leaves of each type are one message, bit by bit."""
    types = every_type()
    tree = {
        name: (jnp.asarray([0, 1, 1], name), jnp.full((2, 1), RANK % 2).astype(name))
        for name in types
    }
    call = functools.partial(mpi.bcast, root=SIZE - 1)
    result, calls = calls_of(call if mode == "eager" else jax.jit(call), tree)
    assert calls == Counter(Bcast=len(types))
    for name, (first, second) in result.items():
        assert first.dtype == second.dtype == jnp.dtype(name)
        value = np.asarray(first).astype(np.complex64)
        np.testing.assert_array_equal(value, [0, 1, 1])
        value = np.asarray(second).astype(np.complex64)
        np.testing.assert_array_equal(value, np.full((2, 1), (SIZE - 1) % 2))


def test_short_floats_do_not_mix(calls_of):
    """MPI has both as integers of 16 bits, but adds them by different rules."""
    tree = [jnp.full(2, 1.5, t) for t in (jnp.float16, jnp.bfloat16, jnp.float16)]
    result, calls = calls_of(lambda: mpi.allreduce(tree, op=MPI.SUM))
    assert calls == Counter(Allreduce=2)
    for leaf in result:
        np.testing.assert_array_equal(leaf.astype(np.float32), [1.5 * SIZE] * 2)


def test_user_made_operators():
    op = MPI.Op.Create(
        lambda a, b, _: np.maximum(
            np.frombuffer(a, np.float32),
            np.frombuffer(b, np.float32),
            out=np.frombuffer(b, np.float32),
        ),
        commute=True,
    )
    tree = [jnp.float32(RANK), jnp.arange(3.0) - RANK]
    first, second = jax.block_until_ready(mpi.allreduce(tree, op))
    assert first == SIZE - 1
    np.testing.assert_array_equal(second, np.arange(3.0))
    op.Free()


def test_trees_that_are_unequal_on_both_sides(calls_of):
    """The tree sent and the one received take different numbers of messages."""

    def tree_of(rank):
        tree = {"x": np.full(3, rank, np.float32), "y": np.full(2, rank, np.int32)}
        return tree if rank % 2 else {"x": np.full((2, 2), rank, np.float32)}

    def ring(sent, like):
        return mpi.sendrecv(sent, like, LEFT, RIGHT, sendtag=3)

    def line(sent, like):
        source, dest = LEFT if RANK else NULL, RIGHT if RANK < SIZE - 1 else NULL
        return mpi.sendrecv(sent, like, source, dest)

    zeros = jax.tree.map(np.zeros_like, tree_of(LEFT))
    for transform in (lambda f: f, jax.jit):
        result = transform(ring)(tree_of(RANK), zeros)
        jax.tree.map(np.testing.assert_array_equal, result, tree_of(LEFT))
        result = transform(line)(tree_of(RANK), zeros)
        expected = tree_of(LEFT) if RANK else zeros
        jax.tree.map(np.testing.assert_array_equal, result, expected)
    assert calls_of(lambda: mpi.sendrecv(tree_of(1), [], NULL, NULL))[0] == []


@pytest.mark.ranks(2)
def test_send_and_recv(calls_of):
    tree = {"a": jnp.arange(3.0), "b": [jnp.ones((2, 2)), jnp.arange(4)]}
    if RANK > 1:
        return
    for transform in (lambda f: f, jax.jit):
        if RANK == 0:
            call = transform(lambda t: (mpi.send(t, 1, tag=7), t)[1])
            assert calls_of(call, tree)[1] == Counter(Send=2)
        else:
            call = transform(lambda t: mpi.recv(t, 0, tag=7))
            result, calls = calls_of(call, jax.tree.map(jnp.zeros_like, tree))
            assert calls == Counter(Recv=2)
            jax.tree.map(np.testing.assert_array_equal, result, tree)


# Derivatives and vmap.


def floats(shapes, seed):
    generator = np.random.default_rng([seed, RANK])
    return [jnp.asarray(generator.uniform(0.5, 2, shape)) for shape in shapes]


def one_by_one(case):
    return lambda leaves: [case.call(x) for x in leaves]


SMALL = ((3,), (2, 2), ())


def same_leaves(leaves, expected):
    for leaf, other in zip(leaves, expected, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-12)


@pytest.mark.usefixtures("enable_x64")
@over([*differentiable, CASES["allreduce-MAX"], CASES["reduce-PROD"]])
def test_derivatives(case, monkeypatch):
    """They are the same as for the leaves by themselves, the large one included."""
    monkeypatch.setattr(packing, "LARGEST_PACKED", 24)
    shapes = [case.shape(block) for block in SMALL]
    x, t = floats(shapes, 1), floats(shapes, 2)
    f, g = case.call, one_by_one(case)
    shape_of_result = [leaf.shape for leaf in jax.eval_shape(f, x)]
    cotangent = floats(shape_of_result, 3)

    @jax.jit
    def derivatives(x, t, c):
        return [
            (*jax.jvp(function, (x,), (t,)), *jax.vjp(function, x)[1](c))
            for function in (f, g)
        ]

    results, expected = derivatives(x, t, cotangent)
    for tree, leaves in zip(results, expected, strict=True):
        same_leaves(tree, leaves)
    pulled = results[2]
    if case.is_linear and not case.is_shared:

        def dot(us, vs):
            return COMM.allreduce(
                float(sum(jnp.sum(u * v) for u, v in zip(us, vs, strict=True)))
            )

        left = dot(f(t), cotangent)
        assert abs(left - dot(t, pulled)) < 1e-12 * max(1, abs(left))


@pytest.mark.usefixtures("enable_x64")
@over(differentiable)
def test_messages_of_a_gradient(case, calls_of):
    """There and back, each as one message."""
    x = floats([case.shape(block) for block in SMALL], 1)
    f = case.call

    @jax.jit
    def of_tree(x):
        return jax.grad(lambda x: sum(jnp.sum(y * y) for y in f(x)))(x)

    @jax.jit
    def of_array(x):
        return jax.grad(lambda x: jnp.sum(case.call(x) ** 2))(x)

    jax.block_until_ready(of_array(x[0]))  # which may make a communicator
    expected = [calls_of(of_array, leaf) for leaf in x]
    gradient, calls = calls_of(of_tree, x)
    same_leaves(gradient, [value for value, _ in expected])
    assert calls == expected[0][1]


@pytest.mark.usefixtures("enable_x64")
def test_gradient_of_shared_parameters():
    """The one call that adds up the gradients of data-parallel training."""
    parameters = {"w": jnp.arange(3.0), "b": jnp.float64(0.5)}
    data = jnp.sin(jnp.arange(6.0).reshape(2, 3) + RANK)

    def loss(parameters, data):
        return jnp.sum((data @ parameters["w"] + parameters["b"]) ** 2)

    @jax.jit
    def step(parameters):
        return mpi.allreduce(jax.grad(loss)(parameters, data), op=MPI.SUM)

    everyones = jnp.concatenate(COMM.allgather(data))
    gradient, expected = step(parameters), jax.grad(loss)(parameters, everyones)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-12), gradient, expected
    )


@over(on_trees)
def test_vmap(case, calls_of):
    """A batch of trees travels as one tree does."""
    batch = 3
    shapes = [case.shape(block) for block in SMALL]
    generator = np.random.default_rng(RANK)
    xs = [generator.integers(1, 4, (batch, *s)).astype(np.float32) for s in shapes]
    f = case.call
    result, calls = calls_of(jax.jit(jax.vmap(f)), xs)
    assert calls == case.calls
    for n in range(batch):
        expected = [case.call(jnp.asarray(x[n])) for x in xs]
        same_leaves([leaf[n] for leaf in result], expected)
    moved = [np.moveaxis(x, 0, min(1, x.ndim - 1)) for x in xs]
    axes = [min(1, x.ndim - 1) for x in xs]
    again, calls = calls_of(jax.vmap(f, (axes,)), moved)
    assert calls == case.calls
    same_leaves(again, result)


# Errors.


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_errors_name_the_leaf(transform):
    key = jax.random.key(0)
    for leaf, text in (
        (key, r"an array of type key<fry> for argument \"x['a'][1]\": PRNG keys"),
        (True, "an array of type bool for argument \"x['a'][1]\" for op=MPI.SUM, which"),
    ):
        with pytest.raises(TypeError) as raised:
            transform(lambda leaf: mpi.allreduce({"a": [1.0, leaf]}, op=MPI.SUM))(leaf)
        assert text.replace("\\", "") in str(raised.value)


def test_what_is_no_array():
    text = r"allreduce: `x\['a'\]\[1\]` must be an array or a number, not 'x'$"
    with pytest.raises(TypeError, match=text):
        mpi.allreduce({"a": [1.0, "x"]}, op=MPI.SUM)
    with pytest.raises(TypeError, match=r"sendrecv: `recvbuf\[0\]` must be an array"):
        mpi.sendrecv([1.0], [object()], LEFT, RIGHT)
    masked = np.ma.masked_array([1.0, 2.0], [0, 1])
    with pytest.raises(TypeError, match="got a masked array for argument \"x\\['m'\\]\""):
        mpi.bcast({"m": masked}, 0)
    with pytest.raises(TypeError, match="bcast: `root` must be an integer, not '0'$"):
        mpi.bcast({}, "0")


@pytest.mark.parametrize("name", ["alltoall", "reduce_scatter", "scatter"])
def test_leaves_without_slices(name):
    arguments = {"scatter": (RANK,), "reduce_scatter": (MPI.SUM,)}.get(name, ())
    tree = {"a": np.ones((SIZE, 2)), "b": [np.ones(SIZE + 1)]}
    text = r"input must have shape \(nproc, ...\), unlike x\['b'\]\[0\]: "
    text += rf"got shape \({SIZE + 1},\), and nproc is {SIZE}"
    with pytest.raises(ValueError, match=f"^{name.capitalize()} {text}"):
        getattr(mpi, name)(tree, *arguments)


def test_leaves_with_other_rows():
    counts = [2] * SIZE
    tree = {"a": np.ones((2, 3)), "b": (np.ones(3),)}
    text = r"got an array of shape \(3,\) for argument `x\['b'\]\[0\]`, expected \(2, ...\)"
    with pytest.raises(ValueError, match=f"^allgatherv {text}"):
        mpi.allgatherv(tree, counts)
    with pytest.raises(ValueError, match=f"^gatherv {text}"):
        mpi.gatherv(tree, counts, 0)
    text = "^allgatherv got arrays with 2 and with 3 rows for argument `x`, expected the"
    with pytest.raises(ValueError, match=text):
        mpi.allgatherv(tree, 2, capacity=2 * SIZE)
    text = "^alltoallv got an array without axes for argument `x\\[1\\]`, expected one with"
    with pytest.raises(ValueError, match=text):
        mpi.alltoallv([np.ones(2), 3.0], counts, capacity=2)


def test_a_status_of_several_messages():
    text = "got a tree and a status, expected an array with the status"
    for call in (
        lambda: mpi.recv([X], NULL, status=MPI.Status()),
        lambda: mpi.sendrecv(X, [X], NULL, NULL, status=MPI.Status()),
        lambda: tokens.recv([X], NULL, status=MPI.Status(), token=mpi4jax.create_token()),
    ):
        with pytest.raises(TypeError, match=text):
            call()


def test_fill_value():
    """One value for all leaves, in the type of each."""
    tree = {"a": np.ones((1, 2), np.float32), "b": [np.ones(1, np.int32)]}
    result, counts = mpi.allgatherv(tree, 1, capacity=SIZE + 1, fill_value=7)
    assert counts.tolist() == [1] * SIZE
    assert result["a"].tolist() == [[1, 1]] * SIZE + [[7, 7]]
    assert result["b"][0].tolist() == [1] * SIZE + [7]
    grid = COMM.Create_cart([SIZE], [False])
    result = mpi.neighbor_allgather({"x": 1.0, "y": (2,)}, fill_value=7, comm=grid)
    ends = [7 if RANK == 0 else 1, 7 if RANK == SIZE - 1 else 1]
    assert result["x"].tolist() == ends
    assert result["y"][0].tolist() == [7 if end == 7 else 2 for end in ends]
    with pytest.raises(TypeError, match="got float32 .* `fill_value`, expected .* int32"):
        mpi.neighbor_allgather([1], fill_value=jnp.float32(0.5), comm=grid)
    grid.Free()


@pytest.mark.ranks(2)
def test_gradient_through_tokens(calls_of):
    """Fails if a leaf is left out of what a linear token carries."""
    if RANK > 1:
        return

    def loss(tree):
        token = mpi4jax.create_token(tree)
        if RANK == 0:
            token = tokens.send(tree, 1, token=token)
            return mpi4jax.tie(jnp.float32(0), token)
        tree, token = tokens.recv(tree, 0, token=token)
        value = jnp.sum(tree["a"] ** 2) + 3 * tree["b"][0] + tree["b"][1].sum()
        return mpi4jax.tie(value, token)

    tree = {"a": jnp.arange(3.0), "b": [jnp.float32(2), jnp.ones(MANY)]}
    for transform in (lambda f: f, jax.jit):
        (gradient, calls) = calls_of(transform(jax.grad(loss)), tree)
        assert calls == Counter(Send=2, Recv=2)
        expected = {"a": 2 * tree["a"], "b": [3.0, jnp.ones(MANY)]}
        if RANK == 1:
            expected = jax.tree.map(jnp.zeros_like, expected)
        jax.tree.map(np.testing.assert_array_equal, gradient, expected)


def test_operators():
    tree = [jnp.asarray([1, 2 + RANK]), jnp.asarray(3)]
    everyones = COMM.allgather([np.asarray(x) for x in tree])
    for name, operator in OPERATORS.items():
        result = mpi.allreduce(tree, operator.op)
        for n, leaf in enumerate(result):
            expected = operator.reduce([xs[n] for xs in everyones])
            np.testing.assert_array_equal(leaf, expected, err_msg=name)
