"""Traces and profiles of calls: writing, reading, matching, reporting."""
