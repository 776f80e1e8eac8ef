"""Parallel decoding with the Wan VAE. Not implemented yet: the manifest declares it, so that requests are judged."""
