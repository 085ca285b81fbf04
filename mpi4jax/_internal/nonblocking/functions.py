"""The nonblocking form of each operation (MPI-4.1 §3.7, §6.12), made from the blocking one.

The function of the blocking form is called, which checks its arguments. Where it calls the
operation, this is started.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

from ..forms.token import set_signature
from ..operations._eager import Starting
from .requests import Request, start_call


def nonblocking(function: Callable[..., Any]) -> Callable[..., Request[Any]]:
    """Make the nonblocking form of an operation."""
    blocking: Any = inspect.unwrap(function)
    name = f"i{blocking.__name__}"
    signature = _signature(blocking)

    @functools.wraps(blocking)
    def start(*args: Any, **kwargs: Any) -> Request[Any]:
        for parameter in kwargs:
            if parameter not in signature.parameters:
                text = f"{name}() got an unexpected keyword argument '{parameter}'"
                raise TypeError(text)
        try:
            with Starting(start_call):
                request = blocking(*args, **kwargs)
        except (TypeError, ValueError) as error:
            # Name the function that the user has called, with a capital if there is one.
            text, *others = error.args or ("",)
            if re.match(rf"{blocking.__name__}[ :]", str(text), re.IGNORECASE):
                called = name if text[0].islower() else name.capitalize()
                error.args = (called + text[len(blocking.__name__) :], *others)
            raise
        assert isinstance(request, Request), f"the core can't start {blocking.__name__}"
        return request

    del start.__wrapped__  # it has another signature
    start.__name__ = start.__qualname__ = name
    start.__module__ = "mpi4jax.notoken"
    start.__doc__ = _describe(blocking, signature)
    set_signature(start, signature)
    return start


def _signature(blocking: Any) -> inspect.Signature:
    signature = inspect.signature(blocking)
    parameters = dict(signature.parameters)
    # MPI fills a status when it completes a receive, which is another call.
    parameters.pop("status", None)
    result = signature.return_annotation
    # With a capacity, counts have to be exchanged before rows are.
    if parameters.pop("capacity", None):
        del parameters["fill_value"]
        result = result.partition(" | tuple[")[0]
    return signature.replace(
        parameters=list(parameters.values()), return_annotation=f"Request[{result}]"
    )


def _describe(blocking: Any, signature: inspect.Signature) -> str:
    """The docstring of a nonblocking form, from that of the blocking one."""
    head, _, rest = blocking.__doc__.partition("\n    Arguments:\n")
    arguments, _, result = rest.partition("\n    Returns:\n")
    entries = re.split(r"^ {8}(?=\w)", arguments.rstrip() + "\n", flags=re.M)[1:]
    documented = [x for x in entries if re.split(r"\W", x)[0] in signature.parameters]
    returned = "A request, to be passed to :func:`wait` once."
    if not result:
        returned += " The result is None."
    return (
        f"Start :func:`{blocking.__name__}`, which :func:`wait` completes.\n\n"
        f"    {head.strip()}\n\n"
        f"    Arguments:\n{''.join(' ' * 8 + x for x in documented)}\n"
        f"    Returns:\n        {returned}\n\n    "
    )
