"""Fused kernels and reused text keys and values: declared in the manifest, nothing is implemented yet."""
