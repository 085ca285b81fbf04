"""The posterior of a model, from data divided among the processes.

    mpiexec -n 2 python examples/posterior.py

A vibration dies away:

    x(t) = amplitude * exp(-decay t) * cos(frequency t + phase).

It is measured at many times, with noise. Which vibrations explain the measurements? Each
process has the measurements of an interval, which only it sees. All sample the same chain
by NUTS, of NumPyro: they have the same key, the log-likelihood is the sum over all of them
(`allreduce`), and so is its gradient, as the parameters are `shared`.

Rank 0 also samples alone: from all measurements, to compare, and from its own ones, which
say little about what comes later. The picture needs matplotlib; --no-plot does without.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from mpi4jax import notoken as mpi
from mpi4jax.pencil import Layout

try:
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import MCMC, NUTS, init_to_median
except ModuleNotFoundError:
    numpyro = None

END = 12.0
TRUE = {"amplitude": 1.5, "decay": 0.05, "frequency": 1.6, "phase": 0.3, "noise": 0.6}
NO_NUMPYRO = "The sampler is NumPyro's, which is not installed: pip install numpyro"
NO_MATPLOTLIB = """\
The picture is drawn by matplotlib, which is not installed: pip install matplotlib (or
mpi4jax with the extra [examples]). --no-plot runs the program without the picture."""

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


class Data(NamedTuple):
    """The measurements of a process."""

    times: jax.Array
    values: jax.Array


#: The value of each parameter in each sample.
Chain = dict[str, jax.Array]


def vibration(parameters: dict, times: jax.Array) -> jax.Array:
    amplitude, decay, frequency, phase = (parameters[name] for name in [*TRUE][:4])
    return amplitude * jnp.exp(-decay * times) * jnp.cos(frequency * times + phase)


def measure(comm: MPI.Comm, count: int) -> Data:
    """The part of this process. The whole is the same for any number of processes."""
    layout = Layout(comm.Create_cart([comm.Get_size()]), (count,), axes=[0])
    times = layout.scatter(lambda: jnp.linspace(0, END, count))
    noise = layout.scatter(lambda: jax.random.normal(jax.random.key(10), (count,)))
    return Data(times, vibration(TRUE, times) + TRUE["noise"] * noise)


def sample(comm: MPI.Comm, data: Data, args: argparse.Namespace) -> Chain:
    """Samples of the posterior from the data of all processes of a communicator."""
    priors = {
        "amplitude": dist.LogNormal(0, 1),
        "decay": dist.LogNormal(-2, 1),
        "frequency": dist.Normal(1.5, 0.3),
        "phase": dist.Normal(0, 1),
        "noise": dist.LogNormal(-1, 1),
    }

    def model() -> None:
        parameters = {name: numpyro.sample(name, prior) for name, prior in priors.items()}
        parameters = mpi.shared(parameters, comm=comm)
        measured = dist.Normal(vibration(parameters, data.times), parameters["noise"])
        own = measured.log_prob(data.values).sum()
        numpyro.factor("likelihood", mpi.allreduce(own, op=MPI.SUM, comm=comm))

    kernel = NUTS(model, init_strategy=init_to_median)
    lengths = {"num_warmup": args.warmup, "num_samples": args.samples}
    mcmc = MCMC(kernel, **lengths, progress_bar=False)
    mcmc.run(jax.random.key(1))
    return mcmc.get_samples()


def distance(chain: Chain, other: Chain) -> float:
    """The largest difference of means, in standard deviations."""
    return max(float(abs((chain[name] - x).mean()) / x.std()) for name, x in other.items())


def print_table(chains: dict[str, Chain]) -> None:
    """The mean and the standard deviation of each parameter."""
    print(f"{'':9}   true" + "".join(f"{title:>18}" for title in chains))
    for name, value in TRUE.items():
        samples = (chain[name] for chain in chains.values())
        columns = (f"{s.mean():.3f} +- {s.std():.3f}" for s in samples)
        print(f"{name:9}  {value:5.3f}" + "".join(f"{column:>18}" for column in columns))


def draw(chains: dict[str, Chain], parts: list[Data], path: str) -> None:
    """Measurements, vibrations that explain these, and two parameters of the vibrations."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    options = {"sharex": "row", "sharey": "row", "layout": "constrained"}
    figure, axes = plt.subplots(2, len(chains), figsize=(5.4, 3.7), **options)
    times = jnp.linspace(0, END, 200)
    measured = (parts, parts, parts[:1])
    for (above, below), title, data in zip(axes.T, chains, measured, strict=True):
        chain = chains[title]
        curves = jax.vmap(vibration, (0, None))(chain, times)
        low, high = np.quantile(curves, (0.05, 0.95), axis=0)
        for part in data:
            above.plot(*part, ".", markersize=5, alpha=0.7, markeredgewidth=0)
        above.fill_between(times, low, high, color="black", alpha=0.25, linewidth=0)
        above.plot(times, vibration(TRUE, times), color="black", linewidth=0.8)
        above.set_title(title, fontsize=11)
        above.set_xlabel("time", fontsize=11)
        below.scatter(chain["frequency"], chain["phase"], 2, color="#9467bd", alpha=0.3)
        below.plot(TRUE["frequency"], TRUE["phase"], "k+", markersize=10)
        below.set_xlabel("frequency", fontsize=11)
    axes[0, 0].set_ylabel("x(t)", fontsize=11)
    axes[1, 0].set_ylabel("phase", fontsize=11)
    figure.savefig(path, dpi=200)
    print(f"wrote {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measurements", type=int, default=120, help="of all processes")
    parser.add_argument("--warmup", type=int, default=500, help="steps before the samples")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--output", default="posterior.png", help="the picture")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    args = parser.parse_args()
    if numpyro is None:
        if rank == 0:
            print(NO_NUMPYRO, file=sys.stderr)
        sys.exit(1)
    if not args.no_plot and importlib.util.find_spec("matplotlib") is None:
        if rank == 0:
            print(NO_MATPLOTLIB, file=sys.stderr)
        sys.exit(2)
    return args


def main() -> int:
    args = parse_arguments()
    data = measure(comm, args.measurements)
    chain = sample(comm, data, args)
    ends = (mpi.allreduce(chain, op=op, comm=comm) for op in (MPI.MIN, MPI.MAX))
    are_equal = jax.tree.all(jax.tree.map(jnp.array_equal, *ends))
    parts = comm.gather(data)
    if rank > 0:
        return 0 if are_equal else 1

    alone = sample(MPI.COMM_SELF, measure(MPI.COMM_SELF, args.measurements), args)
    from_part = sample(MPI.COMM_SELF, data, args)
    together = f"{size} process{'es' * (size > 1)}"
    chains = {together: chain, "one alone": alone, "from its part": from_part}
    print_table(chains)
    to_alone = distance(chain, alone)
    print(f"means differ from those of one by {to_alone:.2f} standard deviations at most")
    print(f"chains are equal to the bit on all processes: {are_equal}")
    if not args.no_plot:
        draw(chains, parts, args.output)
    return 0 if are_equal and to_alone < 10 / args.samples**0.5 else 1


if __name__ == "__main__":
    sys.exit(main())
