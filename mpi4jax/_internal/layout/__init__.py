"""The layout of arrays in memory: copies of blocks, and many arrays in one message."""
