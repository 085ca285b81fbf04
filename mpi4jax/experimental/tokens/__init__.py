"""The operations with tokens, as in mpi4jax 0.3 to 0.7.

Each is made from its form without. `__init__.pyi` shows them to editors and type checkers:
`make stubs` writes it.
"""

from ... import notoken as _notoken
from ..._internal.forms import token as _token
from ..._internal.operations.recv import with_linear_token as _recv_with_linear_token
from ..._internal.operations.send import with_linear_token as _send_with_linear_token

__all__ = _notoken.__all__

_LINEAR = {"recv": _recv_with_linear_token, "send": _send_with_linear_token}

for _name in __all__:
    _form = getattr(_notoken, _name)
    globals()[_name] = (
        _token.with_tokens(_form, _LINEAR.get(_name))
        if _token.is_operation(_form)
        else _token.with_optional_token(_form)
    )

# It takes its names from here.
from . import tree as tree  # noqa: E402
