"""Tiled decoding of HunyuanVideo and Cosmos. Not implemented yet: the manifest lets requests be judged."""
