"""Caches that probe with some of the blocks, as declarations: nothing is implemented yet."""
