"""Checking numbers of what plugins compute against float64: cases, reference, checks, runs, outcome."""
