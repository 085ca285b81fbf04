"""The plan of a Fourier transform: from points to modes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ..arguments.checks import integers
from ..arguments.types import Array
from ..mpi.plans import PlanBase
from ..operations._eager import on_own_devices
from .layout import Layout
from .transforms import axes_of, chain_of, check_norm, check_real, mode_count

T = TypeVar("T")


class Plan(PlanBase):
    """The Fourier transform of divided arrays, and its inverse.

    Arguments:
        layout (mpi4jax.pencil.Layout): How the arrays are divided before the transform.
            They have to have one axis at least that is not divided.
        axes (Sequence[int]): The axes to transform (defaults to all).
        modes (Sequence[int]): For each of these, the number of modes that are kept, those
            of the lowest wavenumbers (defaults to as many as points). The others are zero
            for the inverse.
        real (bool): Whether the arrays are real. If so, the modes of negative wavenumbers
            along the last one of the axes are not computed, as they follow from the others.
        norm (str): The factor of the transform: ``"backward"`` (none, the inverse has it),
            ``"ortho"`` or ``"forward"``, as for NumPy.

    """

    _public_name = "fft.Plan"

    def __init__(
        self,
        layout: Layout,
        *,
        axes: Sequence[int] | None = None,
        modes: Sequence[int] | None = None,
        real: bool = False,
        norm: str = "backward",
    ) -> None:
        name = "fft.Plan"
        self._axes = axes_of(name, layout, axes)
        points = [layout.shape[axis] for axis in self._axes]
        mode_counts = points if modes is None else integers(name, "modes", modes)
        pairs = list(zip(mode_counts, points, strict=False))
        if len(mode_counts) != len(points) or not all(0 < m <= n for m, n in pairs):
            raise ValueError(
                f"{name} got {list(mode_counts)} for argument `modes`, expected for each "
                f"of the axes a number from 1 to that of its points, {points}"
            )
        check_norm(name, norm)
        #: How arrays are divided before the transform.
        self.layout = layout
        self._modes, self._is_real = tuple(mode_counts), bool(real)
        self._communicator = layout._communicator_of(name)
        self._chain = chain_of(
            name,
            layout,
            self._axes,
            tuple(points),
            self._modes,
            is_real=self._is_real,
            is_inverse=False,
            norm=norm,
        )
        #: How arrays are divided after it.
        self.spectral = self._chain.result

    def __repr__(self) -> str:
        kind = "real" if self._is_real else "complex"
        ways = f"from {self.layout} to {self.spectral}"
        return f"<fft.Plan: {kind}, axes {self._axes}, {ways}>"

    @on_own_devices
    def forward(self, fields: T) -> T:
        """The modes of fields.

        Arguments:
            fields: An array, or a tree of arrays, divided as ``layout`` says.

        Returns:
            Their modes, divided as ``spectral`` says.

        """
        function = "fft.Plan.forward"
        leaves, structure = self.layout._leaves_of(function, fields)
        if self._is_real:
            check_real(function, leaves)
        return structure.unflatten(self._chain.forward(function, leaves))

    @on_own_devices
    def backward(self, fields: T) -> T:
        """The fields that have these modes, the inverse of :meth:`forward`."""
        function = "fft.Plan.backward"
        leaves, structure = self.spectral._leaves_of(function, fields)
        return structure.unflatten(self._chain.backward(function, leaves))

    def wavenumbers(self) -> tuple[np.ndarray | Array, ...]:
        """The wavenumbers of the modes of this process, along each of the axes.

        These are numbers of periods. Each array has the shape with which it broadcasts with
        the modes.
        """
        wavenumbers = []
        for axis, count in zip(self._axes, self._modes, strict=True):
            is_half = self._is_real and axis == self._axes[-1]
            numbers = np.arange(mode_count(count, is_half=is_half))
            if not is_half:
                numbers = np.where(numbers < (count + 1) // 2, numbers, numbers - count)
            shape = [1] * len(self.spectral.shape)
            shape[axis] = -1
            part = self.spectral.part_along(axis, numbers)
            wavenumbers.append(part.reshape(shape))
        return tuple(wavenumbers)
