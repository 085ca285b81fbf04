"""The watchdog: where Python's threads are, why a program ends, who meets whom."""
