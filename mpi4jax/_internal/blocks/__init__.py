"""Blocks of arrays: copies between them, and their exchange between processes."""
