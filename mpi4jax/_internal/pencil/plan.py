"""The plan of a Fourier transform: from points to modes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import jax.numpy as jnp
import numpy as np

from mpi4jax._override import override

from ..arguments.checks import integers
from ..arguments.types import Array, Integer, PyTree, Unchecked
from ..mpi.plans import PlanBase
from ..operations._eager import on_own_devices
from ..operations._transposes import is_inexact
from .layout import Layout
from .transforms import (
    Transform,
    axes_of,
    chain_of,
    check_norm,
    check_real,
    check_types,
    mode_count,
)

T = TypeVar("T")

NAME = "fft.Plan"
#: Argument `modes` of products without aliasing, for arrays of as many points as modes.
TWO_THIRDS = "2/3"


class Plan(PlanBase):
    """The Fourier transform of divided arrays, and its inverse.

    Arguments:
        layout (mpi4jax.pencil.Layout): How the arrays are divided before the transform.
            They have to have one axis at least that is not divided.
        axes (Sequence[int]): The axes to transform (defaults to all).
        modes (Sequence[int] or "2/3"): For each of these, the number of modes that are
            kept, those of the lowest wavenumbers (defaults to as many as points). The
            others are zero for the inverse. With ``"2/3"``, modes are kept whose
            wavenumbers are less than a third of the number of points: a product of two
            fields has no aliasing errors in them.
        real (bool): Whether the arrays are real. If so, the modes of negative wavenumbers
            along the last one of the axes are not computed, as they follow from the others.
        norm (str): The factor of the transform: ``"backward"`` (none, the inverse has it),
            ``"ortho"`` or ``"forward"``, as for NumPy.
        spectral_axes (Sequence[int]): The axes of the modes that are divided, as
            ``layout.axes`` are those of the points (defaults to the axes with the fewest
            messages, of these the most evenly divided: see ``spectral.axes``).

    """

    _public_name = NAME

    def __init__(
        self,
        layout: Layout,
        *,
        axes: Sequence[int] | None = None,
        modes: Sequence[int] | str | None = None,
        real: bool = False,
        norm: str = "backward",
        spectral_axes: Sequence[int] | None = None,
    ) -> None:
        positions = axes_of(NAME, layout, axes)
        points = tuple(layout.shape[axis] for axis in positions)
        counts = _mode_counts(modes, points)
        check_norm(NAME, norm)
        self._layout = layout
        self._transform = Transform(positions, points, counts, bool(real), norm)
        self._communicator = layout._communicator_of(NAME)
        target = None
        if spectral_axes is not None:
            target = layout.with_axes(spectral_axes).axes
        self._chain = chain_of(NAME, layout, self._transform, target)

    @override
    def __repr__(self) -> str:
        kind = "real" if self._transform.is_real else "complex"
        ways = f"from {self.layout} to {self.spectral}"
        return f"<{NAME}: {kind}, axes {self.axes}, {ways}>"

    @property
    def layout(self) -> Layout:
        """The layout of arrays before the transform."""
        return self._layout

    @property
    def spectral(self) -> Layout:
        """The layout of the modes."""
        return self._chain.result

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that are transformed."""
        return self._transform.axes

    @property
    def modes(self) -> tuple[int, ...]:
        """The number of modes that are kept along each of the axes.

        Those that a real transform does not compute are included.
        """
        return self._transform.modes

    @on_own_devices
    def forward(self, fields: T) -> T:
        """The modes of fields.

        Arguments:
            fields: An array, or a tree of arrays, divided as ``layout`` says.

        Returns:
            Their modes, divided as ``spectral`` says.

        """
        function = f"{NAME}.forward"
        leaves, structure = self.layout._leaves_of(function, fields)
        expected = "floating-point or complex numbers"
        check_types(function, leaves, is_inexact, expected)
        if self._transform.is_real:
            check_real(function, leaves)
        return structure.unflatten(self._chain.forward(function, leaves))

    @on_own_devices
    def backward(self, fields: T) -> T:
        """The fields that have these modes, the inverse of :meth:`forward`."""
        function = f"{NAME}.backward"
        leaves, structure = self.spectral._leaves_of(function, fields)
        expected = "modes, which are complex numbers"
        check_types(function, leaves, jnp.iscomplexobj, expected)
        return structure.unflatten(self._chain.backward(function, leaves))

    def wavenumbers(self) -> tuple[np.ndarray | Array, ...]:
        """The wavenumbers of the modes of this process, along each of the axes.

        These are numbers of periods. Each array has the shape with which it broadcasts with
        the modes.
        """
        return tuple(
            self.spectral.part(self._along(axis, self._numbers(axis))) for axis in self.axes
        )

    def weights(self) -> np.ndarray | Array:
        """The number of modes that each mode of this process stands for.

        A real transform computes one of two modes of opposite wavenumbers. So the energy of
        a field is the sum of ``weights() * abs(modes) ** 2`` over all processes. The array
        has the shape with which it broadcasts with the modes.
        """
        axis = self.axes[-1]
        numbers, points = self._numbers(axis), self._transform.points[-1]
        counts = np.ones_like(numbers)
        if self._transform.is_real:
            counts[(numbers > 0) & (2 * numbers < points)] = 2
        return self.spectral.part(self._along(axis, counts))

    def part(self, whole: Unchecked) -> np.ndarray | Array:
        """The part of this process of an array over modes, such as a mask or an operator.

        Arguments:
            whole: An array over all modes. Along an axis that is transformed, it may also
                have the modes that ``modes`` drops. It has the axes of the layout, and any
                of its sizes may be 1.

        """
        shape = list(np.shape(whole))
        if len(shape) == len(self.spectral.shape):
            for change in self._transform.fewer_modes():
                all_modes = mode_count(change.points, is_half=change.is_half)
                if shape[change.axis] == all_modes != 1:
                    whole = change.with_size(whole, change.modes)
        return self.spectral.part(whole)

    def _numbers(self, axis: int) -> np.ndarray:
        """The wavenumbers along an axis."""
        count = self.modes[self.axes.index(axis)]
        is_half = self._transform.is_real and axis == self.axes[-1]
        numbers = np.arange(mode_count(count, is_half=is_half))
        if not is_half:
            numbers = np.where(numbers < (count + 1) // 2, numbers, numbers - count)
        return numbers

    def _along(self, axis: int, values: np.ndarray) -> np.ndarray:
        """Values along an axis, in an array with all axes of the layout."""
        shape = [1] * len(self.spectral.shape)
        shape[axis] = -1
        return values.reshape(shape)


def _mode_counts(modes: PyTree, points: Sequence[Integer]) -> tuple[int, ...]:
    """The number of modes that are kept along each axis."""
    if modes is None:
        return tuple(map(int, points))
    if isinstance(modes, str) and modes == TWO_THIRDS:
        return tuple(2 * ((int(n) - 1) // 3) + 1 for n in points)
    counts = integers(NAME, "modes", modes)
    pairs = zip(counts, points, strict=False)
    if len(counts) != len(points) or not all(0 < m <= n for m, n in pairs):
        raise ValueError(
            f"{NAME} got {list(counts)} for argument `modes`, expected for each of the "
            f"axes a number from 1 to that of its points, {list(points)}"
        )
    return counts
