"""The context that MPI finds when it is initialised, and that is current in its calls."""

import pytest

#: A program that imports mpi4jax first, and says how its arrays got to MPI.
FIRST = """
import mpi4jax
from mpi4py import MPI
"""
#: One that imports mpi4py first.
LATER = """
from mpi4py import MPI
import mpi4jax
"""
CALL = """
import on_device

def program(x):
    return mpi4jax.notoken.allreduce(x, MPI.SUM)

for _ in range(2):
    result = on_device.run(program, on_device.ones())
size = MPI.COMM_WORLD.Get_size()
assert (result == on_device.ones() * size).all(), result
direct, staged = on_device.copies()
ways = "direct" * direct, "staged" * staged
on_device.report(MPI.COMM_WORLD.Get_rank(), *ways)
"""

NO_CONTEXT = (
    "MPI found no context of a GPU when it was initialised ({why}), and CUDA-aware MPIs "
    "may take the memory of GPUs for the host's then. {consequence}. Import mpi4jax before "
    "mpi4py, and let each process see its own GPU only (CUDA_VISIBLE_DEVICES), or call "
    "mpi4jax.prepare_gpu() before MPI is initialised."
)
STAGED = "So arrays on GPUs are copied to host memory"
FORCED = "MPI4JAX_USE_CUDA_MPI=1 has it get that nevertheless, which may crash the program"
LATE = "it was initialised before mpi4jax was imported"
INVALID = "returned error code 101: CUDA_ERROR_INVALID_DEVICE: invalid device ordinal"
OPEN = "several GPUs are visible, and which one this process uses was open"


def no_context(why, consequence=STAGED):
    return NO_CONTEXT.format(why=why, consequence=consequence)


def test_the_driver_waits_for_a_program_that_is_late(start):
    """One that sets CUDA_VISIBLE_DEVICES when MPI has told it its rank."""
    done = start(LATER + ASK)
    assert (done.code, done.output) == (0, ["0 False [0, 0, 0] None"]), done


def test_mpi4jax_is_imported_first(start):
    """MPI says yes, and finds a context: it gets the memory of GPUs."""
    done = start(FIRST + CALL, ranks=2)
    assert (done.code, done.output, done.lines) == (0, ["0: direct ", "1: direct "], []), (
        done
    )


def test_mpi4py_is_imported_first(start):
    done = start(LATER + CALL, ranks=2)
    assert (done.code, done.output) == (0, ["0:  staged", "1:  staged"]), done
    assert done.lines == [no_context(LATE)] * 2


def test_a_context_before_mpi4py(start):
    """As of a program that computes with JAX, or CuPy, before."""
    done = start(
        """
        import ctypes
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        driver.stand_in_context.restype = ctypes.c_void_p
        driver.cuCtxSetCurrent(ctypes.c_void_p(driver.stand_in_context(0)))
        """.replace(" " * 8, "")
        + LATER
        + CALL
    )
    assert (done.code, done.output, done.lines) == (0, ["0: direct "], []), done


def test_an_mpi_that_is_not_aware(start):
    """A process with a context gets copies nevertheless."""
    program = FIRST + CALL.replace("direct, staged =", "direct, staged = False,")
    program = program.replace("on_device.copies()", "driver.count('cuMemcpyDtoHAsync') > 0")
    done = start("import driver" + program, preload=False)
    assert (done.code, done.output, done.lines) == (0, ["0:  staged"], []), done


#: A program that says whether the driver was loaded, and what contexts there are.
ASK = """
import ctypes

def is_loaded():
    return any("libcuda" in line for line in open("/proc/self/maps"))

loaded = is_loaded()
import driver
shares = [driver.shares(device) for device in range(3)]
start = ctypes.CDLL(None).aware_mpi_start_context
start.restype = ctypes.c_void_p
contexts = {driver.context(device): device for device in range(3)}
rank = MPI.COMM_WORLD.Get_rank()
# One piece, that no other rank's gets into.
print(f"{rank} {loaded} {shares} {contexts.get(start())}\\n", end="", flush=True)
"""


@pytest.mark.parametrize(
    "environ",
    [
        {"JAX_PLATFORMS": "cpu"},
        {"MPI4JAX_USE_CUDA_MPI": "0"},
        {"CUDA_VISIBLE_DEVICES": "0,1", "STAND_IN_DEVICES": "2"},
        {"PYTHONPATH": "{no_plugin}"},
    ],
    ids=["another platform", "no wish", "two devices", "no plugin"],
)
def test_no_context_for_nothing(start, environ):
    """The driver is not even loaded: it would read CUDA_VISIBLE_DEVICES then."""
    if "PYTHONPATH" in environ:
        from conftest import FOLDER

        environ = {"PYTHONPATH": str(FOLDER.parent / "device")}
    done = start(FIRST + ASK, environ=environ)
    assert (done.code, done.output) == (0, ["0 False [0, 0, 0] None"]), done


@pytest.mark.parametrize(
    "environ",
    [{}, {"JAX_PLATFORMS": "cuda"}, {"MPI4JAX_USE_CUDA_MPI": "1"}],
    ids=["plugin", "platform", "wish"],
)
def test_the_device(start, environ):
    """One context, of the device that JAX takes, is current when MPI is initialised."""
    done = start(FIRST + ASK, environ={"STAND_IN_DEVICES": "3", **environ})
    assert (done.code, done.output) == (0, ["0 True [1, 0, 0] 0"]), done


#: As a program may do, and as jax.distributed.initialize() does.
CHOSEN = """
import jax
jax.config.update("jax_cuda_visible_devices", "{}")
"""


def test_the_devices_that_jax_was_restricted_to(start):
    several = {"CUDA_VISIBLE_DEVICES": "5,6,7", "STAND_IN_DEVICES": "3"}
    done = start(CHOSEN.format("2,1") + FIRST + ASK, environ=several)
    assert (done.code, done.output) == (0, ["0 True [0, 1, 0] 1"]), done


def test_several_devices(start):
    """Where the user wants it, each process takes that with its number on the host."""
    several = {"CUDA_VISIBLE_DEVICES": "0,1", "STAND_IN_DEVICES": "2"}
    done = start(FIRST + ASK, ranks=2, environ={**several, "MPI4JAX_USE_CUDA_MPI": "1"})
    assert done.output == ["0 True [1, 0, 0] 0", "1 True [0, 1, 0] 1"], done
    done = start(FIRST + CALL, environ=several)
    assert (done.output, done.lines) == (["0:  staged"], [no_context(OPEN)]), done


def test_a_driver_that_refuses(start):
    done = start(CHOSEN.format(4) + FIRST + CALL)
    why = f"cuDeviceGet {INVALID}"
    assert (done.output, done.lines) == (["0:  staged"], [no_context(why)]), done


#: A program that initialises MPI itself.
PREPARED = """
import mpi4py
mpi4py.rc.initialize = False
import mpi4jax
from mpi4py import MPI
mpi4jax.prepare_gpu({device})
MPI.Init_thread()
"""


@pytest.mark.parametrize(("argument", "device"), [("1", 1), ("", 0)])
def test_prepare_gpu(start, argument, device):
    several = {"CUDA_VISIBLE_DEVICES": "0,1", "STAND_IN_DEVICES": "2"}
    program = PREPARED.format(device=argument) + ASK + "MPI.Finalize()\n"
    done = start(program, environ=several)
    shares = [int(index == device) for index in range(3)]
    assert (done.code, done.output) == (0, [f"0 True {shares} {device}"]), done


def test_prepare_gpu_after_the_import(start):
    """A second call is no mistake, after that of `import mpi4jax`."""
    done = start(FIRST + "mpi4jax.prepare_gpu()" + ASK)
    assert (done.code, done.output) == (0, ["0 True [1, 0, 0] 0"]), done


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (
            LATER + "mpi4jax.prepare_gpu()",
            "RuntimeError: mpi4jax.prepare_gpu was called after MPI was initialised. Set "
            "mpi4py.rc.initialize = False before anything imports mpi4py.MPI, and call "
            "MPI.Init_thread() after it",
        ),
        (
            PREPARED.format(device=-1),
            "ValueError: mpi4jax.prepare_gpu got device -1, expected 0 or more",
        ),
        (
            PREPARED.format(device="'cuda:0'"),
            "TypeError: mpi4jax.prepare_gpu: `device` must be an integer, not 'cuda:0'",
        ),
        (
            PREPARED.format(device=7),
            f"RuntimeError: cuDeviceGet {INVALID}",
        ),
    ],
    ids=["late", "negative", "no number", "no device"],
)
def test_prepare_gpu_refuses(start, program, error):
    done = start(program)
    assert error in done.errors.splitlines(), done


def test_prepare_gpu_without_a_driver(start):
    done = start(PREPARED.format(device=""), environ={"STAND_IN_DEVICES": "0"})
    last = [line for line in done.errors.splitlines() if line.startswith("ImportError")]
    assert len(last) == 1, done
    assert (
        "there is no driver of a GPU that could be used (the cuda driver has no" in last[0]
    )


def test_each_call_is_in_the_context_of_its_stream(start):
    """Whatever thread makes it, and what was current before is so afterwards.

    Without, MPI finds another context than at its start, and crashes on the address.
    """
    done = start(
        FIRST
        + """
import threading
import driver, on_device

def program(x):
    return mpi4jax.notoken.allreduce(x, MPI.SUM)

def work(before):
    driver.set_context(before)
    result = on_device.run(program, on_device.ones(), is_entered=False)
    assert (result == on_device.ones()).all()
    print(driver.current_context() == before)

for before in (None, driver.context(1), driver.context(0)):
    thread = threading.Thread(target=work, args=(before,))
    thread.start()
    thread.join()
print(on_device.copies())
"""
    )
    assert (done.code, done.output) == (0, ["(True, False)", "True", "True", "True"]), done


OTHER = """
import on_device

def program(x):
    return mpi4jax.notoken.allreduce(x, MPI.SUM)

import driver
for _ in range(2):
    result = on_device.run(program, on_device.ones(), index=1)
print((result == on_device.ones()).all(), on_device.copies())
"""


def test_arrays_in_another_context(start):
    """MPI keeps to the one that it has found."""
    done = start(FIRST + OTHER)
    assert (done.code, done.output) == (0, ["True (False, True)"]), done
    assert done.lines == [
        "mpi4jax: arrays on the GPU are copied to host memory for MPI: they are on another "
        "GPU, or in another context, than that which was current when MPI was initialised, "
        "and MPI keeps to that (open-mpi/ompi#13836). Let each process see its own GPU "
        "only (CUDA_VISIBLE_DEVICES)"
    ]


def test_arrays_in_another_context_by_wish(start):
    done = start(FIRST + OTHER, environ={"MPI4JAX_USE_CUDA_MPI": "1"})
    assert done.code != 0, done
    first, second = done.lines
    assert first == (
        "mpi4jax: MPI gets arrays of another GPU, or context, than that which was current "
        "when it was initialised, which Open MPI 5.0.11 may not be able to use "
        "(open-mpi/ompi#13836). Let each process see its own GPU only "
        "(CUDA_VISIBLE_DEVICES), or set MPI4JAX_USE_CUDA_MPI=0"
    )
    assert second.startswith("r0 | MPI_Allreduce crashed on the memory of a GPU")


def test_the_progress_thread_has_the_context(start):
    """The stand-in moves the messages of other libraries, too."""
    done = start(
        FIRST
        + """
import ctypes, time
import jax.numpy as jnp
import on_device

def program(x):
    return mpi4jax.notoken.allreduce(x, MPI.SUM)

on_device.run(program, on_device.ones())
rank = MPI.COMM_WORLD.Get_rank()
x = jnp.ones(1 << 18)
if rank == 0:
    time.sleep(1)
    request = mpi4jax.isend(x, 1)
else:
    request = mpi4jax.irecv(x, 0)
    time.sleep(0.5)  # the thread looks at what is in flight
mpi4jax.wait(request)
own = ctypes.CDLL(None)
on_device.report(rank, own.aware_mpi_strange_tests(), own.aware_mpi_tests() > 10)
""",
        ranks=2,
    )
    assert done.code == 0, done
    assert "1: 0 True" in done.output, done
