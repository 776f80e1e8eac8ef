"""xformers' attention as a backend: declared in the manifest, nothing is implemented yet."""
