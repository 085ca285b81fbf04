"""Tags of the messages of plans.

Users' own tags may have any value. Plans use communicators that a user's calls use as well,
so their tags are near the largest one that all MPIs have (MPI-4.1 §9.1.2).
"""

from __future__ import annotations

#: First tag of halos, which have two for each axis.
HALO = 32767 - 64
#: Tags of index lists, of migration and of redistribution.
ROWS, MIGRATION, REDISTRIBUTION = HALO - 1, HALO - 2, HALO - 3
