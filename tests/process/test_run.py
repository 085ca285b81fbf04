"""`python -m mpi4jax run`, and processes that are alone under their launcher."""

import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import processes
import pytest
from mpi4py import MPI

from mpi4jax import _launcher, _node
from mpi4jax._commands import place, starters

LIBRARY = _launcher.library_name(MPI.Get_library_version())
IS_OPEN_MPI = LIBRARY.startswith("Open MPI")

#: Seconds until a command is taken to hang, on whatever machine.
PATIENCE = 300


@pytest.fixture
def program(tmp_path):
    """Write a program into a file."""

    def program(code, name="program.py"):
        path = tmp_path / name
        path.write_text(code)
        return str(path)

    return program


def run(*arguments, **options):
    return processes.run(
        "-P", "-m", "mpi4jax", "run", *arguments, timeout=PATIENCE, **options
    )


SAY = """
import os, sys
sys.stdout.write(f"{sys.argv[1:]} {__name__} {os.environ.get('MPI4JAX_CHECK')}\\n")
"""
SUM = """
import jax, jax.numpy as jnp, mpi4jax.notoken as mpi
from mpi4py import MPI
total = mpi.allreduce(jnp.ones(()), op=MPI.SUM)
"""


# The program.


@pytest.mark.parametrize("kind", ["file", "module", "code"])
def test_arguments_of_a_program(program, tmp_path, kind):
    path = program(SAY)
    given = {"file": [path], "module": ["-m", "program"], "code": ["-c", SAY]}[kind]
    done = run("-n", 2, "--check", *given, "-n", "--log", "x y", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == 2 * "['-n', '--log', 'x y'] __main__ 1\n"
    assert re.search(
        rf"^mpi4jax: .*mpiexec.* -n 2 \({re.escape(LIBRARY)}\)$", done.stderr, re.M
    )


def test_under_a_launcher(program):
    done = run(program(f"{SUM}assert float(total) == 2"), ranks=2)
    assert done.returncode == 0, done.stderr


def test_without_a_launcher(program):
    done = run(program(f"{SUM}assert float(total) == 1"))
    assert done.returncode == 0, done.stderr


def test_the_whole_package_is_there(program):
    """A command starts without the public names of mpi4jax."""
    done = run("-c", "import mpi4jax; print(mpi4jax.halo.Plan.__name__)")
    assert done.stdout == "Plan\n", done.stderr


def test_dry_run(program):
    path = program("raise SystemExit('it runs')")
    options = ("--log", "a b", "--timeline", "t", "--on-hang", "report", "--timeout", 5)
    done = run("-n", 3, "--options=-x 1", "--dry-run", *options, path, "--more")
    assert done.returncode == 0, done.stderr
    python = f"{sys.executable} -P -m mpi4jax run"
    ours = "--log 'a b' --on-hang report --timeline t --timeout 5.0"
    end = re.escape(f"{python} {ours} {path} --more\n")
    text = rf"(\S+=\S+ )?\S+/mpiexec .*-n 3 -x 1 {end}"
    assert re.fullmatch(text, done.stdout), done.stdout


def test_an_exit_code(program):
    done = run("-n", 2, "-q", program(f"{SUM}raise SystemExit(7)"))
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr
    assert "mpi4jax: " not in done.stderr


FAILS_EVERYWHERE = f"{SUM}\ndef step():\n    raise ValueError('no such grid')\n\nstep()\n"


def test_an_error_on_all_ranks_is_printed_once(program):
    done = run("-n", 3, program(FAILS_EVERYWHERE))
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    first = re.search(r"Traceback.*\n  File \"(.*?)\", line", done.stderr)[1]
    assert Path(first).name == "program.py"
    assert (
        "\nValueError: no such grid\nmpi4jax: the same error on 2 more rank(s)\n"
        in done.stderr
    )


def test_an_error_on_one_rank_ends_all(program):
    wait = (
        "if MPI.COMM_WORLD.rank == 1: raise ValueError('mine')\nMPI.COMM_WORLD.Barrier()\n"
    )
    done = run("-n", 2, program(f"from mpi4py import MPI\n{wait}"))
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == 1
    assert "\nValueError: mine\n" in done.stderr
    assert "the same error" not in done.stderr


def test_an_error_before_mpi_begins_ends_all(program):
    """Hydra lets the others wait in MPI_Init otherwise."""
    rank = "OMPI_COMM_WORLD_RANK" if IS_OPEN_MPI else "PMI_RANK"
    fail = f"import os\nif os.environ['{rank}'] == '1': raise KeyError('early')\n"
    done = run(
        "-n", 2, program(f"{fail}from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n")
    )
    assert done.returncode != 0
    assert "\nKeyError: 'early'\n" in done.stderr


def test_a_log_of_each_rank(program, tmp_path):
    done = run(
        "-n", 2, "-q", "--log", tmp_path / "logs", program(f"{SAY}{FAILS_EVERYWHERE}")
    )
    assert done.returncode == 1
    assert done.stdout.strip() == ""
    # One for the console.
    assert done.stderr.count("\nValueError: no such grid\n") == 1
    for rank in range(2):
        text = (tmp_path / "logs" / f"rank-{rank}.log").read_text()
        assert text.startswith("[] __main__ None\n")
        assert text.count("\nValueError: no such grid\n") == 1


def test_signals_reach_the_launcher(program):
    path = program("import time; print('here', flush=True); time.sleep(300)")
    process = processes.start("-m", "mpi4jax", "run", "-n", 2, path)
    assert process.stdout.readline().strip()
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert time.monotonic() - began < 200


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "no program is given, expected a file, -m MODULE or -c CODE"),
        (["-m"], "no program is given, expected a file, -m MODULE or -c CODE"),
        (["-n", "0", "x.py"], "'0' is given, expected a number of ranks"),
        (["-n", "two", "x.py"], "'two' is given, expected a number of ranks"),
    ],
)
def test_what_cannot_be_run(arguments, text):
    done = run(*arguments)
    assert done.returncode in (1, 2)
    assert text in done.stderr


def test_two_launchers():
    done = run("-n", 2, "x.py", PMI_RANK="0", PMI_SIZE="4")
    assert done.returncode == 1
    assert done.stderr == (
        "-n 2 is given, but this process was started by MPICH or Intel MPI (PMI_SIZE=4): "
        "leave one of them out\n"
    )


# The launcher that fits.

HYDRA_TEXT = "HYDRA build details:\n    Version:                                 {}\n"


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Put a command on the path, which prints a text."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def on_path(name, text):
        path = folder / name
        (folder / f"{name}.text").write_text(text)
        path.write_text('#!/bin/sh\nexec /bin/cat "$0.text"\n')
        path.chmod(0o755)
        return str(path)

    return on_path


def mpi(name, folder):
    return starters.Mpi(name, str(folder / "lib" / "libmpi.so"))


def test_the_launcher_beside_the_library(on_path, tmp_path):
    path = on_path("mpiexec", HYDRA_TEXT.format("4.2.0"))
    for name in ("MPICH 5.0.2", "Intel(R) MPI Library 2021.16 for Linux* OS"):
        starter = starters.find(mpi(name, tmp_path), {})
        assert starter == ([path], "Hydra 4.2.0", "Hydra")
        assert starter(4, ["-f", "hosts"], tags=True) == [
            path,
            "-n",
            "4",
            "-l",
            "-f",
            "hosts",
        ]
        command = [path, "-n", "4"]
        starter.leave_cores(command, {})
        assert command == [path, "-n", "4"]


@pytest.mark.parametrize(
    ("text", "tags", "place"),
    [
        (
            "mpiexec (Open MPI) 5.0.8\n\nReport",
            ["--output", "TAG"],
            ["--map-by", ":OVERSUBSCRIBE"],
        ),
        (
            "mpiexec.openmpi (OpenRTE) 4.1.4\n\nReport",
            ["--tag-output"],
            ["--oversubscribe"],
        ),
    ],
)
def test_the_launcher_of_open_mpi(on_path, tmp_path, text, tags, place):
    on_path("mpiexec", HYDRA_TEXT.format("4.2.0"))
    path = on_path("mpiexec.openmpi", text)
    version = re.search(r"\d\.\d\.\d", text)[0]
    starter = starters.find(mpi(f"Open MPI {version}", tmp_path), {})
    assert starter.command == [path]
    assert starter(2, [], tags=True) == [path, "-n", "2", *tags]
    command = [path, "-n", "2"]
    starter.leave_cores(command, {})
    assert command == [path, "--bind-to", "none", *place, "-n", "2"]
    for words, environ in (
        (["--bind-to", "core"], {}),
        ([], {"OMPI_MCA_hwloc_base_binding_policy": "core"}),
    ):
        command = [path, "-n", "2", *words]
        starter.leave_cores(command, environ)
        assert command == [path, "-n", "2", *words]


def test_no_launcher_that_fits(on_path, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    other = on_path("mpiexec", "mpiexec (Open MPI) 4.1.4\n")
    monkeypatch.setenv("PATH", str(Path(other).parent))
    with pytest.raises(LookupError) as error:
        starters.find(mpi("Open MPI 5.0.8", tmp_path), {})
    assert str(error.value) == (
        f"no launcher was found for Open MPI 5.0.8, which mpi4py loads ({tmp_path}/lib/"
        "libmpi.so). It may be beside this file, beside python, or on the path; "
        f"{other} is mpiexec (Open MPI) 4.1.4"
    )
    with pytest.raises(
        LookupError, match="no command is known that starts programs of CRAY"
    ):
        starters.find(mpi("CRAY MPICH version 8.1.28", tmp_path), {})


def test_the_launcher_in_an_allocation_of_slurm(on_path, tmp_path):
    path = on_path("srun", "MPI plugin types are...\n\tnone\n\tpmi2\n")
    on_path("mpiexec", "mpiexec (Open MPI) 5.0.8\n")
    slurm = {"SLURM_JOB_ID": "1"}
    assert starters.find(mpi("MPICH 5.0.2", tmp_path), slurm).command == [
        path,
        "--mpi=pmi2",
    ]
    assert starters.find(mpi("CRAY MPICH version 8", tmp_path), slurm).command == [path]
    # This srun has no PMIx.
    starter = starters.find(mpi("Open MPI 5.0.8", tmp_path), slurm)
    assert Path(starter.command[0]).name == "mpiexec"
    on_path(
        "srun",
        "MPI plugin types are...\n\tpmix\n\tspecific pmix plugin versions: pmix_v4\n",
    )
    starter = starters.find(mpi("Open MPI 5.0.8", tmp_path), slurm)
    assert starter(2, [], tags=True) == [path, "--mpi=pmix", "-n", "2", "-l"]


# The place of each rank on its node.


def test_cores_of_a_rank():
    cores = [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [place.own_cores(cores, rank, 2) for rank in range(2)] == [cores[:2], cores[2:]]
    # All have the same number: the slowest rank sets the pace.
    assert [place.own_cores(cores, rank, 3) for rank in range(3)] == [
        [c] for c in cores[:3]
    ]
    assert place.own_cores(cores, 0, 5) == []
    assert place.own_cores(cores, 1, 2, quota=2.5) == [cores[1]]
    assert place.own_cores(cores, 0, 2, quota=1) == []


def test_the_cores_of_a_node(tmp_path):
    # Two sockets with two cores each, whose CPUs are numbered across sockets.
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu % 2}\n")
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert _node.cores(range(8), tmp_path) == [[0, 4], [2, 6], [1, 5], [3, 7]]
    assert _node.cores([1, 3, 5], tmp_path) == [[1, 5], [3]]
    assert _node.cores([0, 1], tmp_path / "none") == [[0], [1]]


HYDRA = {"MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "3"}


def test_a_gpu_by_the_rank_on_the_node(monkeypatch):
    count = 0
    monkeypatch.setattr(_node, "nvidia_gpus", lambda: count)
    for count, text in (
        (0, None),
        (1, None),
        (2, "a GPU by its rank on the node, which 2 ranks share"),
        (4, "a GPU by its rank on the node"),
    ):
        environ = dict(HYDRA)
        assert place._choose_gpu(environ) == text
        assert environ.get("CUDA_VISIBLE_DEVICES") == (text and str(3 % count))
    for chosen in (
        {"CUDA_VISIBLE_DEVICES": ""},
        {"JAX_CUDA_VISIBLE_DEVICES": "0"},
        {"JAX_PLATFORMS": "cpu"},
        {"MPI_LOCALNRANKS": "1"},
    ):
        assert place._choose_gpu({**HYDRA, **chosen}) is None


def test_threads_where_cores_are_shared():
    environ = {}
    assert place._limit_threads(2, environ) == "2 thread(s)"
    assert environ == {"PJRT_NPROC": "2", "OMP_NUM_THREADS": "2"}
    for chosen in (
        {"NPROC": "4"},
        {"OMP_NUM_THREADS": "4"},
        {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
    ):
        environ = dict(chosen)
        assert place._limit_threads(1, environ) is None
        assert environ == chosen


def test_huge_pages(monkeypatch):
    monkeypatch.setattr(_node, "huge_pages", lambda: "madvise")
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36")
    environ = {}
    assert place.ask_for_huge_pages(environ) == "huge pages"
    assert environ == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    assert place.ask_for_huge_pages(environ) is None
    environ = {"GLIBC_TUNABLES": "glibc.malloc.check=3"}
    assert place.ask_for_huge_pages(environ) == "huge pages"
    assert environ == {"GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.hugetlb=1"}
    assert place.ask_for_huge_pages({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}) is None
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.31")
    assert place.ask_for_huge_pages({}) is None
    monkeypatch.setattr(_node, "huge_pages", lambda: "always")
    assert place.ask_for_huge_pages({}) is None


SHOW_PLACE = """
import os, sys
sys.stdout.write(f"{sorted(os.sched_getaffinity(0))} {os.environ.get('PJRT_NPROC')}\\n")
"""

is_bound = _node.allowed_cpus() != _node.all_cpus()
has_two_cores = (
    len(place.own_cores(_node.cores(_node.all_cpus()), 0, 2, _node.cpu_quota())) > 0
)


@pytest.mark.skipif(is_bound or not has_two_cores, reason="no core for each of two ranks")
def test_each_rank_has_cores_of_its_own():
    own = [
        place.own_cores(_node.cores(_node.all_cpus()), rank, 2, _node.cpu_quota())
        for rank in range(2)
    ]
    lines = {f"{sorted(cpu for core in cores for cpu in core)} None" for cores in own}
    done = run("-n", 2, "-c", SHOW_PLACE)
    assert set(done.stdout.splitlines()) == lines, done.stderr
    assert f"mpi4jax: each rank has {len(own[0])} core(s) of its own" in done.stderr

    # Where the user leaves it to others.
    done = run("-n", 2, "--as-is", "--dry-run", "-c", "pass")
    assert "GLIBC" not in done.stdout
    everything = f"{_node.all_cpus()} None"
    done = run("--as-is", "-c", SHOW_PLACE, **HYDRA)
    assert done.stdout.splitlines() == [everything], done.stderr

    # While another run has a core, a rank is not bound to it.
    with socket.socket(socket.AF_UNIX) as claim:
        claim.bind(f"\0mpi4jax, CPU {own[1][0][0]}")
        done = run("-n", 2, "-c", SHOW_PLACE)
    limited = f"{_node.all_cpus()} {len(own[0])}"
    assert set(done.stdout.splitlines()) == {min(lines), limited}, done.stderr


# Ranks that are alone.

#: The variables of the mpiexec that does not belong to this MPI.
FOREIGN = (
    {"PMI_RANK": "0", "PMI_SIZE": "2"}
    if IS_OPEN_MPI
    else {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
)
LONELY = re.compile(
    r"RuntimeError: every process is rank 0 of 1, but mpiexec started 2: .* Start the "
    r"program with the mpiexec of that MPI, as `python -m mpi4jax run -n 2` does\. "
    "MPI4JAX_ALONE=1 allows it, if each process is to work for itself\n"
)


@pytest.mark.parametrize("comm", ["None", "MPI.COMM_WORLD", "MPI.COMM_SELF"])
def test_an_operation_of_a_rank_that_is_alone(launch, comm):
    code = SUM.replace("op=MPI.SUM", f"op=MPI.SUM, comm={comm}")
    done = launch(code, ranks=0, **FOREIGN)
    assert done.returncode == 1
    assert LONELY.search(done.stderr), done.stderr


def test_jax_s_collectives_of_a_rank_that_is_alone(launch):
    done = launch("import mpi4jax; mpi4jax.distributed.initialize()", ranks=0, **FOREIGN)
    assert done.returncode == 1
    assert LONELY.search(done.stderr), done.stderr


@pytest.mark.parametrize(
    "environ",
    [
        {**FOREIGN, "MPI4JAX_ALONE": "1"},
        # The shell of a batch script, and an array of jobs.
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
        {"SLURM_JOB_ID": "1", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_ID": "2"},
        # A step of one process.
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"},
    ],
)
def test_a_rank_that_is_to_be_alone(launch, environ):
    done = launch(f"{SUM}print(float(total))", ranks=0, **environ)
    assert done.stdout == "1.0\n", done.stderr


SPAWN = """
import sys
from mpi4py import MPI

MPI.COMM_WORLD.Spawn(sys.executable, ["-P", sys.argv[1]], maxprocs=1).Disconnect()
"""


def test_a_process_that_was_spawned(program):
    """It is alone in its world, though several were started with its parent."""
    child = program(f"{SUM}MPI.Comm.Get_parent().Disconnect(); assert float(total) == 1")
    done = processes.run(program(SPAWN, "parent.py"), child, ranks=2, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"},
            "srun started 4: srun (SLURM_STEP_NUM_TASKS) and MPICH 5.0.2, which mpi4py "
            "loaded (/lib/libmpi.so), do not know each other. Try `srun --mpi=pmix`",
        ),
        (
            {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4", "PMI_RANK": "1", "PMI_SIZE": "4"},
            "Flux started 4: Flux (FLUX_JOB_SIZE) and MPICH 5.0.2",
        ),
        (
            {"PALS_RANKID": "1", "PMI_RANK": "1", "PMI_SIZE": "4"},
            "PALS started 4: PALS (PMI_SIZE) and MPICH 5.0.2, which mpi4py loaded "
            "(/lib/libmpi.so), do not know each other. Use mpi4py with the MPI of this "
            "machine, or the mpiexec of that MPI",
        ),
        (
            {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "4"},
            "jsrun started 4: jsrun (JSM_NAMESPACE_SIZE) and MPICH 5.0.2",
        ),
    ],
)
def test_launchers_that_belong_to_no_mpi(environ, text):
    started_by = _launcher.launchers(environ)
    why = _launcher.mismatch("MPICH 5.0.2", "/lib/libmpi.so", 1, started_by)
    assert why.startswith(f"every process is rank 0 of 1, but {text}")
    assert _launcher.mismatch("MPICH 5.0.2", "/lib/libmpi.so", 4, started_by) is None
