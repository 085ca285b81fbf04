"""Values that can be passed as an array, to a compiled call as well.

JAX looks at an argument when it compiles a call. Later calls with an array of the same
shape take its memory as it is, so whatever is wrong with it must be found before.
"""

import enum
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax.experimental import auto_tokenize

pytestmark = pytest.mark.usefixtures("enable_x64")

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
BASE = np.arange(3.0) + 1

ACCEPTED = "expected one of bool, int8, int16, .*, uint4, float4_e2m1fn"
STRUCT = np.zeros(3, [("a", "<f8")])
REFUSED = {
    "big endian": (BASE.astype(">f8"), "type >f8 .*: its bytes are not in this machine's"),
    "big endian, 0-d": (np.array(1.0).astype(">f8"), "type >f8 .*: its bytes are not"),
    "big endian integers": (BASE.astype(">i4"), "type >i4 .*: its bytes are not in this"),
    "strings": (np.array(["a", "b", "c"]), f"type <U1 .*, {ACCEPTED}"),
    "string": (np.str_("a"), f"type <U1 .*, {ACCEPTED}"),
    "bytes": (np.array([b"a", b"b", b"c"]), rf"type \|S1 .*, {ACCEPTED}"),
    "objects": (np.array([None, 1, "a"], object), f"type object .*, {ACCEPTED}"),
    "dates": (np.zeros(3, "datetime64[s]"), rf"type datetime64\[s\] .*, {ACCEPTED}"),
    "times": (np.zeros(3, "timedelta64[ns]"), rf"type timedelta64\[ns\] .*, {ACCEPTED}"),
    "structs": (STRUCT, rf"type \[\('a', '<f8'\)\] .*, {ACCEPTED}"),
    "struct": (STRUCT[0], rf"type \[\('a', '<f8'\)\] .*, {ACCEPTED}"),
    "records": (STRUCT.view(np.recarray), rf"type \(.*\[\('a', '<f8'\)\]\) .*, {ACCEPTED}"),
    "characters": (np.char.array(["a"]), f"type <U1 .*, {ACCEPTED}"),
    "long double": (np.ones(3, np.longdouble), rf"type float128 .*, {ACCEPTED}"),
    "long double, a scalar": (np.longdouble(1), rf"type float128 .*, {ACCEPTED}"),
    "masked": (np.ma.masked_array(BASE, [0, 1, 0]), "a masked array .* mask would be lost"),
    "masked, nothing of it": (np.ma.masked_array(BASE), "a masked array"),
}

CALLS = {
    "allreduce": lambda x: mpi.allreduce(x, MPI.SUM),
    "bcast": lambda x: mpi.bcast(x, 0),
    "exscan": lambda x: mpi.exscan(x, MPI.SUM),
    "gather": lambda x: mpi.gather(x, 0),
    "send": lambda x: mpi.send(x, MPI.PROC_NULL),
    "recv": lambda x: mpi.recv(x, MPI.PROC_NULL),
    "sendrecv": lambda x: mpi.sendrecv(x, x, RANK, RANK),
}
ARGUMENT = {"sendrecv": "sendbuf"}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("name", CALLS)
def test_refused(name, kind, calls_of):
    """By the first call, and by one for which a program is there, before MPI is called."""
    call, (x, text) = CALLS[name], REFUSED[kind]
    opening = f'^{name} got an? .* for argument "{ARGUMENT.get(name, "x")}"'

    def refused():
        with pytest.raises(TypeError, match=opening) as error:
            call(x)
        assert error.match(text)

    assert calls_of(refused) == (None, Counter())
    for array in (
        BASE,
        jnp.asarray(BASE),
        np.zeros(np.shape(x)),
        np.zeros(np.shape(x), int),
    ):
        call(array)
    assert calls_of(refused) == (None, Counter())


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_by_auto_tokenize(kind):
    x, text = REFUSED[kind]

    @auto_tokenize
    def total(pair):
        return mpi.allreduce(pair["x"], MPI.SUM)

    for _ in range(2):
        argument = re.escape("""for argument "args[0]['x']""")
        with pytest.raises(TypeError, match=f"^total got an? .*{argument}") as error:
            total({"n": 3, "x": x})
        assert error.match(text)
        total({"n": 3, "x": BASE})


class Subclass(np.ndarray):
    pass


class Number(enum.IntEnum):
    THREE = 3


class Convertible:
    def __jax_array__(self):
        return jnp.asarray(BASE)


ACCEPTED_INPUTS = {
    "subclass": (BASE.view(Subclass), BASE),
    "matrix": (BASE.view(np.matrix), BASE[None]),
    "0-d": (np.array(2.0), 2.0),
    "not contiguous": (np.arange(6.0)[::2], [0, 2, 4]),
    "transposed": (np.arange(6.0).reshape(2, 3).T, np.arange(6.0).reshape(2, 3).T),
    "read-only": (np.broadcast_to(np.float64(2), (3,)), [2, 2, 2]),
    "not aligned": (np.frombuffer(b"\0" * 25, np.uint8)[1:].view("f8"), [0, 0, 0]),
    "converts itself": (Convertible(), BASE),
    "NumPy's scalar": (np.float32(2), 2),
    "Python's float": (2.5, 2.5),
    "Python's bool": (3 > 2, True),
    "enumeration": (Number.THREE, 3),
    "weak": (jnp.asarray(1.0) * 2, 2.0),
    "empty": (np.zeros((0, 3)), np.zeros((0, 3))),
}


@pytest.mark.parametrize("kind", ACCEPTED_INPUTS)
def test_accepted(kind):
    """Alike by the first call and by later ones."""
    x, value = ACCEPTED_INPUTS[kind]
    operator = MPI.MAX if np.asarray(value).dtype != bool else MPI.LAND
    for _ in range(3):
        result = mpi.allreduce(x, operator)
        assert isinstance(result, jax.Array)
        assert not result.weak_type
        np.testing.assert_array_equal(result, value)
        assert result.shape == np.shape(value)
        for other in (mpi.bcast(x, 0), mpi.recv(x, MPI.PROC_NULL), mpi.gather(x, 0)):
            assert isinstance(other, jax.Array)
        mpi.allreduce(np.zeros(np.shape(value)), MPI.MAX)


def test_numbers_that_are_too_large():
    for _ in range(2):
        assert mpi.allreduce(7, MPI.MAX) == 7
        with pytest.raises(OverflowError):
            mpi.allreduce(2**70, MPI.MAX)


def test_what_changes_between_calls():
    """An array of NumPy's is looked at each time: its type may have changed."""
    x = np.arange(3.0)
    assert mpi.allreduce(x, MPI.MAX).tolist() == [0, 1, 2]
    x.dtype = ">f8"
    with pytest.raises(TypeError, match="bytes are not in this machine's order"):
        mpi.allreduce(x, MPI.MAX)
