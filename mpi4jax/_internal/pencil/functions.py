"""Fourier transforms with the names and arguments of NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..arguments.checks import integers
from .layout import Layout
from .transforms import axes_of, chain_of, check_norm, check_real

T = TypeVar("T")


def fftn(
    x: T,
    layout: Layout,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> tuple[T, Layout]:
    """The transform of an array or a tree of arrays, as :func:`numpy.fft.fftn` has it.

    Arguments:
        x: The part of this process.
        layout (mpi4jax.pencil.Layout): How the array is divided.
        s, axes, norm: As for NumPy.

    Returns:
        The part of this process of the transform, and how that is divided.

    """
    return _transform("fftn", x, layout, s, axes, norm)


def ifftn(
    x: T,
    layout: Layout,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> tuple[T, Layout]:
    """The inverse of :func:`fftn`."""
    return _transform("ifftn", x, layout, s, axes, norm)


def rfftn(
    x: T,
    layout: Layout,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> tuple[T, Layout]:
    """The transform of real numbers, which has half of the modes along the last axis."""
    return _transform("rfftn", x, layout, s, axes, norm)


def irfftn(
    x: T,
    layout: Layout,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> tuple[T, Layout]:
    """The inverse of :func:`rfftn`. Without ``s``, the last axis gets an even number."""
    return _transform("irfftn", x, layout, s, axes, norm)


def fft(
    x: T,
    layout: Layout,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> tuple[T, Layout]:
    """:func:`fftn` along one axis."""
    return _transform("fft", x, layout, None if n is None else [n], [axis], norm)


def ifft(
    x: T,
    layout: Layout,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> tuple[T, Layout]:
    """:func:`ifftn` along one axis."""
    return _transform("ifft", x, layout, None if n is None else [n], [axis], norm)


def rfft(
    x: T,
    layout: Layout,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> tuple[T, Layout]:
    """:func:`rfftn` along one axis."""
    return _transform("rfft", x, layout, None if n is None else [n], [axis], norm)


def irfft(
    x: T,
    layout: Layout,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> tuple[T, Layout]:
    """:func:`irfftn` along one axis."""
    return _transform("irfft", x, layout, None if n is None else [n], [axis], norm)


def fft2(
    x: T,
    layout: Layout,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> tuple[T, Layout]:
    """:func:`fftn` along two axes."""
    return _transform("fft2", x, layout, s, axes, norm)


def ifft2(
    x: T,
    layout: Layout,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> tuple[T, Layout]:
    """:func:`ifftn` along two axes."""
    return _transform("ifft2", x, layout, s, axes, norm)


def rfft2(
    x: T,
    layout: Layout,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> tuple[T, Layout]:
    """:func:`rfftn` along two axes."""
    return _transform("rfft2", x, layout, s, axes, norm)


def irfft2(
    x: T,
    layout: Layout,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> tuple[T, Layout]:
    """:func:`irfftn` along two axes."""
    return _transform("irfft2", x, layout, s, axes, norm)


def _transform(
    function: str,
    fields: T,
    layout: Layout,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
) -> tuple[T, Layout]:
    """What a function named as NumPy's does."""
    name = f"fft.{function}"
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
    layout.check_parts(name, fields)
    if is_real and not is_inverse:
        check_real(name, fields)
    chain = chain_of(
        layout,
        positions,
        tuple(points),
        tuple(points),
        is_real=is_real,
        is_inverse=is_inverse,
        norm=norm,
    )
    return chain.forward(fields), chain.result
