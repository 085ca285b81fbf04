"""The operations with tokens, which are at the top level up to version 0.7."""

from .._tokens import *  # noqa: F403
from .._tokens import __all__ as __all__
from .._tokens import tree as tree
