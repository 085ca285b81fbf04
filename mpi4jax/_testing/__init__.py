"""The table of cases of all operations, which tests, `selftest` and benchmarks share."""
