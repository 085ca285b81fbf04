"""The functions at the top level: up to version 0.7 with tokens, from 0.8 on without.

Type checkers see `_default_api.pyi`, which differs between the two.
"""

from ._internal.environment import settings

if settings.has_tokens:
    from .experimental.tokens import *
else:
    from .notoken import *
