"""A plugin for NVIDIA's GPUs, as JAX looks for one. It has no device: JAX takes the CPU."""


def initialize() -> None:
    pass
