"""CUDA graphs around the denoiser's calls: declared in the manifest, nothing is implemented yet."""
