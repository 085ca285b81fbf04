"""Fourier transforms of sharded arrays, with the names and arguments of NumPy's."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
from jax.sharding import NamedSharding

from ..arguments.checks import describe, integers
from ..arguments.types import Array, Unchecked
from ..mpi.handles import Communicator
from ..operations._eager import PlanCall, on_own_devices, run_named
from .layout import Layout
from .transforms import Chain, Transform, axes_of, chain_of, check_norm, check_real


def fftn(
    x: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """The transform of a sharded array, as :func:`numpy.fft.fftn` has it.

    A :class:`Plan` transforms arrays of which each process has a part.

    Arguments:
        x: An array that is sharded over a mesh of processes.
        s, axes, norm: As for NumPy.

    Returns:
        The transform, sharded as the operand.

    """
    return _transform("fftn", x, s, axes, norm)


def ifftn(
    x: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """The inverse of :func:`fftn`."""
    return _transform("ifftn", x, s, axes, norm)


def rfftn(
    x: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """The transform of real numbers, which has half of the modes along the last axis."""
    return _transform("rfftn", x, s, axes, norm)


def irfftn(
    x: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """The inverse of :func:`rfftn`. Without ``s``, the last axis gets an even number."""
    return _transform("irfftn", x, s, axes, norm)


def fft(
    x: Array,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> Array:
    """:func:`fftn` along one axis."""
    return _transform("fft", x, None if n is None else [n], [axis], norm)


def ifft(
    x: Array,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> Array:
    """:func:`ifftn` along one axis."""
    return _transform("ifft", x, None if n is None else [n], [axis], norm)


def rfft(
    x: Array,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> Array:
    """:func:`rfftn` along one axis."""
    return _transform("rfft", x, None if n is None else [n], [axis], norm)


def irfft(
    x: Array,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> Array:
    """:func:`irfftn` along one axis."""
    return _transform("irfft", x, None if n is None else [n], [axis], norm)


def fft2(
    x: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """:func:`fftn` along two axes."""
    return _transform("fft2", x, s, axes, norm)


def ifft2(
    x: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """:func:`ifftn` along two axes."""
    return _transform("ifft2", x, s, axes, norm)


def rfft2(
    x: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """:func:`rfftn` along two axes."""
    return _transform("rfft2", x, s, axes, norm)


def irfft2(
    x: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Array:
    """:func:`irfftn` along two axes."""
    return _transform("irfft2", x, s, axes, norm)


@on_own_devices
def _transform(
    function: str,
    x: Array,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
) -> Array:
    name = f"fft.{function}"
    layout = _layout_of(name, x)
    chain = _chain(name, function, layout, s, axes, norm)
    if "rfft" in function and not function.startswith("i"):
        check_real(name, [x])
    result = chain.result.with_axes(layout.axes)
    if result.padded_shape != result.shape:
        raise ValueError(
            f"{name} has a result of shape {result.shape}, which JAX can't shard as "
            f"{layout.spec} over {layout.dims} processes: expected multiples of these"
        )
    call = _ShardedCall(layout._communicator_of(name), name, chain, layout, result)
    transformed: Array = run_named(name, call, [x])
    return transformed


def _chain(
    name: str,
    function: str,
    layout: Layout,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
) -> Chain:
    is_real, is_inverse = "rfft" in function, function.startswith("i")
    if axes is None and s is not None:
        axes = range(-len(s), 0)
    positions = axes_of(name, layout, axes)
    if s is None:
        points = [layout.shape[axis] for axis in positions]
        if is_real and is_inverse:
            points[-1] = 2 * (points[-1] - 1)
    else:
        points = list(integers(name, "s", s))
    if len(points) != len(positions) or min(points) < 1:
        raise ValueError(
            f"{name} got {points} points for the axes {list(positions)}, expected a number "
            "of 1 or more for each"
        )
    norm = "backward" if norm is None else norm
    check_norm(name, norm)
    whole = Transform(positions, tuple(points), tuple(points), is_real, norm, is_inverse)
    return chain_of(name, layout, whole)


def _layout_of(name: str, x: Unchecked) -> Layout:
    """The layout that a sharded array has."""
    sharding = None if isinstance(x, jax.core.Tracer) else getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        raise TypeError(
            f"{name} got {describe(x)} without a NamedSharding, expected an array that is "
            "sharded over a mesh of processes. mpi4jax.fft.Plan transforms the parts of "
            "processes"
        )
    axes: list[int] = []
    names: list[Hashable] = []
    for axis, entry in enumerate(sharding.spec):
        if entry in (None, ()):
            continue
        each = entry if isinstance(entry, tuple) else (entry,)
        if len(each) > 1:
            raise ValueError(
                f"{name} got an array that is sharded as {sharding.spec}, expected at most "
                "one axis of the mesh for each axis of the array"
            )
        axes.append(axis)
        names += each
    mesh: Unchecked = sharding.mesh
    return Layout(mesh, x.shape, axes, names=names)


@dataclass(frozen=True)
class _ShardedCall(PlanCall):
    """A call for a sharded array, which is a program on its mesh."""

    name: ClassVar[str] = "fft_sharded"

    communicator: Communicator
    function: str
    chain: Chain
    layout: Layout
    result: Layout

    def call_in_program(self, x: Array) -> Array:
        def transform(x: Array) -> Array:
            transformed = self.chain.forward(self.function, [x])
            moved = self.chain.result.redistribute(transformed, to=self.result)
            return moved[0]

        program = jax.shard_map(
            transform,
            mesh=self.layout.mesh,
            in_specs=self.layout.spec,
            out_specs=self.result.spec,
        )
        result: Array = program(x)
        return result
