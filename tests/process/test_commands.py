"""`python -m mpi4jax`: what its commands print, and their exit codes."""

import io
import json
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from launchers import LIBRARY, OTHER, OWN, RANK, SIZE
from processes import run

from mpi4jax import _launcher, _node, _terminal
from mpi4jax.__main__ import parser
from mpi4jax._commands import bench, doctor, facts, hosts, ranks, tables
from mpi4jax._commands.watchdog import Watchdog
from mpi4jax._terminal import PLAIN, Terminal
from mpi4jax._testing.cases import NAMES
from mpi4jax._text import layout, wrap

#: Seconds until a command is taken to hang, on whatever machine.
PATIENCE = 600

#: The measurements of the doctor.
MEASURED = [
    (name, size)
    for name in ("allreduce", "sendrecv")
    for size in ("8 B", "64 KiB", "4 MiB")
]


def command(*arguments, **options):
    return run("-P", "-m", "mpi4jax", *arguments, timeout=PATIENCE, **options)


def lines_of(text, title):
    """The lines of a section of the doctor's, by their names."""
    section = re.search(rf"^{title}\n((?:  .*\n)*)", text, re.MULTILINE)[1]
    return {line[2:14].strip(): line[15:] for line in section.splitlines()}


# doctor


@pytest.fixture(scope="module")
def healthy():
    return command("doctor", ranks=2)


def test_doctor_of_a_healthy_installation(healthy):
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    assert "\nproblem: none\n" in healthy.stdout
    assert healthy.stdout.count("problem:") == 1


def test_doctor_names_what_is_installed(healthy):
    versions = lines_of(healthy.stdout, "versions")
    assert versions.pop("python") == ".".join(map(str, sys.version_info[:3]))
    line = "with tokens" if version("mpi4jax") < "0.8" else "without tokens"
    kind = "an independent reimplementation in Rust, not the original mpi4jax"
    assert (versions.pop("this mpi4jax"), versions.pop("API")) == (kind, line)
    packages = ["mpi4jax", "jax", "jaxlib", "mpi4py", "numpy"]
    assert versions == {name: version(name) for name in packages}


def test_doctor_describes_mpi(healthy):
    mpi = lines_of(healthy.stdout, "MPI")
    assert mpi["library"].startswith(f"{LIBRARY}, MPI ")
    assert re.fullmatch(r"/.*/lib\w+\.so.*", mpi["file"])
    assert mpi["ABI"] in ("mpich", "openmpi", "standard")
    assert re.fullmatch(rf"{OWN}, rank 0 of 2 \(\w+_SIZE\)", mpi["launcher"])
    assert mpi["ranks"] == "2"
    assert mpi["threads"] == "MPI_THREAD_MULTIPLE"
    assert mpi["transports"]


def test_doctor_describes_devices_and_hosts(healthy):
    devices = lines_of(healthy.stdout, "devices")
    assert re.fullmatch(r"\d+ .+", devices["JAX"])
    assert re.fullmatch(r"none \(.+\)|cuda|rocm", devices["driver"])
    assert devices["CUDA-aware"] in ("yes", "no", "MPI does not say")
    (host,) = lines_of(healthy.stdout, "hosts").values()
    text = r"ranks 0-1, [\d.]+ CPU\(s\) allowed, huge pages: (always|madvise|never|unknown)"
    assert re.fullmatch(text, host)


def test_doctor_measures(healthy):
    pattern = r"^(\w+) +(\d+ \w+) +([-\dx. ]+)$"  # a large ratio is "x14"
    rows = re.findall(pattern, healthy.stdout, re.MULTILINE)
    assert [row[:2] for row in rows] == MEASURED
    for _, size, numbers in rows:
        time, bandwidth, mpi4py, _ = numbers.split()
        assert float(time) > 0
        assert float(mpi4py) > 0
        assert size == "8 B" or float(bandwidth) > 0


def test_doctor_in_json():
    done = command("doctor", "--json", MPI4JAX_ON_ERROR="raise")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    (rank,) = report["ranks"]
    assert rank["versions"]["jax"] == version("jax")
    assert rank["mpi"]["library"] == LIBRARY
    assert (rank["mpi"]["rank"], rank["mpi"]["size"]) == (0, 1)
    assert rank["launchers"] == []
    assert rank["settings"]["MPI4JAX_ON_ERROR"] == "raise"
    assert [(row["operation"], row["size"]) for row in report["times"]] == MEASURED
    assert all(row["time (us)"] > 0 for row in report["times"])


def of_another_launcher(*arguments, rank, **environ):
    """Run a command as the mpiexec of another MPI would start it, on one of two ranks."""
    return command(*arguments, **{RANK: str(rank), SIZE: "2", **environ})


def mismatch():
    return re.compile(
        rf"every process is rank 0 of 1, but mpiexec started 2: this mpiexec belongs to "
        rf"{OTHER} \({SIZE}\), mpi4py loaded {re.escape(LIBRARY)} \(/.*\)\. Start the "
        "program with the mpiexec of that MPI, as `python -m mpi4jax run -n 2` does\n"
    )


def test_doctor_with_the_mpiexec_of_another_mpi():
    first, second = (of_another_launcher("doctor", rank=rank) for rank in (0, 1))
    assert first.returncode == second.returncode == 1
    problem = first.stdout[first.stdout.index("\nproblem: ") + len("\nproblem: ") :]
    assert mismatch().match(problem), first.stdout
    # Should MPI end the process when it is initialised, this is the last word.
    last = rf"If MPI cannot be initialised: this mpiexec belongs to {OTHER} \({SIZE}\), "
    assert re.search(last, first.stderr), first.stderr
    assert second.stdout == ""
    assert "If MPI cannot be initialised" not in second.stderr


@pytest.mark.parametrize("name", ["bench", "selftest"])
def test_other_commands_with_the_mpiexec_of_another_mpi(name):
    done = of_another_launcher(name, rank=0)
    assert done.returncode == 1
    assert done.stdout == ""
    assert mismatch().search(done.stderr), done.stderr
    assert done.stderr.count("every process is rank 0 of 1") == 1


@pytest.fixture
def broken(tmp_path):
    """A folder with a package that cannot be imported, to be found before the true one."""

    def broken(package):
        (tmp_path / f"{package}.py").write_text("raise ImportError('it is broken')")
        # An empty entry would be the current folder, which may be the checkout.
        entries = str(tmp_path), os.environ.get("PYTHONPATH")
        return os.pathsep.join(filter(None, entries))

    return broken


NEEDS_MPI4PY = (
    "mpi4jax cannot be imported: ImportError: mpi4jax needs mpi4py, which could not be "
    "imported (it is broken). Install it with `pip install mpi4py`.\n"
)


def test_doctor_without_mpi4py(broken):
    done = command("doctor", PYTHONPATH=broken("mpi4py"))
    assert done.returncode == 1
    assert f"\nproblem: {NEEDS_MPI4PY}" in done.stdout
    assert lines_of(done.stdout, "versions")["jax"] == version("jax")
    assert lines_of(done.stdout, "MPI") == {"launcher": "none"}
    assert "hosts\n" in done.stdout


def test_doctor_without_mpi4py_on_other_ranks(broken):
    """They cannot know whether the first one sees the same."""
    done = of_another_launcher("doctor", rank=1, PYTHONPATH=broken("mpi4py"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"rank 1: {NEEDS_MPI4PY}"


def test_doctor_without_jax(broken):
    done = command("doctor", "--json", ranks=2, PYTHONPATH=broken("jax"))
    assert done.returncode != 0
    # Open MPI's mpiexec adds lines of its own.
    report, _ = json.JSONDecoder().raw_decode(done.stdout.lstrip())
    problem = "mpi4jax cannot be imported: ImportError: it is broken"
    assert report["problems"] == [problem]
    assert report["times"] == []
    assert [rank["mpi"]["rank"] for rank in report["ranks"]] == [0, 1]


ONE_IS_DIFFERENT = """
    import os, sys
    from importlib import metadata
    from mpi4py import MPI
    from mpi4jax.__main__ import main

    installed = metadata.version
    rank = MPI.COMM_WORLD.Get_rank()
    if rank == 2:
        metadata.version = lambda name: "0.8.1" if name == "jax" else installed(name)
        os.environ["MPI4JAX_STAGING_CHUNK"] = "1024"
        os.environ["JAX_ENABLE_X64"] = "1"
    sys.exit(main(["doctor"]))
"""


def test_doctor_compares_the_ranks(launch):
    done = launch(ONE_IS_DIFFERENT, ranks=3, timeout=PATIENCE)
    assert done.returncode != 0
    assert re.findall(r"^problem: (.*)$", done.stdout, re.MULTILINE) == [
        f"ranks 0-1: jax {version('jax')}, rank 2: jax 0.8.1",
        "ranks 0-1: no MPI4JAX_STAGING_CHUNK, rank 2: MPI4JAX_STAGING_CHUNK 1024",
    ]
    note = "note: ranks 0-1: no JAX_ENABLE_X64, rank 2: JAX_ENABLE_X64 1\n"
    assert note in done.stdout
    (host,) = lines_of(done.stdout, "hosts").values()
    assert host.startswith("ranks 0-2, ")


ONE_FAILS = """
    import sys
    from mpi4py import MPI
    from mpi4jax._commands import doctor
    from mpi4jax.__main__ import main

    if MPI.COMM_WORLD.Get_rank() == 1:
        def measure():
            raise RuntimeError("no time")
        doctor.measure = measure
    sys.exit(main(["doctor"]))
"""


def test_an_error_on_one_rank_ends_all(launch):
    # The other rank measures alone: without the abort, a time-out.
    done = launch(ONE_FAILS, ranks=2, timeout=PATIENCE)
    assert done.returncode != 0
    assert "RuntimeError: no time" in done.stderr


# What the doctor says of ranks, launchers and hosts that are not here.


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([3], "rank 3"),
        ([0, 1, 2], "ranks 0-2"),
        ([7, 0, 1, 2, 5, 8], "ranks 0-2, 5, 7-8"),
        ([0, 2], "ranks 0, 2"),
        ([0, 2, 4, 6], "ranks 0, 2, 4, 6"),
        (range(0, 10_000, 2), "ranks 0, 2, 4 and 4997 more"),
        ([*range(20), *range(40, 60), 80, 82, 84], "ranks 0-19, 40-59, 80 and 2 more"),
    ],
)
def test_names_of_ranks(members, text):
    assert ranks.name_ranks(members) == text


def test_what_ranks_say():
    assert ranks.merge_sentences([["a"], ["a", "b"], ["a", "b"]]) == ["a", "ranks 1-2: b"]
    # What most of them say comes first, as the last lines may not be printed.
    assert ranks.merge_sentences([["c"], ["b"], ["b"]]) == ["ranks 1-2: b", "rank 0: c"]


HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}
OPEN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
STEP = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({}, None),
        (HYDRA, "PMI_SIZE"),
        (OPEN, "OMPI_COMM_WORLD_SIZE"),
        (STEP, "SLURM_STEP_NUM_TASKS"),
        # srun --mpi=pmi2
        ({**STEP, "PMI_RANK": "1", "PMI_SIZE": "4"}, "SLURM_STEP_NUM_TASKS"),
        # An mpiexec whose proxies srun has started, one on each of two hosts.
        ({**STEP, "SLURM_STEP_NUM_TASKS": "2", **HYDRA}, "PMI_SIZE"),
        # A batch script
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
    ],
)
def test_launchers(environ, variable):
    launchers = _launcher.launchers(environ)
    if variable is None:
        assert launchers == []
        assert _launcher.is_first(environ)
    else:
        assert launchers[0][1:] == (1, 4, variable)
        assert not _launcher.is_first(environ)


def test_the_rank_that_pmix_tells():
    assert _launcher.is_first({"PMIX_RANK": "0"})
    assert not _launcher.is_first({"PMIX_RANK": "1"})


def why(library, environ, size=1):
    return _launcher.mismatch(library, "/lib/libmpi.so", size, _launcher.launchers(environ))


def test_launchers_that_fit():
    assert why("MPICH 5.0.2", HYDRA, size=4) is None
    assert why("Open MPI 5.0.11", OPEN, size=4) is None
    assert why("MPICH 5.0.2", {}) is None
    assert why("MPICH 5.0.2", {**HYDRA, "PMI_RANK": "0", "PMI_SIZE": "1"}) is None
    # An mpiexec -n 1 in a job of another one.
    assert why("MPICH 5.0.2", {**OPEN, **HYDRA, "PMI_SIZE": "1"}) is None


def test_launchers_that_do_not_fit():
    start = "every process is rank 0 of 1, but mpiexec started 4: this mpiexec "
    assert why("MPICH 5.0.2", OPEN) == (
        f"{start}belongs to Open MPI (OMPI_COMM_WORLD_SIZE), mpi4py loaded MPICH 5.0.2 "
        "(/lib/libmpi.so). Start the program with the mpiexec of that MPI, as `python -m "
        "mpi4jax run -n 4` does"
    )
    assert why("Open MPI 5.0.11", HYDRA) == (
        f"{start}belongs to MPICH or Intel MPI (PMI_SIZE), mpi4py loaded Open MPI 5.0.11 "
        "(/lib/libmpi.so). Start the program with the mpiexec of that MPI, as `python -m "
        "mpi4jax run -n 4` does"
    )
    assert why("Open MPI 5.0.11", OPEN).startswith(
        f"{start}of Open MPI (OMPI_COMM_WORLD_SIZE) and Open MPI 5.0.11, which mpi4py "
        "loaded (/lib/libmpi.so), do not know each other. The mpiexec on the path is "
    )
    assert why("MPICH 5.0.2", STEP) == (
        "every process is rank 0 of 1, but srun started 4: srun (SLURM_STEP_NUM_TASKS) and "
        "MPICH 5.0.2, which mpi4py loaded (/lib/libmpi.so), do not know each other. Try "
        "`srun --mpi=pmix` (Open MPI) or `srun --mpi=pmi2` (MPICH; Intel MPI with "
        "I_MPI_PMI_LIBRARY); `srun --mpi=list` says what there is"
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MPICH Version:      5.0.2\nMPICH ABI: 18:2:6", "MPICH 5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI user@host, ident: 5", "Open MPI 5.0.11"),
        (
            "Intel(R) MPI Library 2021.16 for Linux* OS\n\0",
            "Intel(R) MPI Library 2021.16 for Linux* OS",
        ),
    ],
)
def test_names_of_libraries(text, name):
    assert _launcher.library_name(text) == name


def test_transports():
    text = "MPICH Version: 5.0.2\nMPICH Device:       ch4:ucx ofi\nMPICH CC: cc"
    assert facts.transports(text) == "ch4:ucx ofi"
    assert facts.transports("Open MPI v5.0.11, package: Open MPI") is None


def test_the_quota_of_a_container(tmp_path):
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    (groups / "job" / "step").mkdir(parents=True)
    own.write_text("0::/job/step\n")
    assert _node.cpu_quota(groups, own) is None
    (groups / "job" / "step" / "cpu.max").write_text("max 100000\n")
    (groups / "job" / "cpu.max").write_text("150000 100000\n")
    assert _node.cpu_quota(groups, own) == 1.5
    assert _node.cpu_quota(groups, tmp_path / "none") is None


def test_the_quota_of_an_older_container(tmp_path):
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    (groups / "cpu").mkdir(parents=True)
    own.write_text("5:memory:/\n4:cpu,cpuacct:/job\n")
    (groups / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (groups / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert _node.cpu_quota(groups, own) is None
    (groups / "cpu" / "cpu.cfs_quota_us").write_text("400000\n")
    assert _node.cpu_quota(groups, own) == 4


def test_huge_pages(tmp_path):
    setting = tmp_path / "enabled"
    assert _node.huge_pages(setting) is None
    setting.write_text("always [madvise] never\n")
    assert _node.huge_pages(setting) == "madvise"


def rank_with(host=(), settings=(), threads="MULTIPLE"):
    """The facts of a rank where all is well but what is said."""
    return {
        "errors": [],
        "warnings": [],
        "launchers": [],
        "versions": {},
        "mpi": {"library": "MPICH 5.0.2", "file": None, "size": 1, "threads": threads},
        "devices": {"platform": "cpu"},
        "host": {
            "name": "node",
            "cpus": [0, 1],
            "quota": None,
            "huge_pages": "always",
            **dict(host),
        },
        "settings": dict(settings),
    }


def test_no_notes_where_all_is_well():
    assert doctor.examine([rank_with({"cpus": [cpu]}) for cpu in (0, 1)]) == ([], [])


def test_more_ranks_than_cpus():
    text = (
        "{} ranks share {} CPU(s) on node: they wait for each other's time slices. Start "
        "fewer, or give each less to do (XLA_FLAGS=--xla_cpu_multi_thread_eigen=false)"
    )
    assert doctor.examine([rank_with()] * 3)[1] == [text.format(3, 2)]
    limited = rank_with({"quota": 1.5})
    assert doctor.examine([limited] * 2)[1] == [text.format(2, 1.5)]
    bound = [rank_with({"cpus": [cpu]}) for cpu in (0, 1, 1)]
    assert doctor.examine(bound)[1] == [text.format(3, 2)]
    elsewhere = [rank_with({"name": "other", "cpus": [cpu]}) for cpu in (0, 1)]
    assert doctor.examine([*bound[:2], *elsewhere]) == ([], [])


def test_ranks_that_are_not_bound():
    text = (
        "2 ranks share {} CPU(s) on {}: the threads of a rank keep those of others from "
        "computing. Give each rank CPUs of its own (mpiexec --bind-to core, srun "
        "--cpu-bind=cores) or fewer threads, as `python -m mpi4jax run` does"
    )
    assert doctor.examine([rank_with()] * 2)[1] == [text.format(2, "node")]
    overlapping = [rank_with({"cpus": cpus}) for cpus in ([0, 1], [1, 2])]
    assert doctor.examine(overlapping)[1] == [text.format(3, "node")]
    hosts = [rank_with({"name": name}) for name in ("a", "b") for _ in range(2)]
    assert doctor.examine(hosts)[1] == [text.format(2, "each of 2 hosts (a, b)")]


def test_more_ranks_than_cpus_on_several_hosts():
    def note_about(*rank_counts):
        names = [f"n{host}" for host, count in enumerate(rank_counts) for _ in range(count)]
        bound = [{"name": name, "cpus": [rank % 2]} for rank, name in enumerate(names)]
        (note,) = doctor.examine(list(map(rank_with, bound)))[1]
        return note.split(": they wait")[0]

    assert note_about(3, 2, 3) == "3 ranks share 2 CPU(s) on each of 2 hosts (n0, n2)"
    assert note_about(4, 3, 3, 3, 3, 3) == (
        "4 ranks share 2 CPU(s) on n0, "
        "3 ranks share 2 CPU(s) on each of 5 hosts (n1, n2, n3 and 2 more)"
    )
    assert note_about(3, 4, 5, 6, 7, 7) == (
        "7 ranks share 2 CPU(s) on each of 2 hosts (n4, n5), 3 ranks share 2 CPU(s) on n0, "
        "4 ranks share 2 CPU(s) on n1, and 2 more hosts have more ranks than CPUs"
    )


def hosts_section(special_hosts):
    """The doctor's section about hosts, each given by its ranks and special settings."""
    everyones = [
        rank_with({"name": name, **special})
        for name, (count, special) in special_hosts.items()
        for _ in range(count)
    ]
    return hosts.describe(hosts.of_ranks(everyones))


def test_few_hosts_have_a_line_each():
    section = hosts_section({f"n{host}": (2, {}) for host in range(4)})
    assert section == [
        (
            f"n{host}",
            f"ranks {2 * host}-{2 * host + 1}, 2 CPU(s) allowed, huge pages: always",
        )
        for host in range(4)
    ]


def test_hosts_that_are_alike_share_a_line():
    special_hosts = {f"n{host}": (2, {}) for host in range(10)}
    special_hosts["n3"] = 1, {}
    special_hosts["n5"] = special_hosts["n7"] = 2, {"huge_pages": None}
    assert hosts_section(special_hosts) == [
        (
            "7 hosts",
            "n0, n1, n2 and 4 more: 2 rank(s) each, 2 CPU(s) allowed, huge pages: always",
        ),
        ("n3", "rank 6, 2 CPU(s) allowed, huge pages: always"),
        ("2 hosts", "n5, n7: 2 rank(s) each, 2 CPU(s) allowed, huge pages: unknown"),
    ]


def test_hosts_that_are_all_different():
    *shown, last = hosts_section(
        {f"n{host}": (1, {"cpus": range(host + 1)}) for host in range(9)}
    )
    assert [name for name, _ in shown] == ["n0", "n1", "n2"]
    assert last == ("6 hosts", "n3, n4, n5 and 3 more: 6 more kinds")


HOSTS, RANKS_PER_HOST = 500, 20


def many_ranks(has_problems=True):
    """10,000 ranks. Some hosts have other software, fewer CPUs, or a full disk."""
    everyones = []
    for rank in range(HOSTS * RANKS_PER_HOST):
        host = rank // RANKS_PER_HOST
        cpus = range(2 + host % 7 if host >= 480 else 128)
        settings = {
            "CUDA_VISIBLE_DEVICES": str(rank % 4),
            "UCX_NET_DEVICES": f"mlx5_{rank % RANKS_PER_HOST}:1",
            "JAX_COMPILATION_CACHE_DIR": f"/tmp/cache-{rank}",
            **{f"FI_OPTION_{index}": str(rank % 2) for index in range(9)},
        }
        rank_facts = rank_with({"name": f"node{host:03}", "cpus": cpus}, settings)
        rank_facts["mpi"].update(
            standard="5.0",
            transports="ch4:ofi",
            waits="spin",
            size=HOSTS * RANKS_PER_HOST,
        )
        rank_facts["versions"] = dict.fromkeys(["python", *facts.PACKAGES], "1.2.3")
        rank_facts["devices"] = {
            "abi": "mpich",
            "platform": "cpu" if host in (11, 12) else "gpu",
            "devices": ["NVIDIA H200"],
            "driver": "cuda",
            "mpi_takes_device_memory": True,
            "is_direct": True,
        }
        if has_problems:
            rank_facts["versions"]["jax"] = "0.8.1" if host == 7 else "0.10.2"
            rank_facts["errors"] = [f"no space left for /tmp/{rank}"] if host % 2 else []
        everyones.append(rank_facts)
    return everyones


@pytest.mark.parametrize("has_problems", [True, False])
def test_many_ranks_fit_on_a_page(has_problems):
    everyones = many_ranks(has_problems)
    problems, notes = doctor.examine(everyones)
    rows = [{"operation": name, "size": size} for name, size in MEASURED]
    text = doctor.report(
        everyones, [] if problems else rows, problems, notes, Terminal(1000)
    )
    sections, settings = text.split("\nsettings\n")
    assert len(sections.splitlines()) == 28, text
    assert len(settings.splitlines()) <= len(everyones[0]["settings"]) + 18, text
    assert [line[15:] for line in sections.splitlines()[-4:]] == [
        "node000, node001, node002 and 477 more: 20 rank(s) each, 128 CPU(s) allowed, huge "
        "pages: always",
        "node480, node487, node494: 20 rank(s) each, 6 CPU(s) allowed, huge pages: always",
        "node481, node488, node495: 20 rank(s) each, 7 CPU(s) allowed, huge pages: always",
        "node482, node489, node496 and 11 more: 5 more kinds",
    ]


def test_differences_among_many_ranks():
    problems, notes = doctor.examine(many_ranks())
    assert problems == [
        "ranks 20-39, 60-79, 100-119 and 4940 more on node001, node003, node005 and 247 "
        "more: no space left for /tmp/20 (with other names or numbers on other ranks)",
        "ranks 0-139, 160-9999: jax 0.10.2, ranks 140-159 on node007: jax 0.8.1",
    ]
    assert notes[0] == (
        "ranks 0-219, 260-9999: platform gpu, "
        "ranks 220-259 on node011, node012: platform cpu"
    )
    devices, *_ = [note for note in notes if "CUDA_VISIBLE_DEVICES" in note]
    assert devices == ", ".join(
        f"ranks {n}, {n + 4}, {n + 8} and 2497 more: CUDA_VISIBLE_DEVICES {n}"
        for n in range(4)
    )
    (caches,) = [note for note in notes if "JAX_COMPILATION_CACHE_DIR" in note]
    assert caches == (
        "rank 0 on node000: JAX_COMPILATION_CACHE_DIR /tmp/cache-0, "
        "rank 1 on node000: JAX_COMPILATION_CACHE_DIR /tmp/cache-1, "
        "rank 2 on node000: JAX_COMPILATION_CACHE_DIR /tmp/cache-2, "
        "9997 more ranks: 9997 more values"
    )


def test_many_problems_and_notes():
    rank_facts = many_ranks()[0]
    text = doctor.report([rank_facts], [], [f"p{n}" for n in range(5)], "abcdef")
    expected = "".join(f"problem: p{n}\n" for n in range(5))
    expected += "note: a\nnote: b\nnote: c\nnote: d\n"
    assert text.endswith(f"\n{expected}note: and 2 more (--json prints all of them)\n")


def test_advice_about_huge_pages():
    asked = rank_with({"huge_pages": "madvise"})
    (note,) = doctor.examine([asked])[1]
    assert note == (
        "the kernel gives huge pages on request (madvise). mpi4jax asks for them for large "
        "arrays that operations use, XLA for none: GLIBC_TUNABLES=glibc.malloc.hugetlb=1, "
        "as `python -m mpi4jax run` sets it, has all large arrays in them"
    )
    taken = rank_with(
        {"huge_pages": "madvise"}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    )
    assert doctor.examine([taken])[1] == []
    (note,) = doctor.examine([rank_with({"huge_pages": "never"})])[1]
    assert note == (
        "the kernel gives no huge pages, which makes large arrays slow: "
        "/sys/kernel/mm/transparent_hugepage/enabled says never"
    )


def test_thread_levels():
    for level in ("SINGLE", "FUNNELED"):
        assert doctor.examine([rank_with(threads=level)]) == (
            [
                f"MPI was initialised with MPI_THREAD_{level}, but XLA calls it on threads "
                "of its own: ask for MPI_THREAD_MULTIPLE, which mpi4py does by default"
            ],
            [],
        )
    assert doctor.examine([rank_with(threads="SERIALIZED")]) == (
        [],
        [
            "MPI was initialised with MPI_THREAD_SERIALIZED: do not call mpi4py while "
            "operations of mpi4jax may be running"
        ],
    )


def test_devices():
    rank_facts = rank_with()
    rank_facts["devices"] = {
        "platform": "gpu",
        "devices": ["NVIDIA H200", "NVIDIA H200"],
        "driver": "cuda",
        "why_no_driver": None,
        "mpi_takes_device_memory": True,
        "is_direct": True,
    }
    expected = {
        "JAX": "2 NVIDIA H200",
        "driver": "cuda",
        "CUDA-aware": "yes",
        "MPI gets": "the memory of GPUs",
    }
    assert doctor.describe_devices(rank_facts["devices"]) == expected
    rank_facts["devices"].update(mpi_takes_device_memory=None, is_direct=False)
    expected.update({"CUDA-aware": "MPI does not say", "MPI gets": "copies"})
    assert doctor.describe_devices(rank_facts["devices"]) == expected
    rank_facts["devices"].update(
        has_start_context=False,
        why_no_context="it was late",
        memory="pool",
        memory_taken={"plain": True, "pool": False, "mapped": None},
    )
    expected |= {
        "context": "none when MPI was initialised: it was late",
        "memory": "of a stream-ordered pool (cuda_async)",
        "kinds taken": "plain: yes, pool: no, mapped: not known",
    }
    assert doctor.describe_devices(rank_facts["devices"]) == expected
    without_gpu = rank_with({"cpus": [2]})
    assert doctor.examine([rank_facts, without_gpu]) == (
        [],
        ["rank 0: platform gpu, rank 1: platform cpu"],
    )


def test_errors_and_warnings_of_some_ranks():
    ranks = [rank_with({"cpus": [cpu]}) for cpu in range(3)]
    ranks[1]["errors"] = ranks[2]["errors"] = ["it is broken"]
    ranks[0]["warnings"] = ["it is new"]
    assert doctor.examine(ranks[:2]) == (["rank 1: it is broken"], ["rank 0: it is new"])
    assert doctor.examine(ranks)[0] == ["ranks 1-2: it is broken"]


def test_two_packages_with_an_mpi(monkeypatch):
    installed = {"mpich": "5", "openmpi": "5"}
    monkeypatch.setattr(facts, "version_of", installed.get)
    assert doctor.examine([rank_with()])[1] == [
        "several packages with an MPI are installed (mpich, openmpi): mpi4py takes the "
        "first one that it finds, and `mpiexec` may be another one's. Keep one"
    ]


# selftest


def test_selftest():
    done = command("selftest", ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *lines, last = done.stdout.splitlines()
    assert first == f"{LIBRARY}, 2 rank(s)"
    assert re.fullmatch(r"all is well \(\d+ s\)", last)
    lines_of_cases = [re.fullmatch("ok      (.*)", line)[1] for line in lines]
    names = [name for line in lines_of_cases for name in line.split(" and ")]
    assert sorted(names) == sorted(NAMES)


OF_ONE_OPERATION = """
    import sys
    from mpi4py import MPI
    from mpi4jax import notoken
    from mpi4jax._testing import cases
    from mpi4jax.__main__ import main

    case = cases.OPERATIONS[{name!r}]
    cases.OPERATIONS.clear()
    cases.OPERATIONS[{name!r}] = case
    if MPI.COMM_WORLD.Get_rank() == 1:
        original = notoken.{name}
        notoken.{name} = {replacement}
    sys.exit(main(["selftest", "--limit", "{limit}"]))
"""


def test_selftest_on_one_rank(launch):
    code = OF_ONE_OPERATION.format(name="send and recv", replacement=None, limit=PATIENCE)
    code = code.replace("notoken.send and recv", "notoken.send")
    done = launch(code, timeout=PATIENCE)
    assert "\nskipped send and recv: needs 2 ranks\n" in done.stdout, done.stderr


def test_selftest_that_fails(launch):
    code = OF_ONE_OPERATION.format(
        name="allgather",
        replacement="lambda x, comm: 2 * original(x, comm=comm)",
        limit=PATIENCE,
    )
    done = launch(code, ranks=2, timeout=PATIENCE)
    assert done.returncode != 0
    missing = ", ".join(sorted({*NAMES} - {"allgather"}))
    assert f"\nFAILED  no case for {missing}\n" in done.stdout
    modes = ["eager", "jit", "loop"]
    failure = "FAILED  allgather\n" + "".join(
        rf"  rank 1, allgather, {mode}: AssertionError: gave \[.*\] instead of \[.*\]\n"
        for mode in modes
    )
    failure += r"  allgather, grad: gave [\d.e+]+ instead of [\d.e+]+\n"
    assert re.search(failure, done.stdout), done.stdout
    assert re.search(r"^5 failed \(\d+ s\)$", done.stdout, re.MULTILINE)


def test_selftest_that_hangs(launch):
    code = OF_ONE_OPERATION.format(name="barrier", replacement="lambda comm: None", limit=3)
    done = launch(code, ranks=2, timeout=PATIENCE)
    assert done.returncode != 0
    for rank in (0, 1):
        text = f"rank {rank} of 2 has been in barrier, eager for 3 s"
        assert text in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "1e400", "1h", ""])
def test_selftest_with_a_limit_that_is_none(limit, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["selftest", "--limit", limit])
    assert capsys.readouterr().err.endswith(
        f"error: argument --limit: {limit!r} is given, "
        "expected a number of seconds greater than 0\n"
    )


def test_a_limit_that_no_timer_can_wait_for():
    arguments = parser().parse_args(["selftest", "--limit", "1e300"])
    watchdog = Watchdog(sys.stderr.fileno(), arguments.limit)
    watchdog.start("nothing")
    watchdog.timer.join(timeout=0.2)
    assert watchdog.timer.is_alive()
    watchdog.stop()


# bench


def test_bench():
    done = command("bench", "--quick", ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_ = done.stdout.splitlines()
    assert first.startswith("Medians in microseconds. 2 rank(s), ")
    assert first.endswith(f"python {'.'.join(map(str, sys.version_info[:3]))}.")
    titles = re.findall(r"^(\w.*):\n\n(\w+) ", done.stdout, re.MULTILINE)
    assert titles == [
        ("Calls of an allreduce of 8 bytes", "call"),
        ("Eager calls with 8 bytes", "operation"),
        ("Jitted calls of an allreduce", "size"),
        ("In a compiled loop, per operation", "operation"),
    ]
    assert "0.9.1" not in done.stdout


def test_bench_in_json():
    done = command("bench", "--quick", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    tables = json.loads(done.stdout)
    assert tables.pop("machine")["library"] == LIBRARY
    assert [row["call"] for row in tables["dispatch"]] == [
        "eager",
        "jit",
        "auto_tokenize",
        "jit, 10",
        "auto_tokenize, 10",
    ]
    # On one rank, a message has nobody to go to.
    assert "send and recv" not in {row["operation"] for row in tables["eager"]}
    assert {row["size"] for row in tables["loops"]} == {"8 B", "1 KiB", "64 KiB", "1 MiB"}
    for row in (row for rows in tables.values() for row in rows):
        assert row["ours"] > 0
        assert all(value is None or value for value in row.values())


# 80 columns, and colors


def assert_fits(text, width=80):
    """Nothing is wider but words that cannot be broken."""
    for line in text.splitlines():
        assert len(line) <= width or " " not in line.strip(), line


@pytest.mark.parametrize("ranks", [0, 2])
def test_doctor_in_80_columns(ranks):
    done = command("doctor", ranks=ranks, COLUMNS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_fits(done.stdout)
    assert "\x1b" not in done.stdout


def test_doctor_of_many_ranks_in_80_columns():
    everyones = many_ranks()
    text = doctor.report(everyones, [], *doctor.examine(everyones))
    assert_fits(text)
    assert (
        "  480 hosts    node000, node001, node002 and 477 more: 20 rank(s) each, 128\n"
        "               CPU(s) allowed, huge pages: always\n"
    ) in text
    problem = (
        "problem: ranks 20-39, 60-79, 100-119 and 4940 more on node001, node003, node005\n"
        "  and 247 more: no space left for /tmp/20 (with other names or numbers on other\n"
        "  ranks)\n"
    )
    assert f"\n{problem}" in text


def test_other_texts_in_80_columns():
    done = of_another_launcher("doctor", rank=0, COLUMNS="80")
    assert "\n  " in done.stderr
    assert_fits(
        done.stdout + "".join(re.findall("If MPI .*?\\.\n", done.stderr, re.DOTALL))
    )


@pytest.mark.parametrize("name", bench.TABLES)
def test_tables_of_bench_in_80_columns(name):
    """With figures as wide as they get."""
    _, rows_of = bench.TABLES[name]
    operations = ["neighbor_allgather", *bench.workloads.IN_LOOPS]
    cases = {
        "dispatch": ["empty", "mpi4py", "by hand", "by hand, 10", *CALLS],
        "eager": [f"{o}{end}" for o in operations for end in ("", ", by hand")],
        "latency": ["jit, 8388608", "mpi4py, 8388608"],
        "loops": [f"{start}{o}, 1048576" for o in operations for start in ("", "mpi4py, ")],
    }
    samples = {w: {tables.OURS: {case: [0.123456] for case in c}} for w, c in cases.items()}
    head, *lines = tables.lines(rows_of(tables.Results(samples)), PLAIN)
    assert lines
    assert max(map(len, [head, *lines])) <= 80


CALLS = ["eager", "jit", "auto_tokenize", "jit, 10", "auto_tokenize, 10"]


def test_headings_in_several_lines():
    pads = [str.ljust, str.rjust]
    rows = [["a", "1"], ["bcd", "23"]]
    heads, body = layout(["name", "of the run"], rows, pads, 80)
    assert (heads, body) == (["name  of the run"], ["a              1", "bcd           23"])
    heads, body = layout(["name", "of the run"], rows, pads, 12)
    assert heads == ["      of the", "name     run"]
    assert body == ["a          1", "bcd       23"]


def test_wrapped_text():
    assert wrap("a b\nc", 80) == "a b\nc"
    assert (
        wrap("note: a bcd efg /a/long/path/", 12) == "note: a bcd\n  efg\n  /a/long/path/"
    )


class Screen(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "environ", "has_colors"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"OMPI_COMM_WORLD_RANK": "0"}, False),
        (True, {"PMI_RANK": "0"}, False),
    ],
)
def test_colors(is_terminal, environ, has_colors, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert _terminal.of(Screen(is_terminal)).has_colors == has_colors


@pytest.mark.parametrize(("columns", "width"), [("120", 120), ("40", 80), ("", 80)])
def test_width(columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "__stdout__", io.StringIO())
    assert _terminal.of(Screen(True)).width == width


def test_doctor_in_colors():
    colored = Terminal(has_colors=True)
    (rank_facts, *_) = many_ranks(has_problems=False)
    text = doctor.report([rank_facts], [], ["it is broken"], ["it is old"], colored)
    assert "\n\x1b[1mhosts\x1b[0m\n" in text
    assert text.endswith(
        "\n\x1b[31mproblem:\x1b[0m it is broken\n\x1b[33mnote:\x1b[0m it is old\n"
    )
    well = doctor.report([rank_facts], [], [], [], colored)
    assert well.endswith("\n\x1b[32mproblem:\x1b[0m none\n")


# The command line itself


@pytest.mark.parametrize("package", ["jax", "mpi4py"])
def test_version(package, broken):
    """It says which implementation this is, where neither JAX nor MPI can be imported."""
    done = command("--version", PYTHONPATH=broken(package))
    assert done.returncode == 0, done.stderr
    line = "with tokens: y, token" if version("mpi4jax") < "0.8" else "without tokens: y"
    assert done.stdout == (
        f"mpi4jax {version('mpi4jax')}, {line} = mpi4jax.allreduce(x, op=MPI.SUM)\n"
        "an independent reimplementation in Rust, not the original mpi4jax\n"
        f"{Path(_terminal.__file__).parent}\n"
    )


@pytest.mark.parametrize(
    ("release", "environ", "line"),
    [
        ("0.7.3", {}, "with tokens"),
        ("0.8.0", {}, "without tokens"),
        ("0.10", {}, "without tokens"),
        ("0.7.3", {"MPI4JAX_API": "notoken"}, "without tokens"),
        ("0.9.2", {"MPI4JAX_API": "token"}, "with tokens"),
    ],
)
def test_lines_of_versions(release, environ, line):
    assert facts.line_of(release, environ) == line


def test_help_needs_nothing(broken):
    broken("jax")
    done = command("--help", PYTHONPATH=broken("mpi4py"))
    assert done.returncode == 0, done.stderr
    for name, purpose in (
        ("doctor", "say what is installed, and what is wrong with it"),
        ("bench", "measure what calls cost beside mpi4py's"),
        ("selftest", "call every operation, and compare it with NumPy"),
    ):
        assert re.search(rf"^ +{name} +{purpose}$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("period", "error"),
    [
        (["nan", "2"], "'nan' is given, expected a number of seconds, 0 or greater"),
        (["0", "-1"], "'-1' is given, expected a number of seconds, 0 or greater"),
        (["0", "1h"], "'1h' is given, expected a number of seconds, 0 or greater"),
        (["3", "2"], "3 2 is given, expected BEGIN to be less than END"),
    ],
)
def test_a_period_that_is_none(period, error, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["trace", "folder", "--between", *period])
    assert capsys.readouterr().err.endswith(f"error: argument --between: {error}\n")


def test_a_period_without_an_end():
    arguments = parser().parse_args(["trace", "folder", "--between", "2", "inf"])
    assert arguments.between == [2, float("inf")]


def test_without_a_command():
    done = command()
    assert done.returncode == 2
    assert "error: the following arguments are required: COMMAND" in done.stderr


def test_the_import_does_not_load_the_commands(launch):
    done = launch(
        """
        import sys, mpi4jax
        print([name for name in sys.modules if name.startswith("mpi4jax._commands")])
        """
    )
    assert done.stdout == "[]\n", done.stderr


def test_other_modules_get_all_of_the_package(tmp_path):
    """`python -m` runs the package without its names, and no other module."""
    (tmp_path / "program").mkdir()
    text = "import mpi4jax; print(mpi4jax.__version__, callable(mpi4jax.allreduce))"
    (tmp_path / "program" / "__init__.py").write_text(text)
    (tmp_path / "program" / "__main__.py").write_text("")
    done = run("-P", "-m", "program", PYTHONPATH=str(tmp_path))
    assert done.stdout == f"{version('mpi4jax')} True\n", done.stderr
