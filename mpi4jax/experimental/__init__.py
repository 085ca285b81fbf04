"""What mpi4jax 0.3 to 0.5 had under this name, and the operations with tokens."""

from .._internal.forms.auto_tokenize import auto_tokenize
from . import notoken as notoken
from . import tokens as tokens

__all__ = ["auto_tokenize"]
