"""Distributions for new plugins: what ``wf new-plugin`` writes."""
