"""JAX and XLA: private names, the order of calls, and the Python lines of calls."""

# Before anything else imports a name that JAX may have lost.
from . import private_names as private_names
