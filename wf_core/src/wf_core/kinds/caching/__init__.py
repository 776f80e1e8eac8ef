"""The cache runtime: what every feature cache shares, so that a plugin is its algorithm and little else.

``decisions`` says whether a call is computed, ``states`` what one branch keeps and how it predicts, ``schedules`` what
is known of a whole run before its first model call, ``distances`` how far tensors are apart, and ``runtime`` stands at
the seam, asks, counts and releases.
"""
