"""Unstructured meshes: which rows of a process are whose, and what exchanges them."""
