"""Files of divided arrays: restarts on any number of processes, and output for xarray."""

from ._internal.files.load import info, latest, load
from ._internal.files.output import Output
from ._internal.files.places import Rows
from ._internal.files.save import Saving, save
from ._manifest import Array, Info

__all__ = [
    "Array",
    "Info",
    "Output",
    "Rows",
    "Saving",
    "info",
    "latest",
    "load",
    "save",
]
