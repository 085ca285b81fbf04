"""Writes what editors and type checkers see of the functions of the API: the forms that are
made at run time, with tokens and nonblocking, and the overloads for arrays and for trees.

    python tools/stubs.py

needs an environment in which mpi4jax can be imported (Python 3.11 or later).
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mpi4jax import notoken
from mpi4jax._internal.forms.token import add_token, is_operation, signature_with_token
from mpi4jax.experimental import tokens

PACKAGE = Path(__file__).resolve().parent.parent / "mpi4jax"

HEAD = "# Written by `make stubs` (tools/stubs.py) from the functions themselves."

LINE_LENGTH = 92

#: The names in signatures, by the modules that they are imported from: of the standard
#: library, or of `_internal`.
IMPORTS = {
    "collections.abc": ("Callable",),
    "typing": ("TypeVar", "overload"),
    "arguments.types": (
        *("Array", "ArrayLike", "Comm", "Counts", "Integer", "Op"),
        *("RankTree", "Status", "T", "Token"),
    ),
    "nonblocking.requests": ("Request",),
    "operations._arguments": ("ANY_SOURCE", "ANY_TAG"),
}

#: The forms that start an operation.
NONBLOCKING = {f"i{name}" for name in notoken.__all__} & {*notoken.__all__}

#: The defaults of parameters that differ from MPI to MPI, if they are negative.
WILDCARDS = {"source": "ANY_SOURCE", "tag": "ANY_TAG", "recvtag": "ANY_TAG"}


class Name:
    """A value that is shown by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def stub(
    module: ModuleType,
    internal: str,
    signatures: Callable[[str], Iterable[inspect.Signature]],
    documented: Container[str],
) -> str:
    """The text of a stub.

    Arguments:
        module: The module, which lists its functions.
        internal: The package `_internal`, as seen from the stub.
        signatures: Gives the signatures of a function: of its overloads, if it has some.
        documented: The functions whose docstrings an editor does not find in the sources.

    """
    names = module.__all__
    docs = {name: getattr(module, name).__doc__ for name in names if name in documented}
    body = "".join(
        text
        for name in names
        for text in declarations(name, [*signatures(name)], docs.get(name))
    )
    body = f'R = TypeVar("R")\n\n{body}'
    imports = [*imports_for(body, internal), "from . import tree as tree"]
    listed = "".join(f'    "{name}",\n' for name in names)
    return "\n".join([HEAD, *imports, "", f"__all__ = [\n{listed}]\n", body.rstrip(), ""])


def imports_for(body: str, internal: str) -> list[str]:
    """The lines that import what a text uses, as ruff formats them."""
    lines = []
    for module, imported in IMPORTS.items():
        used = [name for name in imported if re.search(rf"\b{name}\b", body)]
        is_ours = module not in sys.stdlib_module_names and module != "collections.abc"
        module = f"{internal}.{module}" if is_ours else module
        line = f"from {module} import {', '.join(used)}"
        if len(line) > LINE_LENGTH:
            names = "".join(f"    {name},\n" for name in used)
            line = f"from {module} import (\n{names})"
        lines += [line] if used else []
        lines += [""] if module == "typing" else []
    return lines


def declarations(
    name: str, signatures: Sequence[inspect.Signature], doc: str | None
) -> Iterator[str]:
    """A function's declaration, or its overloads, of which the first has the docstring."""
    prefix = "@overload\n" if len(signatures) > 1 else ""
    rest = f'\n    """{doc}"""\n\n' if doc else " ...\n"
    for signature in signatures:
        room = LINE_LENGTH - len(rest.partition("\n")[0])
        yield prefix + declaration(name, signature, room) + rest
        rest = " ...\n"


def signatures_of(plain: Callable[..., Any]) -> list[inspect.Signature]:
    """The signatures of a function without tokens: of its overloads, if it has some."""
    signature = inspect.signature(plain)
    if is_operation(plain):
        return overloads_of(plain)
    if plain.__name__ not in NONBLOCKING:
        return [signature]
    requests = [
        of_request(overload, signature)
        for overload in overloads_of(getattr(notoken, plain.__name__[1:]))
        if all(
            name in signature.parameters or parameter.default is not parameter.empty
            for name, parameter in overload.parameters.items()
        )
    ]
    return [*dict.fromkeys(requests)]


def overloads_of(operation: Callable[..., Any]) -> list[inspect.Signature]:
    """The signatures of an operation: an array gives an array, and a tree gives a tree."""
    function = inspect.unwrap(operation)
    signatures = [*map(inspect.signature, typing.get_overloads(function) or [function])]
    return [*dict.fromkeys(narrowed(x, n) for x in signatures for n in (1, 2))]


def narrowed(signature: inspect.Signature, member: int) -> inspect.Signature:
    """A signature with one member of each union of an array (1) and a tree (2)."""

    def narrow(annotation: str) -> str:
        return re.sub(r"\b(Array|ArrayLike) \| (T)\b", rf"\{member}", annotation)

    parameters = signature.parameters.values()
    return signature.replace(
        parameters=[p.replace(annotation=narrow(p.annotation)) for p in parameters],
        return_annotation=narrow(signature.return_annotation),
    )


def of_request(overload: inspect.Signature, form: inspect.Signature) -> inspect.Signature:
    """The overload of a nonblocking form, which may lack some of the parameters."""
    parameters = [p for name, p in overload.parameters.items() if name in form.parameters]
    returned = f"Request[{overload.return_annotation}]"
    return overload.replace(parameters=parameters, return_annotation=returned)


def signatures_with_token(plain: Callable[..., Any]) -> Iterator[inspect.Signature]:
    """The signatures of a form with tokens, from the one without."""
    for signature in signatures_of(plain):
        if is_operation(plain):
            yield signature_with_token(signature)
        else:
            yield add_token(signature, default=None, annotation="None")
            pair = f"tuple[{signature.return_annotation}, Token]"
            signature = signature.replace(return_annotation=pair)
            yield add_token(signature, annotation="Token")


def declaration(name: str, signature: inspect.Signature, room: int) -> str:
    """The head of a function, in one line if there is room, as ruff formats it."""
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        if type(parameter.default) is int and parameter.default < 0:
            parameter = parameter.replace(default=Name(WILDCARDS[parameter.name]))
        parameters.append(str(parameter).replace("'", ""))
    start, end = f"def {name}(", f") -> {signature.return_annotation}:"
    line = ", ".join(parameters)
    if len(f"{start}{line}{end}") <= room:
        return f"{start}{line}{end}"
    if len(line) + 4 <= LINE_LENGTH:
        return f"{start}\n    {line}\n{end}"
    return "\n".join([start, *(f"    {parameter}," for parameter in parameters), end])


def stubs() -> dict[Path, str]:
    """The texts of all stubs."""
    return {
        PACKAGE / "notoken/__init__.pyi": stub(
            notoken,
            ".._internal",
            lambda name: signatures_of(getattr(notoken, name)),
            NONBLOCKING,
        ),
        PACKAGE / "experimental/tokens/__init__.pyi": stub(
            tokens,
            "..._internal",
            lambda name: signatures_with_token(getattr(notoken, name)),
            tokens.__all__,
        ),
    }


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text)
