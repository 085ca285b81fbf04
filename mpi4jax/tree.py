"""The functions under older names, from the time when other ones took no trees."""

from ._default_api import *
from .notoken import __all__ as __all__
