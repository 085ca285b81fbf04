"""Fourier transforms of divided arrays.

A process transforms axes of which it has all, by JAX's own transforms. Where an axis is
divided, another one is divided instead before, one that is already transformed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.checks import integers, reject
from ..arguments.types import Array
from ..mpi.handles import Communicator
from ..operations._eager import PlanCall, run_named
from .layout import Layout

T = TypeVar("T")

#: How NumPy normalizes a transform and its inverse.
NORMS = ("backward", "ortho", "forward")


class _Move(NamedTuple):
    """A step in which fields are divided along other axes."""

    source: Layout
    result: Layout

    def forward(self, fields: T) -> T:
        return self.source.redistribute(fields, to=self.result)

    def backward(self, fields: T) -> T:
        return self.result.redistribute(fields, to=self.source)


class Transform(NamedTuple):
    """A transform of fields, or a step of it: each process has all of the axes then."""

    #: They are counted from the last one in a step, as fields have more axes in front.
    axes: tuple[int, ...]
    #: The number of points along each, and of modes that are kept.
    points: tuple[int, ...]
    modes: tuple[int, ...]
    #: Whether the points along the last one of the axes are real numbers.
    is_real: bool
    norm: str
    #: Whether the modes come first, and become points.
    is_inverse: bool = False

    def forward(self, fields: T) -> T:
        function = self._to_points if self.is_inverse else self._to_modes
        result: T = jax.tree_util.tree_map(function, fields)
        return result

    def backward(self, fields: T) -> T:
        return self._replace(is_inverse=not self.is_inverse).forward(fields)

    def _to_modes(self, x: Array) -> Array:
        transform = jnp.fft.rfftn if self.is_real else jnp.fft.fftn
        if self.is_real and x.dtype.itemsize < 4:
            x = x.astype(jnp.float32)  # as JAX does for complex modes
        x = transform(x, self.points, self.axes, self.norm)
        for change in self.fewer_modes():
            x = change.with_size(x, change.modes)
        return x

    def _to_points(self, x: Array) -> Array:
        for change in self.fewer_modes():
            x = change.with_size(x, change.points)
        transform = jnp.fft.irfftn if self.is_real else jnp.fft.ifftn
        return transform(x, self.points, self.axes, self.norm)

    def fewer_modes(self) -> Iterator[FewerModes]:
        """The axes along which fewer modes are kept than there are points."""
        for row in zip(self.axes, self.points, self.modes, strict=True):
            axis, points, modes = row
            if modes < points:
                yield FewerModes(*row, is_half=self.is_real and axis == self.axes[-1])


class FewerModes(NamedTuple):
    """Fewer modes than points along an axis: those of the lowest wavenumbers.

    Of an even number, that at the end is zero: its wave has another one, of the opposite
    sign, which is not kept.
    """

    axis: int
    points: int
    modes: int
    #: Whether there are no modes of negative wavenumbers, as of real numbers.
    is_half: bool

    def with_size(self, x: Array, points: int) -> Array:
        """The modes that are kept, with zeros for the other modes of `points` points.

        An array of NumPy's stays one.
        """
        module = np if isinstance(x, np.ndarray) else jnp
        size, axis = x.shape[self.axis], self.axis % x.ndim
        positive = (self.modes + 1) // 2
        negative = 0 if self.is_half else (self.modes - 1) // 2
        zeros = list(x.shape)
        zeros[axis] = mode_count(points, is_half=self.is_half) - positive - negative
        before = (slice(None),) * axis
        parts = [
            x[(*before, slice(positive))],
            module.zeros(zeros, x.dtype),
            x[(*before, slice(size - negative, size))],
        ]
        result: Array = module.concatenate(parts, axis)
        return result


@dataclass(frozen=True)
class _ChainCall(PlanCall):
    """A call of a transform: an eager one is a program of its own, for all plans alike."""

    communicator: Communicator
    steps: tuple[_Move | Transform, ...]
    is_backward: bool

    @property
    def name(self) -> str:
        return "fft_backward" if self.is_backward else "fft_forward"

    def call_in_program(self, leaves: list[Array]) -> list[Array]:
        if self.is_backward:
            for step in reversed(self.steps):
                leaves = step.backward(leaves)
        else:
            for step in self.steps:
                leaves = step.forward(leaves)
        return leaves


def mode_count(points: int, *, is_half: bool) -> int:
    return points // 2 + 1 if is_half else points


class Chain:
    """The steps of a transform, one after the other.

    Arguments:
        layout: How the operand is divided.
        whole: The transform, of axes that are not negative.
        target: The axes of the result that are divided, or None.

    """

    def __init__(
        self, layout: Layout, whole: Transform, target: tuple[int, ...] | None
    ) -> None:
        self.steps: list[_Move | Transform] = []
        #: How the result is divided.
        self.result = layout
        axes = whole.axes
        sizes = zip(whole.points, whole.modes, strict=True)
        self._sizes = dict(zip(axes, sizes, strict=True))
        self._real_axis = axes[-1] if whole.is_real else None
        self._whole, self._target = whole, target
        remaining = list(axes)
        while remaining:
            ready = self._ready(remaining)
            if ready:
                self._transform(ready)
                remaining = [axis for axis in remaining if axis not in ready]
            else:
                self._free(remaining)
        if target is not None:
            self._move(target)

    def forward(self, function: str, leaves: list[Array]) -> list[Array]:
        """The results for fields, for a function of the user's."""
        return self._run(function, leaves, is_backward=False)

    def backward(self, function: str, leaves: list[Array]) -> list[Array]:
        """The fields that have these results, for a function of the user's."""
        return self._run(function, leaves, is_backward=True)

    def _run(self, function: str, leaves: list[Array], *, is_backward: bool) -> list[Array]:
        if not leaves:
            return leaves
        communicator = self.result._communicator_of(function)
        call = _ChainCall(communicator, tuple(self.steps), is_backward)
        results: list[Array] = run_named(function, call, [leaves])
        return results

    # How the steps are found.

    def _ready(self, remaining: Sequence[int]) -> list[int]:
        """The axes that can be transformed now, of those that remain."""
        ready = [axis for axis in remaining if axis not in self.result.axes]
        if self._real_axis not in remaining:
            return ready
        if self._whole.is_inverse:
            # Real numbers come last.
            is_last = len(ready) == len(remaining)
            return ready if is_last else [x for x in ready if x != self._real_axis]
        return ready if self._real_axis in ready else []

    def _transform(self, axes: Sequence[int]) -> None:
        """Add a step that transforms axes."""
        shape, is_real = list(self.result.shape), self._real_axis in axes
        points, modes = zip(*(self._sizes[axis] for axis in axes), strict=True)
        from_end = tuple(axis - len(shape) for axis in axes)
        step = self._whole._replace(axes=from_end, points=points, modes=modes)
        self.steps.append(step._replace(is_real=is_real))
        for axis in axes:
            point_count, modes_of_axis = self._sizes[axis]
            is_half = axis == self._real_axis
            shape[axis] = (
                point_count
                if self._whole.is_inverse
                else mode_count(modes_of_axis, is_half=is_half)
            )
        self.result = self.result.with_shape(shape)

    def _free(self, remaining: Sequence[int]) -> None:
        """Add a step after which one of the axes that remain is not divided."""
        divided = self.result.axes
        candidates = [axis for axis in remaining if axis in divided]
        # The real axis is the first one, or the last one.
        freed = candidates[0] if self._whole.is_inverse else candidates[-1]
        whole = [axis for axis in range(len(self.result.shape)) if axis not in divided]
        if not whole:
            raise ValueError(
                f"mpi4jax.fft got a layout that divides all of its {len(divided)} axes, "
                "expected one that does not divide one of them"
            )
        # Rather one that is not transformed later.
        done = [axis for axis in whole if axis not in remaining]
        n = divided.index(freed)
        processes = self.result.dims[n]

        def balance(axis: int) -> float:
            """The mean number of rows of a process over the largest one: at most 1."""
            size = self.result.shape[axis]
            return size / (-(-size // processes) or 1)

        # Of those, the first one, as the rows of its parts are the longest in memory.
        best = max(done or whole, key=balance)
        if self._target is not None and self._target[n] in (done or whole):
            best = self._target[n]
        self._move([best if axis == freed else axis for axis in divided])

    def _move(self, axes: Sequence[int]) -> None:
        """Add a step after which these axes are divided."""
        result = self.result.with_axes(axes)
        if result != self.result:
            self.steps.append(_Move(self.result, result))
            self.result = result


def chain_of(
    function: str, layout: Layout, whole: Transform, target: tuple[int, ...] | None = None
) -> Chain:
    """The steps of a transform, which are found once: see :class:`Chain`."""
    programs = layout._communicator_of(function).programs
    key = Chain, layout, whole, target
    chain: Chain | None = programs.get(key)
    if chain is None:
        chain = programs[key] = Chain(layout, whole, target)
    return chain


# Arguments.


def axes_of(function: str, layout: Layout, axes: Sequence[int] | None) -> tuple[int, ...]:
    """The axes of an argument, not negative."""
    if not isinstance(layout, Layout):
        reject(function, "layout", "a pencil.Layout", layout)
    ndim = len(layout.shape)
    numbers = integers(function, "axes", range(ndim) if axes is None else axes)
    positions = tuple(axis % ndim for axis in numbers if -ndim <= axis < ndim)
    if not numbers or len(set(positions)) != len(numbers):
        raise ValueError(
            f"{function} got {list(numbers)} for argument `axes`, expected different axes "
            f"of the {ndim} of the layout"
        )
    return positions


def check_norm(function: str, norm: object) -> None:
    if norm not in NORMS:
        raise ValueError(
            f"{function} got {norm!r} for argument `norm`, expected one of {NORMS}"
        )


def check_types(
    function: str,
    fields: Sequence[Array],
    is_expected: Callable[[Array], bool],
    expected: str,
) -> None:
    """Refuse arrays whose types are not the expected ones."""
    for x in fields:
        if not is_expected(x):
            raise TypeError(
                f"{function} got an array of type {x.dtype}, expected {expected}"
            )


def check_real(function: str, fields: Sequence[Array]) -> None:
    """Refuse arrays of complex numbers."""
    check_types(function, fields, lambda x: not jnp.iscomplexobj(x), "real numbers")
