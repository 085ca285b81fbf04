"""The watchdog: its start, where Python's threads are, why the main program ends."""
