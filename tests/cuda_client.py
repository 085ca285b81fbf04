"""Has JAX start its client for CUDA on the stand-in for a driver: a plugin of pytest's.

JAX's private names are used here only.
"""

from jax._src import hardware_utils

# JAX looks for NVIDIA's device files before it starts the client.
hardware_utils.has_visible_nvidia_gpu = lambda: True
