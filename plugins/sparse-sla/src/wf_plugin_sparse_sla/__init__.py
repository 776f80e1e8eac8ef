"""Sparse-linear attention as sparse kernels of wf. Only declared so far: nothing is implemented yet."""
