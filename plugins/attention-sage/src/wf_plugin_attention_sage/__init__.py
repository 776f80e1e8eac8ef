"""SageAttention 1, 2 and 3 as attention backends: declared in the manifest, nothing is implemented yet."""
