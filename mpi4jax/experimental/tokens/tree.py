"""The operations on trees, in their form with tokens."""

from ..._internal.forms.token import with_tokens as _with_tokens
from ...notoken import tree as _notoken

__all__ = _notoken.__all__

for _name in __all__:
    globals()[_name] = _with_tokens(getattr(_notoken, _name))
