"""Checkpoints and output as a user writes and reads them, on any number of ranks."""

import importlib
import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import files, halo, pencil, unstructured

comm = MPI.COMM_WORLD
RANK, SIZE = comm.Get_rank(), comm.Get_size()
GRID = comm.Create_cart([SIZE], [False])
CELLS = 4 * SIZE + 1
PLAN = halo.Plan(GRID, 1, axes=[-2], shape=[CELLS])
WHOLE = np.arange(CELLS * 3, dtype=np.float32).reshape(CELLS, 3)

several = pytest.mark.ranks(2)


@pytest.fixture
def folder(tmp_path):
    """An empty folder of all ranks."""
    return comm.bcast(tmp_path)


def field():
    return PLAN.scatter(jnp.asarray(WHOLE))


def assert_raises_everywhere(kind, pattern, function, *args, **kwargs):
    """All ranks raise the same error."""
    with pytest.raises(kind) as error:
        function(*args, **kwargs)
    texts = comm.allgather(str(error.value))
    assert texts == [texts[0]] * SIZE
    assert re.search(pattern, texts[0]), texts[0]


def names_in(folder):
    comm.Barrier()
    return comm.bcast(sorted(os.listdir(folder)))


class State(NamedTuple):
    u: jax.Array
    step: int


def xarray_with_zarr():
    """The package xarray, which opens these files by the package zarr."""
    pytest.importorskip("zarr")
    return pytest.importorskip("xarray")


def test_a_tree(folder):
    state = {
        "state": State(field(), 42),
        "key": jax.random.key(3),
        "old": jax.random.PRNGKey(3),
        "more": [1.5, (None, np.float64(2.5)), {}],
        "short": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
        "wide": np.arange(5.0) * (1 + 2j),
        "empty": jnp.zeros((0, 3), jnp.int8),
        "number": np.array(7, np.int64),
    }
    plan = {**dict.fromkeys(state), "state": PLAN}
    files.save(folder / "a", state, plan)
    loaded = files.load(folder / "a", plan, like=state)
    assert type(loaded["state"]) is State
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    assert jax.random.key_impl(loaded["key"]) == jax.random.key_impl(state["key"])
    loaded["key"], state["key"] = (jax.random.key_data(x["key"]) for x in (loaded, state))
    for x, y in zip(*map(jax.tree.leaves, (loaded, state)), strict=True):
        assert type(x) is type(y)
        np.testing.assert_array_equal(x, y)
        assert getattr(x, "dtype", None) == getattr(y, "dtype", None)
    # Without `like`, State is a dictionary.
    plan["state"] = {"u": PLAN, "step": None}
    again = files.load(folder / "a", plan)
    assert again["state"]["step"] == 42
    assert again["more"] == [1.5, (None, 2.5), {}]
    np.testing.assert_array_equal(again["state"]["u"], state["state"].u)


def test_only_an_array(folder):
    files.save(folder / "a", field(), PLAN)
    np.testing.assert_array_equal(files.load(folder / "a", PLAN), field())
    np.testing.assert_array_equal(files.load(folder / "a"), WHOLE_WITH_EDGES[1:-1])
    (array,) = files.info(folder / "a").arrays
    assert (array.name, array.shape, array.dtype) == ("value", (CELLS + 2, 3), "float32")


WHOLE_WITH_EDGES = np.pad(WHOLE, [(1, 1), (0, 0)])


def test_ghosts_at_the_edge_are_saved_and_others_are_not(folder):
    x = np.array(field())
    first, last = RANK == 0, RANK == SIZE - 1
    x[0] = -1 if first else -3
    x[-1] = -2 if last else -3
    files.save(folder / "a", x, PLAN)
    loaded = files.load(folder / "a", PLAN)
    expected = np.array(field())
    if first:
        expected[0] = -1
    if last:
        expected[-1] = -2
    np.testing.assert_array_equal(loaded, expected)
    layout = pencil.Layout(GRID, WHOLE.shape, [1])
    np.testing.assert_array_equal(files.load(folder / "a", layout), WHOLE[layout.slices])


def test_rows_of_points(folder):
    ids = np.arange(3 * RANK, 3 * RANK + 5) % (3 * SIZE)  # two of the next rank, if any
    ids = np.unique(ids)[::-1]
    plan = unstructured.Plan.from_global(ids, comm=comm)
    x = np.where(plan.owned[:, None], ids[:, None] + np.zeros(2), -1)
    files.save(folder / "a", {"x": x}, plan)
    loaded = files.load(folder / "a", plan)["x"]
    np.testing.assert_array_equal(loaded, ids[:, None] + np.zeros(2))
    whole = files.load(folder / "a")["x"]
    np.testing.assert_array_equal(whole[:, 0], np.arange(3 * SIZE))
    other = unstructured.Plan.from_global(ids * 2, comm=comm)
    text = "of id .* for `tree\\['x'\\]` where the unstructured.Plan in `plan` has id"
    assert_raises_everywhere(ValueError, text, files.load, folder / "a", other)


def test_rows_of_particles(folder):
    count = 2 * RANK
    total = SIZE * (SIZE - 1)
    x = jnp.full((count + 3, 2), RANK)
    files.save(folder / "a", x, files.Rows(count))
    expected = np.repeat(np.arange(SIZE), 2 * np.arange(SIZE))
    np.testing.assert_array_equal(files.load(folder / "a")[:, 0], expected)
    own = files.load(folder / "a", files.Rows())
    assert comm.allreduce(len(own)) == total
    assert len(own) in (total // SIZE, total // SIZE + 1)
    assert isinstance(own, jax.Array)
    text = "files.Rows got .* rows as the sum of `count`"
    assert_raises_everywhere(
        ValueError, text, files.load, folder / "a", files.Rows(total + 1)
    )


def test_latest_and_keep(folder):
    assert files.latest(folder / "none") is None
    for step in range(4):
        files.save(folder / str(step), {"x": step}, keep=2)
        assert files.latest(folder) == folder / str(step)
        comm.Barrier()
    assert names_in(folder) == ["2", "3"]
    comm.Barrier()
    if RANK == 0:
        (folder / "3" / "mpi4jax.json").unlink()
    comm.Barrier()
    assert files.latest(folder) == folder / "2"
    text = "which has no file mpi4jax.json, expected a whole checkpoint"
    assert_raises_everywhere(ValueError, text, files.load, folder / "3")


def test_overwriting(folder):
    path = folder / "a"
    files.save(path, {"x": 1})
    assert_raises_everywhere(FileExistsError, "overwrite=True", files.save, path, {"x": 2})
    assert files.load(path) == {"x": 1}
    files.save(path, {"y": 2}, overwrite=True)
    assert files.load(path) == {"y": 2}
    assert names_in(folder) == ["a"]
    if RANK == 0:
        (folder / "mine").mkdir()
        (folder / "mine" / "thesis.tex").touch()
    comm.Barrier()
    assert_raises_everywhere(
        FileExistsError,
        "which has no file mpi4jax.json",
        files.save,
        folder / "mine",
        {"x": 2},
        overwrite=True,
    )
    assert names_in(folder / "mine") == ["thesis.tex"]


def test_in_the_background(folder):
    x = np.array(field())
    savings = []
    for step in range(4):
        savings.append(files.save(folder / str(step), {"x": x}, PLAN, wait=False))
        x += 1
    for saving in savings[::-1]:
        saving.wait()
        saving.wait()  # no more than once
    loaded = [files.load(folder / str(n), PLAN)["x"] for n in range(4)]
    for step, y in enumerate(loaded):
        np.testing.assert_array_equal(y[1:-1], x[1:-1] - 4 + step)


def save_until_it_is_known(folder):
    for n in range(1000):
        files.save(folder / f"b{n}", {"x": 1})


def test_the_order_of_checkpoints_in_the_background(folder):
    """Fails if a small one that is ready first is the older one, so that it is removed."""
    large = np.ones((SIZE, 1 << 23), np.float32)
    savings = [
        files.save(folder / "1", large, wait=False),
        files.save(folder / "2", np.ones(1), keep=1, wait=False),
    ]
    for saving in savings:
        saving.wait()
    files.save(folder / "3", large, wait=False)
    files.save(folder / "4", np.ones(1), keep=1)
    assert files.latest(folder) == folder / "4"
    comm.Barrier()
    assert sorted(name for name in os.listdir(folder) if name.isdigit()) == ["4"]


def test_an_error_in_the_background_is_that_of_the_next_call(folder, monkeypatch):
    from mpi4jax._internal.files.folders import Files

    write = Files.write_array

    def fail(self, *args):
        if RANK == SIZE - 1:
            raise OSError(28, "No space left on device: /some/file")
        write(self, *args)

    monkeypatch.setattr(Files, "write_array", fail)
    saving = files.save(folder / "a", field(), PLAN, wait=False)
    text = "No space left on device: /some/file"
    assert_raises_everywhere(OSError, text, saving.wait)
    files.save(folder / "a", field(), PLAN, wait=False)
    comm.Barrier()
    with pytest.raises(OSError, match=text):
        save_until_it_is_known(folder)
    monkeypatch.undo()
    assert not any(name.startswith((".", "a")) for name in names_in(folder))
    files.save(folder / "a", field(), PLAN)


class Nodes:
    """A communicator whose processes are on several nodes."""

    def __init__(self, count):
        self._count = count

    def Split_type(self, kind):
        return comm.Split(RANK % self._count)

    def __getattr__(self, name):
        return getattr(comm, name)


def reports_of(folder, nodes):
    from mpi4jax._internal.files.reports import FOLDER, Reports

    if RANK == 0:
        (folder / FOLDER).mkdir()
    made = Reports(folder, "token", Nodes(nodes))
    comm.Barrier()
    return made, folder / FOLDER


@pytest.mark.parametrize("nodes", [1, 2, SIZE])
def test_reports_of_many_steps(folder, nodes, monkeypatch):
    """Some processes are ahead of the one that reads, and files do not grow for ever."""
    from mpi4jax._internal.files import reports

    monkeypatch.setattr(reports, "_NUMBERS", 4)
    sent, where = reports_of(folder, nodes)
    generator = np.random.default_rng(RANK)
    for number in range(10):
        time.sleep(generator.random() / 100)
        sent.send({"files": [RANK, number]}, number)
        if RANK == 0:
            received = [each["files"] for each in sent.receive(lambda: False, number)]
            assert received == [[rank, number] for rank in range(SIZE)]
    assert all(name.endswith(("-1", "-2")) for name in names_in(where))


def test_reports_that_are_not_whole(folder):
    """Lines that were cut as the disk was full, and bytes that have not arrived yet."""
    sent, where = reports_of(folder, 1)
    if RANK == SIZE - 1:
        (where / "0-0").write_bytes(b'\n{"rank": 0, "numb')
        sent.send({"files": "last"})
    comm.Barrier()
    whole = (where / "0-0").read_bytes()
    comm.Barrier()
    if RANK == 0:
        (where / "0-0").write_bytes(whole[:20] + bytes(len(whole) - 20))
        if SIZE > 1:
            with pytest.raises(OSError, match="rank 0 has not written its part"):
                sent.receive(lambda: True)
        (where / "0-0").write_bytes(whole)
        for rank in range(SIZE - 1):
            sent._rank = rank
            sent.send({"files": rank})
        received = [each["files"] for each in sent.receive(lambda: False)]
        assert received == [*range(SIZE - 1), "last"]
        shutil.rmtree(where)
        with pytest.raises(FileNotFoundError):
            sent.receive(lambda: False)


def test_reports_of_an_earlier_run_are_not_read(folder):
    from mpi4jax._internal.files.reports import Reports

    sent, _ = reports_of(folder, 1)
    Reports(folder, "other", comm).send({"failure": "of a run whose rank 0 was killed"})
    comm.Barrier()
    sent.send({})
    comm.Barrier()
    if RANK == 0:
        assert len(sent.receive(lambda: True)) == SIZE


@pytest.mark.parametrize("wait", [True, False])
def test_a_report_that_is_lost(folder, wait, monkeypatch):
    """Fails if all wait for ever for a report that has been sent, and does not arrive."""
    from mpi4jax._internal.files import reports

    monkeypatch.setattr(reports, "VISIBLE_AFTER", 0.2)
    if RANK == SIZE - 1:
        monkeypatch.setattr(reports.Reports, "send", lambda *_: None)
    text = f"rank {SIZE - 1} has not written its part of"

    def save_field():
        saving = files.save(folder / "a", field(), PLAN, wait=wait)
        saving.wait()  # None where save has waited

    with pytest.raises(OSError, match=text):
        save_field()
    out = files.Output(folder / "run.zarr", PLAN)
    out.append({"x": field()})
    with pytest.raises(OSError, match=text):
        out.close()
    monkeypatch.undo()
    files.save(folder / "a", field(), PLAN)
    assert names_in(folder) == ["a", "run.zarr"]


def test_checkpoints_of_one_name_in_the_background(folder):
    for n in range(3):
        files.save(folder / "a", {"n": n}, overwrite=True, wait=False)
    files.save(folder / "b", {})
    assert files.load(folder / "a") == {"n": 2}


def test_a_checkpoint_is_replaced_where_names_can_not_be_swapped(folder, monkeypatch):
    """A checkpoint that the user has named `a.old` is kept when `a` is replaced."""
    from mpi4jax import _core

    monkeypatch.setattr(_core, "swap_names", lambda *_: False)
    for name, n in (("a.old", 1), ("a", 2), ("a", 3), ("a", 4)):
        files.save(folder / name, {"n": n}, overwrite=True)
    assert names_in(folder) == ["a", "a.old"]
    assert [files.load(folder / name)["n"] for name in ("a", "a.old")] == [4, 1]


def test_chunks_that_a_part_with_edges_does_not_begin_with(folder):
    """The part has the shape of a chunk, and lies in two of them."""
    for points in range(1, 12):
        plan = halo.Plan(GRID, 1, axes=[0], shape=[points * SIZE])
        whole = jnp.arange(1.0, points * SIZE + 1)
        part = plan.exchange(plan.scatter(whole))
        path = folder / str(points)
        files.save(path, part, plan, chunks=(points * SIZE,))
        np.testing.assert_array_equal(files.load(path), whole)
        np.testing.assert_array_equal(files.load(path, plan), part)


def test_parts_of_prime_size_have_few_chunks():
    from mpi4jax._internal.files.chunks import default_sizes

    assert default_sizes([10_000_019], 8, divides_parts=True) == (10_000_019,)
    assert default_sizes([20_000_000], 8, divides_parts=True) == (20_000_000 // 4,)
    assert default_sizes([10_000_019], 8) == (5_000_010,)


def test_a_folder_that_another_run_is_writing(folder):
    from mpi4jax._internal.files.folders import Lease

    lease = Lease("files.save", folder / "a", overwrite=False) if RANK == 0 else None
    text = "another run is writing"
    assert_raises_everywhere(FileExistsError, text, files.save, folder / "a", {"x": 1})
    if lease is not None:
        os.close(lease._lock)  # as the system does when it ends
    comm.Barrier()
    files.save(folder / "a", {"x": 1})
    assert names_in(folder) == ["a"]


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_in_each_file(folder):
    tree = {"x": field(), "y": jnp.arange(4)}
    plan = {"x": PLAN, "y": None}
    files.save(folder / "a", tree, plan)
    path = folder / "a"
    names = [
        str(file.relative_to(path)) for file in sorted(path.rglob("*")) if file.is_file()
    ]
    assert "mpi4jax.json" in names
    for name in names:
        file = path / name
        comm.Barrier()
        if RANK == 0:
            flip_a_bit(file)
        comm.Barrier()
        if name == "mpi4jax.json":
            assert_raises_everywhere(ValueError, "is damaged", files.load, path, plan)
            assert files.latest(folder) is None
        else:
            (damage,) = files.info(path, verify=True).damage
            assert str(file) in damage
            if "zarr.json" not in name:
                text = f"{re.escape(str(file))} is damaged: the checksum"
                assert_raises_everywhere(ValueError, text, files.load, path, plan)
        comm.Barrier()
        if RANK == 0:
            flip_a_bit(file)
        comm.Barrier()
    assert not files.info(path, verify=True).damage
    comm.Barrier()
    if RANK == 0:
        os.truncate(path / "y" / "c" / "0", 3)
    comm.Barrier()
    assert "has 3 bytes" in files.info(path).damage[0]
    assert_raises_everywhere(ValueError, "bytes", files.load, path, plan)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"plan": {"u": PLAN}}, ValueError, "keys \\['u'\\] for `plan`"),
        ({"plan": 3}, TypeError, "`plan` must be None, a halo.Plan"),
        ({"like": {"u": 0}}, ValueError, "an additional 'n' in `tree`"),
        ({"like": {"u": 0, "n": 0, "v": 0}}, ValueError, "no 'v' in `tree`"),
        ({"like": {"u": 0, "n": [0]}}, ValueError, "a leaf at `tree\\['n'\\]`"),
        ({"like": {"u": 0, "n": 3}}, ValueError, "float32 and shape .*type int"),
    ],
)
def test_what_is_not_in_the_file(folder, changes, kind, text):
    files.save(folder / "a", {"u": field(), "n": 3}, {"u": PLAN, "n": None})
    arguments = {"plan": {"u": PLAN, "n": None}, **changes}
    assert_raises_everywhere(kind, text, files.load, folder / "a", **arguments)


def test_another_global_shape(folder):
    files.save(folder / "a", field(), PLAN)
    other = halo.Plan(GRID, 1, axes=[-2], shape=[CELLS + 2])
    text = f"files.load: .* array of shape .* expected {CELLS + 2} points along axis -2"
    assert_raises_everywhere(ValueError, text, files.load, folder / "a", other)


def test_unlike_values(folder):
    if SIZE > 1:
        text = "`tree\\['x'\\]` the value 0 on rank 0 and 1 on rank 1"
        assert_raises_everywhere(ValueError, text, files.save, folder / "a", {"x": RANK})
        text = "`tree\\['x'\\]` the checksum of values"
        x = {"x": jnp.full(3, RANK)}
        assert_raises_everywhere(ValueError, text, files.save, folder / "a", x)
        tree = {"x": 1} if RANK else {"y": 1}
        assert_raises_everywhere(ValueError, "the same", files.save, folder / "a", tree)
    assert names_in(folder) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array(["a"]), "expected one of float16|type <U1"),
        (np.zeros(2, ">f4"), "in this machine's order"),
        (np.zeros(2, "M8[s]"), "got an array of type datetime64"),
        (object(), "expected an array, a number, a string or None"),
        ({(1, 2): 3}, "expected strings or numbers as keys"),
    ],
)
def test_what_can_not_be_saved(folder, value, text):
    tree = {"x": value}
    assert_raises_everywhere(TypeError, text, files.save, folder / "a", tree)


def test_in_a_program(folder):
    with pytest.raises(TypeError, match="outside of jax.jit"):
        jax.jit(lambda x: files.save(folder / "a", x))(jnp.ones(3))


@several
def test_a_plan_on_another_communicator(folder):
    part = comm.Split(RANK == 0)
    try:
        grid = part.Create_cart([part.Get_size()], [False])
        plan = halo.Plan(grid, 1, shape=[9])
        tree = {"x": field(), "y": plan.scatter(jnp.arange(9.0))}
        with pytest.raises(ValueError, match="on a communicator of the processes"):
            files.save(folder / "a", tree, {"x": PLAN, "y": plan})
        # Its processes save by themselves.
        path = folder / f"part{int(RANK == 0)}"
        files.save(path, tree["y"], plan)
        np.testing.assert_array_equal(files.load(path, plan), tree["y"])
        grid.Free()
    finally:
        part.Free()


def test_types_that_jax_has_off(folder, enable_x64):
    tree = {"x": jnp.arange(3.0)}
    assert tree["x"].dtype == np.float64
    files.save(folder / "a", tree)
    np.testing.assert_array_equal(files.load(folder / "a")["x"], tree["x"])
    jax.config.update("jax_enable_x64", False)
    text = "has 64-bit types off"
    assert_raises_everywhere(ValueError, text, files.load, folder / "a")


def test_chunks(folder):
    files.save(folder / "a", {"x": field(), "y": 0}, PLAN, chunks=(3, 2))
    (array,) = files.info(folder / "a").arrays
    assert array.chunks == (3, 2)
    assert len(files_of(folder / "a" / "x")) <= SIZE
    np.testing.assert_array_equal(files.load(folder / "a", PLAN)["x"], field())
    text = "got \\(0, 2\\) for argument `chunks`, expected None or a tuple of positive"
    assert_raises_everywhere(
        ValueError, text, files.save, folder / "b", {"x": field()}, PLAN, chunks=(0, 2)
    )
    text = "`chunks\\['x'\\]` must be None or a tuple"
    assert_raises_everywhere(
        TypeError, text, files.save, folder / "b", {"x": field()}, PLAN, chunks={"x": 3}
    )


def files_of(array):
    return [path for path in (array / "c").rglob("*") if path.is_file()]


def test_one_file_for_each_process(folder, monkeypatch):
    """Parts differ by a row, and files do not."""
    from mpi4jax._internal.files import chunks

    files.save(folder / "a", field(), pencil_plan())
    assert len(files_of(folder / "a" / "value")) == SIZE
    comm.Barrier()
    monkeypatch.setattr(chunks, "LARGEST", 8)
    files.save(folder / "b", field(), pencil_plan())
    assert len(files_of(folder / "b" / "value")) == SIZE
    assert files.info(folder / "b").arrays[0].chunks == (1, 1)


@pytest.mark.parametrize("chunks", [None, (50, 30)])
def test_compression(folder, chunks):
    plan = halo.Plan(GRID, 1, axes=[-2], shape=[200 * CELLS])
    x = np.arange(200 * CELLS * 40, dtype=np.float32).reshape(200 * CELLS, 40) // 100
    x = plan.scatter(x)
    sizes = {}
    for compression in (None, "lz4"):
        path = folder / f"{compression}"
        files.save(path, x, plan, chunks=chunks, compression=compression)
        np.testing.assert_array_equal(files.load(path, plan), x)
        found = files.info(path, verify=True)
        assert not found.damage
        sizes[compression] = found.nbytes
    assert sizes["lz4"] < sizes[None] / 2


def test_arguments_of_compression(folder):
    for function in (files.save, files.Output):
        arguments = (field(), PLAN) if function is files.save else (PLAN,)
        text = "`compression` must be None or 'lz4'"
        with pytest.raises(TypeError, match=text):
            function(folder / "a", *arguments, compression="zip")
    if SIZE > 1:
        text = "`tree` the compression None on rank 0 and lz4 on rank 1"
        with pytest.raises(ValueError, match=text):
            files.save(
                folder / "a", field(), PLAN, compression="lz4" if RANK == 1 else None
            )


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_damage_of_chunks(folder, compression):
    """Each byte of a file belongs to a chunk, to the index or to a checksum."""
    path = folder / "a"
    files.save(path, field(), PLAN, chunks=(2, 2), compression=compression)
    comm.Barrier()
    file = max(files_of(path / "value"))
    whole = file.read_bytes()
    comm.Barrier()
    for at in np.random.default_rng(3).integers(len(whole), size=20):
        if RANK == 0:
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        comm.Barrier()
        assert "is damaged: its checksum is" in files.info(path, verify=True).damage[0]
        assert_raises_everywhere(ValueError, f"{file} is damaged", files.load, path, PLAN)
        if RANK == 0:
            file.write_bytes(whole[:at])
        comm.Barrier()
        assert_raises_everywhere(ValueError, f"{file} ", files.load, path, PLAN)
    if RANK == 0:
        file.write_bytes(whole)
    comm.Barrier()
    np.testing.assert_array_equal(files.load(path, PLAN), field())


def pencil_plan():
    return halo.Plan(GRID, 1, axes=[-2], shape=[CELLS])


# Other programs.


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("chunks", [None, (2, 2)])
def test_other_readers(folder, chunks, compression):
    zarr = pytest.importorskip("zarr")
    xarray = pytest.importorskip("xarray")
    tree = {
        "u": field(),
        "b": np.array([True, False]),
        "z": np.arange(3) * 1j,
        "short": jnp.arange(3, dtype=jnp.bfloat16),
        "n": np.array(5),
    }
    plans = {**dict.fromkeys(tree), "u": PLAN}
    files.save(folder / "a", tree, plans, chunks=chunks, compression=compression)
    group = zarr.open_group(folder / "a", mode="r")
    np.testing.assert_array_equal(group["u"][1:-1], WHOLE)
    for name in ("b", "z", "n"):
        np.testing.assert_array_equal(group[name][...], tree[name])
        assert group[name].dtype == tree[name].dtype
    assert group["short"].attrs["bits_of"] == "bfloat16"
    np.testing.assert_array_equal(group["short"][:].view(jnp.bfloat16), tree["short"])
    with xarray.open_zarr(folder / "a") as dataset:
        np.testing.assert_array_equal(dataset["u"][1:-1], WHOLE)
        assert set(dataset) == {*tree}
    tensorstore = pytest.importorskip("tensorstore")
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/a/u/"}
    whole = tensorstore.open(spec).result().read().result()
    np.testing.assert_array_equal(whole[1:-1], WHOLE)


# Output.


def fields_at(n):
    return {"h": field() + n, "v": {"mean": np.float32(n)}}


def test_output(folder):
    path = folder / "run.zarr"
    plan = {"h": PLAN, "v": None}
    coords = {"x": np.arange(3) * 0.5, "y": np.arange(CELLS)}
    with files.Output(
        path, plan, dims={"h": ("y", "x"), "v": None}, coords=coords, attrs={"title": "jet"}
    ) as output:
        for n in range(5):
            output.append(fields_at(n), time=0.5 * n)
    assert names_in(folder) == ["run.zarr"]
    assert_written(path, 5)
    text = "files.Output.append was called of output that is closed"
    assert_raises_everywhere(ValueError, text, output.append, fields_at(0))
    assert_raises_everywhere(FileExistsError, "overwrite=True", files.Output, path, PLAN)
    with files.Output(path, plan, dims=("y", "x"), overwrite=True) as output:
        output.append(fields_at(3))
    assert json.loads((path / "zarr.json").read_text())["attributes"] == {}


def assert_written(path, count):
    xarray = xarray_with_zarr()
    with xarray.open_zarr(path) as dataset:
        assert dict(dataset.sizes) == {"time": count, "y": CELLS, "x": 3}
        np.testing.assert_array_equal(dataset.time, 0.5 * np.arange(count))
        np.testing.assert_array_equal(dataset.x, [0, 0.5, 1])
        assert dataset["v.mean"].dims == ("time",)
        for n in range(count):
            np.testing.assert_array_equal(dataset.h[n], WHOLE + n)
            assert dataset["v.mean"][n] == n


def test_errors_of_output(folder):
    path = folder / "run.zarr"
    with files.Output(path, PLAN, dims=("y", "x"), coords={"x": [1, 2]}) as output:
        text = "3 points along the axis 'x' of 'h', expected 2, as the coordinate 'x' has"
        assert_raises_everywhere(ValueError, text, output.append, {"h": field()})
    with files.Output(path, PLAN, dims=("y", "x"), overwrite=True) as output:
        output.append({"h": field()})
        text = "type int32 and shape .* for 'h', .* expected type float32"
        whole = {"h": field().astype(int)}
        assert_raises_everywhere(ValueError, text, output.append, whole)
        text = "another tree of fields"
        assert_raises_everywhere(ValueError, text, output.append, {"k": field()})
        text = "expected arrays or numbers"
        assert_raises_everywhere(TypeError, text, output.append, {"h": "text"})
        output.append({"h": field()})
    metadata = json.loads((path / "h" / "zarr.json").read_text())
    assert metadata["shape"] == [2, CELLS, 3]


def append_until_it_is_known(output):
    for n in range(20):
        output.append({"h": field() + n}, time=n)


def test_output_that_can_not_be_written(folder, monkeypatch):
    from mpi4jax._internal.files.folders import Files

    write = Files.write_array

    def fail(self, name, index, *args):
        if RANK == SIZE - 1 and index[0] == 2:
            raise OSError(28, "No space left on device: /some/file")
        write(self, name, index, *args)

    monkeypatch.setattr(Files, "write_array", fail)
    output = files.Output(folder / "run.zarr", PLAN, dims=("y", "x"))
    with pytest.raises(OSError, match="No space left"):
        append_until_it_is_known(output)
    assert_raises_everywhere(OSError, "No space left", output.close)
    metadata = json.loads((folder / "run.zarr" / "h" / "zarr.json").read_text())
    assert metadata["shape"] == [2, CELLS, 3], "the times before are there"


@pytest.mark.parametrize("last", [-1.0, 0.7, 9.0])
def test_output_is_continued(folder, last):
    """As by a run that is restarted from a checkpoint before the last output."""
    path, coords = folder / "run.zarr", {"x": np.arange(3) * 0.5}
    arguments = {"plan": {"h": PLAN, "v": None}, "dims": {"h": ("y", "x"), "v": None}}
    arguments |= {"coords": coords, "comm": comm}
    for chunks, moment in [((2, 2), None), (None, last)]:
        with files.Output(path, chunks=chunks, after=moment, **arguments) as output:
            done = 0 if moment is None else sum(0.5 * n <= moment for n in range(4))
            assert repr(output).endswith(f"{done} times>")
            if moment is not None:
                # Nothing is lost before the first fields are there.
                assert_written(path, 4)
            for n in range(done, done + 4 if moment is None else done + 2):
                output.append(fields_at(n), time=0.5 * n)
    assert_written(path, done + 2)
    assert len(os.listdir(path / "h" / "c")) == done + 2
    with files.Output(folder / "new.zarr", after=3.0, **arguments) as output:
        output.append(fields_at(0))
    assert_written(folder / "new.zarr", 1)


def test_output_that_can_not_be_continued(folder):
    path, dims = folder / "run.zarr", ("y", "x")
    coords = {"x": np.arange(3.0)}
    with files.Output(path, PLAN, dims=dims, coords=coords) as output:
        output.append({"h": field()})

    def refused(text, **changes):
        arguments = {"plan": PLAN, "dims": dims, "coords": coords, "after": 0.0, **changes}
        assert_raises_everywhere(ValueError, text, files.Output, path, **arguments)

    refused("got `after` and overwrite=True", overwrite=True)
    refused("got nan for argument `after`", after=np.nan)
    refused("another coordinate 'x'", coords={"x": np.arange(3.0) + 1})
    refused("another coordinate 'x'", coords={"x": np.arange(3)})
    refused("another coordinate 'y'", coords={**coords, "y": np.arange(CELLS)})
    refused("got no coordinate 'x'", coords={})
    with pytest.raises(TypeError, match="`after` must be None or a number, not 'abc'"):
        files.Output(path, PLAN, after="abc")
    if SIZE > 1:
        text = "the argument `after` 0.0 on rank 0 and 1.0 on rank 1"
        with pytest.raises(ValueError, match=text):
            files.Output(path, PLAN, after=min(RANK, 1))
    files.save(folder / "checkpoint", {"time": np.arange(3.0)})
    for argument in ({"after": 1.0}, {"overwrite": True}):
        arguments = (FileExistsError, "is a checkpoint", files.Output)
        assert_raises_everywhere(*arguments, folder / "checkpoint", PLAN, **argument)
    if RANK == 0:
        (folder / "other").mkdir()
        (folder / "other" / "zarr.json").write_text("text")
    comm.Barrier()
    arguments = (ValueError, "which files.Output has not written", files.Output)
    assert_raises_everywhere(*arguments, folder / "other", PLAN, after=1.0)
    for fields, text in [
        ({"h": field(), "v": 0}, "got the arrays .'h', 'v'., expected .'h'., as before"),
        ({"h": field().astype(np.int32)}, "type int32 .* expected type float32"),
    ]:
        output = files.Output(path, PLAN, dims=dims, coords=coords, after=0.0)
        assert_raises_everywhere(ValueError, text, output.append, fields)
        output.close()
    with files.Output(path, PLAN, dims=dims, coords=coords, after=0.0) as output:
        text = "got the time 0.0, expected one after 0.0"
        fields = {"h": field()}, 0.0
        assert_raises_everywhere(ValueError, text, output.append, *fields)
    with files.Output(path, PLAN, dims=dims, coords=coords, after=0.0) as output:
        output.append({"h": field() + 1})
    xarray = xarray_with_zarr()
    with xarray.open_zarr(path) as dataset:
        np.testing.assert_array_equal(dataset.h[1], WHOLE + 1)


def test_what_is_kept_of_earlier_output(folder):
    path, coords = folder / "run.zarr", {"x": np.arange(3.0)}
    with files.Output(path, PLAN, coords=coords, attrs={"a": 1, "b": 1}) as output:
        for n in range(4):
            output.append({"h": field()}, time=np.float32(0.1) * n)
    if RANK == 0:
        metadata = json.loads((path / "zarr.json").read_text())
        metadata["consolidated_metadata"]["metadata"]["time"]["attributes"] = {"units": "s"}
        (path / "zarr.json").write_text(json.dumps(metadata))
    before = os.stat(path / "x" / "c" / "0")
    comm.Barrier()
    with files.Output(path, PLAN, coords=coords, attrs={"b": 2}, after=0.1) as output:
        assert repr(output).endswith(" 2 times>"), "the time was rounded to float32"
        output.append({"h": field()}, time=0.2)
    metadata = json.loads((path / "zarr.json").read_text())
    assert metadata["attributes"] == {"a": 1, "b": 2}
    arrays = metadata["consolidated_metadata"]["metadata"]
    assert arrays["time"]["attributes"] == {"units": "s"}
    assert arrays["h"]["shape"][0] == 3
    after = os.stat(path / "x" / "c" / "0")
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_rows_of_other_points_are_not_appended(folder):
    for first, after in ((0, None), (100, 0.0)):
        ids = np.arange(5) + 5 * RANK + first
        plan = unstructured.Plan.from_global(ids, comm=comm)
        output = files.Output(folder / "run.zarr", plan, after=after)
        if first:
            text = "got rows of other ids than"
            assert_raises_everywhere(ValueError, text, output.append, {"x": ids})
        else:
            output.append({"x": ids})
        output.close()


@several
def test_values_of_output_that_differ(folder):
    with files.Output(folder / "run.zarr") as output:
        with pytest.raises(ValueError, match="the checksum of values"):
            output.append({"x": np.full(4, RANK)})
        output.append({"x": np.full(4, 3)})
    with pytest.raises(ValueError, match="the checksum of values"):
        files.Output(folder / "b.zarr", coords={"x": np.full(4, RANK)})


def test_what_one_process_has_written_is_read_by_all(folder, monkeypatch):
    from mpi4jax._internal.files import chunks, load

    monkeypatch.setattr(chunks, "LARGEST", 16 * 8)
    whole = np.arange(64 * SIZE * 2.0).reshape(64 * SIZE, 2)
    if RANK == 0:
        files.save(folder / "a", whole, files.Rows(), comm=MPI.COMM_SELF)
    comm.Barrier()
    assert len(files_of(folder / "a" / "value")) == 1
    sizes, read_box = [], load.read_box

    def read(folder, array, storage, box, values):
        sizes.append(values.size)
        read_box(folder, array, storage, box, values)

    monkeypatch.setattr(load, "read_box", read)
    rows = files.load(folder / "a", files.Rows(), comm=comm)
    np.testing.assert_array_equal(rows, whole[64 * RANK : 64 * RANK + 64])
    assert sum(sizes) == 128


def test_output_of_rows_of_points(folder):
    ids = np.unique(np.arange(3 * RANK, 3 * RANK + 5) % (3 * SIZE))
    plan = unstructured.Plan.from_global(ids, comm=comm)
    with files.Output(folder / "run.zarr", plan) as output:
        for n in range(3):
            output.append({"x": ids + n, "n": n, "short": jnp.asarray(ids, jnp.bfloat16)})
    xarray = xarray_with_zarr()
    with xarray.open_zarr(folder / "run.zarr") as dataset:
        assert dict(dataset.sizes) == {"time": 3, "row_ids": 3 * SIZE}
        np.testing.assert_array_equal(dataset.row_ids, np.arange(3 * SIZE))
        np.testing.assert_array_equal(dataset.x[2], np.arange(3 * SIZE) + 2)
        np.testing.assert_array_equal(dataset.n, [0, 1, 2])
        assert dataset.short.dtype == np.float32
        np.testing.assert_array_equal(dataset.short[1], np.arange(3 * SIZE))


def test_a_rank_without_anything(folder):
    """More ranks than rows, points of rank 0 alone, and arrays without elements."""
    layout = pencil.Layout(GRID, (1, 3), [0])
    ids = np.arange(5) if RANK == 0 else np.zeros(0, int)
    points = unstructured.Plan.from_global(ids, comm=comm)
    tree = {
        "x": np.arange(3.0)[None][layout.slices[:1]],
        "ids": ids,
        "none": np.zeros((0, 2)),
        "nothing": np.zeros((len(ids), 0), np.int8),
        "rows": jnp.zeros((3 * RANK, 2, 0)),
        "0d": np.array(True),
    }
    plan = {**dict.fromkeys(tree), "x": layout, "ids": points, "nothing": points}
    plan["rows"] = files.Rows()
    for wait in (True, False):
        saving = files.save(folder / f"{wait}", tree, plan, wait=wait)
        if saving is not None:
            saving.wait()
        loaded = files.load(
            folder / f"{wait}", {**plan, "rows": files.Rows(3 * RANK)}, like=tree
        )
        for name, x in tree.items():
            np.testing.assert_array_equal(loaded[name], x)
        assert not files.info(folder / f"{wait}", verify=True).damage


def test_a_path_that_is_no_folder(folder):
    if RANK == 0:
        (folder / "file").touch()
    comm.Barrier()
    for path in (folder / "file", folder / "file" / "a"):
        for overwrite in (False, True):
            with pytest.raises(OSError, match="file"):
                files.save(path, {"x": 1}, overwrite=overwrite)
    text = "`path` must be a path, not 3"
    assert_raises_everywhere(TypeError, text, files.save, 3, {"x": 1})
    assert names_in(folder) == ["file"]


def test_names_that_file_systems_do_not_have(folder):
    tree = {
        name: n
        for n, name in enumerate(["a/b", "A_b", "", "..", "zarr.json", "ü", "c", "ü" * 300])
    }
    tree = {name: np.array(n) for name, n in tree.items()}
    files.save(folder / "a", {**tree, "deep": {"c": np.array(9)}})
    loaded = files.load(folder / "a")
    assert loaded == {**tree, "deep": {"c": 9}}
    names = [array.name for array in files.info(folder / "a").arrays]
    assert len({name.casefold() for name in names}) == len(tree) + 1


def assert_goes_on(folder, state, plan, advance):
    """A state that is saved and loaded halfway reaches the end of one that is not."""
    half = advance(state, 0)
    files.save(folder / "half", half, plan)
    ends = [advance(state, 1) for state in (half, files.load(folder / "half", plan))]
    assert jax.tree.all(jax.tree.map(jnp.array_equal, *ends))


@pytest.fixture
def example(monkeypatch):
    """A function that imports an example by its name."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[3] / "examples")
    return importlib.import_module


def test_training_goes_on(folder, example):
    training = example("training")
    points = jax.random.uniform(jax.random.key(RANK), (training.POINTS, 2), minval=-1)
    weights = training.first_weights(jax.random.key(0))

    def advance(state, epoch):
        key = jax.random.fold_in(state["key"], epoch)
        both = state["weights"], state["velocity"]
        labels = points[:, 0] > points[:, 1]
        weights, velocity = training.train_epoch(both, key, points, labels)[0]
        return {**state, "weights": weights, "velocity": velocity}

    velocity = jax.tree.map(jnp.zeros_like, weights)
    state = {"weights": weights, "velocity": velocity, "key": jax.random.key(3)}
    assert_goes_on(folder, state, None, advance)


def test_heat_goes_on(folder, example):
    heat = example("heat_3d")
    plan = halo.Plan(comm.Create_cart([1, SIZE, 1]), shape=[5, 3 * SIZE, 4])
    solve = jax.jit(heat.make_solver(3, lambda x: heat.exchange_and_advance(plan, x)))
    state = plan.scatter(heat.whole_block([5, 3 * SIZE, 4]))._asdict()

    def advance(state, _):
        return {**state, "temperature": solve(heat.Block(**state))}

    assert_goes_on(folder, state, plan, advance)
