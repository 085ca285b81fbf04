"""The functions under older names, from the time when other ones took no trees."""

from . import *
from . import __all__ as __all__
