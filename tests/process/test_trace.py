"""`MPI4JAX_TRACE=folder`, and the timeline that is made of it."""

import itertools
import json
import re
import resource

import jax
import numpy as np
import processes
import pytest
import timelines

from mpi4jax import _core
from mpi4jax.__main__ import main
from mpi4jax._internal.traces.reader import ENTRY, NONE

PROGRAM = """
    import time
    import jax, jax.numpy as jnp
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size

    @jax.jit
    def step(x):
        x = mpi.allreduce(x, op=MPI.SUM)
        return jax.lax.fori_loop(0, 3, shift, x)

    def shift(i, x):
        return mpi.sendrecv(x, x, left, right, sendtag=7, comm=comm)

    if rank == 0:
        time.sleep(0.2)
    x = jax.block_until_ready(step(jnp.ones(3)))
    if rank == 0:
        mpi.send(x, right, tag=1)
    elif rank == 1:
        mpi.recv(x, left, tag=1)
"""


def merged(folder, *options):
    """The events of a timeline, and what was printed when it was made."""
    done = processes.run("-P", "-m", "mpi4jax", "trace", folder, *options)
    assert done.returncode == 0, done.stderr
    return timelines.read(folder / "trace.pftrace"), done.stdout


@pytest.fixture
def traced(launch, tmp_path):
    """Run a program on two ranks, and give what :func:`merged` does."""

    def traced(program):
        folder = tmp_path / "a" / "trace"
        done = launch(program, ranks=2, MPI4JAX_TRACE=str(folder))
        assert done.returncode == 0, done.stderr
        return merged(folder)

    return traced


def slices(events):
    """The events of a thread that have a duration."""
    return [event for event in events if event["ph"] == "X"]


def names(events, process, track=None):
    """The names of what a process did, in order, on one of its tracks."""
    slices_of_track = [
        event
        for event in events
        if event["ph"] == "X"
        and event["pid"] == process
        and (track is None or event["tid"] % 1000 == track)
    ]
    return [
        event["name"] for event in sorted(slices_of_track, key=lambda event: event["ts"])
    ]


COMPILES, EAGER, CALLS = 100, 200, 300
SHIFT = "sendrecv  {}:17 in shift"


def test_timeline(traced, tmp_path):
    events, printed = traced(PROGRAM)
    file = tmp_path / "program.py"
    allreduce = f"allreduce  {file}:13 in step"
    for rank, other, last in ((0, 1, "send"), (1, 0, "recv")):
        calls = [
            name.split(" (")[0]  # some versions of JAX add the scope of a loop
            for name in names(events, rank + 1, CALLS)
            if not name.startswith(("waits", "moves"))
        ]
        assert calls == [allreduce, *[SHIFT.format(file)] * 3, last]

        (call,) = (
            e for e in slices(events) if e["name"] == allreduce and e["pid"] == rank + 1
        )
        assert call["args"] == {
            "on": "COMM_WORLD",
            "operator": "SUM",
            "sends": "float32[3]",
            "bytes sent": 12,
            "receives": "float32[3]",
            "bytes received": 12,
            "number": 1,
        }
        shift = next(
            e
            for e in slices(events)
            if e["name"].startswith("sendrecv") and e["pid"] == rank + 1
        )
        assert shift["args"]["to"] == shift["args"]["from"] == other
        assert shift["args"]["tag to"] == 7
        assert shift["args"]["tag from"] == "any"

        # What JAX and Python did is beside them.
        assert "compile step" in names(events, rank + 1, COMPILES)
        assert names(events, rank + 1, EAGER) == [last]
        named = {
            e["args"]["name"] for e in events if e["ph"] == "M" and e["pid"] == rank + 1
        }
        assert {"MPI", "JAX traces and compiles", "Eager calls in Python"} <= named
        assert any(name.startswith(f"rank {rank} (") for name in named)

    # Who began first waited for the other one: rank 1, as rank 0 sleeps, if all is well.
    both = [e for e in slices(events) if e["name"] == allreduce]
    early, late = sorted(both, key=lambda call: call["ts"])
    (wait,) = (
        e
        for e in slices(events)
        if e["name"] == f"waits for rank {late['pid'] - 1}"
        and e["pid"] == early["pid"]
        and e["ts"] == pytest.approx(early["ts"], abs=0.002)
    )
    assert wait["dur"] == pytest.approx(min(late["ts"] - early["ts"], early["dur"]), abs=1)

    # Each message has an arrow.
    pairs = sorted((begin["pid"], end["pid"]) for begin, end in arrows(events))
    assert pairs == [(1, 2)] * 4 + [(2, 1)] * 3

    first, second, third, last = printed.splitlines()
    assert first == "10 calls of 2 processes, 7 messages"
    host = json.loads((tmp_path / "a/trace/rank-0.json").read_text().splitlines()[0])[
        "host"
    ]
    assert second == f"rank 0 on {host}: its clock is that of the timeline"
    assert third == f"rank 1 on {host}: the clock of rank 0"
    assert last.endswith("trace.pftrace: open it at https://ui.perfetto.dev")


def test_several_messages(traced):
    """Each message of a call has its arrow, and the call says who they go to."""
    events, printed = traced("""
        import jax, jax.numpy as jnp
        from mpi4py import MPI
        from mpi4jax import notoken as mpi

        comm = MPI.COMM_WORLD.Create_cart([2], periods=[True])
        other = 1 - comm.Get_rank()
        x, y = jnp.ones(3), jnp.ones(2, jnp.int16)
        nobody = MPI.PROC_NULL
        mpi.exchange(
            [x, (x, y), x], [x, (x, y), x], [other, other, nobody], [other, other, nobody],
            sendtag=[1, 2, 3], recvtag=[1, 2, 3],
        )
        mpi.neighbor_alltoall(jnp.ones((2, 5)), comm=comm)
    """)
    assert printed.splitlines()[0] == "4 calls of 2 processes, 8 messages"
    pairs = sorted((begin["pid"], end["pid"]) for begin, end in arrows(events))
    assert pairs == [(1, 2)] * 4 + [(2, 1)] * 4
    calls = {e["name"]: e["args"] for e in slices(events) if e["pid"] == 1}
    assert calls["exchange"] == {
        "on": "COMM_WORLD",
        "to": [1, 1, "nobody"],
        "tags to": [1, 2, 3],
        "bytes sent": 28,
        "from": [1, 1, "nobody"],
        "tags from": [1, 2, 3],
        "bytes received": 28,
    }
    assert calls["neighbor_alltoall"] == {
        "on": "communicator 3",
        "to": [1, 1],
        "from": [1, 1],
        "sends": "float32[10]",
        "bytes sent": 40,
        "receives": "float32[10]",
        "bytes received": 40,
        "number": 1,
    }


IN_FLIGHT = """
    import jax, jax.numpy as jnp
    from mpi4py import MPI
    import mpi4jax

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size

    @jax.jit
    def step(x):
        request = mpi4jax.isendrecv(x, x, left, right)
        total = mpi4jax.iallreduce(x, MPI.SUM)
        return mpi4jax.wait(request), mpi4jax.wait(total)

    jax.block_until_ready(step(jnp.ones(3)))
"""


def test_what_is_in_flight(traced):
    events, _ = traced(IN_FLIGHT)
    for rank in range(2):
        bars = [e for e in events if e["ph"] == "b" and e["pid"] == rank + 1]
        assert {bar["cat"] for bar in bars} == {"in flight"}
        assert all(bar["dur"] > 0 for bar in bars)
        operations = sorted(bar["name"].split()[0] for bar in bars)
        assert operations == ["iallreduce", "iexchange"]
    # Each message is an arrow, from the start on one rank to the wait on the other.
    assert len(arrows(events)) == 2


SHARDED = """
    import jax, numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from mpi4py import MPI
    from mpi4jax import distributed, notoken as mpi

    distributed.initialize()
    mesh = Mesh(jax.devices(), "i")
    rows = NamedSharding(mesh, P("i"))
    x = jax.make_array_from_process_local_data(rows, np.ones((1, 3), np.float32))

    def turn(_, x):
        other = 1 - lax.axis_index("i")
        return lax.psum(mpi.sendrecv(x, x, other, other, sendtag=7), "i")

    def body(x):
        return mpi.scan(lax.fori_loop(0, 3, turn, x), MPI.SUM)

    specs = {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i")}
    jax.block_until_ready(jax.jit(jax.shard_map(body, check_vma=False, **specs))(x))
"""


def test_a_sharded_program(traced, tmp_path):
    """Ours have their lines and the ranks that the program computes, among JAX's own."""
    events, printed = traced(SHARDED)
    assert printed.startswith("14 calls of 2 processes, 6 messages\n")
    shift, scan = (f"{tmp_path}/program.py:{line}" for line in ("15 in turn", "18 in body"))
    for rank in range(2):
        calls = [
            name.split(" (")[0]
            for name in names(events, rank + 1, CALLS)
            if not name.startswith(("waits", "moves"))
        ]
        turns = [f"sendrecv  {shift}", "allreduce"] * 3
        assert calls == [*turns, f"scan  {scan}"]
        sent = [
            (e["args"]["to"], e["args"]["from"], e["args"]["tag to"])
            for e in slices(events)
            if e["name"].startswith("sendrecv") and e["pid"] == rank + 1
        ]
        assert sent == [(1 - rank, 1 - rank, 7)] * 3
    pairs = sorted((begin["pid"], end["pid"]) for begin, end in arrows(events))
    assert pairs == [(1, 2)] * 3 + [(2, 1)] * 3


def test_between(traced, tmp_path):
    traced("from mpi4jax import notoken as mpi; mpi.barrier()")
    events, printed = merged(tmp_path / "a/trace", "--between", "1000", "2000")
    assert {e["ph"] for e in events} == {"M"}
    assert printed.startswith("0 calls of 2 processes, 0 messages\n")


def test_a_process_that_is_killed(launch, tmp_path):
    """The trace has the calls before, and the one that was interrupted."""
    done = launch(
        """
        import os, time, threading
        from mpi4py import MPI
        from mpi4jax import notoken as mpi
        mpi.barrier()
        time.sleep(0.5)
        os._exit(7)
        """,
        ranks=0,
        MPI4JAX_TRACE=str(tmp_path),
    )
    assert done.returncode == 7
    events, printed = merged(tmp_path)
    assert "barrier" in names(events, 1, CALLS)
    assert "; it has not got to its end\n" in printed


DISK_FULL = """
    import resource
    from mpi4py import MPI
    from mpi4jax import notoken as mpi

    mpi.barrier()
    if MPI.COMM_WORLD.Get_rank() == 1:
        # As on a full disk, files can't grow any more.
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
    for _ in range(2000):
        mpi.barrier()
    print("done", flush=True)
"""


def test_a_disk_that_is_full(launch, tmp_path):
    """The trace stops, says so once, and the program goes on."""
    folder = tmp_path / "trace"
    done = launch(DISK_FULL, ranks=2, MPI4JAX_TRACE=str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2
    text = "mpi4jax: calls are not recorded any more, and the program goes on: "
    assert done.stderr.count(text) == 1, done.stderr
    assert re.search(rf"{text}{folder}/rank-1\.\w+: File too large", done.stderr)
    events, printed = merged(folder)
    drawn = [names(events, pid, CALLS).count("barrier") for pid in (1, 2)]
    assert drawn[0] == 2001
    assert 1 <= drawn[1] < 500
    assert printed.splitlines()[2].endswith("; it has not got to its end")


def test_a_thread_that_cannot_be_started(launch, tmp_path):
    """Fails if calls wait for a trace that nobody writes."""
    done = launch(
        f"""
        from mpi4jax import _core, notoken as mpi
        try:
            _core.start_trace({str(tmp_path / "calls")!r}, ["barrier"], 1024)
        except BlockingIOError:
            print("no thread")
        for _ in range(1500):
            mpi.barrier()
        print(_core.stop_trace())
        """,
        # More than there are addresses.
        RUST_MIN_STACK=str(2**60),
    )
    assert (done.returncode, done.stdout) == (0, "no thread\nNone\n"), done.stderr


def test_a_profile_that_cannot_be_printed(launch, tmp_path):
    """Its rank ends its trace all the same, for which the others wait."""
    folder = tmp_path / "trace"
    done = launch(
        """
        import sys
        from mpi4py import MPI
        from mpi4jax import notoken as mpi

        mpi.barrier()
        if MPI.COMM_WORLD.Get_rank() == 0:
            sys.stdout.close()
        """,
        ranks=2,
        MPI4JAX_TRACE=str(folder),
        MPI4JAX_PROFILE="1",
    )
    assert "I/O operation on closed file" in done.stderr
    assert "deadlock" not in done.stderr
    events, _ = merged(folder)
    assert [names(events, pid, CALLS).count("barrier") for pid in (1, 2)] == [1, 1]


def test_a_rank_that_cannot_write(launch, tmp_path):
    """No rank waits for it: all say which one it is."""
    done = launch(
        """
        import os
        from mpi4py import MPI
        if MPI.COMM_WORLD.Get_rank() == 1:
            os.environ["MPI4JAX_TRACE"] = "/proc/nothing"
        import mpi4jax
        """,
        ranks=2,
        MPI4JAX_TRACE=str(tmp_path / "trace"),
        timeout=60,
    )
    assert done.returncode != 0
    text = r"RuntimeError: MPI4JAX_TRACE=\S+: rank 1 can't write it: .*'/proc/nothing'"
    assert re.search(text, done.stderr), done.stderr


@pytest.mark.parametrize("name", ["MPI4JAX_TRACE", "MPI4JAX_PROFILE"])
def test_a_variable_that_one_rank_has(launch, tmp_path, name):
    done = launch(
        f"""
        import os
        from mpi4py import MPI
        if MPI.COMM_WORLD.Get_rank() == 1:
            os.environ[{name!r}] = {str(tmp_path / "a") if "TRACE" in name else "1"!r}
        from mpi4jax import notoken as mpi
        mpi.barrier()
        """,
        ranks=2,
        timeout=60,
    )
    assert done.returncode != 0
    assert (
        f"RuntimeError: the environment variable {name} is set in some processes only, "
        "expected it in all of them or in none"
    ) in done.stderr


@pytest.mark.parametrize("make", ["Dup()", "Split(0, world.Get_rank())"])
def test_communicators_that_ranks_use_in_another_order(traced, make):
    """Fails if they are told apart by the order in which each rank has used them."""
    events, _ = traced(f"""
        import jax.numpy as jnp
        from mpi4py import MPI
        from mpi4jax import notoken as mpi

        world = MPI.COMM_WORLD
        a, b = world.{make}, world.{make}
        a.Set_name("a")
        b.Set_name("b")
        if world.Get_rank() == 0:
            mpi.send(jnp.ones(3), 1, comm=a)
            mpi.send(jnp.ones(3), 1, comm=b)
        else:
            mpi.recv(jnp.ones(3), 0, comm=b)
            mpi.recv(jnp.ones(3), 0, comm=a)
    """)
    calls = [e for e in slices(events) if "on" in e["args"]]
    pairs = []
    for begin, end in arrows(events):
        sender = begin["slice"]["args"]["on"]
        receivers = [
            e["args"]["on"]
            for e in calls
            if e["tid"] == end["tid"] and e["ts"] <= end["ts"] <= e["ts"] + e["dur"]
        ]
        pairs.append((sender, *receivers))
    assert sorted(pairs) == [("a", "a"), ("b", "b")]


def test_threads(traced):
    """Calls do not overlap on a track, and messages arrive after they leave."""
    events, printed = traced("""
        import threading
        import jax.numpy as jnp
        from mpi4py import MPI
        from mpi4jax import notoken as mpi

        world = MPI.COMM_WORLD
        rank = world.Get_rank()
        comms = [world.Dup() for _ in range(3)]

        def run(comm):
            x = jnp.ones(3)
            for _ in range(100):
                mpi.sendrecv(x, x, 1 - rank, 1 - rank, comm=comm)

        threads = [threading.Thread(target=run, args=(comm,)) for comm in comms]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """)
    assert printed.startswith("600 calls of 2 processes, 600 messages\n")
    assert all(begin["ts"] <= end["ts"] for begin, end in arrows(events))
    calls = [
        e for e in slices(events) if e["name"] == "sendrecv" and e["tid"] % 1000 >= CALLS
    ]
    assert len(calls) == 600
    for tid in {call["tid"] for call in calls}:
        on_track = sorted((e["ts"], e["dur"]) for e in calls if e["tid"] == tid)
        for (begin, duration), (following, _) in itertools.pairwise(on_track):
            assert begin + duration < following + 1e-4


@pytest.mark.skipif(
    jax.__version_info__ < (0, 8), reason="XLA names custom calls by numbers only"
)
def test_the_profiler_of_jax_has_the_names(launch, tmp_path):
    done = launch(
        """
        import gzip, json, sys
        from pathlib import Path
        import jax, jax.numpy as jnp
        from mpi4py import MPI
        from mpi4jax import notoken as mpi

        step = jax.jit(lambda x: mpi.allreduce(mpi.bcast(x, 0), op=MPI.MAX))
        x = jnp.ones(3)
        step(x).block_until_ready()
        with jax.profiler.trace("profile"):
            step(x).block_until_ready()
        (file,) = Path("profile").rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        names = {event.get("name", "").partition("_mpi")[0] for event in events}
        print(sorted(names & {"allreduce", "bcast"}))
        """,
        cwd=tmp_path,
        MPI4JAX_CHECK="1",  # so that one process makes its calls
    )
    assert done.stdout == "['allreduce', 'bcast']\n", done.stderr


def test_no_trace(tmp_path, capsys):
    assert main(["trace", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"{tmp_path}: has no trace: no file is called rank-0.json\n"
    )


OPERATIONS = "allreduce bcast send recv reduce sendrecv exchange neighbor_alltoall".split()

#: Messages with ranks 1 and 2, or with one rank.
BOTH, ROOT, OTHER = 1, 2, 3
SITES = [
    {"kind": "site", "number": index, "line": "", "sent": ends, "received": ends}
    for index, ends in (
        (BOTH, [[1, 0, 8], [2, 0, 8], [-2, 0, 8]]),
        (ROOT, [[0, 0, 8]]),
        (OTHER, [[1, 0, 8]]),
    )
]


def write(folder, rank, clocks, calls, boot="here", size=2, lost=0, run="a"):
    """A trace by hand: calls are dicts of fields, on a communicator of two."""
    facts = {
        "kind": "process",
        "rank": rank,
        "size": size,
        "run": run,
        "host": "host",
        "boot": boot,
        "started": 0,
        "operations": OPERATIONS,
        "operators": ["SUM"],
        "dtypes": {},
        "proc_null": -2,
    }
    world = {
        "kind": "communicator",
        "number": 5 + rank,
        "name": "ocean",
        "members": [[0, 1, size]],
        "copies": None,
    }
    lines = [
        facts,
        *({"kind": "clock", "at": a, "offset": o, "error": e} for a, o, e in clocks),
        *SITES,
        world,
        {"kind": "end", "at": 0, "calls": len(calls), "lost": lost},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"cut o'
    (folder / f"rank-{rank}.json").write_text(text)
    entries = np.zeros(len(calls), ENTRY)
    for name in ("op", "root", "dest", "source", "send_tag", "recv_tag"):
        entries[name] = NONE
    entries["communicator"] = 5 + rank
    for entry, call in zip(entries, calls, strict=True):
        operation = facts["operations"].index(call["name"])
        for name, value in {**call, "operation": operation}.items():
            if name != "name":
                entry[name] = value
    file = folder / f"rank-{rank}.calls"
    _core.start_trace(file, OPERATIONS, 1)  # writes the header
    _core.stop_trace()
    with open(file, "ab") as calls_file:
        calls_file.write(entries.tobytes() + b"cut off")


def call(name, begin, end, **fields):
    return {"name": name, "begin": begin, "end": end, **fields}


def events_of(folder, *options):
    output = folder / "timeline"
    assert main(["trace", str(folder), "-o", str(output), *options]) == 0
    return timelines.read(output)


def test_clocks_are_aligned(tmp_path, capsys):
    """Rank 1's clock is ahead by 1 s, and by 0.1 ms more in every second."""
    second = 10**9
    calls = [
        call("allreduce", n * second, n * second + 100, sequence=n) for n in range(1, 4)
    ]
    write(tmp_path, 0, [(0, 0, 0)], calls)
    ahead = [second + n * second + n * 10**5 for n in range(5)]
    shifted = [
        {**c, "begin": ahead[n], "end": ahead[n] + 100}
        for n, c in enumerate(calls, start=1)
    ]
    clocks = [(ahead[0], second, 2000), (ahead[4], second + 4 * 10**5, 3000)]
    write(tmp_path, 1, clocks, shifted, boot="there")
    drawn = slices(events_of(tmp_path))
    first, second = ([e["ts"] for e in drawn if e["pid"] == pid] for pid in (1, 2))
    assert [ts - first[0] for ts in first] == pytest.approx([0, 1e6, 2e6])
    assert second == pytest.approx(first, abs=0.002)
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "rank 0 on host: its clock is that of the timeline",
        "rank 1 on host: times are right to 3.0 µs, after correcting a drift of "
        "+99.99 µs per second",
    ]


@pytest.mark.parametrize(
    ("boot", "clocks", "lost", "text"),
    [
        ("here", [(0, 5, 10), (9, -4, 10)], 0, "the clock of rank 0"),
        # A container with a clock of its own.
        (
            "here",
            [(0, 500, 10)],
            0,
            "times are right to 0.0 µs, and worse with every second, as there was no "
            "comparison at the end",
        ),
        ("there", [], 0, "its clock was not compared with rank 0's"),
        ("here", [], 3, "the clock of rank 0; 3 calls are missing"),
    ],
)
def test_what_is_said_of_times(boot, clocks, lost, text, tmp_path, capsys):
    write(tmp_path, 0, [(0, 0, 0)], [])
    write(tmp_path, 1, clocks, [], boot=boot, lost=lost)
    events_of(tmp_path)
    assert capsys.readouterr().out.splitlines()[2] == f"rank 1 on host: {text}"


def arrows(events):
    """The arrows, each by its beginning and its end."""
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    return [(begins[e["id"]], e) for e in events if e["ph"] == "f"]


def times(arrows):
    """When arrows begin and end, in nanoseconds."""
    return sorted(tuple(round(e["ts"] * 1000) for e in ends) for ends in arrows)


def test_a_trace_of_another_version(tmp_path, capsys):
    """The hash of the fields in its header is another one, or was the size of them all."""
    write(tmp_path, 0, [(0, 0, 0)], [call("allreduce", 5, 6)], size=1)
    file = tmp_path / "rank-0.calls"
    content = file.read_bytes()
    size = ENTRY.itemsize.to_bytes(8, "little")
    assert content[8:16] != size
    file.write_bytes(content[:8] + size + content[16:])
    output = tmp_path / "timeline"
    assert main(["trace", str(tmp_path), "-o", str(output)]) == 1
    error = f"{file}: is not a file of this version of mpi4jax"
    assert "".join(capsys.readouterr().err.split()) == error.replace(" ", "")
    assert not output.exists()


def test_messages_by_tag(tmp_path):
    """A receive gets the first message with its tag, or the first of all."""
    sends = [(100, 5), (200, 6), (300, 5), (400, 7)]
    receives = [(1000, 6), (2000, -1), (3000, 5), (4000, 9)]
    write(
        tmp_path,
        0,
        [],
        [call("send", t, t + 10, dest=1, send_tag=tag) for t, tag in sends],
    )
    write(
        tmp_path,
        1,
        [],
        [call("recv", t, t + 10, source=0, recv_tag=tag) for t, tag in receives],
    )
    assert times(arrows(events_of(tmp_path))) == [(100, 2010), (200, 1010), (300, 3010)]


def test_messages_of_a_part(tmp_path):
    """Fails if messages of before are left out, by which each receive gets a later one."""
    sends = [call("send", t, t + 10, dest=1, send_tag=0) for t in (100, 200, 1100, 1300)]
    receives = [call("recv", t, t + 10, source=0, recv_tag=0) for t in (900, 1000, 1200)]
    write(tmp_path, 0, [], sends)
    write(tmp_path, 1, [], receives)
    events = events_of(tmp_path, "--between", "1e-6", "2e-6")
    assert times(arrows(events)) == [(1100, 1210)]
    drawn = sorted(round(e["ts"] * 1000) for e in slices(events))
    assert drawn == [1000, 1100, 1200, 1300]


def test_messages_from_anyone(tmp_path):
    """The one that was sent first, though the receive began before."""
    write(tmp_path, 0, [], [call("send", 300, 310, dest=2, send_tag=1)], size=3)
    write(tmp_path, 1, [], [call("send", 200, 210, dest=2, send_tag=1)], size=3)
    receives = [call("recv", t, t + 300, source=-1, recv_tag=-1) for t in (100, 500)]
    write(tmp_path, 2, [], receives, size=3)
    assert times(arrows(events_of(tmp_path))) == [(200, 400), (300, 800)]


def test_an_arrow_belongs_to_a_call(tmp_path):
    """Viewers take the innermost slice where it begins or ends, which may not be a wait."""
    for rank, times in enumerate([(100, 900), (500, 950)]):
        shift = {"dest": 1 - rank, "source": 1 - rank, "send_tag": 0, "recv_tag": -1}
        write(tmp_path, rank, [], [call("sendrecv", *times, **shift)])
    events = events_of(tmp_path)
    assert len(slices(events)) == 4

    owners = [tuple(end["slice"] for end in ends) for ends in arrows(events)]
    names = sorted((sender["name"], receiver["name"]) for sender, receiver in owners)
    assert names == [("sendrecv", "moves bytes"), ("sendrecv", "sendrecv")]
    # Perfetto has an arrow point to what begins later.
    assert all(sender["ts"] <= receiver["ts"] for sender, receiver in owners)


def waits(events):
    """Who waits for whom, and how long, from the nanosecond after the call has begun."""
    return sorted(
        (e["pid"] - 1, e["name"], round(e["dur"] * 1000) + 1)
        for e in slices(events)
        if e["name"].startswith("waits")
    )


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("allreduce", {}, [(0, "waits for rank 1", 400)]),
        # The root needs nobody to begin.
        ("bcast", {"root": 0}, []),
        ("bcast", {"root": 1}, [(0, "waits for rank 1", 400)]),
        ("reduce", {"root": 0}, [(0, "waits for rank 1", 400)]),
        ("reduce", {"root": 1}, []),
    ],
)
def test_who_waits_for_whom(name, fields, expected, tmp_path):
    write(tmp_path, 0, [], [call(name, 100, 900, sequence=1, **fields)])
    write(tmp_path, 1, [], [call(name, 500, 950, sequence=1, **fields)])
    assert waits(events_of(tmp_path)) == expected


@pytest.mark.parametrize("name", ["exchange", "neighbor_alltoall"])
def test_waiting_for_several_messages(name, tmp_path):
    """For the last one that has a message for this process, in one slice."""
    sequence = 0 if name == "exchange" else 1
    for rank, (begin, end) in enumerate([(100, 1000), (700, 900), (500, 950)]):
        site = ROOT if rank else BOTH
        calls = [call(name, begin, end, call_site=site, sequence=sequence)]
        write(tmp_path, rank, [], calls, size=3)
    events = events_of(tmp_path)
    assert waits(events) == [(0, "waits for rank 1", 600)]
    assert times(arrows(events)) == [(100, 900), (100, 950), (500, 1000), (700, 1000)]
    # What the arrows to the first process point to, in Perfetto.
    rest = [(e["pid"], e["dur"]) for e in slices(events) if e["name"] == "moves bytes"]
    assert rest == [(1, pytest.approx(0.3))]


def test_messages_between_neighbors_are_kept_apart(tmp_path):
    """They are on a communicator of their own, and matched from the first one on."""
    for rank, site in enumerate((OTHER, ROOT)):
        calls = [
            call("neighbor_alltoall", t, t + 10, call_site=site, sequence=n)
            for n, t in ((1, 200), (2, 1200))
        ]
        recv = call("recv", 100, 110, source=0, recv_tag=0)
        write(tmp_path, rank, [], [recv, *calls] if rank else calls)
    assert times(arrows(events_of(tmp_path))) == [(200, 210)] * 2 + [(1200, 1210)] * 2
    events = events_of(tmp_path, "--between", "1e-6", "2e-6")
    assert times(arrows(events)) == [(1200, 1210)] * 2


def test_what_is_not_the_same_call_is_kept_apart(tmp_path):
    write(tmp_path, 0, [], [call("allreduce", 100, 900, sequence=1)])
    write(tmp_path, 1, [], [call("bcast", 500, 950, sequence=1, root=0)])
    assert waits(events_of(tmp_path)) == []


def test_calls_at_the_same_time_are_beside_each_other(tmp_path):
    write(
        tmp_path,
        0,
        [],
        [call("send", 100, 0), call("send", 200, 300), call("send", 250, 350)],
        size=1,
    )
    events = events_of(tmp_path)
    tracks = sorted((e["tid"] % 1000, e["args"].get("end")) for e in slices(events))
    assert tracks == [(CALLS, "never"), (CALLS + 1, None), (CALLS + 2, None)]


def test_messages_to_several_threads(tmp_path):
    """Each receive gets one that was sent before it ended."""
    write(
        tmp_path, 0, [], [call("send", t, t + 10, dest=1, send_tag=0) for t in (100, 500)]
    )
    receives = [(10, 600), (50, 300)]
    write(tmp_path, 1, [], [call("recv", *t, source=0, recv_tag=0) for t in receives])
    assert times(arrows(events_of(tmp_path))) == [(100, 300), (500, 600)]


def test_few_files_are_open(tmp_path):
    """There may be more processes than files that may be open."""
    for rank in range(64):
        write(tmp_path, rank, [], [call("allreduce", 100 + rank, 900, sequence=1)], size=64)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (48, limits[1]))
    try:
        events = events_of(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert sum(e["name"] == "allreduce" for e in slices(events)) == 64


def test_two_runs_in_one_folder(tmp_path, capsys):
    for rank in range(2):
        write(tmp_path, rank, [], [], run="new")
    write(tmp_path, 2, [], [], size=3, run="old")
    assert main(["trace", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"{tmp_path}/rank-2.json: is of another run (3 processes) than "
        f"{tmp_path}/rank-0.json (2 processes)\n"
    )


def test_a_file_that_is_corrupted(tmp_path, capsys):
    write(tmp_path, 0, [], [call("allreduce", 900, 100, sequence=1)], size=1)
    output = tmp_path / "timeline"
    assert main(["trace", str(tmp_path), "-o", str(output)]) == 1
    assert capsys.readouterr().err == (
        f"{tmp_path}/rank-0.calls, byte 16: a call that ends 800 ns before it begins\n"
    )
    assert not output.exists()
