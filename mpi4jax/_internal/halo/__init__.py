"""Halo exchange: the plan, and the ways in which cells get into messages."""
