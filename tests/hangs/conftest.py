"""Programs that hang, each of which is a test."""

pytest_plugins = ["sample"]
