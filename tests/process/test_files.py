"""Checkpoints that some processes write and others load, or that are killed meanwhile."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pages
import processes
import pytest
from sample import seeds

from mpi4jax import _core, _manifest

CASES = Path(__file__).with_name("files_cases.py")

#: Numbers of processes that save, and that load: all pairs, if there are as many seeds.
PAIRS = [(1, 3), (2, 1), (3, 2), *((n, m) for n in range(1, 7) for m in range(1, 7))]


@pytest.mark.parametrize("seed", seeds(3))
def test_random_trees(seed, tmp_path):
    """Each seed has 12 trees, and its numbers of processes."""
    for name, ranks in zip(("save", "load"), PAIRS[seed % len(PAIRS)], strict=True):
        cases = CASES, name, tmp_path, 12 * seed, 12 * seed + 12
        done = processes.run(*cases, ranks=ranks, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr


KILLED = """
import sys
import numpy as np
from mpi4py import MPI
from mpi4jax import files

comm = MPI.COMM_WORLD
newest = files.latest(sys.argv[1])
first = 0 if newest is None else files.load(newest)["step"] + 1
rows = np.arange(200_000) + comm.Get_rank()
for step in range(first, 10**9):
    tree = {"step": step, "x": rows + step}
    saving = files.save(
        f"{sys.argv[1]}/{step % 5}",
        tree,
        {"step": None, "x": files.Rows()},
        keep=3,
        overwrite=True,
        chunks=(30_000,),
        wait=step % 2 == 0,
    )
    if saving is not None:
        saving.wait()
    if comm.Get_rank() == 0:
        print(step, flush=True)
"""


@pytest.mark.parametrize("seed", seeds(3))
def test_kill_while_saving(seed, tmp_path):
    """What is complete is that which was printed last, or one that came later."""
    script, folder = tmp_path / "killed.py", tmp_path / "restart"
    script.write_text(KILLED)
    moments = random.Random(seed)
    last = -1
    for _ in range(2):
        run = processes.start(script, folder, ranks=2)
        try:
            for _ in range(3):
                last = int(run.stdout.readline())
            time.sleep(moments.uniform(0, 0.1))
            for process in moments.sample(ranks_of(run.pid), moments.choice([1, 2])):
                os.kill(process, signal.SIGKILL)
        finally:
            rest, _ = processes.stop(run)
        last = max([last, *map(int, filter(str.isdigit, rest.splitlines()))])
        path = _manifest.checkpoints(folder)[0]
        found = _manifest.info(path, verify=True)
        assert not found.damage
        assert found.values["['step']"] in (last, last + 1)
        last = found.values["['step']"]
    assert 1 <= len(_manifest.checkpoints(folder)) <= 5


def ranks_of(mpiexec):
    """The processes of the program that an mpiexec has started, directly or not."""
    listing = subprocess.check_output(["ps", "-eo", "pid,ppid,args"], text=True)
    rows = [line.split(None, 2) for line in listing.splitlines()[1:]]
    below, found = {mpiexec}, []
    for _ in range(4):
        below |= {int(pid) for pid, parent, _ in rows if int(parent) in below}
    for pid, _, command in rows:
        if int(pid) in below and command.startswith(sys.executable):
            found.append(int(pid))
    return found


RACING = """
import sys
import numpy as np
from mpi4jax import files

folder, number = sys.argv[1], int(sys.argv[2])
for n in range(20):
    try:
        tree = {"x": np.full(200_000, number), "n": number}
        files.save(folder + "/a", tree, overwrite=True)
    except FileExistsError as error:
        assert "another run is writing" in str(error), error
"""


def test_two_runs_with_one_name(tmp_path):
    """One saves at a time. What is there is whole, and of one of them."""
    script, folder = tmp_path / "racing.py", tmp_path / "restart"
    script.write_text(RACING)
    runs = [processes.start(script, folder, n) for n in (1, 2)]
    for run in runs:
        texts = run.communicate(timeout=90)
        assert run.returncode == 0, texts
    assert os.listdir(folder) == ["a"]
    found = _manifest.info(folder / "a", verify=True)
    assert not found.damage
    assert found.values["['n']"] in (1, 2)


FULL = """
import re
import sys
import numpy as np
from mpi4py import MPI
from mpi4jax import files

comm, folder = MPI.COMM_WORLD, sys.argv[1]
files.save(f"{folder}/0", {"x": np.zeros(10)})
large = {"x": np.ones(500_000)}, files.Rows()
for wait in (True, False):
    try:
        saving = files.save(f"{folder}/1", *large, wait=wait, chunks=(100_000,))
        saving.wait()
    except OSError as error:
        texts = comm.allgather(str(error))
        assert texts == [texts[0]] * comm.Get_size(), texts
        assert "No space left on device" in texts[0], texts[0]
        # One may have written its part, and have no room to say so.
        files_of_save = f"{folder}/.1.writing/(x/c|[.]reports)/"
        assert re.search(files_of_save, texts[0]), texts[0]
    else:
        raise AssertionError("it is not full")
    comm.Barrier()
    assert files.latest(folder).name == "0"
files.save(f"{folder}/2", {"x": np.zeros(10)})
with files.Output(f"{folder}/run.zarr", files.Rows()) as output:
    output.append({"x": np.zeros(10)})
    try:
        for _ in range(3):
            output.append({"x": np.ones(10)})
            output.append(large[0])
    except ValueError as error:
        print("as expected", error)
"""


def test_a_full_disk(tmp_path):
    script, disk = tmp_path / "full.py", tmp_path / "disk"
    script.write_text(FULL)
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        done = processes.run(script, disk, ranks=2)
        assert done.returncode == 0, done.stdout + done.stderr
        left = sorted(os.listdir(disk))
        assert left == ["0", "2", "run.zarr"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


#: Examples with short runs, the checkpoint at their end, and how close the end is that is
#: computed by another number of processes.
RESTARTS = {
    "particles": ("--per-side=8 --steps=160", "000160", 1e-9),
    "shallow_water": ("--nx=24 --ny=12 --days=0.1", "restart/48", 1e-4),
    "taylor_green": ("--modes=12 --time=2", "000040", 1e-12),
}


@pytest.mark.parametrize("name", RESTARTS)
def test_restart_of_an_example(name, tmp_path):
    """The last part of a run, from a checkpoint, ends with the same bits and output."""
    options, last, tolerance = RESTARTS[name]
    folder, whole = tmp_path / "files", tmp_path / "whole"
    options = *options.split(), f"--files={folder}"
    run_example(name, *options, ranks=2)
    (folder / last).rename(whole)
    output = bytes_of(folder.glob("*.zarr"))
    run_example(name, *options, "--restart", ranks=2)
    assert bytes_of(folder.glob("*.zarr")) == output
    assert _manifest.read(folder / last)["files"] == _manifest.read(whole)["files"]
    shutil.rmtree(folder / last)
    run_example(name, *options, "--restart", ranks=3)
    compare(whole, folder / last, tolerance)


def bytes_of(folders):
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files}


def test_the_finite_elements_write_the_whole_solution(tmp_path):
    for ranks in (2, 3):
        run_example("poisson_fem", "--nodes=200", f"--files={tmp_path}", ranks=ranks)
        (tmp_path / "solution").rename(tmp_path / str(ranks))
    compare(tmp_path / "2", tmp_path / "3", 1e-10)


def test_the_picture_of_a_page(tmp_path):
    """The block of docs/files.md that draws what an example has written."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("xarray")
    options, _, _ = RESTARTS["shallow_water"]
    run_example("shallow_water", *options.split(), f"--files={tmp_path}/jet", ranks=2)
    block = pages.block_run_by_test("files.md")
    done = processes.run("-c", block.text, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "vorticity.png").read_bytes().startswith(b"\x89PNG")


def run_example(name, *options, ranks):
    program = Path(__file__).parents[2] / "examples" / f"{name}.py"
    done = processes.run(program, *options, "--no-plot", ranks=ranks)
    assert done.returncode == 0, done.stdout + done.stderr


COMPARE = """
import sys
import jax
import numpy as np
from mpi4jax import files

def ordered(path):
    tree = files.load(path)
    if "particles" in tree:
        # Their order is that of the processes.
        order = np.argsort(tree["particles"]["number"])
        tree["particles"] = jax.tree.map(lambda x: x[order], tree["particles"])
    return tree

def compare(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=float(sys.argv[3]) * np.abs(a).max())

jax.config.update("jax_enable_x64", True)
jax.tree.map(compare, *map(ordered, sys.argv[1:3]))
"""


def compare(*arguments):
    """Fails unless two checkpoints have almost the same values."""
    done = processes.run("-P", "-c", COMPARE, *arguments)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def checkpoint(tmp_path):
    code = f"""
from mpi4jax import files
import jax.numpy as jnp
tree = {{"x": jnp.ones((3, 4)), "step": 7}}
files.save({str(tmp_path / "restart" / "7")!r}, tree)
"""
    script = tmp_path / "save.py"
    script.write_text(code)
    assert processes.run(script).returncode == 0
    return tmp_path / "restart" / "7"


def test_the_command(checkpoint):
    def command(*arguments):
        return processes.run("-P", "-m", "mpi4jax", "files", *arguments)

    done = command(checkpoint.parent)
    first, *lines, last = done.stdout.splitlines()
    assert done.returncode == 0
    assert first.startswith(f"{checkpoint}: ")
    assert [line.split() for line in lines] == [
        ["name", "place", "type", "shape", "chunks"],
        ["x", "['x']", "float32", "3", "x", "4", "3", "x", "4"],
        ["['step']", "int", "7"],
    ]
    assert last == "whole, by sizes"
    chunk = checkpoint / "x" / "c" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[5] ^= 1
    chunk.write_bytes(content)
    assert command(checkpoint).returncode == 0
    done = command(checkpoint, "--verify")
    assert done.returncode == 1
    assert f"{chunk} is damaged: its checksum is" in done.stdout
    assert done.stdout.endswith("damaged: 1 of the files\n")
    done = command(checkpoint / "x")
    assert done.returncode == 1
    assert "which has no file mpi4jax.json" in done.stderr


def test_the_manifest_has_a_checksum(tmp_path):
    content = {"format": _manifest.FORMAT, "x": "ü"}
    file = tmp_path / _manifest.MANIFEST
    encoded = _manifest.encode(content)
    file.write_bytes(encoded)
    assert _manifest.read(tmp_path) == content
    for position in range(len(encoded)):
        damaged = bytearray(encoded)
        damaged[position] ^= 4
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="which is damaged"):
            _manifest.read(tmp_path)
    file.write_bytes(_manifest.encode({"format": 99}))
    with pytest.raises(ValueError, match="of format 99, expected format 1"):
        _manifest.read(tmp_path)


def test_the_checksum_is_crc32c():
    assert _core.checksum(b"123456789") == 0xE3069283
