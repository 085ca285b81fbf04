"""The operations with tokens, as in mpi4jax 0.3 to 0.7.

Each is made from its form without. `__init__.pyi` shows them to editors and type checkers:
`make stubs` writes it.
"""

from ... import notoken as _notoken
from ..._internal.forms.token import with_tokens as _with_tokens
from ..._internal.operations.recv import with_linear_token as _recv_with_linear_token
from ..._internal.operations.send import with_linear_token as _send_with_linear_token
from . import tree as tree

_LINEAR = {"recv": _recv_with_linear_token, "send": _send_with_linear_token}

__all__ = _notoken.__all__

for _name in __all__:
    globals()[_name] = _with_tokens(getattr(_notoken, _name), _LINEAR.get(_name))
