"""The base of plans and layouts, values that belong to a communicator of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from mpi4jax._override import override

from .handles import Communicator, check_not_freed

if TYPE_CHECKING:
    from typing_extensions import Self


class PlanBase:
    """The base of plans and layouts, which are immutable."""

    _communicator: Communicator
    #: The public name of the class, with its module.
    _public_name: str

    def _communicator_of(self, function: str) -> Communicator:
        """The communicator, for a program that calls `function`. Raise if it was freed."""
        check_not_freed(function, self._communicator)
        return self._communicator

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @override
    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{self._public_name} can't be pickled, as it belongs to a communicator of "
            "this process: pickle its arguments, and make it again from these"
        )
