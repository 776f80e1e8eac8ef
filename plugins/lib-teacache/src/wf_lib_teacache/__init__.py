"""TeaCache (arXiv 2411.19108) for the plugins that decide by it: the rule, its signals, its presets, the technique.

Nothing here is a plugin: ``cache-teacache`` and ``cache-custom`` offer it to the host.
"""
