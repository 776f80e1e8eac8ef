"""Numeric settings of a session: declared in the manifest, nothing is implemented yet."""
