"""The table of runs: which tests run in which environments, on how many ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import conformance
import stand_ins
from environments import (
    APIS,
    MPIS,
    ROOT,
    Environment,
    mpi_environ,
    prepare,
    tools,
    uv,
    wheel,
)

TESTS = ROOT / "tests"


def under(folder: str, *names: str) -> tuple[str, ...]:
    """The files of tests in a folder, or tests in them ("order::test_loops")."""
    paths = []
    for file, colons, test in (name.partition("::") for name in names):
        (path,) = (TESTS / folder).rglob(f"test_{file}.py")
        paths.append(f"{path.relative_to(TESTS)}{colons}{test}")
    return tuple(paths)


#: Tests that also run on more than two ranks, and with other settings and JAXs.
CORE = under("mpi", "operations", "order", "dispatch", "auto_tokenize", "arguments")
#: Tests that depend on the ABI of an MPI.
MPI = under("mpi", "operations", "types::test_reductions", "counts")
#: Tests that move arrays, also in pieces.
PIECES = (*CORE[:2], *under("mpi", "status"))
#: Tests that depend on how JAX traces and transforms.
JAX = under(
    "mpi",
    *"autodiff halo linear_token tree vmap docs inputs extend ragged program_order".split(),
)
#: The comparison with the Jacobian, which has more blocks the more ranks there are.
JACOBIAN = under("mpi", "autodiff::test_first_derivatives")
#: Tests of JAX's own collectives over MPI.
DISTRIBUTED = ("distributed",)
#: Tests in which a process may be its own neighbor.
ALONE = under("mpi", "exchange", "halo", "neighbors", "ragged", "tree")
#: Tests of ghost cells with parts of different sizes, or two divided axes.
GRID = under(
    "mpi",
    "halo::test_ghost_cells_are_those_of_the_whole_field",
    "halo::test_both_ways_give_the_same",
    "halo::test_some_fields_are_linear",
)
#: Tests of the start and end of processes, and of MPI's memory, which depend on the MPI.
LAUNCH = under("process", "commands", "errors", "exit", "run", "soak", "watchdog")
#: Tests that also run in XLA's client for CUDA, as their kernels call no other library.
ON_KERNELS = under(
    "mpi", *"tokens halo nonblocking exchange status inputs operations".split()
)

MPICH, OPENMPI = Environment("mpich"), Environment("openmpi")
ON_CUDA = Environment("mpich", cuda=True)
NOTOKEN = Environment("mpich", api="notoken")

#: Makes mpi4py load our library for one process (:meth:`Run.settings`).
WITHOUT_MPI = (("WITHOUT_MPI", "1"),)

#: Settings of JAX's cache: most of the time would go into compiling the programs again.
CACHE = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / "build" / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}

#: Machine code that is not optimized: half of the time of tests on CPUs is compilation.
QUICK_COMPILATION = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}

#: Other settings of XLA's client for CUDA and of the operations.
RUNTIME_SETTINGS = (
    (("XLA_PYTHON_CLIENT_ALLOCATOR", "default"),),
    (("MPI4JAX_STAGING_CHUNK", "256"),),
    (("JAX_PLATFORMS", "cuda,cpu"),),
    (
        ("MPI4JAX_USE_CUDA_MPI", "1"),
        ("STAND_IN_OPEN", "1"),
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "default"),
    ),
)


class Run(NamedTuple):
    """A run of pytest in an environment, on a number of ranks (0: no mpiexec)."""

    environment: Environment
    ranks: int
    tests: tuple[str, ...] = ("mpi",)
    #: Settings of mpi4jax's.
    environ: tuple[tuple[str, str], ...] = ()
    #: The part of the tests, where another run has all of them (tests/sample.py).
    sample: str = "0/1"
    #: The command that runs it on a cluster (tools/cluster.py).
    cluster: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return self.tests[0].partition("/")[0]

    @property
    def part(self) -> str:
        return os.environ.get("TEST_SAMPLE", self.sample)

    @property
    def label(self) -> str:
        folder = "" if self.folder == "mpi" else f", {self.folder}"
        folder += " on a cluster" if self.cluster else ""
        ranks = f", {self.ranks} rank(s)" if self.ranks else ""
        settings = "".join(f", {name}={value}" for name, value in self.environ)
        sample = "" if self.part == "0/1" else f", sample {self.part}"
        return f"{self.environment.name}{folder}{ranks}{settings}{sample}"

    def command(self, *options: str) -> list[str]:
        path = prepare(self.environment)
        command = [path / "bin" / "python", "-P", "-m", "pytest", "--tb=short"]
        command += ["-p", "no:cacheprovider", "--rootdir", TESTS / self.folder, *options]
        if self.environment.cuda:
            command += ["-p", "cuda_client"]
        command += [TESTS / test for test in self.tests]
        if self.ranks:
            mpiexec = [path / "bin" / "mpiexec"]
            if self.cluster and "openmpi" in self.environment.mpi:
                # The variables that Open MPI takes to other hosts.
                for name in ("TEST_SAMPLE", *CACHE):
                    mpiexec += ["-x", name]
            command = [*mpiexec, "-n", self.ranks, *command]
        return [*self.cluster, *map(str, command)]

    def settings(self) -> dict[str, str]:
        environ = {**mpi_environ(self.environment.path), **dict(self.environ)}
        environ["TEST_SAMPLE"] = self.part
        # The cache of jaxlib 0.6.0 is broken; mpi4jax would warn of it, and turn it off.
        if self.folder in ("mpi", "runtime") and self.environment.jax != "0.6":
            environ |= CACHE
        if self.folder in ("mpi", "distributed") and not self.environment.cuda:
            environ |= QUICK_COMPILATION
        if "WITHOUT_MPI" in environ:
            library = "lib/python*/site-packages/mpi4jax/_alone/libmpi.so.12"
            (file,) = prepare(self.environment).glob(library)
            environ["MPI4PY_LIBMPI"] = str(file)
        if self.folder == "device":
            driver = stand_ins.driver(environ.get("STAND_IN", stand_ins.CUDA))
            environ["LD_LIBRARY_PATH"] = str(driver)
        elif self.folder == "direct":
            environ["LD_LIBRARY_PATH"] = str(stand_ins.driver(stand_ins.CUDA))
            environ["AWARE_MPI"] = str(stand_ins.aware_mpi())
        elif self.environment.cuda and self.folder != "gpu_compiler":
            driver = str(stand_ins.driver(stand_ins.CUDA))
            # The plugin, and the stand-in for NVIDIA's assembler.
            paths = {"PYTHONPATH": str(TESTS), "CUDA_ROOT": driver}
            environ = {**stand_ins.ENVIRON, "LD_LIBRARY_PATH": driver, **environ, **paths}
        if self.folder == "package":
            environ |= {f"WHEEL_{api.upper()}": str(wheel(api)) for api in APIS}
            environ |= {"TOOLS": str(tools()), "UV": str(uv())}
            for suite in conformance.SUITES:
                conformance.fetch(suite.version, conformance.ARCHIVES)
            environ["ARCHIVES"] = str(conformance.ARCHIVES)
        return environ


def own() -> Iterator[Run]:
    """The own tests, on both MPIs and 1 to 4 ranks.

    All of them take too long to run everywhere. Each of `tests/mpi` is in one of the three
    runs on 2 ranks of MPICH, of Open MPI, and of MPICH with the newest JAX (below).
    """
    yield Run(MPICH, 2, sample="0/3")
    yield Run(OPENMPI, 2, sample="1/3")
    yield Run(MPICH, 1, (*CORE, *ALONE), sample="1/8")
    yield Run(OPENMPI, 1, CORE, sample="2/8")
    yield Run(MPICH, 3, (*CORE, *GRID, *JACOBIAN), sample="3/12")
    yield Run(MPICH, 4, (*CORE, *GRID, *JACOBIAN), sample="4/12")
    yield Run(OPENMPI, 4, CORE, sample="5/12")
    slow_and_spinning = (("MPI4JAX_FAST_DISPATCH", "0"), ("MPI4JAX_WAIT", "spin"))
    yield Run(MPICH, 2, CORE[1:4], slow_and_spinning, sample="0/4")
    yield Run(MPICH, 2, PIECES, (("MPI4JAX_STAGING_CHUNK", "16"),), sample="1/4")
    checked = (*CORE, *under("mpi", "tree"))
    yield Run(MPICH, 2, checked, (("MPI4JAX_CHECK", "1"),), sample="3/12")
    yield Run(MPICH, 0, ("process",))
    alone = (*CORE, *ALONE, *under("mpi", "alone", "docs"))
    yield Run(MPICH, 0, alone, WITHOUT_MPI, sample="3/8")
    yield Run(OPENMPI, 0, LAUNCH, sample="1/2")
    yield Run(NOTOKEN, 0, ("process/test_import.py",), sample="0/2")
    yield Run(MPICH, 2, DISTRIBUTED, sample="0/8")
    yield Run(MPICH, 4, DISTRIBUTED, sample="1/32")
    yield Run(OPENMPI, 2, DISTRIBUTED, sample="2/16")
    yield Run(OPENMPI, 4, under("distributed", "programs", "mixed"), sample="3/16")
    over_gloo = (("TEST_COLLECTIVES", "gloo"),)
    of_jax = under("distributed", "collectives", "sharded", "sharded_programs")
    yield Run(MPICH, 2, of_jax, over_gloo, sample="3/16")
    yield Run(MPICH, 0, ("hangs",), sample="0/2")
    yield Run(OPENMPI, 0, ("hangs",), sample="1/2")
    yield Run(MPICH, 2, ("device",), sample="0/3")
    yield Run(OPENMPI, 2, ("device",), sample="1/4")
    yield Run(MPICH, 3, under("device", "results", "pieces"), sample="2/4")
    yield Run(
        MPICH, 1, under("device", "results"), (("STAND_IN", stand_ins.ROCM),), sample="0/4"
    )
    yield Run(MPICH, 0, ("direct",))
    yield Run(OPENMPI, 0, ("direct",), sample="1/3")
    yield Run(ON_CUDA, 2, ("runtime",), sample="0/3")
    yield Run(ON_CUDA, 3, under("runtime", "operations", "programs"), sample="1/6")
    yield Run(ON_CUDA, 0, under("runtime", "sharing"))
    programs = under("runtime", "programs")
    for settings in RUNTIME_SETTINGS:
        yield Run(ON_CUDA, 2, programs, settings, sample="0/2")
    yield Run(ON_CUDA, 2, ON_KERNELS, sample="0/96")
    yield Run(ON_CUDA, 2, ("gpu_compiler",), sample="0/4")


def range_() -> Iterator[Run]:
    """The own tests with other versions of JAX, and their core on other MPIs."""
    yield Run(Environment(jax="0.12"), 2, sample="2/3")
    yield Run(Environment(jax="0.12", cuda=True), 2, ("runtime",), sample="1/4")
    beside_cpu = (("JAX_PLATFORMS", "cuda,cpu"),)
    yield Run(
        Environment(jax="0.12", cuda=True), 2, under("runtime", "failures"), beside_cpu
    )
    yield Run(Environment(jax="0.12", cuda=True), 2, ("gpu_compiler",), sample="1/4")
    yield Run(Environment(jax="0.6"), 2, CORE + JAX, sample="0/24")
    yield Run(Environment(jax="0.8"), 2, CORE + JAX, sample="1/24")
    others = [name for name in MPIS if name not in (MPICH.mpi, OPENMPI.mpi)]
    for index, name in enumerate(others):
        yield Run(Environment(name), 2, MPI, sample=f"{index}/6")
    yield Run(Environment("standard-abi"), 2, DISTRIBUTED, sample="4/16")
    for index, version in enumerate(("0.6", "0.8", "0.12")):
        yield Run(Environment(jax=version), 2, DISTRIBUTED, sample=f"{index}/16")


def other_jax(version: str) -> Iterator[Run]:
    """The private names of a version of JAX, then a sample of all that uses JAX."""
    environment = Environment(jax=version)
    yield Run(environment, 0, under("process", "private_names", "import"))
    yield Run(environment, 2, sample="0/3")
    yield Run(environment, 2, DISTRIBUTED, sample="0/4")
    yield Run(environment, 0, ("hangs",), sample="0/4")


def package() -> Iterator[Run]:
    """The contents of the wheels, and type checks of programs that use them."""
    tools()  # before both ask for them at once
    yield Run(MPICH, 0, ("package",))
    yield Run(NOTOKEN, 0, ("package",))


def on_hosts(plain: tuple[str, ...], with_slurm: tuple[str, ...]) -> Iterator[Run]:
    """Runs on a cluster, which these commands make (tools/cluster.py)."""
    # Not Debian's MPICH 4.0: across hosts, its MPI_Finalize hangs (docs/cluster.md).
    for name in ("mpich", "openmpi", "debian-openmpi"):
        environment = Environment(name)
        yield Run(environment, 0, ("cluster",), cluster=with_slurm)
        yield Run(environment, 2, CORE, sample="0/12", cluster=plain)
        yield Run(environment, 2, DISTRIBUTED, sample="0/16", cluster=plain)
    yield Run(MPICH, 0, ("hangs",), sample="0/4", cluster=plain)
