"""Nonblocking operations, and computations between start and wait."""
