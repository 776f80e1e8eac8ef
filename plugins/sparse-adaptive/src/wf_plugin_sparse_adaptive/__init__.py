"""Adaptive sparse attention as a sparse kernel of wf. Only declared so far: nothing is implemented yet."""
