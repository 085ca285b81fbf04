"""The implementation of mpi4jax. Importing it binds MPI and registers with XLA."""

from __future__ import annotations

from mpi4jax import _core

from .environment import settings, warn_of_unknown_variables
from .forks import at_exit

# mpi4py first: it initialises MPI, and finalises it after our own atexit handler.
from .mpi import binding, context, cores
from .operations import _checking
from .traces import profile, writer
from .watch import ending
from .xla import dispatch, flush, jax_compat

warn_of_unknown_variables()
jax_compat.check_jax_version()
jax_compat.avoid_broken_cache()
binding.load()
cores.set_up()
_core.set_direct(settings.use_cuda_mpi)
_core.set_huge_pages(settings.huge_pages)
_core.set_logging(settings.debug)
_core.set_raise_on_error(settings.raise_on_error)
_core.set_staging_limit(settings.staging_limit)
ending.enable()
if settings.check:
    _checking.check_calls()
elif context.may_be_direct():
    _checking.note_lines()
if settings.fast_dispatch:
    dispatch.enable()
if settings.trace is not None:
    writer.start(settings.trace)
if settings.profile:
    profile.start()


def _end() -> None:
    # Tell the ranks that wait for this process at once.
    has_failed = ending.tell()
    try:
        # No call may be under way when MPI is finalised.
        flush.flush()
    except BaseException:
        has_failed = True
        raise
    finally:
        try:
            if has_failed:
                # The other ranks may be anywhere, and can't take part in a collective call.
                profile.abandon()
            else:
                profile.end()
        finally:
            # All ranks take part here, while the profile is written by rank 0 alone.
            writer.end(is_alone=has_failed)
            _core.free_staging()


at_exit(_end)
