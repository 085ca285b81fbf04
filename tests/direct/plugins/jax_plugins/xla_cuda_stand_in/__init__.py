"""What JAX looks for where it may use NVIDIA's GPUs. It has no device, so JAX takes the CPU."""


def initialize() -> None:
    pass
