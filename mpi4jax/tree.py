"""Older names of the functions, from the time when only these took trees."""

from ._default_api import *
from .notoken import __all__ as __all__
