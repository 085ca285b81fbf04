"""Fourier transforms with the names and arguments of NumPy's."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
from jax.sharding import NamedSharding

from ..arguments.checks import integers
from ..arguments.types import Array, PyTree, Unchecked
from ..mpi.handles import Communicator
from ..operations._eager import PlanCall, on_own_devices, run_named
from .layout import Layout
from .on_mesh import MeshLayout
from .transforms import Chain, axes_of, chain_of, check_norm, check_real


def fftn(
    x: PyTree,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """The transform of a divided array, as :func:`numpy.fft.fftn` has it.

    Arguments:
        x: The part of this process, of an array or of a tree of them. Or, without a layout,
            an array that is sharded over a mesh of processes.
        s, axes, norm: As for NumPy.
        layout (mpi4jax.pencil.Layout): How the array is divided.

    Returns:
        The part of this process of the transform, and the layout of that. Without a layout,
        the transform, sharded as the operand.

    """
    return _transform("fftn", x, layout, s, axes, norm)


def ifftn(
    x: PyTree,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """The inverse of :func:`fftn`."""
    return _transform("ifftn", x, layout, s, axes, norm)


def rfftn(
    x: PyTree,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """The transform of real numbers, which has half of the modes along the last axis."""
    return _transform("rfftn", x, layout, s, axes, norm)


def irfftn(
    x: PyTree,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """The inverse of :func:`rfftn`. Without ``s``, the last axis gets an even number."""
    return _transform("irfftn", x, layout, s, axes, norm)


def fft(
    x: PyTree,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """:func:`fftn` along one axis."""
    return _transform("fft", x, layout, None if n is None else [n], [axis], norm)


def ifft(
    x: PyTree,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """:func:`ifftn` along one axis."""
    return _transform("ifft", x, layout, None if n is None else [n], [axis], norm)


def rfft(
    x: PyTree,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """:func:`rfftn` along one axis."""
    return _transform("rfft", x, layout, None if n is None else [n], [axis], norm)


def irfft(
    x: PyTree,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """:func:`irfftn` along one axis."""
    return _transform("irfft", x, layout, None if n is None else [n], [axis], norm)


def fft2(
    x: PyTree,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """:func:`fftn` along two axes."""
    return _transform("fft2", x, layout, s, axes, norm)


def ifft2(
    x: PyTree,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """:func:`ifftn` along two axes."""
    return _transform("ifft2", x, layout, s, axes, norm)


def rfft2(
    x: PyTree,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """:func:`rfftn` along two axes."""
    return _transform("rfft2", x, layout, s, axes, norm)


def irfft2(
    x: PyTree,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
    *,
    layout: Layout | None = None,
) -> PyTree:
    """:func:`irfftn` along two axes."""
    return _transform("irfft2", x, layout, s, axes, norm)


@on_own_devices
def _transform(
    function: str,
    x: PyTree,
    layout: Layout | None,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
) -> PyTree:
    name = f"fft.{function}"
    of_array = _layout_of(name, x) if layout is None else None
    chain = _chain(name, function, of_array or layout, s, axes, norm)
    if "rfft" in function and not function.startswith("i"):
        check_real(name, x)
    if of_array is not None:
        return _transform_sharded(name, chain, of_array, x)
    assert layout is not None
    leaves, structure = layout._leaves_of(name, x)
    return structure.unflatten(chain.forward(name, leaves)), chain.result


def _chain(
    name: str,
    function: str,
    layout: Unchecked,
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
    return chain_of(
        name,
        layout,
        positions,
        tuple(points),
        tuple(points),
        is_real=is_real,
        is_inverse=is_inverse,
        norm=norm,
    )


# Sharded arrays.


def _layout_of(name: str, x: Unchecked) -> MeshLayout:
    """The layout that a sharded array has."""
    sharding = None if isinstance(x, jax.core.Tracer) else getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        raise TypeError(
            f"{name} got no `layout`, and {type(x).__name__} without a NamedSharding, "
            "expected an array that is sharded over a mesh of processes, or a layout"
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
    return MeshLayout(mesh, x.shape, axes, names=names)


def _transform_sharded(name: str, chain: Chain, layout: MeshLayout, x: Array) -> Array:
    """The transform of a sharded array, sharded in the same way."""
    result = chain.result.with_axes(layout.axes)
    assert isinstance(result, MeshLayout)
    if result.padded_shape != result.shape:
        raise ValueError(
            f"{name} has a result of shape {result.shape}, which JAX can't shard as "
            f"{layout.spec} over {dict(layout.mesh.shape)}: expected a multiple of the "
            "processes along each divided axis"
        )
    call = _ShardedCall(layout._communicator_of(name), name, chain, layout, result)
    transformed: Array = run_named(name, call, [x])
    return transformed


@dataclass(frozen=True)
class _ShardedCall(PlanCall):
    """A call for a sharded array, which is a program on its mesh."""

    name: ClassVar[str] = "fft_sharded"

    communicator: Communicator
    function: str
    chain: Chain
    layout: MeshLayout
    result: MeshLayout

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
