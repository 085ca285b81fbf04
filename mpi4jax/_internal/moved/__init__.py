"""Moved cells: copies between arrays and messages, as one linear function."""
