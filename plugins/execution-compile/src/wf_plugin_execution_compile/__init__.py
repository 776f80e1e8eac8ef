"""torch.compile on a session's own blocks: declared in the manifest, nothing is implemented yet."""
