"""The forms of each operation: with tokens, without, and under names of other packages."""
