"""`auto_tokenize` and `notoken`, as in mpi4jax 0.3 to 0.5; the operations with tokens."""

from .._internal.forms.auto_tokenize import auto_tokenize
from . import notoken as notoken
from . import tokens as tokens

__all__ = ["auto_tokenize"]
