"""FlashAttention 2, 3 and 4 as attention backends: declared in the manifest, nothing is implemented yet."""
