"""The watchdog: its start, the activity of Python's threads, the end of the program."""
