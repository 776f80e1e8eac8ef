"""Sequence parallelism after Ulysses. Not implemented yet: the manifest declares it, so that requests are judged."""
