"""`auto_tokenize` and `notoken`, as in mpi4jax 0.3 to 0.5; the operations with tokens."""

from . import notoken as notoken
from . import tokenizer as tokenizer
from . import tokens as tokens
from .tokenizer import auto_tokenize

__all__ = ["auto_tokenize"]
