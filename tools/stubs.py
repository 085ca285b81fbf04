"""Writes what editors and type checkers see of the forms with tokens, which are made at run
time: `mpi4jax/experimental/tokens/*.pyi`.

    python tools/stubs.py

wants an environment in which mpi4jax can be imported (Python 3.11 or later).
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mpi4jax import notoken
from mpi4jax._internal.forms.token import signature_with_token
from mpi4jax.experimental import tokens

FOLDER = Path(__file__).resolve().parent.parent / "mpi4jax" / "experimental" / "tokens"

HEAD = "# Written by `make stubs` (tools/stubs.py) from the forms without tokens."

#: What signatures may contain.
IMPORTS = {
    "typing": ("TypeVar", "overload"),
    "..._internal.arguments.types": (
        *("Array", "ArrayLike", "Comm", "Counts", "Integer", "Op", "Status"),
    ),
    "..._internal.forms.token": ("AnyToken",),
    "..._internal.operations._arguments": ("ANY_SOURCE", "ANY_TAG"),
}

#: The defaults of parameters that differ from MPI to MPI, if they are negative.
WILDCARDS = {"source": "ANY_SOURCE", "tag": "ANY_TAG", "recvtag": "ANY_TAG"}


class Name:
    """A value that is shown by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def stub(plain: ModuleType, with_tokens: ModuleType) -> str:
    """The text of a stub for the functions of a module, each with those without tokens."""
    names = with_tokens.__all__
    body = "\n".join(
        text
        for name in names
        for text in declarations(getattr(plain, name), getattr(with_tokens, name))
    )
    if re.search(r"\bT\b", body):
        body = f'T = TypeVar("T")\n\n{body}'
    imports = []
    for module, imported in IMPORTS.items():
        used = [name for name in imported if re.search(rf"\b{name}\b", body)]
        if used:
            imports.append(f"from {module} import {', '.join(used)}")
            imports += [""] if module == "typing" else []
    imports += ["from . import tree as tree"] if hasattr(with_tokens, "tree") else []
    listed = "".join(f'    "{name}",\n' for name in names)
    return "\n".join([HEAD, *imports, "", f"__all__ = [\n{listed}]\n", body])


def declarations(plain: Callable[..., Any], function: Callable[..., Any]) -> Iterator[str]:
    """A function's declaration, or those of its overloads."""
    doc = function.__doc__
    assert doc is not None
    overloads = typing.get_overloads(inspect.unwrap(plain))
    for overload in overloads:
        signature = signature_with_token(inspect.signature(overload))
        yield "@overload\n" + declaration(function.__name__, signature, doc)
    if not overloads:
        yield declaration(function.__name__, inspect.signature(function), doc)


def declaration(name: str, signature: inspect.Signature, doc: str) -> str:
    """A function, one parameter a line."""
    lines = [f"def {name}("]
    was_keyword_only = False
    for parameter in signature.parameters.values():
        is_keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        if is_keyword_only and not was_keyword_only:
            lines.append("    *,")
        was_keyword_only = is_keyword_only
        if type(parameter.default) is int and parameter.default < 0:
            parameter = parameter.replace(default=Name(WILDCARDS[parameter.name]))
        lines.append(f"    {parameter},".replace("'", ""))
    lines.append(f") -> {signature.return_annotation}:")
    return "\n".join([*lines, f'    """{doc}"""', ""])


def stubs() -> dict[Path, str]:
    """The texts of all stubs."""
    return {
        FOLDER / "__init__.pyi": stub(notoken, tokens),
        FOLDER / "tree.pyi": stub(notoken.tree, tokens.tree),
    }


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text)
