"""`python -m mpi4jax run`, and processes that are alone under their launcher."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import processes
import pytest
from launchers import LIBRARY, OWN_RANK, RANK, SIZE

from mpi4jax import _launcher, _node
from mpi4jax._commands import place, starters

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
        rf"^mpi4jax: .*mpiexec.* -n 2.* \({re.escape(LIBRARY)}\)$", done.stderr, re.M
    )


def test_under_a_launcher(program):
    done = run(program(f"{SUM}assert float(total) == 2"), ranks=2)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [("program.py", "--time", "5"), ("--", "program.py", "--o"), ("-mprogram", "x")],
)
def test_words_that_look_like_options(program, tmp_path, words):
    program(SAY)
    done = run(*words, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    given = [word for word in words[1:] if word not in ("--", "program.py")]
    assert done.stdout == f"{given} __main__ None\n", done.stderr


MAIN = """
import atexit, os, pickle, sys
print(os.path.isabs(__file__), os.path.basename(sys.argv[0]))

class Own:
    pass

def add(x: undefined): pass
"""
LATE = (
    "atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Own()))).__module__))\n"
)


def test_the_main_module_is_as_in_python(program, tmp_path):
    path = program(f"{MAIN.replace('def add(x: undefined): pass', '')}{LATE}")
    plain = processes.run(path, cwd=tmp_path)
    assert plain.stdout == "True program.py\n__main__\n", plain.stderr
    assert run("program.py", cwd=tmp_path).stdout == plain.stdout
    done = run(
        "-c",
        f"import __main__; {LATE}".replace(
            "import __main__", "import atexit, pickle\nclass Own: pass\nimport __main__"
        ),
    )
    assert done.stdout == "__main__\n", done.stderr
    # Without the __future__ of the command.
    assert "NameError: name 'undefined'" in run("-c", "def add(x: undefined): pass").stderr


def test_under_a_profiler(program):
    """It imports all of mpi4jax before the command begins."""
    done = run("-m", "cProfile", program(f"{SUM}print(float(total))"))
    assert done.stdout.startswith("1.0\n"), done.stderr
    path = program(f"{SUM}print(float(total), __name__)")
    command = ("-P", "-m", "cProfile", "-m", "mpi4jax", "run", path)
    done = processes.run(*command, timeout=PATIENCE)
    assert done.stdout.startswith("1.0 __main__\n"), done.stderr


def test_what_is_recorded(program, tmp_path):
    done = run("-n", 2, "--timeline", tmp_path / "t", "--profile", program(SUM))
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "t").iterdir())
    assert "allreduce" in done.stderr + done.stdout


def test_without_a_launcher(program):
    done = run(program(f"{SUM}assert float(total) == 1"))
    assert done.returncode == 0, done.stderr


def test_the_whole_package_is_there(program):
    """A command starts without the public names of mpi4jax."""
    done = run("-c", "import mpi4jax; print(mpi4jax.halo.Plan.__name__)")
    assert done.stdout == "Plan\n", done.stderr


def test_dry_run(program):
    path = program("raise SystemExit('it runs')")
    options = ("--log", "/a b", "--timeline", "t", "--on-hang", "report", "--timeout", 5)
    done = run("-n", 3, "--options=-x 1", "--dry-run", *options, path, "--more")
    assert done.returncode == 0, done.stderr
    python = f"{sys.executable} -P -m mpi4jax run"
    timeline = Path("t").absolute()
    ours = f"'--log=/a b' --on-hang=report --timeline={timeline} --timeout=5.0"
    end = re.escape(f"{python} {ours} {path} --more\n")
    text = rf"(\S+=\S+ )?\S+/mpiexec .*-n 3.* -x 1 {end}"
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
    fail = f"import os\nif os.environ['{OWN_RANK}'] == '1': raise KeyError('early')\n"
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
        (["-n", "2", "none.py"], "there is no file none.py to run\n"),
        (["--dry-run", "-c", "pass"], "--dry-run is given without -n, as is needed"),
        (["--options=-x", "-c", "pass"], "--options is given without -n, as is needed"),
        (["-n", "2", "--options='", "x.py"], "argument --options: invalid split value"),
    ],
)
def test_what_cannot_be_run(arguments, text):
    done = run(*arguments)
    assert done.returncode in (1, 2)
    assert text in done.stderr


def test_in_a_step_of_one_process():
    """The shell of an allocation is one, where Slurm is set so."""
    done = run(
        "-n", 2, "--dry-run", "-c", "pass", SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1"
    )
    assert done.returncode == 0, done.stderr


def test_two_launchers():
    done = run("-n", 2, "-c", "pass", PMI_RANK="0", PMI_SIZE="4")
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
        assert starter.tag_options() == ["-l"]
        assert starter.binding_options([], {}) == []


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
    assert starter.tag_options() == tags
    none = ["--bind-to", "none"]
    assert starter.binding_options([], {}) == [*none, *place]
    # What a user or a batch system has chosen.
    for options, environ, added in (
        (["--bind-to", "core"], {}, place),
        (["--hostfile", "hosts"], {}, none),
        ([], {"OMPI_MCA_hwloc_base_binding_policy": "core"}, place),
        ([], {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}, none),
        ([], {"PBS_NODEFILE": "/pbs/hosts"}, none),
        (["--report-bindings"], {"HOME": "/home/binder"}, [*none, *place]),
    ):
        assert starter.binding_options(options, environ) == added


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
    slurm, kill = {"SLURM_JOB_ID": "1"}, "--kill-on-bad-exit=1"
    assert starters.find(mpi("MPICH 5.0.2", tmp_path), slurm).command == [
        path,
        kill,
        "--mpi=pmi2",
    ]
    assert starters.find(mpi("CRAY MPICH version 8", tmp_path), slurm).command == [
        path,
        kill,
    ]
    more = {**slurm, "SLURM_CPUS_PER_TASK": "8", "SLURM_STEP_ID": "0"}
    starter = starters.find(mpi("MPICH 5.0.2", tmp_path), more)
    assert starter.command == [path, kill, "--mpi=pmi2", "--cpus-per-task=8", "--overlap"]
    # Intel MPI needs a library of Slurm's, or takes its own mpiexec.
    intel = mpi("Intel(R) MPI Library 2021.16 for Linux* OS", tmp_path)
    with_library = {**slurm, "I_MPI_PMI_LIBRARY": "/usr/lib/libpmi2.so"}
    assert starters.find(intel, with_library).command == [path, kill, "--mpi=pmi2"]
    assert Path(starters.find(intel, slurm).command[0]).name != "srun"
    # This srun has no PMIx.
    starter = starters.find(mpi("Open MPI 5.0.8", tmp_path), slurm)
    assert Path(starter.command[0]).name == "mpiexec"
    on_path(
        "srun",
        "MPI plugin types are...\n\tpmix\n\tspecific pmix plugin versions: pmix_v4\n",
    )
    starter = starters.find(mpi("Open MPI 5.0.8", tmp_path), slurm)
    assert starter.command == [path, kill, "--mpi=pmix"]
    assert starter.tag_options() == ["-l"]


# The place of each rank on its node.


HYDRA = {"MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "3"}


def test_a_gpu_by_the_rank_on_the_node(monkeypatch):
    count = 0
    monkeypatch.setattr(_node, "nvidia_gpus", lambda: count)
    for count, text in (
        (0, None),
        (1, None),
        (2, "a GPU, which 2 ranks share"),
        (4, "a GPU"),
    ):
        environ = dict(HYDRA)
        assert place._choose_gpu(environ) == text
        assert environ.get("CUDA_VISIBLE_DEVICES") == (text and str(3 % count))
    # As Slurm sets it for all tasks.
    environ = {**HYDRA, "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    assert place._choose_gpu(environ) == "a GPU"
    assert environ["CUDA_VISIBLE_DEVICES"] == "7"
    for chosen in (
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "2"},
        {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_PER_TASK": "2"},
        {"JAX_CUDA_VISIBLE_DEVICES": "0"},
        {"JAX_PLATFORMS": "cpu"},
        {"MPI_LOCALNRANKS": "1"},
    ):
        assert place._choose_gpu({**HYDRA, **chosen}) is None


@pytest.fixture
def node(monkeypatch):
    """A node with these CPUs, on some of which this process may run."""

    def node(cpus, allowed=None, quota=None):
        monkeypatch.setattr(_node, "all_cpus", lambda: list(range(cpus)))
        monkeypatch.setattr(_node, "allowed_cpus", lambda: list(range(allowed or cpus)))
        monkeypatch.setattr(_node, "cpu_quota", lambda: quota)

    return node


def test_threads_of_a_rank(node):
    for cpus, quota, count in ((16, None, 4), (6, None, 1), (2, None, 1), (16, 9.5, 2)):
        node(cpus, quota=quota)
        environ = dict(HYDRA)
        text = f"{count} thread{'s' * (count > 1)}"
        assert place._limit_threads(environ) == text
        added = {"PJRT_NPROC": str(count), "OMP_NUM_THREADS": str(count)}
        assert environ == {**HYDRA, **added}
    node(16, allowed=4)
    assert place._limit_threads(dict(HYDRA)) is None
    node(16)
    assert place._limit_threads({"MPI_LOCALNRANKS": "1"}) is None


@pytest.mark.parametrize(
    ("chosen", "is_set"),
    [
        ({"NPROC": "4"}, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "1"}, "PJRT_NPROC"),
        ({"MKL_NUM_THREADS": "1"}, "PJRT_NPROC"),
        ({"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}, "OMP_NUM_THREADS"),
        ({"PJRT_NPROC": "4", "OPENBLAS_NUM_THREADS": "2"}, None),
    ],
)
def test_threads_that_are_chosen(node, chosen, is_set):
    node(16)
    environ = {**HYDRA, **chosen}
    assert place._limit_threads(environ) == (is_set and "4 threads")
    assert environ == {**HYDRA, **chosen, **({is_set: "4"} if is_set else {})}


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
names = "PJRT_NPROC", "GLIBC_TUNABLES"
sys.stdout.write(f"{[os.environ.get(name) for name in names]}\\n")
"""


@pytest.mark.skipif(
    _node.allowed_cpus() != _node.all_cpus(), reason="these processes are bound already"
)
def test_the_place_of_each_rank():
    each = max(1, int(min(len(_node.all_cpus()), _node.cpu_quota() or 1e9) / 2))
    environ = {}
    pages = place.ask_for_huge_pages(environ)
    line = f"{[str(each), environ.get(place.TUNABLES)]}\n"
    done = run("-n", 2, "-c", SHOW_PLACE, PJRT_NPROC="", OMP_NUM_THREADS="")
    assert done.stdout == 2 * line, done.stderr
    assert f"mpi4jax: each rank has {each} thread" in done.stderr
    # Under another launcher, each rank starts Python again for the pages.
    done = run("-c", SHOW_PLACE, ranks=2, PJRT_NPROC="", OMP_NUM_THREADS="")
    assert done.stdout == 2 * line, done.stderr
    assert done.stderr.count("mpi4jax: each rank has ") == 1
    assert ("huge pages" in done.stderr) == (pages is not None)

    done = run("-n", 2, "--as-is", "-c", SHOW_PLACE, PJRT_NPROC="", GLIBC_TUNABLES="")
    assert done.stdout == 2 * "['', '']\n", done.stderr


# Ranks that are alone.

FOREIGN = {RANK: "0", SIZE: "2"}
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
    """A spawned process has a world of its own, though its parent has neighbors."""
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
