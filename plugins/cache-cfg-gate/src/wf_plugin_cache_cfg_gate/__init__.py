"""Reuse of the guidance difference, as a declaration: nothing is implemented yet."""
